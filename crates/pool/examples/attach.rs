//! The cost of opening a pool that is open already. `attach POOL serve [MEDIUM]` keeps it open, and makes it if there is none; beside that
//! `attach POOL guest|full [TIMES]` prints medians of the time and the page faults.

use std::time::Instant;

use conquest::{Caller, FormatOptions, MediumKind, OpenOptions, Pool};
use conquest_fs::path::View;

fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(7)?.parse().ok()).unwrap_or(0)
}

fn serve(dir: &str, medium: &str) -> Result<(), Box<dyn std::error::Error>> {
    if !Pool::exists(dir) {
        let medium = if medium == "battery" { MediumKind::Battery } else { MediumKind::Logged };
        let how = FormatOptions::on(medium, 256 << 20);
        let backing = (medium == MediumKind::Battery).then(|| ".".into());
        Pool::format(dir, &FormatOptions { backing, ..how })?;
    }
    let _pool = Pool::open(dir, &OpenOptions::default())?;
    println!("open");
    // Until the input ends.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "attach POOL serve [MEDIUM] | guest [TIMES] | full [TIMES]";
    let (dir, what) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    if what == "serve" {
        return serve(&dir, &args.next().unwrap_or("logged".into()));
    }
    let guest = what == "guest";
    let times: usize = args.next().map_or(Ok(1), |times| times.parse())?;
    let how = OpenOptions { guest, ..OpenOptions::default() };
    let mut taken = Vec::new();
    for _ in 0..times {
        let (before, start) = (faults(), Instant::now());
        let pool = Pool::open(&dir, &how)?;
        let opened = (start.elapsed(), faults() - before);
        View::new(&pool, Caller::root()).stat("/")?;
        let used = start.elapsed();
        drop(pool);
        taken.push((opened, used, start.elapsed()));
    }
    taken.sort_unstable();
    let ((opened, faults), used, closed) = taken[times / 2];
    println!(
        "open {:.0} us, {faults} faults; with a stat {:.0} us; with closing it {:.0} us",
        opened.as_secs_f64() * 1e6,
        used.as_secs_f64() * 1e6,
        closed.as_secs_f64() * 1e6
    );
    Ok(())
}

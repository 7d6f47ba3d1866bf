//! What it takes to open a pool that is open already: `attach POOL [guest|full] [TIMES]`. Prints medians of the time and the page faults.

use std::time::Instant;

use conquest::{Caller, OpenOptions, Pool};
use conquest_fs::path::View;

fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(7)?.parse().ok()).unwrap_or(0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("attach POOL [guest|full] [TIMES]")?;
    let guest = args.next().is_none_or(|how| how == "guest");
    let times: usize = args.next().map_or(Ok(1), |times| times.parse())?;
    let how = OpenOptions { guest, ..OpenOptions::default() };
    let mut taken = Vec::new();
    for _ in 0..times {
        let (start, before) = (Instant::now(), faults());
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

//! Another client of regions. It makes a mirror of two files, writes and reads through it, and prints the events and
//! measurements of E×RAID, with a snapshot every second. After a while one disk slows down to a tenth: the region
//! reports a stutter, reads go to the other disk, and then the region reports the recovery. In the end the disk is
//! lost.
//!
//! ```sh
//! cargo run --release -p conquest-exraid --features fault --example watch -- /var/tmp/disk
//! ```
//!
//! Two files, `/var/tmp/disk-0` and `/var/tmp/disk-1`, are made anew, and removed in the end.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exraid::events::What;
use exraid::fault::{FaultDisk, Faults};
use exraid::meter::Flow;
use exraid::{region, Aligned, Buffers, Device, Disk, Layout, Making, Region, Request, Uuid};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 256 * MIB;
const RATE: u64 = 100 * MIB;
/// Requests under way at a time.
const DEPTH: u64 = 4;
/// The time of learning before a verdict is possible.
const LEARNS: Duration = Duration::from_secs(14);
const SLOW: Duration = Duration::from_secs(10);
const WELL: Duration = Duration::from_secs(8);

/// Keeps the region busy: two of three requests write.
fn work(region: &dyn Region, ended: &AtomicBool) {
    let memory = Aligned::zeroed(MIB as usize);
    let mut n = 0;
    while !ended.load(Ordering::Relaxed) {
        let at = |n: u64| n % (SIZE / MIB - 4) * MIB;
        let request = |n: u64| match n % 3 {
            0 => Request::read(at(n), Buffers::whole(&Aligned::zeroed(MIB as usize))),
            _ => Request::write(at(n), Buffers::whole(&memory)),
        };
        let under_way: Vec<_> = (n..n + DEPTH).map(|n| region.start(request(n))).collect();
        for ticket in under_way {
            if let Err(e) = ticket.wait().result {
                println!("           a request failed: {e}");
            }
        }
        n += DEPTH;
    }
}

fn summary(flow: &Flow) -> String {
    let (lately, usually) = (flow.speed / 1e6, flow.usual_speed / 1e6);
    format!("{lately:4.0} MB/s ({usually:.0} usually), {:.1?}, {} under way", flow.median, flow.queue)
}

fn snapshot(region: &dyn Region) {
    let lost = region.tolerated().map_or("content is lost".into(), |more| format!("can lose {more}"));
    println!("           region {} ({}): {lost}", region.number(), region.layout());
    for member in region.members() {
        let name = member.name.as_deref().unwrap_or("missing").to_owned();
        let exraid::Performance { read, write, errors, stutter, .. } = member.performance;
        let failed: u64 = errors.iter().sum();
        println!(
            "             {name}: {:?}; read {}; write {}; {failed} failed",
            member.state,
            summary(&read),
            summary(&write)
        );
        if let Some(stutter) = stutter {
            println!("             {name} STUTTERS: {stutter}");
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(path) = std::env::args().nth(1) else { return Err("usage: watch FILE".into()) };
    let paths = [0, 1].map(|n| PathBuf::from(format!("{path}-{n}")));
    let disk = |path: &PathBuf| -> Result<Arc<FaultDisk>, Box<dyn Error>> {
        let disk = Disk::make(path, &Making { size: Some(SIZE), force: true, ..Making::default() })?;
        disk.reserve(0..SIZE)?;
        // With a limited speed, which can be reduced.
        Ok(FaultDisk::over(Arc::new(disk), 1, Faults { rate: Some(RATE), ..Faults::default() }))
    };
    let disks = paths.iter().map(disk).collect::<Result<Vec<_>, _>>()?;
    let devices = disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect();
    let region = region::make(Uuid::random()?, 0, Layout::Mirror, devices)?;
    let (events, ended, start) = (region.events(), AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| work(&*region, &ended));
        let mut plan = vec![
            (LEARNS + SLOW + WELL + SLOW / 4, "it is lost"),
            (LEARNS + SLOW, "it is well again"),
            (LEARNS, "the second disk delivers a tenth of what it did"),
        ];
        let mut shown = start;
        while start.elapsed() < LEARNS + SLOW + WELL + SLOW / 2 {
            for event in events.recv_timeout(Duration::from_millis(100)).into_iter().chain(events.try_iter()) {
                let at = start.elapsed().as_secs_f64();
                match event.what {
                    What::Stutters { member, stutter } => {
                        println!("{at:6.1} s  disk {} stutters: {stutter}", member + 1)
                    }
                    What::Recovers { member } => println!("{at:6.1} s  disk {} is as fast as it was", member + 1),
                    What::Out { member, tolerated, why } => {
                        println!("{at:6.1} s  disk {} is out, {tolerated:?} more can be lost: {why}", member + 1);
                    }
                    other => println!("{at:6.1} s  {other:?}"),
                }
            }
            let is_due = plan.last().is_some_and(|(when, _)| start.elapsed() > *when);
            if let Some((_, what)) = is_due.then(|| plan.pop()).flatten() {
                println!("{:6.1} s  *** {what}", start.elapsed().as_secs_f64());
                match plan.len() {
                    2 => disks[1].set(|faults| faults.rate = Some(RATE / 10)),
                    1 => disks[1].set(|faults| faults.rate = Some(RATE)),
                    _ => disks[1].set(|faults| faults.gone = true),
                }
            }
            if shown.elapsed() > Duration::from_secs(2) {
                shown = Instant::now();
                snapshot(&*region);
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    drop((region, disks));
    paths.iter().try_for_each(std::fs::remove_file)?;
    Ok(())
}

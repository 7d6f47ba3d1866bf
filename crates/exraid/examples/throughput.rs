//! The speed of a disk through this crate: sequential writes and reads of 1 MiB, random reads of 4 KiB, 32 at a time.
//!
//! ```sh
//! cargo run --release -p conquest-exraid --example throughput -- /var/tmp/disk 2048
//! cargo run --release -p conquest-exraid --example throughput -- --raid5 4 /dev/shm/disk 512
//! ```
//!
//! The second form makes a RAID-5 of four files: whole stripes, a part of one, and reads, alternating with the same on
//! a stripe over the same files, which has no parity.
//!
//! The second argument is the size in MiB. If fio is installed it does the same to the same file alternately, and the
//! ratio of medians is printed. The file is made anew, and removed in the end.

use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::Instant;

use exraid::{Aligned, Answer, Buffers, Device, Disk, Layout, Making, Request, Ticket, Uuid};

const MIB: u64 = 1 << 20;
const DEPTH: usize = 32;
const ROUNDS: usize = 5;
/// Random reads per round.
const READS: u64 = 100_000;

/// A measured load.
#[derive(Clone, Copy)]
enum Load {
    Write,
    Read,
    Random,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Load::Write => "write",
            Load::Read => "read",
            Load::Random => "randread",
        }
    }

    fn len(self) -> u64 {
        if matches!(self, Load::Random) {
            4096
        } else {
            MIB
        }
    }

    /// Requests at a time.
    fn depth(self) -> usize {
        if matches!(self, Load::Random) {
            DEPTH
        } else {
            8
        }
    }

    fn count(self, size: u64) -> u64 {
        if matches!(self, Load::Random) {
            READS
        } else {
            size / MIB
        }
    }

    fn request(self, n: u64, size: u64, memory: Buffers) -> Request {
        match self {
            Load::Write => Request::write(n * MIB, memory),
            Load::Read => Request::read(n * MIB, memory),
            // A number that looks random, without a random generator in the measured time.
            Load::Random => Request::read(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (size / 4096) * 4096, memory),
        }
    }
}

/// One of the concurrent requests: its answer submits the next one.
struct Lane {
    disk: Arc<dyn Device>,
    load: Load,
    size: u64,
    ended: Sender<exraid::Result<()>>,
}

fn go_on(lane: Arc<Lane>, n: u64, memory: Buffers) {
    if n >= lane.load.count(lane.size) {
        let _ = lane.ended.send(Ok(()));
        return;
    }
    let (next, request) = (lane.clone(), lane.load.request(n, lane.size, memory));
    let done = move |Answer { result, buffers }: Answer| match (result, buffers) {
        (Ok(()), Some(memory)) => {
            let step = next.load.depth() as u64;
            go_on(next, n + step, memory);
        }
        (result, _) => drop(next.ended.send(result)),
    };
    lane.disk.submit(request, Box::new(done));
}

/// Bytes per second.
fn ours(disk: &Arc<dyn Device>, load: Load, size: u64) -> Result<f64, Box<dyn Error>> {
    let (ended, all): (_, Receiver<exraid::Result<()>>) = channel();
    let lane = Arc::new(Lane { disk: disk.clone(), load, size, ended });
    let start = Instant::now();
    for n in 0..load.depth() as u64 {
        go_on(lane.clone(), n, Buffers::whole(&Aligned::zeroed(load.len() as usize)));
    }
    drop(lane);
    all.iter().collect::<exraid::Result<()>>()?;
    if matches!(load, Load::Write) {
        disk.flush()?;
    }
    Ok((load.count(size) * load.len()) as f64 / start.elapsed().as_secs_f64())
}

/// The same by fio; none if it is not installed.
fn fio(path: &Path, load: Load, size: u64) -> Option<f64> {
    let mut fio = Command::new("fio");
    fio.arg("--name=x").arg(format!("--filename={}", path.display())).arg(format!("--rw={}", load.name()));
    fio.arg(format!("--bs={}", load.len())).arg(format!("--iodepth={}", load.depth()));
    fio.arg(format!("--size={size}")).arg(format!("--io_size={}", load.count(size) * load.len()));
    fio.args([
        "--ioengine=io_uring",
        "--direct=1",
        "--end_fsync=1",
        "--overwrite=1",
        "--norandommap",
        "--output-format=terse",
    ]);
    let report = String::from_utf8(fio.output().ok()?.stdout).ok()?;
    // Terse output, version 3: milliseconds and KiB of reads are fields 9 and 6, of writes 50 and 47.
    let fields: Vec<&str> = report.lines().find(|line| line.starts_with("3;"))?.split(';').collect();
    let first = if matches!(load, Load::Write) { 46 } else { 5 };
    let (kib, millis): (f64, f64) = (fields.get(first)?.parse().ok()?, fields.get(first + 3)?.parse().ok()?);
    (millis > 0.0).then(|| kib * 1024.0 / (millis / 1000.0))
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Bytes of a chunk: four members' stripe is 192 KiB.
const CHUNK: u32 = 65536;

/// Measures a RAID-5 over files, and alternately a stripe over the same, for their raw speed.
fn raid5(count: usize, path: &str, size: u64) -> Result<(), Box<dyn Error>> {
    let paths: Vec<String> = (0..count).map(|n| format!("{path}-{n}")).collect();
    let region = |layout| -> Result<Arc<dyn Device>, Box<dyn Error>> {
        let making = || Making { size: Some(size), force: true, ..Making::default() };
        let disk = |path: &String| Disk::make(Path::new(path), &making()).map(|disk| Arc::new(disk) as Arc<dyn Device>);
        let disks = paths.iter().map(disk).collect::<Result<Vec<_>, _>>()?;
        disks.iter().try_for_each(|disk| disk.reserve(0..size))?;
        Ok(exraid::region::make(Uuid::random()?, 1, layout, disks)?)
    };
    let (mut rates, layouts) = (Vec::new(), [Layout::Stripe { chunk: CHUNK }, Layout::Raid5 { chunk: CHUNK }]);
    for layout in layouts {
        let region = region(layout)?;
        let width = count as u64 - u64::from(layout != layouts[0]);
        let stripe = width * u64::from(CHUNK);
        let len = (4 * MIB).div_ceil(stripe) * stripe;
        let round = |op: &dyn Fn(u64) -> Request, count: u64| -> Result<f64, Box<dyn Error>> {
            let start = Instant::now();
            let mut under_way: VecDeque<Ticket> = VecDeque::new();
            for n in 0..count {
                if under_way.len() == 4 {
                    under_way.pop_front().map_or(Ok(()), |ticket| ticket.wait().result)?;
                }
                under_way.push_back(region.start(op(n)));
            }
            under_way.into_iter().try_for_each(|ticket| ticket.wait().result)?;
            Ok(start.elapsed().as_secs_f64())
        };
        let (count, memory) = (region.properties().size / len, Aligned::zeroed(len as usize));
        let write = |n| Request::write(n * len, Buffers::whole(&memory));
        let read = |n| Request::read(n * len, Buffers::whole(&Aligned::zeroed(len as usize)));
        let part = |n: u64| Request::write(n * 7 * 4096, Buffers::part(&memory, 0..4096));
        round(&write, count)?;
        let rate = |bytes: u64, op: &dyn Fn(u64) -> Request, count| -> Result<f64, Box<dyn Error>> {
            let rounds = (0..ROUNDS).map(|_| round(op, count)).collect::<Result<Vec<_>, _>>()?;
            Ok((count * bytes) as f64 / median(rounds) / 1e6)
        };
        rates.push((rate(len, &write, count)?, rate(len, &read, count)?, rate(4096, &part, 2000)?));
        region.flush()?;
    }
    paths.iter().try_for_each(std::fs::remove_file)?;
    let share = (count as f64 - 1.0) / count as f64;
    for (name, raw, ours) in [("write", rates[0].0, rates[1].0), ("read", rates[0].1, rates[1].1)] {
        println!("{name:>8}: {ours:7.0} MB/s, striped {raw:7.0} MB/s: {:.2} of {share:.2} of it", ours / raw / share);
    }
    println!("{:>8}: {:7.0} MB/s, striped {:7.0} MB/s", "4 KiB", rates[1].2, rates[0].2);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if(|arg| arg == "--raid5").is_some() {
        let (Some(count), Some(path), mib) = (args.next(), args.next(), args.next()) else {
            return Err("usage: throughput --raid5 MEMBERS FILE [MIB]".into());
        };
        return raid5(count.parse()?, &path, mib.map_or(Ok(512), |mib| mib.parse::<u64>())? * MIB);
    }
    let (Some(path), mib) = (args.next(), args.next()) else { return Err("usage: throughput FILE [MIB]".into()) };
    let size = mib.map_or(Ok(1024), |mib| mib.parse::<u64>())? * MIB;
    let path = Path::new(&path);
    let disk = Disk::make(path, &Making { size: Some(size), force: true, ..Making::default() })?;
    println!("{}: io_uring {}, past the page cache {}", disk.name(), disk.has_ring(), disk.properties().direct);
    let disk: Arc<dyn Device> = Arc::new(disk);
    disk.reserve(0..size)?;
    ours(&disk, Load::Write, size)?;
    for load in [Load::Write, Load::Read, Load::Random] {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            here.push(ours(&disk, load, size)?);
            there.extend(fio(path, load, size));
        }
        let (here, name) = (median(here) / 1e6, load.name());
        match there.is_empty() {
            true => println!("{name:>8}: {here:7.0} MB/s"),
            false => {
                let there = median(there) / 1e6;
                println!("{name:>8}: {here:7.0} MB/s, fio {there:7.0} MB/s: {:.2} of it", here / there);
            }
        }
    }
    drop(disk);
    std::fs::remove_file(path)?;
    Ok(())
}

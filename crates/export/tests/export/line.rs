//! Any bytes at any place, over regions of all kinds; against a model.

use std::sync::Arc;
use std::time::Duration;

use export::{BlockDevice, Linear};
use exraid::fault::{FaultDisk, Faults, RamDisk};
use exraid::{
    Aligned, Answer, Buffers, Class, Device, Done, Error, Layout, Op, Pending, Properties, Region, Request, Ticket,
    Uuid,
};
use rng::Rng;

pub const POOL: Uuid = Uuid([9; 16]);
pub const CHUNK: u32 = 4096;
const MIB: u64 = 1 << 20;

pub fn kinds() -> [(Layout, usize); 4] {
    [
        (Layout::Single, 1),
        (Layout::Stripe { chunk: CHUNK }, 3),
        (Layout::Mirror, 2),
        (Layout::Raid5 { chunk: CHUNK }, 3),
    ]
}

pub fn write(line: &Linear, at: u64, bytes: &[u8]) -> exraid::Result<()> {
    line.write(at, Buffers::whole(&Aligned::of(bytes)))
}

pub fn read(line: &Linear, at: u64, len: usize) -> exraid::Result<Vec<u8>> {
    line.read(at, Buffers::whole(&Aligned::zeroed(len))).map(|found| found.to_vec())
}

fn region(number: u32, layout: Layout, disks: Vec<Arc<dyn Device>>) -> Arc<dyn Region> {
    exraid::region::make(POOL, number, layout, disks).expect("a region")
}

fn rams(number: u32, count: usize, size: u64) -> Vec<Arc<dyn Device>> {
    (0..count).map(|n| RamDisk::new(&format!("ram-{number}-{n}"), size) as Arc<dyn Device>).collect()
}

/// One region of each kind after the other.
fn all_kinds() -> Linear {
    let regions = kinds().into_iter().enumerate().map(|(number, (layout, count))| {
        let number = number as u32;
        region(number, layout, rams(number, count, 18 * MIB))
    });
    Linear::new("line", regions.collect(), true).expect("a line")
}

#[test]
fn bytes_lie_where_they_were_written() {
    let line = all_kinds();
    let size = line.size();
    let places = line.places();
    assert_eq!(places.len(), 4);
    assert!(places.windows(2).all(|two| two[0].0.end == two[1].0.start));
    let mut model = vec![0; size as usize];
    let mut rng = Rng::new(1);
    let borders: Vec<u64> = places.iter().map(|(range, _)| range.end).collect();
    for step in 0..3000 {
        let len = match rng.below(4) {
            0 => rng.within(1, 100),
            1 => rng.within(1, 16) * 512,
            2 => rng.within(1, 300_000),
            _ => rng.within(1, 64) * 4096,
        };
        // Often across a boundary of regions, and at any byte.
        let near = borders[rng.below(4) as usize].saturating_sub(rng.below(2 * len));
        let at = if rng.below(3) == 0 { near } else { rng.below(size) };
        let at = if rng.below(2) == 0 { at / 512 * 512 } else { at };
        let len = len.min(size - at);
        let range = at as usize..(at + len) as usize;
        match rng.below(8) {
            0 => {
                line.discard(at..at + len).expect("a discard");
                model[range].fill(0);
            }
            1 => {
                line.zero(at..at + len).expect("zeros");
                model[range].fill(0);
            }
            2..=4 => {
                let bytes = rng.bytes(len as usize);
                write(&line, at, &bytes).expect("a write");
                model[range].copy_from_slice(&bytes);
            }
            _ => assert!(read(&line, at, len as usize).expect("a read") == model[range], "step {step}: {len} at {at}"),
        }
    }
    line.flush().expect("a flush");
    assert!(read(&line, 0, size as usize).expect("a read") == model);
}

#[test]
fn beyond_the_end_there_is_nothing() {
    let line = all_kinds();
    let size = line.size();
    assert!(write(&line, size - 1, &[1, 2]).is_err());
    assert!(read(&line, size, 1).is_err());
    assert!(write(&line, u64::MAX, &[1]).is_err());
    assert!(line.discard(size - 1..size + 1).is_err());
    write(&line, size - 1, &[1]).expect("the last byte");
    write(&line, 7, &[]).expect("nothing");
}

/// Each of many threads writes bytes of its own to the same blocks, which are read before they are written.
#[test]
fn neighbours_in_a_block_do_not_undo_each_other() {
    for (number, (layout, count)) in kinds().into_iter().enumerate() {
        let slow = |disk: Arc<dyn Device>| {
            let faults = Faults { delay: Duration::from_micros(200), ..Faults::default() };
            FaultDisk::over(disk, 1, faults) as Arc<dyn Device>
        };
        let disks = rams(0, count, 18 * MIB).into_iter().map(slow).collect();
        let line = Linear::new("line", vec![region(0, layout, disks)], true).expect("a line");
        const EACH: usize = 64;
        std::thread::scope(|scope| {
            for thread in 0..8usize {
                let line = &line;
                scope.spawn(move || {
                    for round in 0..20u8 {
                        let mine = [thread as u8 * 20 + round + 1; EACH];
                        write(line, (thread * EACH) as u64, &mine).expect("a write");
                        assert_eq!(read(line, (thread * EACH) as u64, EACH).expect("a read"), mine, "{number}");
                    }
                });
            }
        });
    }
}

/// A disk that answers each discard with an error, and does nothing.
struct Keeps(Arc<dyn Device>);

impl Device for Keeps {
    fn name(&self) -> &Arc<str> {
        self.0.name()
    }

    fn properties(&self) -> Properties {
        self.0.properties()
    }

    fn submit(&self, request: Request, done: Done) {
        if matches!(request.op, Op::Discard(_)) {
            let e = Error::new(Class::Media, self.name(), "it keeps what it has");
            return done(Answer { result: Err(e), buffers: None });
        }
        self.0.submit(request, done);
    }

    fn pending(&self) -> Vec<Pending> {
        self.0.pending()
    }
}

/// A region counts a discard as done that one member has failed: a read must not return that member's old content.
#[test]
fn what_was_discarded_reads_as_zeros_whoever_fails_it() {
    for (layout, count) in kinds() {
        for keeps in 0..count {
            let mut disks = rams(0, count, 18 * MIB);
            disks[keeps] = Arc::new(Keeps(disks[keeps].clone()));
            let region = region(0, layout, disks);
            let line = Linear::new("line", vec![region.clone()], true).expect("a line");
            let bytes = Rng::new(2).bytes(256 << 10);
            write(&line, 0, &bytes).expect("a write");
            line.discard(100..200_000).expect("a discard");
            for copy in 0..region.copies() {
                let (done, ticket) = Ticket::new();
                let into = Buffers::whole(&Aligned::zeroed(bytes.len()));
                region.read_copy(copy, Request::read(0, into), done);
                let found = ticket.wait().buffers.expect("a copy").to_vec();
                assert!(found[..100] == bytes[..100] && found[200_000..] == bytes[200_000..], "{layout}");
                assert!(found[100..200_000].iter().all(|byte| *byte == 0), "{layout}, {keeps} keeps, copy {copy}");
            }
        }
    }
}

#[test]
fn a_line_that_takes_no_discards_says_so() {
    let line = Linear::new("line", vec![region(0, Layout::Single, rams(0, 1, 18 * MIB))], false).expect("a line");
    assert!(!line.discards() && line.discard(0..4096).is_err());
    let twice = vec![region(0, Layout::Single, rams(0, 1, 18 * MIB)), region(0, Layout::Single, rams(1, 1, 18 * MIB))];
    assert!(Linear::new("line", twice, true).is_err_and(|e| e.to_string().contains("number 0")));
}

/// The thread that answers for a disk must not wait for the exclusion of another, which waits for disks.
#[test]
fn a_disk_that_is_lost_under_load_keeps_nobody_waiting() {
    for (layout, count) in [(Layout::Mirror, 2), (Layout::Raid5 { chunk: CHUNK }, 3)] {
        for round in 0..5 {
            let slow = |disk: &Arc<dyn Device>| {
                FaultDisk::over(disk.clone(), 1, Faults { delay: Duration::from_millis(1), ..Faults::default() })
            };
            let faulty: Vec<Arc<FaultDisk>> = rams(0, count, 18 * MIB).iter().map(slow).collect();
            let disks = faulty.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect();
            let line = Arc::new(Linear::new("line", vec![region(0, layout, disks)], true).expect("a line"));
            let (send, ended) = std::sync::mpsc::channel();
            for thread in 0..8u64 {
                let (line, send) = (line.clone(), send.clone());
                std::thread::spawn(move || {
                    let done = (0..40).try_for_each(|n| write(&line, thread * 40_000 + n * 700, &[n as u8 + 1; 700]));
                    let _ = send.send(done);
                });
            }
            std::thread::sleep(Duration::from_millis(10 + round * 7));
            faulty[1].set(|faults| faults.gone = true);
            for _ in 0..8 {
                ended.recv_timeout(Duration::from_secs(60)).expect("it ends").expect("a write");
            }
            for thread in 0..8u64 {
                let found = read(&line, thread * 40_000, 40 * 700).expect("a read");
                assert!(found.chunks(700).enumerate().all(|(n, bytes)| bytes == [n as u8 + 1; 700]), "{layout}");
            }
        }
    }
}

/// A disk that fails the test if a request to it has a time limit.
struct Patient(Arc<RamDisk>);

impl Device for Patient {
    fn name(&self) -> &Arc<str> {
        self.0.name()
    }

    fn properties(&self) -> Properties {
        self.0.properties()
    }

    fn submit(&self, request: Request, done: Done) {
        assert_eq!(request.within, None, "{}", request.op);
        self.0.submit(request, done);
    }

    fn pending(&self) -> Vec<Pending> {
        self.0.pending()
    }
}

/// A failed flush makes the file system above read-only for good. That happened once its only disk had been silent for
/// half a minute.
#[test]
fn whatever_time_a_disk_takes_that_cannot_be_done_without_it_is_waited_for() {
    for (layout, count) in [(Layout::Single, 1), (Layout::Stripe { chunk: CHUNK }, 2)] {
        let disks =
            (0..count).map(|n| Arc::new(Patient(RamDisk::new(&format!("patient-{n}"), 18 * MIB))) as Arc<dyn Device>);
        let line = Linear::new("line", vec![region(0, layout, disks.collect())], true).expect("a line");
        write(&line, 4096, &[1; 9000]).expect("it is written");
        line.flush().expect("it is durable");
        line.discard(0..4096).expect("it is discarded");
        assert_eq!(read(&line, 4096, 9000).expect("it is read"), [1; 9000]);
        line.close().expect("it is closed");
    }
}

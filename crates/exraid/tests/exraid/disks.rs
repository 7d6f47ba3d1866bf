//! Files of the host as disks.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exraid::{Aligned, Buffers, Class, Device, Disk, Making, Op, Options, Request};
use rng::Rng;
use rustix::fs::{flock, FlockOperation};

const MIB: u64 = 1 << 20;

/// All ways of using a disk here.
fn ways() -> Vec<Options> {
    let way = |cached, threads| Options { cached, threads, ..Options::default() };
    vec![way(false, false), way(true, false), way(false, true), way(true, true)]
}

fn make(path: &Path, size: u64, options: &Options) -> Arc<Disk> {
    let making = Making { size: Some(size), force: true, options: options.clone() };
    Arc::new(Disk::make(path, &making).expect("a disk"))
}

/// Runs `test` on a new disk for each way.
fn on_each(size: u64, test: impl Fn(&Arc<Disk>)) {
    let dir = tempfile::tempdir_in(".").expect("a directory");
    for (n, options) in ways().iter().enumerate() {
        test(&make(&dir.path().join(n.to_string()), size, options));
    }
}

#[test]
fn the_ways_differ_where_the_host_allows_it() {
    let dir = tempfile::tempdir_in(".").expect("a directory");
    let threads = Options { threads: true, cached: true, ..Options::default() };
    let disk = make(&dir.path().join("slow"), 16 * MIB, &threads);
    assert!(!disk.has_ring() && !disk.properties().direct);
    let disk = make(&dir.path().join("tmpfs"), 16 * MIB, &Options::default());
    // Direct or not, the disk reports it.
    let properties = disk.properties();
    assert!(properties.block.is_power_of_two() && properties.memory.is_power_of_two());
    assert!(properties.sparse && properties.discards && !properties.read_only);
    assert_eq!(properties.size, 16 * MIB);
}

/// A range that has storage can be reserved even then.
#[test]
fn a_file_leaves_its_host_a_reserve() {
    let dir = tempfile::tempdir_in(".").expect("a directory");
    for (n, way) in ways().into_iter().enumerate() {
        let path = dir.path().join(n.to_string());
        let disk = make(&path, 64 * MIB, &way);
        disk.reserve(4 * MIB..8 * MIB).expect("room");
        disk.write_at(&vec![7; MIB as usize], 4 * MIB).expect("a write");
        disk.flush().expect("a flush");
        disk.share();
        let greedy = Disk::open(&path, &Options { reserve: Some(u64::MAX / 2), ..way.clone() }).expect("opened");
        assert_eq!(greedy.room().expect("an answer").expect("of a file").free, 0);
        assert_eq!(greedy.reserve(32 * MIB..33 * MIB).map_err(|e| e.class), Err(Class::NoSpace));
        assert_eq!(greedy.reserve(4 * MIB..6 * MIB).map_err(|e| e.class), Err(Class::NoSpace), "a part is not there");
        greedy.reserve(4 * MIB..5 * MIB).expect("it is there");
        let modest = Disk::open(&path, &Options { reserve: Some(0), ..way }).expect("opened");
        modest.reserve(32 * MIB..33 * MIB).expect("room");
    }
}

#[test]
fn where_there_is_no_way_past_the_cache_the_cache_is_used() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let disk = make(&dir.path().join("disk"), 16 * MIB, &Options::default());
    assert!(!disk.properties().direct);
    disk.write_at(&[5; 4096], MIB).expect("a write");
    disk.flush().expect("a flush");
    let mut found = [0; 4096];
    disk.read_at(&mut found, MIB).expect("a read");
    assert_eq!(found, [5; 4096]);
}

/// And no longer: then the file system under it can be unmounted, though the kernel takes a ring down later.
#[test]
fn what_is_held_stays_open_as_long_as_the_disk_is_used() {
    let dir = tempfile::tempdir_in(".").expect("a directory");
    for (n, way) in ways().into_iter().enumerate() {
        let path = dir.path().join(format!("lock {n}"));
        let open = || File::options().create(true).truncate(false).write(true).open(&path).expect("a file");
        let take = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
        let lock = open();
        assert!(take(&lock));
        let options = Options { held: vec![Arc::new(lock.into())], ..way };
        let disk = make(&dir.path().join(n.to_string()), 16 * MIB, &options);
        drop(options);
        disk.write_at(&[5; 4096], MIB).expect("a write");
        assert!(!take(&open()), "way {n}");
        drop(disk);
        // A program that another test starts has it too until it runs.
        let since = Instant::now();
        while !take(&open()) {
            assert!(since.elapsed() < Duration::from_secs(60), "way {n}: somebody has it still");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Random requests, many at a time, against a copy in memory. Overlapping ones are not under way together.
#[test]
fn what_is_written_is_read() {
    on_each(32 * MIB, |disk| {
        let mut rng = Rng::new(11);
        let size = disk.properties().size;
        let block = u64::from(disk.properties().block).max(512);
        let mut model = vec![0u8; size as usize];
        for _ in 0..20 {
            // A stretch for each of 16 requests, so that none overlap.
            let stretch = size / 16;
            let mut tickets = Vec::new();
            for n in 0..16 {
                let len = rng.within(1, 400) * block;
                let at = n * stretch + rng.below((stretch - len) / block + 1) * block;
                match rng.below(10) {
                    0 => {
                        tickets.push((disk.start(Op::Discard(at..at + len).into()), None));
                        tickets.pop().expect("just put").0.wait().result.expect("a discard");
                        let mut found = vec![0; len as usize];
                        disk.read_at(&mut found, at).expect("a read");
                        model[at as usize..][..len as usize].copy_from_slice(&found);
                    }
                    1..5 => {
                        let memory = Aligned::zeroed(len as usize);
                        let ticket = disk.start(Request::read(at, Buffers::whole(&memory)));
                        tickets.push((ticket, Some((memory, at))));
                    }
                    _ => {
                        let bytes = rng.bytes(len as usize);
                        model[at as usize..][..len as usize].copy_from_slice(&bytes);
                        tickets.push((disk.start(Request::write(at, scattered(&bytes, block, &mut rng))), None));
                    }
                }
            }
            for (ticket, read) in tickets {
                ticket.wait().result.expect("a transfer");
                if let Some((mut memory, at)) = read {
                    let found = Arc::get_mut(&mut memory).expect("given back").bytes_mut();
                    assert!(found == &model[at as usize..][..found.len()], "at {at}");
                }
            }
        }
        disk.flush().expect("a flush");
        let mut all = vec![0; size as usize];
        disk.read_at(&mut all, 0).expect("a read");
        assert!(all == model);
        assert!(disk.pending().is_empty());
    });
}

/// The bytes, block by block, in random order in memory.
fn scattered(bytes: &[u8], block: u64, rng: &mut Rng) -> Buffers {
    let block = block as usize;
    let count = bytes.len() / block;
    let mut order: Vec<usize> = (0..count).collect();
    rng.shuffle(&mut order);
    let mut memory = Aligned::zeroed(count * block);
    let there = Arc::get_mut(&mut memory).expect("new").bytes_mut();
    for (n, place) in order.iter().enumerate() {
        there[place * block..][..block].copy_from_slice(&bytes[n * block..][..block]);
    }
    let mut buffers = Buffers::new();
    order.iter().for_each(|place| buffers.push(&memory, place * block..(place + 1) * block));
    buffers
}

/// More parts than the host takes in one call.
#[test]
fn a_segment_of_many_blocks_is_one_request() {
    on_each(32 * MIB, |disk| {
        let mut rng = Rng::new(3);
        let bytes = rng.bytes(8 * MIB as usize);
        let from = scattered(&bytes, 4096, &mut rng);
        assert!(from.layout().count() > 1024, "{from:?}");
        disk.run(Request::write(3 * MIB, from)).result.expect("a write");
        let mut found = vec![0; bytes.len()];
        disk.read_at(&mut found, 3 * MIB).expect("a read");
        assert!(found == bytes);
    });
}

#[test]
fn any_alignment_can_be_read() {
    on_each(16 * MIB, |disk| {
        let bytes = Rng::new(9).bytes(64 << 10);
        disk.write_at(&bytes, MIB).expect("a write");
        for (at, len) in [(0, 1), (511, 2), (4095, 4098), (1, 60000), (512, 512), (100, 0)] {
            let mut found = vec![0; len];
            disk.read_at(&mut found, MIB + at as u64).expect("a read");
            assert_eq!(found, bytes[at..at + len], "{len} bytes at {at}");
        }
    });
}

/// Thousands at once, from several threads, each answered once; some answers submit more.
#[test]
fn many_requests_at_a_time_are_all_answered() {
    on_each(32 * MIB, |disk| {
        let (send, answered) = channel();
        let more = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (send, disk, more) = (send.clone(), disk.clone(), more.clone());
                scope.spawn(move || {
                    for n in 0..500u64 {
                        let memory = Aligned::zeroed(4096);
                        let at = (thread * 500 + n) * 4096;
                        let (send, disk2, more) = (send.clone(), disk.clone(), more.clone());
                        let done = move |answer: exraid::Answer| {
                            answer.result.expect("a read");
                            if n % 10 == 0 {
                                more.fetch_add(1, Ordering::Relaxed);
                                disk2.submit(Request::flush(), Box::new(move |_| send.send(()).expect("heard")));
                            } else {
                                send.send(()).expect("heard");
                            }
                        };
                        disk.submit(Request::read(at, Buffers::whole(&memory)), Box::new(done));
                    }
                });
            }
        });
        for _ in 0..2000 {
            answered.recv_timeout(Duration::from_secs(60)).expect("an answer");
        }
        assert_eq!(more.load(Ordering::Relaxed), 200);
        assert!(answered.try_recv().is_err(), "each once");
    });
}

#[test]
fn room_is_reserved_and_given_back() {
    on_each(64 * MIB, |disk| {
        let before = disk.room().expect("an answer").expect("a file").backed;
        assert!(before < 8 * MIB, "it is sparse: {before}");
        disk.reserve(8 * MIB..24 * MIB).expect("room");
        let reserved = disk.room().expect("an answer").expect("a file").backed;
        assert!(reserved >= before + 16 * MIB, "{before} to {reserved}");
        disk.write_at(&[1; 4096], 8 * MIB).expect("a write");
        disk.reserve(8 * MIB..24 * MIB).expect("again");
        let mut found = [0; 4096];
        disk.read_at(&mut found, 8 * MIB).expect("a read");
        assert_eq!(found, [1; 4096], "what is there stays");
        disk.discard(8 * MIB..24 * MIB).expect("a discard");
        disk.flush().expect("a flush");
        let given = disk.room().expect("an answer").expect("a file").backed;
        assert!(given < before + MIB, "{reserved} to {given}");
    });
}

/// A full host makes the reservation fail, and not a later write. Needs root: a host of its own.
#[test]
fn a_full_host_refuses_a_reservation() {
    let dir = tempfile::tempdir_in(".").expect("a directory");
    let run = |program: &str, args: &[&str]| {
        Command::new(program).args(args).arg(dir.path()).output().is_ok_and(|made| made.status.success())
    };
    if !run("mount", &["-t", "tmpfs", "-o", "size=24m", "none"]) {
        return eprintln!("nothing can be mounted here");
    }
    let results = std::panic::catch_unwind(|| {
        ways()
            .iter()
            .map(|options| {
                let disk = make(&dir.path().join("disk"), 256 * MIB, options);
                assert!(disk.room().expect("an answer").expect("a file").free < 24 * MIB);
                disk.reserve(8 * MIB..16 * MIB).expect("room for some");
                disk.reserve(16 * MIB..64 * MIB).map_err(|e| e.class)
            })
            .collect::<Vec<_>>()
    });
    assert!(run("umount", &[]));
    assert_eq!(results.expect("an answer"), vec![Err(Class::NoSpace); 4]);
}

#[test]
fn a_file_that_was_cut_short_gives_an_error() {
    on_each(32 * MIB, |disk| {
        let file = std::fs::OpenOptions::new().write(true).open(disk.path()).expect("it is there");
        file.set_len(16 * MIB).expect("cut");
        let e = disk.read_at(&mut [0; 4096], 20 * MIB).expect_err("nothing is there");
        assert_eq!(e.class, Class::Media, "{e}");
        let mut across = vec![0; 8192];
        let e = disk.read_at(&mut across, 16 * MIB - 4096).expect_err("half of it is there");
        assert_eq!(e.class, Class::Media, "{e}");
    });
}

/// After the answer the memory belongs to the caller again, and it stays mapped if the caller drops it.
#[test]
fn memory_is_held_as_long_as_it_is_needed() {
    on_each(16 * MIB, |disk| {
        let memory = Aligned::zeroed(MIB as usize);
        let tickets: Vec<_> = (0..8u64).map(|n| disk.start(Request::write(n * MIB, Buffers::whole(&memory)))).collect();
        let held = Arc::downgrade(&memory);
        drop(memory);
        for ticket in tickets {
            let answer = ticket.wait();
            answer.result.expect("a write");
            assert_eq!(answer.buffers.expect("given back").len(), MIB);
        }
        assert!(held.upgrade().is_none(), "nobody has it any more");
    });
}

/// Requests without a waiting caller still end before the disk is closed; then it can be made anew.
#[test]
fn a_disk_that_is_closed_has_done_what_it_was_asked() {
    let dir = tempfile::tempdir_in(".").expect("a directory");
    for (n, options) in ways().iter().enumerate() {
        let path = dir.path().join(n.to_string());
        let disk = make(&path, 32 * MIB, options);
        for n in 0..24u64 {
            let bytes = vec![n as u8 + 1; MIB as usize];
            disk.submit(Request::write(n * MIB, Buffers::whole(&Aligned::of(&bytes))), Box::new(drop));
        }
        drop(disk);
        let disk = Disk::open(&path, options).unwrap_or_else(|e| panic!("{options:?}: {e}"));
        let mut found = vec![0; MIB as usize];
        for n in 0..24u64 {
            disk.read_at(&mut found, n * MIB).expect("a read");
            assert!(found.iter().all(|byte| *byte == n as u8 + 1), "{options:?}: {n}");
        }
    }
}

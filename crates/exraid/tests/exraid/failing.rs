//! The failing disks themselves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use exraid::fault::{Fault, FaultDisk, Faults, RamDisk};
use exraid::{Aligned, Buffers, Class, Device, Request};

const MIB: u64 = 1 << 20;

fn over(seed: u64, faults: Faults) -> (Arc<RamDisk>, Arc<FaultDisk>) {
    let disk = RamDisk::new("disk", 16 * MIB);
    (disk.clone(), FaultDisk::over(disk, seed, faults))
}

fn write(n: u8) -> Buffers {
    Buffers::whole(&Aligned::of(&[n; 4096]))
}

/// The same seed, the same requests: the same faults.
#[test]
fn a_seed_gives_the_same_faults() {
    let run = |seed| {
        let faults =
            Faults { error: 5, torn: 7, misdirected: 9, lost: 11, flipped: 6, lost_flush: 2, ..Faults::default() };
        let (disk, faulty) = over(seed, faults);
        for n in 0..200u64 {
            let _ = faulty.run(Request::write(n * 4096, write(n as u8 + 1))).result;
            let _ = faulty.run(Request::read(n * 4096, write(0))).result;
            let _ = faulty.flush();
        }
        (faulty.injected(), disk.content())
    };
    let (one, content) = run(5);
    assert_eq!((&one, &content), (&run(5).0, &run(5).1));
    assert_ne!(one, run(6).0);
    for fault in [Fault::Torn, Fault::Misdirected, Fault::Lost, Fault::Flipped, Fault::LostFlush] {
        assert!(one.iter().any(|injected| injected.fault == fault), "{fault:?} never came");
    }
}

#[test]
fn each_fault_does_what_it_says() {
    let (disk, faulty) = over(1, Faults { torn: 1, ..Faults::default() });
    let e = faulty.run(Request::write(0, write(7))).result.expect_err("torn");
    let there = disk.content().bytes(0..4096).iter().filter(|byte| **byte == 7).count();
    assert!(e.class == Class::Media && there % 512 == 0 && there > 0 && there < 4096, "{there}");

    let (disk, faulty) = over(1, Faults { misdirected: 1, ..Faults::default() });
    faulty.run(Request::write(0, write(7))).result.expect("as if it were well");
    let at = faulty.injected()[0].range.start;
    assert!(at > 0 && disk.content().bytes(at..at + 4096) == [7; 4096] && disk.content().bytes(0..1) == [0]);

    let (disk, faulty) = over(1, Faults { flipped: 1, ..Faults::default() });
    let memory = Aligned::zeroed(4096);
    faulty.run(Request::read(0, Buffers::whole(&memory))).result.expect("as if it were well");
    let ones: u32 = Buffers::whole(&memory).to_vec().iter().map(|byte| byte.count_ones()).sum();
    assert!(ones == 1 && disk.content() == RamDisk::new("new", 16 * MIB).content());

    let (disk, faulty) = over(1, Faults { lost: 1, ..Faults::default() });
    faulty.run(Request::write(0, write(7))).result.expect("as if it were well");
    assert_eq!(disk.content().bytes(0..1), [0]);

    let (_, faulty) = over(1, Faults { gone: true, ..Faults::default() });
    assert_eq!(faulty.flush().expect_err("gone").class, Class::Gone);
}

/// A hanging request is answered in time, still counts as under way, and keeps its memory until it ends.
#[test]
fn what_hangs_is_answered_and_goes_on() {
    let (disk, faulty) = over(1, Faults { hang: 1, ..Faults::default() });
    let memory = Aligned::of(&[9; 4096]);
    let request = Request::write(4096, Buffers::whole(&memory)).tagged(42).within(Duration::from_millis(30));
    let start = Instant::now();
    let answer = faulty.run(request);
    let took = start.elapsed();
    assert_eq!(answer.result.expect_err("no answer").class, Class::Timeout);
    assert!(took >= Duration::from_millis(30) && took < Duration::from_secs(5), "{took:?}");
    assert!(answer.buffers.is_none(), "the device has it");
    let pending = faulty.pending();
    assert_eq!((pending.len(), pending[0].tag, pending[0].answered), (1, 42, true));
    assert_eq!(pending[0].range, 4096..8192);
    let held = Arc::downgrade(&memory);
    drop(memory);
    assert!(held.upgrade().is_some());
    faulty.release();
    assert!(faulty.pending().is_empty() && held.upgrade().is_none());
    assert_eq!(disk.content().bytes(4096..4097), [9], "it happened after all");
}

#[test]
fn a_flush_after_one_that_failed_fails_too() {
    let (_, faulty) = over(1, Faults { error: 1, ..Faults::default() });
    faulty.flush().expect_err("as planned");
    faulty.set(|faults| faults.error = 0);
    let e = faulty.flush().expect_err("what was lost stays lost");
    assert!(e.to_string().contains("one before it failed"), "{e}");
}

#[test]
fn a_slow_disk_is_as_slow_as_it_says() {
    let (_, faulty) = over(1, Faults { rate: Some(20 * MIB), ..Faults::default() });
    let start = Instant::now();
    let tickets: Vec<_> = (0..4u64)
        .map(|n| faulty.start(Request::write(n * MIB, Buffers::whole(&Aligned::zeroed(MIB as usize)))))
        .collect();
    tickets.into_iter().for_each(|ticket| ticket.wait().result.expect("a write"));
    let took = start.elapsed().as_secs_f64();
    assert!((0.19..1.0).contains(&took), "4 MiB at 20 MiB/s took {took}");
}

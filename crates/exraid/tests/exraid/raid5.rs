//! RAID-5 regions after the loss of a disk, after a power cut, and after both.
//!
//! Each sector records its write and its place, so that any other content is recognised.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exraid::events::{Event, What};
use exraid::fault::{Content, Cut, FaultDisk, Faults, RamDisk};
use exraid::label::{MemberState, END};
use exraid::region::{make, open};
use exraid::{Aligned, Buffers, Class, Device, Layout, Op, Region, Request, Ticket, Uuid};
use rng::Rng;

use crate::regions::{devices, disks};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
const POOL: Uuid = Uuid([3; 16]);
const SECTOR: u64 = 512;

/// The content of write `write` for these bytes of the region.
fn content(write: u32, range: &Range<u64>) -> Vec<u8> {
    let sectors = range.start / SECTOR..range.end / SECTOR;
    sectors.flat_map(|sector| (u64::from(write) << 32 | sector).to_le_bytes().repeat(64)).collect()
}

fn write(region: &dyn Region, number: u32, range: Range<u64>) -> exraid::Result<()> {
    region.write_at(&content(number, &range), range.start)
}

/// The number of each sector's write; `None`: of none, or torn.
fn read(region: &dyn Region, range: Range<u64>) -> exraid::Result<Vec<Option<u32>>> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    region.read_at(&mut bytes, range.start)?;
    Ok(writes_of(&bytes, range.start))
}

fn writes_of(bytes: &[u8], at: u64) -> Vec<Option<u32>> {
    let of = |(n, sector): (usize, &[u8])| {
        let write = u32::from_le_bytes([sector[4], sector[5], sector[6], sector[7]]);
        let at = at + n as u64 * SECTOR;
        (sector == content(write, &(at..at + SECTOR))).then_some(write)
    };
    bytes.chunks(SECTOR as usize).enumerate().map(of).collect()
}

fn copies(disks: &[Arc<RamDisk>]) -> Vec<Arc<RamDisk>> {
    disks.iter().map(|disk| RamDisk::with(disk.name(), disk.content())).collect()
}

/// The region without a disk, on copies: the disks stay as they are.
fn without(disks: &[Arc<RamDisk>], lost: usize) -> Arc<dyn Region> {
    let mut left = copies(disks);
    left.remove(lost);
    open(devices(&left)).expect("it can do without one")
}

/// A region over disks that fail on demand.
struct Faulty {
    ram: Vec<Arc<RamDisk>>,
    disks: Vec<Arc<FaultDisk>>,
    region: Arc<dyn Region>,
    events: Receiver<Event>,
}

impl Faulty {
    fn new(count: usize, chunk: u32, seed: u64) -> Faulty {
        let ram = disks(count);
        drop(make(POOL, 1, Layout::Raid5 { chunk }, devices(&ram)).expect("a region"));
        let over = |ram: &Arc<RamDisk>| FaultDisk::over(ram.clone(), seed, Faults::default());
        let disks: Vec<_> = ram.iter().map(over).collect();
        let region = open(disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect()).expect("a region");
        let events = region.events();
        Faulty { ram, disks, region, events }
    }

    fn states(&self) -> Vec<MemberState> {
        self.region.members().iter().map(|member| member.state).collect()
    }
}

/// The fate of writes of content, which lies behind the log.
enum Way {
    Pass,
    /// Their host has no storage left.
    Refuse,
    /// They are delayed until they may pass again.
    Hold,
}

struct Gate {
    inner: Arc<RamDisk>,
    state: Mutex<(Way, Vec<(Request, exraid::Done)>)>,
}

impl Gate {
    /// For a region with chunks of 64 KiB.
    fn over(inner: &Arc<RamDisk>) -> Arc<Gate> {
        Arc::new(Gate { inner: inner.clone(), state: Mutex::new((Way::Pass, Vec::new())) })
    }

    fn set(&self, way: Way) {
        let held = {
            let mut state = self.state.lock().expect("no panic");
            state.0 = way;
            std::mem::take(&mut state.1)
        };
        held.into_iter().for_each(|(request, done)| self.inner.submit(request, done));
    }
}

impl Device for Gate {
    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn properties(&self) -> exraid::Properties {
        self.inner.properties()
    }

    fn submit(&self, request: Request, done: exraid::Done) {
        let mut state = self.state.lock().expect("no panic");
        let is_content = matches!(request.op, Op::Write { at, .. } if (END + 4 * MIB..SIZE - END).contains(&at));
        match state.0 {
            Way::Refuse if is_content => {
                drop(state);
                let e = exraid::Error::new(Class::NoSpace, self.name(), "no room");
                done(exraid::Answer { result: Err(e), buffers: request.op.into_buffers() });
            }
            Way::Hold if is_content => state.1.push((request, done)),
            _ => {
                drop(state);
                self.inner.submit(request, done);
            }
        }
    }

    fn pending(&self) -> Vec<exraid::Pending> {
        self.inner.pending()
    }
}

/// Random writes and reads, against a copy in memory; then with each disk lost in turn.
#[test]
fn any_one_disk_can_be_lost() {
    for (count, chunk, seed) in [(3, 4096, 1), (4, 65536, 2), (5, 16384, 3), (8, 4096, 4)] {
        let all = disks(count);
        let mut rng = Rng::new(seed);
        // Content that was never written may be anything, and so may its parity.
        for disk in &all {
            disk.overwrite(0, &rng.bytes(SIZE as usize));
            disk.overwrite(0, &[0; 4096]);
            disk.overwrite(SIZE - END, &[0; 4096]);
        }
        let region = make(POOL, 1, Layout::Raid5 { chunk }, devices(&all)).expect("a region");
        assert_eq!((region.stripe(), region.copies()), (u64::from(chunk) * (count as u64 - 1), 2));
        let used = region.properties().size.min(4 * MIB);
        let mut model = vec![None; (used / SECTOR) as usize];
        for number in 1..400 {
            let most = [8, 200, 2000][rng.below(3) as usize];
            let len = rng.within(1, most) * SECTOR;
            let at = rng.below((used - len) / SECTOR + 1) * SECTOR;
            let sectors = (at / SECTOR) as usize..((at + len) / SECTOR) as usize;
            if rng.below(3) > 0 {
                write(&*region, number, at..at + len).expect("a write");
                model[sectors].fill(Some(number));
            } else {
                let found = read(&*region, at..at + len).expect("a read");
                let same = found.iter().zip(&model[sectors]).all(|(found, model)| model.is_none() || found == model);
                assert!(same, "{count} disks, chunks of {chunk}, at {at}");
            }
        }
        for lost in 0..count {
            let region = without(&all, lost);
            let found = read(&*region, 0..used).expect("a read");
            let same = found.iter().zip(&model).all(|(found, model)| model.is_none() || found == model);
            assert!(same, "{count} disks, chunks of {chunk}, without {lost}");
        }
    }
}

/// A disk is lost, writes go on, it is put back; then each other one is lost.
#[test]
fn what_was_written_without_a_disk_is_on_it_in_the_end() {
    for (count, chunk) in [(3, 4096u32), (4, 16384)] {
        for lost in 0..count {
            let it = Faulty::new(count, chunk, 1);
            let mut rng = Rng::new(lost as u64);
            let used = 2 * MIB / it.region.stripe() * it.region.stripe();
            let mut model = vec![Some(1); (used / SECTOR) as usize];
            write(&*it.region, 1, 0..used).expect("a write");
            let mut any = |from: u32| {
                for number in from..from + 60 {
                    let len = rng.within(1, 300) * SECTOR;
                    let at = rng.below((used - len) / SECTOR + 1) * SECTOR;
                    write(&*it.region, number, at..at + len).expect("a write");
                    model[(at / SECTOR) as usize..((at + len) / SECTOR) as usize].fill(Some(number));
                    assert_eq!(
                        read(&*it.region, at..at + len).expect("a read"),
                        vec![Some(number); (len / SECTOR) as usize]
                    );
                }
                assert_eq!(read(&*it.region, 0..used).expect("a read"), model);
                model.clone()
            };
            any(10);
            it.disks[lost].set(|faults| faults.gone = true);
            any(100);
            assert_eq!((it.states()[lost], it.region.tolerated()), (MemberState::Out, Some(0)));
            it.disks[lost].set(|faults| faults.gone = false);
            let mut pieces = 0;
            let live = &mut || std::iter::once(0..used).collect();
            let done = it.region.rebuild(lost, None, live, &mut |left| {
                pieces += 1;
                assert!(left > 0 && left <= used);
                true
            });
            assert!(done.expect("it is rebuilt") && pieces > 0);
            assert_eq!((it.states()[lost], it.region.tolerated()), (MemberState::Whole, Some(1)));
            let model = any(200);
            for other in 0..count {
                let found = read(&*without(&it.ram, other), 0..used).expect("a read");
                assert_eq!(found, model, "{lost} was rebuilt, {other} is lost");
            }
        }
    }
}

/// A write in a sector's history: its number, and the instants at which it began and was durable.
#[derive(Clone, Copy)]
struct Written {
    number: u32,
    begun: u64,
    durable: u64,
    whole: bool,
}

/// The writes that a sector may hold at an instant; `None`: anything.
fn allowed(history: &[Written], instant: u64) -> Option<Vec<u32>> {
    let last = history.iter().rposition(|write| write.durable <= instant)?;
    let later = history[last + 1..].iter().filter(|write| write.begun < instant);
    // A write of the whole stripe has no other content there to harm.
    if later.clone().any(|write| write.whole) {
        return None;
    }
    Some(history[last..=last].iter().chain(later).map(|write| write.number).collect())
}

/// Writes parts of stripes and whole ones; the power is cut at every instant, and any disk is lost with it, or
/// afterwards. Acknowledged content is there, and content that was not being written is unchanged.
#[test]
fn a_power_cut_together_with_a_lost_disk_harms_nothing() {
    const CHUNK: u64 = 65536;
    let count = 4;
    let stripe = CHUNK * (count as u64 - 1);
    let used = 2 * stripe;
    let all = disks(count);
    let region = make(POOL, 1, Layout::Raid5 { chunk: CHUNK as u32 }, devices(&all)).expect("a region");
    write(&*region, 1, 0..used).expect("a write");
    region.flush().expect("a flush");
    all.iter().for_each(|disk| disk.record());
    let begun = RamDisk::now();
    let mut history = vec![vec![Written { number: 1, begun: 0, durable: 0, whole: false }]; (used / SECTOR) as usize];
    let ranges = [
        0..4096,                            // one block
        2048..10240,                        // across it
        CHUNK - 2048..CHUNK + 1024,         // two chunks
        512..3 * CHUNK - 512,               // nearly all
        stripe - 1024..stripe + 8192,       // two stripes
        stripe..2 * stripe,                 // a whole one, over a part
        stripe + CHUNK..stripe + 2 * CHUNK, // a chunk of it
        2 * CHUNK..stripe + 512,
    ];
    for (n, range) in ranges.into_iter().enumerate() {
        let (number, begun) = (n as u32 + 2, RamDisk::now());
        write(&*region, number, range.clone()).expect("a write");
        let whole = range.start % stripe == 0 && range.end % stripe == 0;
        if whole {
            region.flush().expect("a flush");
        }
        let durable = RamDisk::now();
        for sector in range.start / SECTOR..range.end / SECTOR {
            history[sector as usize].push(Written { number, begun, durable, whole });
        }
    }
    let end = RamDisk::now();
    drop(region);
    let mut cuts: BTreeMap<Vec<usize>, u64> = BTreeMap::new();
    for instant in begun..=end {
        cuts.insert(all.iter().map(|disk| disk.at(instant)).collect(), instant);
    }
    assert!(cuts.len() > 80, "{}", cuts.len());
    let (mut old, mut new) = (0, 0);
    let mut check = |region: &dyn Region, instant: u64, what: &str| {
        let found = read(region, 0..used).expect("a read");
        for (sector, (found, history)) in found.iter().zip(&history).enumerate() {
            let Some(allowed) = allowed(history, instant) else { continue };
            let is_allowed = found.is_some_and(|found| allowed.contains(&found));
            assert!(
                is_allowed,
                "{what}, cut at {instant} of {begun}..{end}, sector {sector}: {found:?}, not {allowed:?}"
            );
            if allowed.len() > 1 {
                *(if *found == allowed.first().copied() { &mut old } else { &mut new }) += 1;
            }
        }
    };
    for (events, instant) in cuts {
        for seed in 0..2 {
            let left = |(n, disk): (usize, &Arc<RamDisk>)| {
                RamDisk::with(disk.name(), disk.after(Cut { event: events[n], seed: seed * 10 + n as u64 }))
            };
            let left: Vec<Arc<RamDisk>> = all.iter().enumerate().map(left).collect();
            for lost in 0..count {
                let region = without(&left, lost);
                check(&*region, instant, &format!("{lost} lost with it"));
            }
            let region = open(devices(&left)).expect("a region");
            check(&*region, instant, "none lost");
            drop(region);
            for lost in 0..count {
                check(&*without(&left, lost), instant, &format!("{lost} lost afterwards"));
            }
        }
    }
    assert!(old > 1000 && new > 1000, "{old}, {new}");
}

/// The power is cut again during the replay, with another disk lost then.
#[test]
fn finishing_what_was_cut_short_can_be_cut_short() {
    const CHUNK: u64 = 65536;
    let stripe = 2 * CHUNK;
    let all = disks(3);
    let region = make(POOL, 1, Layout::Raid5 { chunk: CHUNK as u32 }, devices(&all)).expect("a region");
    write(&*region, 1, 0..stripe).expect("a write");
    region.flush().expect("a flush");
    all.iter().for_each(|disk| disk.record());
    write(&*region, 2, 4096..12288).expect("a write");
    drop(region);
    let end: Vec<usize> = all.iter().map(|disk| disk.tape().len()).collect();
    for seed in 0..20 {
        let left = |(n, disk): (usize, &Arc<RamDisk>)| {
            RamDisk::with(disk.name(), disk.after(Cut { event: end[n], seed: seed * 3 + n as u64 }))
        };
        let once: Vec<Arc<RamDisk>> = all.iter().enumerate().map(left).collect();
        once.iter().for_each(|disk| disk.record());
        let begun = RamDisk::now();
        drop(open(devices(&once)).expect("a region"));
        for instant in begun..=RamDisk::now() {
            let left = |(n, disk): (usize, &Arc<RamDisk>)| {
                let cut = Cut { event: disk.at(instant), seed: seed * 7 + n as u64 };
                RamDisk::with(disk.name(), disk.after(cut))
            };
            let twice: Vec<Arc<RamDisk>> = once.iter().enumerate().map(left).collect();
            for lost in 0..3 {
                let found = read(&*without(&twice, lost), 0..stripe).expect("a read");
                let expected = |sector: u64| if (8..24).contains(&sector) { Some(2) } else { Some(1) };
                assert!(found.iter().enumerate().all(|(n, found)| *found == expected(n as u64)), "{seed}, {lost} lost");
            }
        }
    }
}

/// Writes more parts than the log has slots, one over the other, then whole stripes over them: no logged write is done
/// again over a later one, even with any disk lost.
#[test]
fn what_is_retired_is_not_done_again() {
    let (all, chunk) = (disks(3), 131072u64);
    let region = make(POOL, 1, Layout::Raid5 { chunk: chunk as u32 }, devices(&all)).expect("a region");
    let stripe = 2 * chunk;
    let mut rng = Rng::new(1);
    let mut model = vec![Some(1); (8 * stripe / SECTOR) as usize];
    write(&*region, 1, 0..8 * stripe).expect("a write");
    for number in 2..300 {
        let len = if rng.below(8) == 0 { stripe } else { rng.within(1, 20) * SECTOR };
        let at = if len == stripe { rng.below(8) * stripe } else { rng.below((8 * stripe - len) / SECTOR) * SECTOR };
        write(&*region, number, at..at + len).expect("a write");
        model[(at / SECTOR) as usize..((at + len) / SECTOR) as usize].fill(Some(number));
        if number % 10 == 0 {
            for lost in 0..3 {
                assert_eq!(read(&*without(&all, lost), 0..8 * stripe).expect("a read"), model, "{number}, {lost} lost");
            }
        }
    }
}

/// Many threads write parts of the same stripes.
#[test]
fn parts_of_one_stripe_are_written_by_many() {
    for (count, chunk, delay) in [(4, 65536u64, 0), (3, 16384, 200)] {
        let it = Faulty::new(count, chunk as u32, 1);
        it.disks.iter().for_each(|disk| disk.set(|faults| faults.delay = Duration::from_micros(delay)));
        let stripe = chunk * (count as u64 - 1);
        write(&*it.region, 1, 0..2 * stripe).expect("a write");
        let threads = 6;
        let share = 2 * stripe / threads / SECTOR * SECTOR;
        let models: Vec<Vec<Option<u32>>> = std::thread::scope(|scope| {
            let region = &it.region;
            let load = move |thread: u64| {
                let mut rng = Rng::new(thread);
                let mut model = vec![Some(1); (share / SECTOR) as usize];
                for n in 0..60 {
                    let (number, len) = (thread as u32 * 1000 + n + 2, rng.within(1, 20) * SECTOR);
                    let at = rng.below((share - len) / SECTOR + 1) * SECTOR;
                    let place = thread * share + at;
                    write(&**region, number, place..place + len).expect("a write");
                    model[(at / SECTOR) as usize..((at + len) / SECTOR) as usize].fill(Some(number));
                }
                model
            };
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || load(thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for lost in 0..count {
            let region = without(&it.ram, lost);
            for (thread, model) in models.iter().enumerate() {
                let at = thread as u64 * share;
                assert_eq!(read(&*region, at..at + share).expect("a read"), *model, "thread {thread}, {lost} lost");
            }
        }
        assert!(it.region.pending().is_empty());
    }
}

/// All parts of the same columns at once, each written once: no later write would make them even again.
#[test]
fn the_parts_of_a_column_are_written_one_after_the_other() {
    let it = Faulty::new(4, 4096, 1);
    let stripe = it.region.stripe();
    write(&*it.region, 1, 0..20 * stripe).expect("a write");
    it.disks.iter().for_each(|disk| disk.set(|faults| faults.delay = Duration::from_millis(1)));
    for n in 0..20 {
        let part = |chunk: u64| n * stripe + chunk * 4096..n * stripe + (chunk + 1) * 4096 - 512;
        let start = |chunk: u64| {
            let (number, range) = (2 << chunk, part(chunk));
            let memory = Aligned::of(&content(number, &range));
            it.region.start(Request::write(range.start, Buffers::whole(&memory)))
        };
        let tickets: Vec<Ticket> = (0..3).map(start).collect();
        tickets.into_iter().for_each(|ticket| ticket.wait().result.expect("a write"));
    }
    for lost in 0..4 {
        let found = read(&*without(&it.ram, lost), 0..20 * stripe).expect("a read");
        let expected = |sector: usize| if sector % 8 == 7 { Some(1) } else { Some(2 << (sector / 8 % 3)) };
        assert!(found.iter().enumerate().all(|(n, found)| *found == expected(n)), "{lost} lost");
    }
}

/// Content is computed from the others only while no write is under way there. The region has lost a disk; a read of
/// other content comes while one of the two remaining disks has been written and the other has not.
#[test]
fn a_computed_read_never_sees_half_a_write() {
    for held in 1..3 {
        let ram = disks(3);
        let gates: Vec<Arc<Gate>> = ram.iter().map(Gate::over).collect();
        let devices = |from: usize| gates[from..].iter().map(|gate| gate.clone() as Arc<dyn Device>).collect();
        let region = make(POOL, 1, Layout::Raid5 { chunk: 65536 }, devices(0)).expect("a region");
        write(&*region, 1, 0..region.stripe()).expect("a write");
        drop(region);
        let region = open(devices(1)).expect("without the first, which has the first chunk");
        gates[held].set(Way::Hold);
        let range = 65536..65536 + 4096;
        let from = Aligned::of(&content(2, &range));
        let writing = region.start(Request::write(range.start, Buffers::whole(&from)));
        let into = Aligned::zeroed(4096);
        let reading = region.start(Request::read(0, Buffers::whole(&into)));
        gates[held].set(Way::Pass);
        writing.wait().result.expect("a write");
        let answer = reading.wait();
        answer.result.expect("a read");
        assert_eq!(writes_of(&answer.buffers.expect("memory").to_vec(), 0), [Some(1); 8], "{held}");
        assert_eq!(read(&*region, range).expect("a read"), [Some(2); 8]);
    }
}

/// Parts of stripes that were never written are written during a rebuild, which does not learn of them.
#[test]
fn what_begins_to_live_during_a_rebuild_is_even_in_the_end() {
    for away in 0..3 {
        let all = disks(3);
        let mut rng = Rng::new(3);
        for disk in &all {
            disk.overwrite(END, &rng.bytes((SIZE - 2 * END) as usize));
        }
        let region = make(POOL, 1, Layout::Raid5 { chunk: 65536 }, devices(&all)).expect("a region");
        let stripe = region.stripe();
        write(&*region, 1, 0..40 * stripe).expect("a write");
        drop(region);
        let mut left = all.clone();
        left.remove(away);
        drop(open(devices(&left)).expect("without one"));
        let region = open(devices(&all)).expect("it is back");
        let parts: Vec<Range<u64>> = (50..56).map(|n| n * stripe + 512..n * stripe + 1024).collect();
        let mut is_first = true;
        let live = &mut || std::iter::once(0..40 * stripe).collect();
        let go_on = &mut |_| {
            if std::mem::take(&mut is_first) {
                parts.iter().for_each(|part| write(&*region, 2, part.clone()).expect("a write"));
            }
            true
        };
        assert!(region.rebuild(away, None, live, go_on).expect("it is rebuilt"));
        for lost in 0..3 {
            let region = without(&all, lost);
            for part in &parts {
                assert_eq!(read(&*region, part.clone()).expect("a read"), [Some(2)], "{away} was away, {lost} is lost");
            }
        }
    }
}

/// R1 at every instant: a disk missed a write that was acknowledged; the power is cut; all disks come back.
#[test]
fn a_disk_that_fails_a_write_is_out_before_the_answer() {
    let mut missed = 0;
    for (failing, whole) in [(0, false), (1, false), (2, false), (0, true), (1, true), (2, true)] {
        let it = Faulty::new(3, 65536, 1);
        let stripe = 131072u64;
        write(&*it.region, 1, 0..stripe).expect("a write");
        it.region.flush().expect("a flush");
        it.ram.iter().for_each(|disk| disk.record());
        let range = if whole { 0..stripe } else { 65536 - 4096..65536 + 4096 };
        it.disks[failing].set(|faults| (faults.torn, faults.error) = (1, 1));
        write(&*it.region, 2, range.clone()).expect("the others have it");
        assert_eq!(it.states()[failing], MemberState::Out);
        it.disks[failing].set(|faults| *faults = Faults::default());
        it.region.flush().expect("a flush");
        let acknowledged = RamDisk::now();
        write(&*it.region, 3, range.clone()).expect("a write");
        for instant in [acknowledged, RamDisk::now()] {
            for seed in 0..8 {
                let left = |(n, disk): (usize, &Arc<RamDisk>)| {
                    let cut = Cut { event: disk.at(instant), seed: seed * 3 + n as u64 };
                    RamDisk::with(disk.name(), disk.after(cut))
                };
                let left: Vec<Arc<RamDisk>> = it.ram.iter().enumerate().map(left).collect();
                let region = open(devices(&left)).expect("a region");
                missed += usize::from(region.members()[failing].state == MemberState::Out);
                let found = read(&*region, 0..stripe).expect("a read");
                for (sector, found) in found.into_iter().enumerate() {
                    let is_in = range.contains(&(sector as u64 * SECTOR));
                    let is_right = match (is_in, instant == acknowledged) {
                        (true, true) => found == Some(2),
                        // The whole stripe was being written.
                        (true, false) => whole || found == Some(3) || found == Some(2),
                        (false, _) => found == Some(1),
                    };
                    assert!(is_right, "{failing} failed, {whole}, sector {sector}: {found:?}");
                }
            }
        }
        let events: Vec<What> = it.events.try_iter().map(|event| event.what).collect();
        assert!(events
            .iter()
            .any(|what| matches!(what, What::Out { member, tolerated: Some(0), .. } if *member == failing)));
    }
    assert_eq!(missed, 6 * 16);
}

/// The power is cut at each instant of a write that one disk fails, and another disk is lost with it, or none.
#[test]
fn a_failure_and_a_power_cut_harm_nothing_that_is_not_written() {
    for failing in 0..3usize {
        for delay in 0..2 {
            let it = Faulty::new(3, 65536, 1);
            let stripe = 131072u64;
            write(&*it.region, 1, 0..stripe).expect("a write");
            it.region.flush().expect("a flush");
            it.ram.iter().for_each(|disk| disk.record());
            let begun = RamDisk::now();
            // All of its requests fail, or every second.
            it.disks[failing].set(|faults| faults.error = 1 + delay);
            let range = 0..8192;
            let result = write(&*it.region, 2, range.clone());
            let end = RamDisk::now();
            assert!(result.is_ok());
            for instant in begun..=end {
                for seed in 0..4 {
                    let left = |(n, disk): (usize, &Arc<RamDisk>)| {
                        let cut = Cut { event: disk.at(instant), seed: seed * 3 + n as u64 };
                        RamDisk::with(disk.name(), disk.after(cut))
                    };
                    let left: Vec<Arc<RamDisk>> = it.ram.iter().enumerate().map(left).collect();
                    let mut regions = vec![without(&left, failing)];
                    let whole = open(devices(&left)).expect("a region");
                    if whole.tolerated() == Some(1) {
                        drop(whole);
                        regions.extend((0..3).map(|lost| without(&left, lost)));
                    } else {
                        regions.push(whole);
                    }
                    for region in regions {
                        let found = read(&*region, 0..stripe).expect("a read");
                        for (sector, found) in found.into_iter().enumerate() {
                            let is_in = range.contains(&(sector as u64 * SECTOR));
                            let is_right = found == Some(1) && (!is_in || instant < end) || is_in && found == Some(2);
                            assert!(is_right, "{failing} failed, cut at {instant}, sector {sector}: {found:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn without_two_disks_some_is_still_read() {
    let it = Faulty::new(4, 4096, 1);
    let stripe = it.region.stripe();
    write(&*it.region, 1, 0..20 * stripe).expect("a write");
    it.disks[1].set(|faults| faults.gone = true);
    write(&*it.region, 2, 0..4096).expect("one is not needed");
    assert_eq!(it.region.tolerated(), Some(0));
    it.disks[2].set(|faults| faults.gone = true);
    let mut readable = 0;
    for chunk in 0..60 {
        match read(&*it.region, chunk * 4096..(chunk + 1) * 4096) {
            Ok(found) => {
                assert_eq!(found, [if chunk == 0 { Some(2) } else { Some(1) }; 8]);
                readable += 1;
            }
            Err(e) => assert_eq!(e.class, Class::Gone, "{e}"),
        }
    }
    assert_eq!(readable, 30, "half of it lies on the two that are left");
    assert_eq!(it.region.tolerated(), None);
    for range in [0..stripe, 0..4096, 5 * 4096..6 * 4096] {
        let e = write(&*it.region, 3, range).expect_err("nothing keeps it");
        assert_eq!(e.class, Class::Gone, "{e}");
    }
    let e = it.region.rebuild(1, None, &mut Vec::new, &mut |_| true).expect_err("from nothing");
    assert!(e.to_string().contains("disk 2 and 3 is out"), "{e}");
    assert_eq!(it.region.flush().expect_err("two are gone").class, Class::Gone);
    // No label records that both are out: the last one may come back.
    let (disks, ram) = (it.disks, it.ram);
    drop(it.region);
    drop(disks);
    let region = open(devices(&ram)).expect("with the last one again");
    assert_eq!(region.tolerated(), Some(0));
    assert_eq!(read(&*region, 4096..20 * stripe).expect("a read"), vec![Some(1); (20 * stripe / SECTOR) as usize - 8]);
}

#[test]
fn a_bad_place_is_computed_from_the_others() {
    let it = Faulty::new(3, 4096, 1);
    let size = 100 * it.region.stripe();
    write(&*it.region, 1, 0..size).expect("a write");
    for bad in 0..3 {
        it.disks[bad].set(|faults| faults.bad.push(END + 3 * MIB..END + 3 * MIB + 20480));
        // The log is not read there.
        assert_eq!(read(&*it.region, 0..size).expect("the others have it"), vec![Some(1); (size / SECTOR) as usize]);
        let mut rng = Rng::new(bad as u64);
        for _ in 0..50 {
            let at = rng.below(size / 1024) * 1024;
            write(&*it.region, 1, at..at + 1024).expect("a write");
        }
        it.disks[bad].set(|faults| faults.bad.clear());
    }
    assert_eq!(it.states(), [MemberState::Whole; 3]);
    for lost in 0..3 {
        assert_eq!(read(&*without(&it.ram, lost), 0..size).expect("a read"), vec![Some(1); (size / SECTOR) as usize]);
    }
}

/// A disk returns wrong content without an error: another copy is requested.
#[test]
fn a_second_copy_is_computed() {
    let all = disks(3);
    let region = make(POOL, 1, Layout::Raid5 { chunk: 4096 }, devices(&all)).expect("a region");
    let size = 3000 * region.stripe();
    write(&*region, 1, 0..size).expect("a write");
    let before = all[1].content();
    let place = 4 * MIB;
    all[1].overwrite(place, &[9; 65536]);
    let copy = |copy| {
        let memory = Aligned::zeroed(size as usize);
        let (done, ticket) = Ticket::new();
        region.read_copy(copy, Request::read(0, Buffers::whole(&memory)), done);
        let answer = ticket.wait();
        answer.result.map(|()| writes_of(&answer.buffers.expect("memory").to_vec(), 0))
    };
    let (one, other) = (copy(0).expect("a read"), copy(1).expect("a read"));
    assert!(one.contains(&None) && other.contains(&None), "what is wrong is wrong in both, elsewhere");
    let whole = one.iter().zip(&other).all(|(one, other)| *one == Some(1) || *other == Some(1));
    assert!(whole, "one of both is right");
    assert_eq!(copy(2).expect_err("there is none").class, Class::Gone);
    all[1].overwrite(0, &before.bytes(0..SIZE));
    assert_eq!(copy(0).expect("a read"), copy(1).expect("a read"));
}

/// Writes go on while a spare takes a lost disk's place; then any other is taken away.
#[test]
fn a_spare_has_everything_in_the_end() {
    for lost in 0..4usize {
        let it = Faulty::new(4, 16384, lost as u64);
        let stripe = it.region.stripe();
        let used = it.region.properties().size / stripe * stripe;
        write(&*it.region, 1, 0..used / 2).expect("a write");
        it.disks[lost].set(|faults| faults.gone = true);
        write(&*it.region, 1, 0..1024).expect("a write");
        let spare = RamDisk::with("spare", {
            let mut content = Content::zero(SIZE);
            content.write(&Rng::new(9).bytes(SIZE as usize), 0);
            content
        });
        let stop = AtomicBool::new(false);
        let region = &it.region;
        let sectors = (used / SECTOR) as usize;
        let (model, written) = std::thread::scope(|scope| {
            let load = || {
                let mut rng = Rng::new(6);
                let mut model: Vec<Option<u32>> = vec![None; sectors];
                model[..sectors / 2].fill(Some(1));
                let mut number = 10;
                while !stop.load(Ordering::SeqCst) {
                    let len = if rng.below(4) == 0 { 2 * stripe } else { rng.within(1, 40) * SECTOR };
                    let at = rng.below((used - len) / SECTOR + 1) * SECTOR;
                    write(&**region, number, at..at + len).expect("a write");
                    let found = read(&**region, at..at + len).expect("a read");
                    assert!(found.iter().all(|found| *found == Some(number)));
                    model[(at / SECTOR) as usize..((at + len) / SECTOR) as usize].fill(Some(number));
                    number += 1;
                }
                (model, number)
            };
            let writer = scope.spawn(load);
            std::thread::sleep(Duration::from_millis(20));
            let name = Uuid::random().expect("random");
            // Content written from then on is not named, and yet there.
            let live = &mut || std::iter::once(0..used).collect();
            let done = region.rebuild(lost, Some((spare.clone(), name)), live, &mut |_| {
                std::thread::sleep(Duration::from_millis(10));
                true
            });
            std::thread::sleep(Duration::from_millis(20));
            stop.store(true, Ordering::SeqCst);
            assert!(done.expect("rebuilt"));
            writer.join().expect("no panic")
        });
        assert!(written > 30, "{written}");
        let mut ram = it.ram.clone();
        ram[lost] = spare;
        drop(it);
        for gone in 0..4 {
            let found = read(&*without(&ram, gone), 0..used).expect("a read");
            let same = found.iter().zip(&model).all(|(found, model)| model.is_none() || found == model);
            assert!(same, "{lost} was replaced, {gone} is lost");
        }
    }
}

/// In several runs, with the region opened anew between them, and for live content only; meanwhile parts are written
/// that were not live at the beginning.
#[test]
fn a_rebuild_goes_on_where_it_was() {
    let all = disks(3);
    let chunk = 65536u64;
    let region = make(POOL, 1, Layout::Raid5 { chunk: chunk as u32 }, devices(&all)).expect("a region");
    let stripe = region.stripe();
    let size = region.properties().size;
    let live = || vec![0..40 * stripe, 60 * stripe + 4096..80 * stripe];
    live().into_iter().for_each(|range| write(&*region, 1, range).expect("a write"));
    drop(region);
    let region = open(devices(&all[1..])).expect("without the first");
    write(&*region, 2, 0..8192).expect("a write");
    drop(region);
    let region = open(devices(&all)).expect("it is back");
    assert_eq!(region.members()[0].state, MemberState::Out);
    let mut calls = 0;
    let done = region.rebuild(0, None, &mut { live }, &mut |left| {
        calls += 1;
        assert!(left <= 60 * chunk);
        calls < 4
    });
    assert!(!done.expect("it was stopped"));
    let later = [45 * stripe + 512..45 * stripe + 4096, 50 * stripe..51 * stripe, 90 * stripe..90 * stripe + 512];
    later.iter().for_each(|range| write(&*region, 3, range.clone()).expect("a write"));
    region.flush().expect("a flush");
    drop(region);
    let region = open(devices(&all)).expect("a region");
    assert!(matches!(region.members()[0].state, MemberState::Rebuilding { rebuilt } if rebuilt > 40 * chunk));
    let all_live = || live().into_iter().chain(later.clone()).collect::<Vec<_>>();
    let mut left = Vec::new();
    let done = region.rebuild(0, None, &mut { all_live }, &mut |bytes| {
        left.push(bytes);
        true
    });
    assert!(done.expect("it is rebuilt"));
    assert!(left[0] <= 23 * chunk, "what was rebuilt is not done again: {left:?}");
    assert_eq!(region.tolerated(), Some(1));
    assert!(size > 91 * stripe);
    write(&*region, 4, 45 * stripe..45 * stripe + 512).expect("a write");
    drop(region);
    for lost in 0..3 {
        let region = without(&all, lost);
        assert_eq!(read(&*region, 0..8192).expect("a read"), [Some(2); 16]);
        for range in [8192..40 * stripe, 60 * stripe + 4096..80 * stripe] {
            assert!(read(&*region, range).expect("a read").iter().all(|found| *found == Some(1)), "{lost} lost");
        }
        for range in &later {
            assert!(
                read(&*region, range.clone()).expect("a read").iter().all(|found| *found == Some(3)),
                "{lost} lost"
            );
        }
    }
}

/// Parts of stripes are written while a disk is being put back, in rebuilt stripes and in others; the power is cut at
/// every instant. The rebuild goes on; then any disk is lost.
#[test]
fn a_power_cut_during_a_rebuild_harms_nothing() {
    let chunk = 65536u64;
    for away in 0..3 {
        let all = disks(3);
        let region = make(POOL, 1, Layout::Raid5 { chunk: chunk as u32 }, devices(&all)).expect("a region");
        let (stripe, used) = (region.stripe(), 24 * region.stripe());
        write(&*region, 1, 0..used).expect("a write");
        drop(region);
        let mut left = all.clone();
        left.remove(away);
        drop(open(devices(&left)).expect("without one"));
        let region = open(devices(&all)).expect("it is back");
        let live = &mut || std::iter::once(0..used).collect();
        let mut calls = 0;
        let go_on = &mut |_| {
            calls += 1;
            calls < 2
        };
        assert!(!region.rebuild(away, None, live, go_on).expect("it was stopped"));
        assert!(matches!(region.members()[away].state, MemberState::Rebuilding { rebuilt } if rebuilt > 16 * chunk));
        region.flush().expect("a flush");
        all.iter().for_each(|disk| disk.record());
        let begun = RamDisk::now();
        // Each role of the disk that was away: written content, other content, parity.
        let ranges: Vec<Range<u64>> = [0, 1, 2, 20, 21, 22].map(|n| n * stripe + 512..n * stripe + 4096).into();
        let mut acknowledged = Vec::new();
        for range in &ranges {
            write(&*region, 2, range.clone()).expect("a write");
            acknowledged.push(RamDisk::now());
        }
        let end = RamDisk::now();
        let mut cuts: BTreeMap<Vec<usize>, u64> = BTreeMap::new();
        for instant in begun..=end {
            cuts.insert(all.iter().map(|disk| disk.at(instant)).collect(), instant);
        }
        for (events, instant) in cuts {
            let left = |(n, disk): (usize, &Arc<RamDisk>)| {
                RamDisk::with(disk.name(), disk.after(Cut { event: events[n], seed: instant + n as u64 }))
            };
            let left: Vec<Arc<RamDisk>> = all.iter().enumerate().map(left).collect();
            let region = open(devices(&left)).expect("a region");
            let check = |region: &dyn Region, what: &str| {
                let there = |stripes: Range<u64>| {
                    let found = read(region, stripes.start * stripe..stripes.end * stripe).expect("a read");
                    (stripes.start * stripe / SECTOR..).zip(found)
                };
                for (n, found) in there(0..3).chain(there(20..23)) {
                    let which = ranges.iter().position(|range| range.contains(&(n * SECTOR)));
                    let is_right = match which {
                        None => found == Some(1),
                        Some(which) if acknowledged[which] <= instant => found == Some(2),
                        Some(_) => found == Some(1) || found == Some(2),
                    };
                    assert!(is_right, "{away} was away, {what}, cut at {instant} of {begun}..{end}, {n}: {found:?}");
                }
            };
            check(&*region, "before it is rebuilt");
            assert!(region.rebuild(away, None, live, &mut |_| true).expect("it is rebuilt"));
            drop(region);
            for lost in 0..3 {
                check(&*without(&left, lost), "rebuilt");
            }
        }
    }
}

/// A disk with records of intents is replaced by one without, before their writes are flushed; then the power is cut,
/// and any disk is lost.
#[test]
fn a_spare_needs_no_records_of_what_was_before_it() {
    let chunk = 65536u64;
    for away in 0..3 {
        let it = Faulty::new(3, chunk as u32, 1);
        let used = 3 * it.region.stripe();
        write(&*it.region, 1, 0..used).expect("a write");
        it.region.flush().expect("a flush");
        it.ram.iter().for_each(|disk| disk.record());
        let spare = RamDisk::new("spare", SIZE);
        spare.record();
        let parts: Vec<Range<u64>> = (0..6).map(|n| n * chunk + 512..n * chunk + 4096).collect();
        let write_parts =
            |number| parts.iter().for_each(|part| write(&*it.region, number, part.clone()).expect("a write"));
        write_parts(2);
        it.disks[away].set(|faults| faults.gone = true);
        write_parts(3);
        let name = Uuid::random().expect("random");
        let live = &mut || std::iter::once(0..used).collect();
        let done = it.region.rebuild(away, Some((spare.clone(), name)), live, &mut |_| true);
        assert!(done.expect("it is rebuilt"));
        let mut ram = it.ram.clone();
        ram[away] = spare;
        for seed in 0..8 {
            let left = |(n, disk): (usize, &Arc<RamDisk>)| {
                let cut = Cut { event: disk.tape().len(), seed: seed * 3 + n as u64 };
                RamDisk::with(disk.name(), disk.after(cut))
            };
            let left: Vec<Arc<RamDisk>> = ram.iter().enumerate().map(left).collect();
            for lost in 0..3 {
                let found = read(&*without(&left, lost), 0..used).expect("a read");
                for (n, found) in found.into_iter().enumerate() {
                    let is_part = parts.iter().any(|part| part.contains(&(n as u64 * SECTOR)));
                    assert_eq!(found, Some(if is_part { 3 } else { 1 }), "{away} was replaced, {lost} is lost, {n}");
                }
            }
        }
    }
}

/// A write fails since one host is full; a disk that is lost afterwards takes no other content with it.
#[test]
fn a_write_without_room_harms_nothing() {
    for full in 0..3 {
        let ram = disks(3);
        let all: Vec<Arc<Gate>> = ram.iter().map(Gate::over).collect();
        let devices = all.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect();
        let region = make(POOL, 1, Layout::Raid5 { chunk: 65536 }, devices).expect("a region");
        let stripe = region.stripe();
        write(&*region, 1, 0..6 * stripe).expect("a write");
        // On each disk written content, other content, parity.
        let parts: Vec<Range<u64>> = (0..3).map(|n| n * stripe + 512..n * stripe + 4096).collect();
        all[full].set(Way::Refuse);
        let failed = parts.iter().filter(|part| {
            let result = write(&*region, 2, (*part).clone());
            result.is_err_and(|e| e.class == Class::NoSpace)
        });
        assert!(failed.count() > 0);
        all[full].set(Way::Pass);
        // No intent is left for replay.
        write(&*region, 1, 5 * stripe..5 * stripe + 512).expect("a write");
        write(&*region, 1, 5 * stripe..6 * stripe).expect("a write");
        // The disk with the wrong parity is out: if it is among the remaining ones, it is not read.
        let out: Vec<usize> = (0..3).filter(|role| region.members()[*role].state == MemberState::Out).collect();
        assert!(out.iter().all(|role| *role == full), "{out:?}");
        drop(region);
        for lost in (0..3).filter(|lost| out.is_empty() || out.contains(lost)) {
            let found = read(&*without(&ram, lost), 0..6 * stripe).expect("a read");
            for (n, found) in found.into_iter().enumerate() {
                let is_part = parts.iter().any(|part| part.contains(&(n as u64 * SECTOR)));
                let is_right = found == Some(1) || is_part && found == Some(2);
                assert!(is_right, "{full} was full, {lost} is lost, sector {n}: {found:?}");
            }
        }
    }
}

#[test]
fn disks_that_are_too_small_are_refused() {
    let all: Vec<Arc<RamDisk>> = (0..3).map(|n| RamDisk::new(&format!("small{n}"), SIZE)).collect();
    let refused = make(POOL, 1, Layout::Raid5 { chunk: 1 << 20 }, devices(&all));
    let refusal = refused.err().expect("there is no room for the log").to_string();
    assert!(refusal.contains("this raid5 takes at least"), "{refusal}");
    assert!(make(POOL, 1, Layout::Raid5 { chunk: 32 << 20 }, devices(&all)).is_err());
    assert!(make(POOL, 1, Layout::Raid5 { chunk: 4096 }, devices(&all[..2])).is_err());
    assert!(open(devices(&all)).is_err(), "nothing was written");
}

#[test]
fn discards_keep_what_they_do_not_name() {
    let all = disks(3);
    let region = make(POOL, 1, Layout::Raid5 { chunk: 4096 }, devices(&all)).expect("a region");
    let stripe = region.stripe();
    write(&*region, 1, 0..10 * stripe).expect("a write");
    region.discard(2048..5 * stripe + 512).expect("a discard");
    region.reserve(512..7 * stripe).expect("room");
    write(&*region, 2, 3 * stripe + 512..3 * stripe + 1024).expect("a write");
    for lost in 0..3 {
        let region = without(&all, lost);
        assert_eq!(read(&*region, 0..stripe).expect("a read"), [Some(1); 16], "in part only");
        assert_eq!(read(&*region, 5 * stripe..10 * stripe).expect("a read"), [Some(1); 80]);
        assert_eq!(read(&*region, stripe..2 * stripe).expect("a read"), [None; 16]);
        assert_eq!(read(&*region, 3 * stripe + 512..3 * stripe + 1024).expect("a read"), [Some(2)]);
    }
}

/// Each member gets one request for many stripes, and a write of whole stripes reads nothing.
#[test]
fn whole_stripes_are_written_at_once() {
    let all = disks(4);
    let region = make(POOL, 1, Layout::Raid5 { chunk: 65536 }, devices(&all)).expect("a region");
    let stripe = region.stripe();
    all.iter().for_each(|disk| disk.record());
    write(&*region, 1, 0..8 * stripe).expect("a write");
    assert!(all.iter().all(|disk| disk.tape().len() == 1));
    assert!(region.members().iter().all(|member| member.performance.read.requests == 0));
    let request = Op::Write { at: 0, from: Buffers::new() };
    region.run(request.into()).result.expect("nothing");
}

/// A disk that hangs is excluded after the time limit, and keeps the memory of its requests.
#[test]
fn a_disk_that_hangs_is_done_without() {
    let it = Faulty::new(3, 4096, 1);
    let stripe = it.region.stripe();
    write(&*it.region, 1, 0..100 * stripe).expect("a write");
    it.disks[0].set(|faults| faults.hang = 1);
    let memory = Aligned::zeroed(stripe as usize * 3);
    let answer = it.region.run(Request::read(0, Buffers::whole(&memory)).within(Duration::from_millis(40)));
    answer.result.expect("the others have it");
    let found = answer.buffers.expect("memory");
    assert_eq!(writes_of(&found.to_vec(), 0), [Some(1); 48]);
    assert_ne!(found.layout().next(), Buffers::whole(&memory).layout().next(), "the one that hangs still has it");
    assert_eq!(it.states(), [MemberState::Whole; 3], "a read that hangs loses nothing");
    let from = || Buffers::whole(&Aligned::of(&content(2, &(0..stripe))));
    let request = Request::write(0, from()).within(Duration::from_millis(40)).tagged(6);
    it.region.run(request).result.expect("the others have it");
    assert_eq!(it.states()[0], MemberState::Out);
    let pending = it.region.pending();
    assert!(pending.iter().any(|p| p.answered && p.tag == 6 && p.range == (0..stripe)), "{pending:?}");
    write(&*it.region, 3, 512..1024).expect("a write");
    it.disks[0].release();
    assert!(it.region.pending().is_empty());
    let found = read(&*it.region, 0..stripe).expect("a read");
    assert_eq!(found[0..3], [Some(2), Some(3), Some(2)]);
}

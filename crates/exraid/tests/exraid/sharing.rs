//! Regions that several processes use. Each opens the common file by itself; so two regions in one process stand for
//! two processes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exraid::events::What;
use exraid::fault::{FaultDisk, Faults, RamDisk};
use exraid::label::MemberState;
use exraid::region::{make, open, open_shared, Common, Sharing};
use exraid::{Class, Device, Disk, Layout, Making, Options, Region, Request, Uuid};
use rng::Rng;

use crate::regions::{devices, disks};

const MIB: u64 = 1 << 20;
const POOL: Uuid = Uuid([7; 16]);
const CHUNK: u32 = 8192;
const RAID5: Layout = Layout::Raid5 { chunk: CHUNK };
const SECTOR: u64 = 512;

/// The common file of processes.
struct Shared(tempfile::TempDir);

impl Shared {
    fn new() -> Shared {
        Shared(tempfile::tempdir_in("/dev/shm").expect("a directory"))
    }

    fn common(&self) -> Common {
        common_at(&self.0.path().join("common"))
    }

    fn open(&self, disks: Vec<Arc<dyn Device>>) -> Arc<dyn Region> {
        self.open_finding(disks, None)
    }

    fn open_finding(&self, disks: Vec<Arc<dyn Device>>, spare: Option<Arc<RamDisk>>) -> Arc<dyn Region> {
        let find =
            spare.map(|spare| -> exraid::region::Finder { Arc::new(move |_| Some(spare.clone() as Arc<dyn Device>)) });
        open_shared(disks, &Sharing { common: self.common(), find }).expect("it is opened")
    }
}

fn common_at(path: &Path) -> Common {
    let file = std::fs::File::options().create(true).truncate(false).read(true).write(true).open(path);
    Common::of(file.expect("a file"))
}

/// The content of the nth write of `who` to a sector.
fn sector(who: u64, n: u64, at: u64) -> Vec<u8> {
    [who << 56 | n, at].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>().repeat(32)
}

/// Without any one of the disks, all content reads the same as with all of them.
fn is_even(disks: &[Arc<RamDisk>], range: std::ops::Range<u64>) {
    let read = |disks: &[Arc<RamDisk>]| {
        let copies: Vec<Arc<RamDisk>> = disks.iter().map(|d| RamDisk::with(d.name(), d.content())).collect();
        let region = open(devices(&copies)).expect("it can do without one");
        let mut bytes = vec![0; (range.end - range.start) as usize];
        region.read_at(&mut bytes, range.start).expect("read");
        bytes
    };
    let all = read(disks);
    for lost in 0..disks.len() {
        let left: Vec<_> = disks.iter().enumerate().filter(|(n, _)| *n != lost).map(|(_, d)| d.clone()).collect();
        assert!(read(&left) == all, "without disk {lost}");
    }
}

fn made(layout: Layout, count: usize) -> Vec<Arc<RamDisk>> {
    let ram = disks(count);
    drop(make(POOL, 2, layout, devices(&ram)).expect("a region"));
    ram
}

/// Two processes write alternate sectors of the same stripes, and now and then whole stripes.
#[test]
fn processes_write_to_the_same_stripes() {
    let (shared, ram) = (Shared::new(), made(RAID5, 4));
    let processes = [shared.open(devices(&ram)), shared.open(devices(&ram))];
    let stripe = processes[0].stripe();
    let stripes = 4;
    let last: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let work = |who: u64| {
            let region = &processes[who as usize];
            move || {
                let mut rng = Rng::new(who + 1);
                let mut last = vec![0; (stripes * stripe / SECTOR) as usize];
                for n in 1..400u64 {
                    let at = (rng.below(stripes * stripe / SECTOR / 2) * 2 + who) * SECTOR;
                    region.write_at(&sector(who, n, at), at).expect("written");
                    last[(at / SECTOR) as usize] = n;
                    if n % 40 == 0 {
                        // Whole stripes of its own, behind the common ones.
                        let at = (stripes + who) * stripe;
                        let whole: Vec<u8> =
                            (0..stripe / SECTOR).flat_map(|s| sector(who, n, at + s * SECTOR)).collect();
                        region.write_at(&whole, at).expect("written");
                    }
                }
                last
            }
        };
        let threads = [scope.spawn(work(0)), scope.spawn(work(1))];
        threads.map(|thread| thread.join().expect("no panic")).to_vec()
    });
    let mut bytes = vec![0; SECTOR as usize];
    for at in (0..stripes * stripe).step_by(SECTOR as usize) {
        let who = at / SECTOR % 2;
        let n = last[who as usize][(at / SECTOR) as usize];
        processes[1 - who as usize].read_at(&mut bytes, at).expect("read");
        assert!(n == 0 || bytes == sector(who, n, at), "sector {at}, write {n}");
    }
    processes[0].flush().expect("flushed");
    drop(processes);
    is_even(&ram, 0..(stripes + 2) * stripe);
}

/// One process finds that a disk fails; the other one, which notices nothing itself, does not use the disk any more
/// either.
#[test]
fn who_is_excluded_by_one_is_out_for_all() {
    for layout in [Layout::Mirror, RAID5] {
        let (shared, ram) = (Shared::new(), made(layout, 3));
        let faulty: Vec<Arc<FaultDisk>> =
            ram.iter().map(|ram| FaultDisk::over(ram.clone(), 1, Faults::default())).collect();
        let one = shared.open(faulty.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect());
        let other = shared.open(devices(&ram));
        let stripe = one.stripe().max(MIB);
        let old = vec![1; stripe as usize];
        other.write_at(&old, 0).expect("written");
        faulty[1].set(|faults| faults.gone = true);
        let new = vec![2; stripe as usize];
        one.write_at(&new, 0).expect("one is missing");
        assert_eq!(one.members()[1].state, MemberState::Out, "{layout}");
        let mut bytes = vec![0; stripe as usize];
        for _ in 0..70 {
            other.read_at(&mut bytes, 0).expect("read");
            assert!(bytes == new, "{layout}: what it missed is read");
        }
        assert_eq!(other.members()[1].state, MemberState::Out, "{layout}");
        // And the other way round: a RAID-5 can lose no further one.
        other.write_at(&old[..SECTOR as usize], SECTOR).expect("written");
        one.read_at(&mut bytes, 0).expect("read");
        assert!(bytes[SECTOR as usize..2 * SECTOR as usize] == old[..SECTOR as usize], "{layout}");
        assert_eq!((one.epoch(), one.tolerated()), (other.epoch(), other.tolerated()), "{layout}");
    }
}

/// Two exclude different members at once: at most one exclusion succeeds, and no acknowledged write is lost.
#[test]
fn who_is_second_to_exclude_fails() {
    let (shared, ram) = (Shared::new(), made(Layout::Mirror, 2));
    let over = |n: usize| {
        let faulty = FaultDisk::over(ram[n].clone(), 1, Faults::default());
        let of: Vec<Arc<dyn Device>> =
            (0..2).map(|k| if k == n { faulty.clone() as Arc<dyn Device> } else { ram[k].clone() }).collect();
        (faulty, shared.open(of))
    };
    let (one, other) = (over(0), over(1));
    one.0.set(|faults| faults.gone = true);
    other.0.set(|faults| faults.gone = true);
    let write = |region: &Arc<dyn Region>, with: u8, at: u64| region.write_at(&[with; 4096], at);
    let results = std::thread::scope(|scope| {
        let threads = [scope.spawn(|| write(&one.1, 1, 0)), scope.spawn(|| write(&other.1, 2, 4096))];
        threads.map(|thread| thread.join().expect("no panic"))
    });
    assert!(results.iter().filter(|result| result.is_ok()).count() <= 1, "{results:?}");
    drop((one, other));
    let region = open(devices(&ram)).expect("one is whole");
    for (n, result) in results.iter().enumerate().filter(|(_, result)| result.is_ok()) {
        let mut bytes = [0; 4096];
        region.read_at(&mut bytes, n as u64 * 4096).expect("read");
        assert!(bytes == [n as u8 + 1; 4096], "{result:?}");
    }
}

/// One rebuilds, onto a disk that the other has to find first, while the other writes.
#[test]
fn one_rebuilds_while_the_other_writes() {
    for layout in [Layout::Mirror, RAID5] {
        let (shared, mut ram) = (Shared::new(), made(layout, 3));
        let spare = disks(4).pop().expect("a disk");
        let one = shared.open(devices(&ram));
        let other = shared.open_finding(devices(&ram), Some(spare.clone()));
        let end = 4 * MIB;
        one.write_at(&vec![9; end as usize], 0).expect("written");
        let stop = AtomicBool::new(false);
        let last = std::thread::scope(|scope| {
            let writes = scope.spawn(|| {
                let (mut rng, mut n) = (Rng::new(5), 0);
                let mut last = vec![0; (end / SECTOR) as usize];
                while !stop.load(Ordering::SeqCst) || n < 50 {
                    n += 1;
                    let at = rng.below(end / SECTOR) * SECTOR;
                    other.write_at(&sector(0, n, at), at).expect("written");
                    last[(at / SECTOR) as usize] = n;
                }
                last
            });
            std::thread::sleep(Duration::from_millis(20));
            let uuid = Uuid::random().expect("a UUID");
            let device = spare.clone() as Arc<dyn Device>;
            let rebuilt =
                one.rebuild(1, Some((device, uuid)), &mut || std::iter::once(0..end).collect(), &mut |_| true);
            stop.store(true, Ordering::SeqCst);
            assert!(rebuilt.expect("rebuilt"), "{layout}");
            writes.join().expect("no panic")
        });
        for region in [&one, &other] {
            assert!(
                region.members().iter().all(|member| member.state == MemberState::Whole) || {
                    // There was no request to it since.
                    region.read_at(&mut [0; 512], 0).expect("read");
                    region.members().iter().all(|member| member.state == MemberState::Whole)
                }
            );
        }
        let check = |region: &dyn Region| {
            let mut bytes = vec![0; end as usize];
            region.read_at(&mut bytes, 0).expect("read");
            for (n, at) in last.iter().zip((0..).step_by(SECTOR as usize)) {
                let found = &bytes[at as usize..at as usize + 512];
                assert!(if *n == 0 { found == [9; 512] } else { found == sector(0, *n, at) }, "{layout}: {at}, {n}");
            }
        };
        check(&*one);
        check(&*other);
        drop((one, other));
        ram[1] = spare;
        is_even(&ram, 0..end);
        if layout == Layout::Mirror {
            for disk in &ram {
                check(&*open(devices(std::slice::from_ref(disk))).expect("alone"));
            }
        }
    }
}

/// Several processes raise marks.
#[test]
fn processes_raise_the_mark_of_sequence_numbers() {
    let (shared, ram) = (Shared::new(), made(Layout::Mirror, 2));
    let processes = [shared.open(devices(&ram)), shared.open(devices(&ram))];
    for n in 1..20 {
        processes[n as usize % 2].raise_sequence(n).expect("raised");
    }
    drop(processes);
    assert_eq!(open(devices(&ram)).expect("opened").sequence(), 19);
}

/// The others see the measurements of one, even if they only look; and these survive it.
#[test]
fn measurements_are_shared_with_all() {
    let (shared, ram) = (Shared::new(), made(Layout::Mirror, 2));
    let slow = FaultDisk::over(ram[1].clone(), 1, Faults { hang: 1, ..Faults::default() });
    slow.set(|faults| faults.hang = 0);
    let one = shared.open(vec![ram[0].clone(), slow.clone()]);
    let other = shared.open(devices(&ram));
    let looker = exraid::region::look(devices(&ram), &shared.common()).expect("opened");
    for n in 0..20 {
        one.write_at(&[1; 8192], n * 8192).expect("written");
    }
    other.write_at(&[1; 8192], 0).expect("written");
    let writes: Vec<_> = [&one, &other, &looker].map(|region| region.performance().write).into();
    assert!(writes.iter().all(|write| (write.requests, write.bytes) == (21, 21 * 8192)), "{writes:?}");
    assert!(writes.iter().all(|write| write.speed > 0.0 && write.usual_speed > 0.0 && write.queue == 0), "{writes:?}");
    assert!(looker.members().iter().all(|member| member.performance.write.requests == 21));

    slow.set(|faults| faults.hang = 1);
    let ticket = one.start(Request::write(0, exraid::Buffers::whole(&exraid::Aligned::zeroed(8192))));
    std::thread::sleep(Duration::from_millis(30));
    for region in [&one, &other, &looker] {
        let performance = region.members()[1].performance.clone();
        assert_eq!((performance.write.queue, performance.write.queued_bytes), (1, 8192));
        assert!(performance.oldest >= Duration::from_millis(25), "{performance:?}");
    }
    slow.release();
    ticket.wait().result.expect("written");
    drop(one);
    drop(other);
    let again = shared.open(devices(&ram));
    assert_eq!(again.performance().write.requests, 22);
    assert_eq!(again.members()[1].performance.write.queue, 0);

    // Another disk in a member's place begins anew.
    let spare = disks(3).pop().expect("a disk");
    let rebuilt = again.rebuild(1, Some((spare, Uuid([9; 16]))), &mut Vec::new, &mut |_| true);
    assert!(rebuilt.expect("rebuilt"));
    assert_eq!(again.members()[1].performance.write.requests, 0);
    assert_eq!(again.members()[0].performance.write.requests, 22);
}

/// More processes than slots: the others measure for themselves.
#[test]
fn as_many_as_like_can_use_a_region() {
    let (shared, ram) = (Shared::new(), made(Layout::Single, 1));
    let all: Vec<_> = (0..20).map(|_| shared.open(devices(&ram))).collect();
    for region in &all {
        region.write_at(&[1; 8192], 0).expect("written");
    }
    assert_eq!(all[3].performance().write.requests, 16);
    assert_eq!(all[19].performance().write.requests, 1);
}

/// A disk that becomes slow is an event in every process that looks, and its recovery another.
#[test]
fn events_report_a_disk_that_stutters_and_its_mirror_is_read() {
    let (shared, ram) = (Shared::new(), made(Layout::Mirror, 2));
    let slow = FaultDisk::over(ram[0].clone(), 1, Faults { delay: Duration::from_millis(6), ..Faults::default() });
    let fast = FaultDisk::over(ram[1].clone(), 1, Faults { delay: Duration::from_millis(6), ..Faults::default() });
    let one = shared.open(vec![slow.clone(), fast]);
    let other = shared.open(devices(&ram));
    let events = [one.events(), other.events()];
    let stutters = |region: &dyn Region| region.members()[0].performance.stutter;
    let (mut slowed, start, mut n) = (None, Instant::now(), 0);
    while stutters(&*one).is_none() && start.elapsed() < Duration::from_secs(60) {
        n += 1;
        one.write_at(&vec![1; 65536], n % 100 * 65536).expect("written");
        if slowed.is_none() && start.elapsed() > Duration::from_secs(12) {
            assert_eq!(other.performance().stutter, None);
            slowed = Some(Instant::now());
            slow.set(|faults| faults.delay = Duration::from_millis(60));
        }
    }
    let stutter = stutters(&*one).expect("it stutters");
    assert!(slowed.expect("it was slowed down").elapsed() > Duration::from_secs(3), "{stutter:?}");
    assert!(stutter.used_to > 5.0 * stutter.delivers, "{stutter:?}");
    assert_eq!(one.members()[1].performance.stutter, None);
    assert!(other.performance().stutter.is_some());
    for events in &events {
        let events: Vec<What> = events.try_iter().map(|event| event.what).collect();
        assert!(matches!(events[..], [What::Stutters { member: 0, .. }]), "{events:?}");
    }
    // Even if its queue is short.
    let before = one.members()[0].performance.read.requests;
    for _ in 0..32 {
        one.read_at(&mut [0; 4096], 0).expect("read");
    }
    assert!(one.members()[0].performance.read.requests <= before + 1);

    slow.set(|faults| faults.delay = Duration::from_millis(6));
    let start = Instant::now();
    while one.performance().stutter.is_some() && start.elapsed() < Duration::from_secs(30) {
        one.write_at(&vec![1; 65536], 0).expect("written");
    }
    assert_eq!(other.performance().stutter, None);
    for events in &events {
        let events: Vec<What> = events.try_iter().map(|event| event.what).collect();
        assert!(matches!(events[..], [What::Recovers { member: 0 }]), "{events:?}");
    }
}

const CHILD: &str = "CONQUEST_TEST_SHARING_CHILD";

fn open_files(dir: &Path, common: &Common) -> Arc<dyn Region> {
    let options = Options { held: vec![common.held().expect("a file")], ..Options::default() };
    let disks = (0..3).map(|n| Arc::new(Disk::open(&disk_at(dir, n), &options).expect("a disk")) as Arc<dyn Device>);
    open_shared(disks.collect(), &Sharing { common: common.clone(), find: None }).expect("opened")
}

fn disk_at(dir: &Path, n: usize) -> PathBuf {
    dir.join(format!("disk-{n}"))
}

/// The killed process: writes parts of stripes, several at a time, without end.
#[test]
fn child_of_a_kill() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let dir = PathBuf::from(dir);
    let region = open_files(&dir, &common_at(&dir.join("common")));
    let stripe = region.stripe();
    println!("ready");
    std::io::stdout().flush().expect("a pipe");
    let mut rng = Rng::new(u64::from(std::process::id()));
    for n in 0.. {
        let tickets: Vec<_> = (0..8)
            .map(|k| {
                let at = (rng.below(16) * stripe / SECTOR + k) * SECTOR;
                let memory = exraid::Aligned::of(&sector(3, n, at));
                region.start(Request::write(at, exraid::Buffers::whole(&memory)))
            })
            .collect();
        tickets.into_iter().for_each(|ticket| ticket.wait().result.expect("written"));
    }
}

/// Processes are killed while they write parts of stripes. Another one, which has the region open throughout, changes
/// other parts of the same stripes: none of its writes is lost, and every stripe is even, at once and after the last
/// one is dead.
#[test]
fn what_a_killed_process_was_writing_is_finished_by_others() {
    let shared = Shared::new();
    let dir = shared.0.path();
    let making = Making { size: Some(16 * MIB), ..Making::default() };
    let made: Vec<_> = (0..3).map(|n| Arc::new(Disk::make(&disk_at(dir, n), &making).expect("a disk"))).collect();
    made.iter().for_each(|disk| disk.share());
    drop(make(POOL, 2, RAID5, made.into_iter().map(|disk| disk as Arc<dyn Device>).collect()).expect("a region"));
    let region = open_files(dir, &shared.common());
    let stripe = region.stripe();
    region.write_at(&vec![1; 16 * stripe as usize], 0).expect("written");
    let mut rng = Rng::new(11);
    let mut mine = std::collections::BTreeMap::new();
    let until = Instant::now() + Duration::from_secs(6);
    let mut killed = 0;
    while Instant::now() < until {
        let mut child = Command::new(std::env::current_exe().expect("a program"))
            .args(["sharing::child_of_a_kill", "--exact", "--nocapture"])
            .env(CHILD, dir)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut out = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        while !line.contains("ready") {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut out, &mut line).expect("it says something") > 0, "it has ended");
        }
        std::thread::sleep(Duration::from_micros(rng.below(20_000)));
        child.kill().expect("killed");
        // At once, while the kernel still closes its files.
        for n in 0..32 {
            let at = rng.below(16) * stripe + (8 + rng.below(8)) * SECTOR;
            let content = sector(4, killed * 100 + n, at);
            region.write_at(&content, at).expect("written");
            mine.insert(at, content);
        }
        child.wait().expect("it has ended");
        killed += 1;
        // The columns that no process writes: all are even in spite of the kills.
        for number in 0..16 {
            let mut straight = vec![0; stripe as usize];
            let mut computed = straight.clone();
            for (copy, into) in [(0, &mut straight), (1, &mut computed)] {
                let memory = exraid::Aligned::zeroed(stripe as usize);
                let (done, ticket) = exraid::Ticket::new();
                let request = Request::read(number * stripe, exraid::Buffers::whole(&memory));
                region.read_copy(copy, request, done);
                let answer = ticket.wait();
                answer.result.expect("read");
                *into = answer.buffers.expect("memory").to_vec();
            }
            // A direct read may precede the repair that the other read made.
            let mut again = vec![0; stripe as usize];
            region.read_at(&mut again, number * stripe).expect("read");
            assert!(again == computed, "stripe {number} after {killed} kills");
        }
    }
    assert!(killed > 5, "{killed} kills");
    // Their requests under way are not counted any more, their past ones are.
    std::thread::sleep(Duration::from_millis(100));
    for performance in region.members().into_iter().map(|member| member.performance).chain([region.performance()]) {
        assert_eq!(
            (performance.write.queue, performance.write.queued_bytes, performance.read.queue),
            (0, 0, 0),
            "{performance:?}"
        );
        assert!(performance.write.requests > killed * 32 && performance.oldest == Duration::ZERO, "{performance:?}");
    }
    for (at, content) in mine {
        let mut bytes = vec![0; SECTOR as usize];
        region.read_at(&mut bytes, at).expect("read");
        assert!(bytes == content, "at {at}");
    }
    assert_eq!(region.tolerated(), Some(1));
    let e = region.read_at(&mut [0; 512], u64::MAX / 2 / 512 * 512).expect_err("nothing is there");
    assert_eq!(e.class, Class::Invalid);
}

//! Disks under a simulated clock, some of which become slow; the verdicts on them.

use rng::Rng;

use super::*;

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// The time model of a disk: each request costs a fixed time, on several servers at once; then its bytes pass, one
/// request after the other.
#[derive(Clone, Copy)]
struct Model {
    each: u64,
    rate: f64,
    servers: usize,
}

/// A disk throttled by bytes alone.
const THROTTLED: Model = Model { each: 0, rate: 60e6, servers: 1 };
const FLASH: Model = Model { each: 80_000, rate: 500e6, servers: 8 };

/// A load: kinds of requests, drawn at random; the number under way; a pause after each.
#[derive(Clone, Copy)]
struct Load<'l> {
    kinds: &'l [(Kind, u64)],
    depth: usize,
    pause: u64,
}

const SEGMENTS: Load = Load { kinds: &[(Kind::Write, MIB)], depth: 4, pause: 0 };

struct Machine {
    meter: Meter,
    model: Model,
    now: u64,
    rng: Rng,
    /// The time at which each server is free.
    free: Vec<u64>,
    /// The time at which the last byte has passed.
    passes: u64,
    /// The ends of requests, and their beginnings.
    under_way: Vec<(u64, Begun)>,
    /// The reports of the verdict.
    news: Vec<(u64, bool)>,
    /// The machine stands still: it neither takes answers nor makes requests.
    stall: Option<(u64, u64)>,
    peers: Vec<f64>,
    at: u64,
}

impl Machine {
    fn new(model: Model) -> Machine {
        Machine {
            meter: Meter::default(),
            model,
            now: SECOND,
            rng: Rng::new(7),
            free: vec![0; model.servers],
            passes: 0,
            under_way: Vec::new(),
            news: Vec::new(),
            stall: None,
            peers: Vec::new(),
            at: 0,
        }
    }

    fn ask(&mut self, load: Load) {
        let (kind, bytes) = load.kinds[self.rng.below(load.kinds.len() as u64) as usize];
        self.at += bytes;
        let begun = self.meter.begin_at(self.now, kind, self.at - bytes..self.at);
        let server = (0..self.free.len()).min_by_key(|n| self.free[*n]).expect("it has one");
        self.free[server] = self.free[server].max(self.now) + self.model.each;
        self.passes = self.passes.max(self.free[server]) + (bytes as f64 / self.model.rate * 1e9) as u64;
        if self.model.servers == 1 {
            self.free[server] = self.passes;
        }
        self.under_way.push((self.passes, begun));
    }

    /// Runs a load for so many seconds of the clock.
    fn run(&mut self, load: Load, seconds: u64) {
        let until = self.now + seconds * SECOND;
        while self.now < until {
            while self.under_way.len() < load.depth {
                self.ask(load);
            }
            let next = (0..self.under_way.len()).min_by_key(|n| self.under_way[*n].0).expect("something is under way");
            let (ends, begun) = self.under_way.swap_remove(next);
            self.now = self.now.max(ends);
            if let Some((from, to)) = self.stall.filter(|(from, to)| (*from..*to).contains(&self.now)) {
                self.now += to - from;
            }
            if self.meter.end_at(self.now, begun, None) {
                let peers = self.peers.clone();
                self.meter.judge_at(self.now, || peers);
            }
            if let Some(news) = self.meter.news() {
                self.news.push((self.now, news.is_some()));
            }
            self.now += load.pause;
        }
    }

    fn stutters(&self) -> Option<Stutter> {
        self.meter.stutter()
    }
}

#[test]
fn a_disk_that_delivers_a_fifth_stutters_until_it_is_well_again() {
    let mut disk = Machine::new(THROTTLED);
    disk.run(SEGMENTS, 60);
    assert_eq!(disk.stutters(), None);
    let slowed = disk.now;
    disk.model.rate = 12e6;
    disk.run(SEGMENTS, 12);
    let stutter = disk.stutters().expect("it stutters");
    assert!((11e6..14e6).contains(&stutter.delivers) && (55e6..65e6).contains(&stutter.used_to), "{stutter:?}");
    let stutter = Stutter { used_to: 60e6, ..stutter };
    assert_eq!(stutter.to_string(), "12 MB/s where it used to deliver 60, at 4 requests under way");
    let (when, _) = disk.news[0];
    assert!((3 * SECOND..7 * SECOND).contains(&(when - slowed)), "after {} s", (when - slowed) as f64 / 1e9);
    disk.run(SEGMENTS, 3600);
    assert!(disk.stutters().is_some(), "for as long as it does");
    disk.model.rate = 60e6;
    disk.run(SEGMENTS, 10);
    assert_eq!(disk.stutters(), None);
    let changes: Vec<bool> = disk.news.iter().map(|(_, stutters)| *stutters).collect();
    assert_eq!(changes, [true, false], "each once");
}

/// A log that has the choice writes like this: few large requests, at another depth as soon as it is slow.
#[test]
fn one_that_is_hardly_asked_for_anything_any_more_is_noticed() {
    let kinds = [(Kind::Write, MIB), (Kind::Write, 2 * MIB), (Kind::Write, 3 * MIB / 2)];
    let usual = Load { kinds: &kinds, depth: 5, pause: SECOND / 200 };
    let mut disk = Machine::new(Model { rate: 40e6, ..THROTTLED });
    disk.run(usual, 20);
    let slowed = disk.now;
    disk.model.rate = 8e6;
    disk.run(Load { depth: 1, pause: SECOND / 5, ..usual }, 15);
    let (when, _) = disk.news.first().expect("it was named");
    assert!(when - slowed < 12 * SECOND, "after {} s", (when - slowed) as f64 / 1e9);
}

/// The disk is avoided, and gets one segment a second as a test: requests at another depth than before.
#[test]
fn one_that_is_only_tried_now_and_then_is_seen_to_recover_and_not_before() {
    let tried = Load { kinds: &[(Kind::Write, MIB)], depth: 1, pause: SECOND / 4 };
    let mut disk = Machine::new(THROTTLED);
    disk.run(SEGMENTS, 60);
    disk.model.rate = 12e6;
    disk.run(SEGMENTS, 10);
    disk.run(tried, 600);
    assert!(disk.stutters().is_some() && disk.news.len() == 1, "{:?}", disk.news);
    disk.model.rate = 60e6;
    disk.run(tried, 12);
    assert_eq!(disk.stutters(), None);
}

#[test]
fn a_long_queue_is_no_slow_disk() {
    for model in [THROTTLED, FLASH] {
        let mut disk = Machine::new(model);
        disk.run(Load { depth: 1, ..SEGMENTS }, 30);
        for depth in [64, 2, 256, 1, 16] {
            disk.run(Load { depth, ..SEGMENTS }, 30);
        }
        disk.run(Load { depth: 1, pause: SECOND / 10, ..SEGMENTS }, 30);
        assert_eq!(disk.news, [], "a load of any depth");
        // A slowdown is noticed all the same.
        disk.model.rate /= 6.0;
        disk.model.each *= 6;
        disk.run(Load { depth: 64, ..SEGMENTS }, 40);
        assert!(disk.stutters().is_some());
    }
}

#[test]
fn small_requests_among_large_ones_are_no_slow_disk() {
    let kinds =
        [(Kind::Read, 4096), (Kind::Write, 4096), (Kind::Write, MIB), (Kind::Read, 8 * MIB), (Kind::Read, 65536)];
    for model in [THROTTLED, FLASH, Model { each: 8_000_000, rate: 150e6, servers: 1 }] {
        let mut disk = Machine::new(model);
        let mut rng = Rng::new(3);
        for _ in 0..60 {
            let first = rng.below(kinds.len() as u64) as usize;
            let last = first + rng.below((kinds.len() - first) as u64) as usize;
            let depth = 1 << rng.below(6);
            let pause = rng.below(3) * SECOND / 500;
            disk.run(Load { kinds: &kinds[first..=last], depth, pause }, 20);
        }
        assert_eq!(disk.news, []);
    }
}

#[test]
fn a_machine_that_stalls_is_no_slow_disk() {
    for model in [THROTTLED, FLASH] {
        let mut disk = Machine::new(model);
        disk.run(SEGMENTS, 60);
        for _ in 0..20 {
            disk.stall = Some((disk.now + SECOND / 2, disk.now + 3 * SECOND / 2));
            disk.run(SEGMENTS, 4);
        }
        assert_eq!(disk.news, []);
    }
}

#[test]
fn a_disk_that_sleeps_or_idles_is_no_slow_disk() {
    let mut disk = Machine::new(FLASH);
    disk.run(SEGMENTS, 60);
    for _ in 0..50 {
        disk.now += 60 * SECOND;
        // The disk spins up.
        disk.free.fill(disk.now + 3 * SECOND);
        disk.run(Load { depth: 1, ..SEGMENTS }, 4);
    }
    assert_eq!(disk.news, []);
}

#[test]
fn one_whose_peers_are_as_slow_is_not_to_blame() {
    let mut disk = Machine::new(THROTTLED);
    disk.run(SEGMENTS, 60);
    (disk.model.rate, disk.peers) = (12e6, vec![1.1, 4.8, 5.0]);
    disk.run(SEGMENTS, 60);
    assert_eq!(disk.news, []);
    disk.peers = vec![1.0, 1.2, 4.9];
    disk.run(SEGMENTS, 10);
    assert!(disk.stutters().is_some());
}

/// A disk that stays slow for long is judged by that.
#[test]
fn what_is_so_for_hours_of_work_is_what_the_disk_is() {
    let mut disk = Machine::new(Model { each: 0, rate: 6e6, servers: 1 });
    disk.run(SEGMENTS, 120);
    disk.model.rate = 2e6;
    disk.run(SEGMENTS, 20);
    assert!(disk.stutters().is_some());
    disk.run(SEGMENTS, 9 * 3600);
    assert_eq!(disk.stutters(), None);
}

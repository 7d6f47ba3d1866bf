//! What is known of a device's speed: moving averages at two horizons, latency, queue, errors.
//!
//! *Speed* is bytes for each second in which something was under way, so that a disk that idles is not a slow disk, and
//! one that does not answer is. *Load* is bytes for each second. Both are weighted by age: what is a horizon old counts
//! 1/e of what is new. Bytes count when their request ends.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::device::Kind;
use crate::error::Class;

/// The horizon at which a disk that slows down is to be noticed.
pub const SHORT: Duration = Duration::from_millis(500);
/// The horizon at which a disk is known.
pub const LONG: Duration = Duration::from_secs(30);

/// What is known of reads, or of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// Bytes in a second of work, lately ([`SHORT`]); 0 where nothing is known.
    pub speed: f64,
    /// The same, at [`LONG`].
    pub usual_speed: f64,
    /// Bytes in a second, lately.
    pub load: f64,
    /// The same, at [`LONG`].
    pub usual_load: f64,
    /// Half of the last requests took no longer; zero where there were none.
    pub median: Duration,
    /// 99 of 100 of the last requests took no longer.
    pub p99: Duration,
    /// Requests and bytes that succeeded, since the device was opened.
    pub requests: u64,
    pub bytes: u64,
    /// Requests and bytes under way.
    pub queue: u64,
    pub queued_bytes: u64,
}

/// What is known of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Performance {
    pub read: Flow,
    pub write: Flow,
    /// Half, and 99 of 100, of the last flushes took no longer.
    pub flush_median: Duration,
    pub flush_p99: Duration,
    /// Age of the oldest request under way.
    pub oldest: Duration,
    /// Failures since the device was opened, by [`Class::ALL`].
    pub errors: [u64; Class::ALL.len()],
}

impl Performance {
    pub fn errors_of(&self, class: Class) -> u64 {
        self.errors[place(class)]
    }
}

fn place(class: Class) -> usize {
    Class::ALL.iter().position(|one| *one == class).unwrap_or(0)
}

/// Bytes and seconds of work, of which older ones weigh less.
#[derive(Clone, Copy)]
struct Average {
    horizon: f64,
    bytes: f64,
    busy: f64,
}

impl Average {
    fn new(horizon: Duration) -> Average {
        Average { horizon: horizon.as_secs_f64(), bytes: 0.0, busy: 0.0 }
    }

    /// Time goes on, in which it worked or not.
    fn pass(&mut self, seconds: f64, works: bool) {
        let left = (-seconds / self.horizon).exp();
        self.bytes *= left;
        self.busy *= left;
        if works {
            self.busy += self.horizon * (1.0 - left);
        }
    }

    /// While nothing happens both sides lose weight alike, until nothing can be told.
    fn speed(&self) -> Option<f64> {
        (self.busy > 1e-9).then(|| self.bytes / self.busy)
    }

    fn load(&self) -> f64 {
        self.bytes / self.horizon
    }
}

/// How long the last requests took: counts by quarters of a power of two of microseconds.
#[derive(Clone)]
struct Latency {
    counts: [u32; 128],
    all: u32,
}

/// Requests after which older ones weigh half.
const WINDOW: u32 = 4096;

impl Default for Latency {
    fn default() -> Latency {
        Latency { counts: [0; 128], all: 0 }
    }
}

impl Latency {
    fn add(&mut self, took: Duration) {
        let micros = (took.as_nanos() as f64 / 1000.0).max(1.0);
        let place = (micros.log2() * 4.0) as usize;
        self.counts[place.min(self.counts.len() - 1)] += 1;
        self.all += 1;
        if self.all >= WINDOW {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.all = self.counts.iter().sum();
        }
    }

    /// The time that so large a share took at most, to a fifth.
    fn within(&self, share: f64) -> Duration {
        let wanted = (f64::from(self.all) * share).ceil() as u32;
        let mut sum = 0;
        let reached = |count: &u32| {
            sum += count;
            sum >= wanted
        };
        match self.counts.iter().position(reached).filter(|_| wanted > 0) {
            Some(place) => Duration::from_nanos((((place + 1) as f64 / 4.0).exp2() * 1000.0) as u64),
            None => Duration::ZERO,
        }
    }
}

/// One direction.
struct Track {
    short: Average,
    long: Average,
    /// The last that was known, for when the averages have forgotten.
    known: [f64; 2],
    at: Duration,
    queue: u64,
    queued_bytes: u64,
    requests: u64,
    bytes: u64,
    latency: Latency,
    /// Seconds that a request takes, of which the last ones count most; those that timed out count too.
    takes: f64,
}

impl Track {
    fn new() -> Track {
        Track {
            short: Average::new(SHORT),
            long: Average::new(LONG),
            known: [0.0; 2],
            at: Duration::ZERO,
            queue: 0,
            queued_bytes: 0,
            requests: 0,
            bytes: 0,
            latency: Latency::default(),
            takes: 0.0,
        }
    }

    fn pass(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.at).as_secs_f64();
        let works = self.queue > 0;
        self.short.pass(seconds, works);
        self.long.pass(seconds, works);
        self.at = self.at.max(now);
    }

    fn begin(&mut self, now: Duration, bytes: u64) {
        self.pass(now);
        self.queue += 1;
        self.queued_bytes += bytes;
    }

    fn end(&mut self, now: Duration, bytes: u64, took: Duration, failed: Option<Class>) {
        self.pass(now);
        self.queue -= 1;
        self.queued_bytes -= bytes;
        if matches!(failed, None | Some(Class::Timeout)) {
            self.takes += (took.as_secs_f64() - self.takes) / 8.0;
        }
        if failed.is_some() {
            return;
        }
        self.latency.add(took);
        self.requests += 1;
        self.bytes += bytes;
        self.short.bytes += bytes as f64;
        self.long.bytes += bytes as f64;
        for (known, average) in self.known.iter_mut().zip([self.short, self.long]) {
            *known = average.speed().unwrap_or(*known);
        }
    }

    fn flow(&mut self, now: Duration) -> Flow {
        self.pass(now);
        let [short, long] = self.known;
        // What is under way and does not end makes it slower, whether or not it ever ended anything.
        let speed = |average: Average, known| if self.requests == 0 { 0.0 } else { average.speed().unwrap_or(known) };
        Flow {
            speed: speed(self.short, short),
            usual_speed: speed(self.long, long),
            load: self.short.load(),
            usual_load: self.long.load(),
            median: self.latency.within(0.5),
            p99: self.latency.within(0.99),
            requests: self.requests,
            bytes: self.bytes,
            queue: self.queue,
            queued_bytes: self.queued_bytes,
        }
    }
}

/// Measures one device.
pub struct Meter {
    start: Instant,
    state: Mutex<State>,
}

struct State {
    read: Track,
    write: Track,
    flush: Latency,
    errors: [u64; Class::ALL.len()],
}

/// A request that began.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    kind: Kind,
    bytes: u64,
    at: Duration,
}

impl Default for Meter {
    fn default() -> Meter {
        let state = State { read: Track::new(), write: Track::new(), flush: Latency::default(), errors: [0; 7] };
        Meter { start: Instant::now(), state: Mutex::new(state) }
    }
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin(&self, kind: Kind, bytes: u64) -> Begun {
        self.begin_at(self.start.elapsed(), kind, bytes)
    }

    pub fn end(&self, begun: Begun, failed: Option<Class>) {
        self.end_at(self.start.elapsed(), begun, failed);
    }

    fn begin_at(&self, now: Duration, kind: Kind, bytes: u64) -> Begun {
        match kind {
            Kind::Read => self.lock().read.begin(now, bytes),
            Kind::Write => self.lock().write.begin(now, bytes),
            Kind::Flush | Kind::Discard | Kind::Reserve => {}
        }
        Begun { kind, bytes, at: now }
    }

    fn end_at(&self, now: Duration, begun: Begun, failed: Option<Class>) {
        let mut state = self.lock();
        let took = now.saturating_sub(begun.at);
        match begun.kind {
            Kind::Read => state.read.end(now, begun.bytes, took, failed),
            Kind::Write => state.write.end(now, begun.bytes, took, failed),
            Kind::Flush if failed.is_none() => state.flush.add(took),
            Kind::Flush | Kind::Discard | Kind::Reserve => {}
        }
        if let Some(class) = failed {
            state.errors[place(class)] += 1;
        }
    }

    /// How long a read that comes now is likely to take, behind those under way; zero where nothing is known.
    pub fn expected_read(&self) -> Duration {
        let state = self.lock();
        Duration::from_secs_f64(state.read.takes * (state.read.queue + state.write.queue + 1) as f64)
    }

    /// Bytes in a second that the device delivers as a rule, of reads and writes the slower ones; 0 where nothing is known.
    pub fn delivers(&self) -> u64 {
        let state = self.lock();
        let known = [state.read.known[1], state.write.known[1]].into_iter().filter(|known| *known > 0.0);
        known.min_by(f64::total_cmp).map_or(0, |slower| slower.min(1e12) as u64)
    }

    /// What is known now. `oldest` is the age of the oldest request under way, which the device knows.
    pub fn performance(&self, oldest: Duration) -> Performance {
        self.performance_at(self.start.elapsed(), oldest)
    }

    fn performance_at(&self, now: Duration, oldest: Duration) -> Performance {
        let mut state = self.lock();
        Performance {
            read: state.read.flow(now),
            write: state.write.flow(now),
            flush_median: state.flush.within(0.5),
            flush_p99: state.flush.within(0.99),
            oldest,
            errors: state.errors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Requests one after the other, each taking so long, from `from` to `to`.
    fn write(meter: &Meter, from: Duration, to: Duration, takes: Duration) {
        let mut now = from;
        while now + takes <= to {
            let begun = meter.begin_at(now, Kind::Write, MIB);
            now += takes;
            meter.end_at(now, begun, None);
        }
    }

    fn near(found: f64, wanted: f64) -> bool {
        (found / wanted - 1.0).abs() < 0.05
    }

    fn speed(meter: &Meter, now: Duration) -> (f64, f64) {
        let write = meter.performance_at(now, Duration::ZERO).write;
        (write.speed / MIB as f64, write.usual_speed / MIB as f64)
    }

    #[test]
    fn a_disk_that_idles_is_not_slow() {
        let meter = Meter::default();
        write(&meter, ms(0), ms(2000), ms(10));
        let (short, long) = speed(&meter, ms(2000));
        assert!(near(short, 100.0) && near(long, 100.0), "{short}, {long}");
        for idle in [ms(3000), ms(60_000), ms(10_000_000)] {
            let (short, long) = speed(&meter, idle);
            assert!(near(short, 100.0) && near(long, 100.0), "{short}, {long} after {idle:?}");
        }
        let load = meter.performance_at(ms(60_000), Duration::ZERO).write.load;
        assert!(load < 1.0, "nothing was written lately: {load}");
    }

    #[test]
    fn a_disk_that_slows_down_is_noticed_within_a_second() {
        let meter = Meter::default();
        write(&meter, ms(0), ms(60_000), ms(10));
        write(&meter, ms(60_000), ms(61_000), ms(40));
        let (short, long) = speed(&meter, ms(61_000));
        assert!(short < 40.0 && long > 90.0, "{short}, {long}");
        write(&meter, ms(61_000), ms(64_000), ms(10));
        assert!(near(speed(&meter, ms(64_000)).0, 100.0), "and when it is well again");
    }

    #[test]
    fn a_disk_that_does_not_answer_becomes_slow_without_ever_answering() {
        let meter = Meter::default();
        write(&meter, ms(0), ms(5000), ms(10));
        meter.begin_at(ms(5000), Kind::Write, MIB);
        let (short, _) = speed(&meter, ms(6000));
        assert!(short < 20.0, "{short}");
        let flow = meter.performance_at(ms(6000), ms(1000)).write;
        assert_eq!((flow.queue, flow.queued_bytes), (1, MIB));
    }

    /// Several at a time count the time once.
    #[test]
    fn requests_beside_one_another_share_their_time() {
        let meter = Meter::default();
        for n in 0..200u64 {
            let begun: Vec<Begun> = (0..8).map(|_| meter.begin_at(ms(n * 10), Kind::Read, MIB)).collect();
            begun.into_iter().for_each(|begun| meter.end_at(ms(n * 10 + 10), begun, None));
        }
        let read = meter.performance_at(ms(2000), Duration::ZERO).read;
        assert!(near(read.speed / MIB as f64, 800.0), "{}", read.speed);
        assert!(near(read.load / MIB as f64, 800.0 * (1.0 - (-4.0f64).exp())), "{}", read.load);
    }

    #[test]
    fn latency_is_told_to_a_fifth() {
        let meter = Meter::default();
        for n in 0..1000u64 {
            let begun = meter.begin_at(ms(n * 100), Kind::Read, 4096);
            let takes = Duration::from_micros(if n % 50 == 0 { 20_000 } else { 100 });
            meter.end_at(ms(n * 100) + takes, begun, None);
        }
        let read = meter.performance_at(ms(100_000), Duration::ZERO).read;
        assert!((100..120).contains(&read.median.as_micros()), "{:?}", read.median);
        assert!((20_000..24_000).contains(&read.p99.as_micros()), "{:?}", read.p99);
    }

    #[test]
    fn failures_are_counted_by_class_and_are_no_speed() {
        let meter = Meter::default();
        let begun = meter.begin_at(ms(0), Kind::Write, MIB);
        meter.end_at(ms(1), begun, Some(Class::Media));
        let told = meter.performance_at(ms(2), Duration::ZERO);
        assert_eq!((told.errors_of(Class::Media), told.errors_of(Class::Gone)), (1, 0));
        assert_eq!((told.write.requests, told.write.speed), (0, 0.0));
    }
}

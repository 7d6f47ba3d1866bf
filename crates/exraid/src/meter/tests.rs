//! Tests of meters under a simulated clock.

use super::*;

const MIB: u64 = 1 << 20;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn begin(meter: &Meter, now: Duration, kind: Kind, bytes: u64) -> Begun {
    meter.begin_at(nanos(now), kind, 0..bytes)
}

fn end(meter: &Meter, now: Duration, begun: Begun, failed: Option<Class>) {
    meter.end_at(nanos(now), begun, failed);
}

fn performance(meter: &Meter, now: Duration, oldest: Duration) -> Performance {
    meter.performance_at(nanos(now), oldest)
}

/// Requests one after the other from `from` to `to`, of `takes` each.
fn write(meter: &Meter, from: Duration, to: Duration, takes: Duration) {
    let mut now = from;
    while now + takes <= to {
        let begun = begin(meter, now, Kind::Write, MIB);
        now += takes;
        end(meter, now, begun, None);
    }
}

fn near(found: f64, wanted: f64) -> bool {
    (found / wanted - 1.0).abs() < 0.05
}

fn speed(meter: &Meter, now: Duration) -> (f64, f64) {
    let write = performance(meter, now, Duration::ZERO).write;
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
    let load = performance(&meter, ms(60_000), Duration::ZERO).write.load;
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
    begin(&meter, ms(5000), Kind::Write, MIB);
    let (short, _) = speed(&meter, ms(6000));
    assert!(short < 20.0, "{short}");
    let flow = performance(&meter, ms(6000), ms(1000)).write;
    assert_eq!((flow.queue, flow.queued_bytes), (1, MIB));
}

/// Several at a time count the time once.
#[test]
fn requests_beside_one_another_share_their_time() {
    let meter = Meter::default();
    for n in 0..200u64 {
        let begun: Vec<Begun> = (0..8).map(|_| begin(&meter, ms(n * 10), Kind::Read, MIB)).collect();
        begun.into_iter().for_each(|begun| end(&meter, ms(n * 10 + 10), begun, None));
    }
    let read = performance(&meter, ms(2000), Duration::ZERO).read;
    assert!(near(read.speed / MIB as f64, 800.0), "{}", read.speed);
    assert!(near(read.load / MIB as f64, 800.0 * (1.0 - (-4.0f64).exp())), "{}", read.load);
}

#[test]
fn latency_is_exact_to_a_fifth() {
    let meter = Meter::default();
    for n in 0..1000u64 {
        let begun = begin(&meter, ms(n * 100), Kind::Read, 4096);
        let takes = Duration::from_micros(if n % 50 == 0 { 20_000 } else { 100 });
        end(&meter, ms(n * 100) + takes, begun, None);
    }
    let read = performance(&meter, ms(100_000), Duration::ZERO).read;
    assert!((100..120).contains(&read.median.as_micros()), "{:?}", read.median);
    assert!((20_000..24_000).contains(&read.p99.as_micros()), "{:?}", read.p99);
}

#[test]
fn failures_are_counted_by_class_and_are_no_speed() {
    let meter = Meter::default();
    let begun = begin(&meter, ms(0), Kind::Write, MIB);
    end(&meter, ms(1), begun, Some(Class::Media));
    let performance = performance(&meter, ms(2), Duration::ZERO);
    assert_eq!((performance.errors_of(Class::Media), performance.errors_of(Class::Gone)), (1, 0));
    assert_eq!((performance.write.requests, performance.write.speed), (0, 0.0));
}

/// The last request alone does not decide.
#[test]
fn a_last_small_request_does_not_tell_the_speed_of_all_before() {
    let meter = Meter::default();
    write(&meter, ms(0), ms(5000), ms(10));
    let begun = begin(&meter, ms(5001), Kind::Write, 512);
    end(&meter, ms(5004), begun, None);
    for later in [5004, 5100, 8000, 60_000] {
        let (short, long) = speed(&meter, ms(later));
        assert!(near(short, 99.6) && near(long, 99.9), "{short}, {long} at {later}");
    }
}

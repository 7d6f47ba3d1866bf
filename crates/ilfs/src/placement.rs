//! Placement: which region the next segment goes to.
//!
//! Each region gets segments in proportion to its speed (E×RAID, section 5.2). A segment goes to the region that would
//! complete it first: behind the region's queue, at the speed that was measured lately. So busy disks all have work for
//! the same time. A disk that slows down is left out as soon as its queue grows, before its measured speed changes.
//! Where no requests wait, fair queueing applies. Each segment makes a region busy for as long as it takes. A region
//! that got less than its share is preferred until it has caught up, by at most [`MEMORY`]. So equally fast regions take
//! turns, a slow one is tried again, and an unknown one counts as fast as the fastest.
//!
//! A region with a disk that *stutters* ([`exraid::meter::stutter`]) is much slower than it was for the same requests.
//! It sits out while another one does not stutter: content written there would be slow to read, and the disk may be
//! about to fail. With an empty queue it is tried with a segment every [`TRIED`], so that its recovery is noticed. If
//! all stutter, none sits out.
//!
//! Measured with one writer that syncs after each 32 MiB, on two disks held to 20 MB/s of which one falls to 4, a single
//! run each of an unoptimised build: with a region that sits out 8.4 MB/s, 0.9 s a sync, and 14 % of the content on the
//! slow disk; by speed alone 5.2 MB/s, 2.2 s and 42 %. A sync waits for the last segment, also if only that is slow. The
//! gain is not certain: on a busy machine, with disks at 8 and 1.6 MB/s, placement by speed alone was slower to write (3.1
//! against 3.9 MB/s) and quicker to sync (1.2 against 3.4 s).
//!
//! A degraded region tolerates fewer further failures than it was made for, or none. New content there would be lost
//! with the next disk, and has to be rebuilt onto the replacement of the lost one. So the region sits out, and is not
//! tried, as long as another region has room that tolerates more failures. A region without redundancy is no worse than
//! it was.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use exraid::label::MemberState;
use exraid::Region;

use super::areas::Area;
use super::storage_class::Class;
use super::Log;

/// Assumed bytes per second of a disk if no speed is known of any.
const UNKNOWN: f64 = 1e9;
/// The share, in seconds of work, that a region may catch up at most. Also how long a slow region without a queue is
/// left out before it is tried again.
const MEMORY: f64 = 1.0;
/// A region is not taken for slower than the fastest by more than this.
const SLOWEST: f64 = 1e-3;

/// Bytes written to a region before it is believed to be faster than the others. The first ones may have gone to a
/// cache, whose speed would attract all writes under way.
const LITTLE: u64 = 64 << 20;

/// How often a region that sits out is tried.
const TRIED: Duration = Duration::from_secs(3);

/// The inputs of a choice, in bytes and seconds.
#[derive(Clone, Copy, Debug)]
struct Speed {
    /// Bytes per second; 0 if unknown.
    delivers: f64,
    queued: f64,
    /// Little is known of it.
    is_new: bool,
    /// It is much slower than it was.
    stutters: bool,
}

fn speed(region: &dyn Region) -> Speed {
    let exraid::Performance { write, stutter, .. } = region.performance();
    Speed {
        stutters: stutter.is_some(),
        delivers: if write.speed > 0.0 { write.speed } else { write.usual_speed },
        queued: write.queued_bytes as f64,
        is_new: write.bytes < LITTLE,
    }
}

/// The regions that sit out because they stutter, given when each got a segment last.
fn sit_out(speeds: &[Speed], given: &[Duration], now: Duration) -> Vec<bool> {
    let others = speeds.iter().any(|speed| !speed.stutters);
    let is_due = |speed: &Speed, given: &Duration| speed.queued == 0.0 && now.saturating_sub(*given) >= TRIED;
    speeds.iter().zip(given).map(|(speed, given)| others && speed.stutters && !is_due(speed, given)).collect()
}

/// How many disks a region can lose by now, and whether it is degraded.
#[derive(Clone, Copy, Debug)]
struct Tolerance {
    disks: Option<usize>,
    is_degraded: bool,
}

fn tolerance(region: &dyn Region) -> Tolerance {
    let is_degraded = region.members().iter().any(|member| member.state != MemberState::Whole);
    Tolerance { disks: region.tolerated(), is_degraded }
}

/// The degraded regions that sit out because others tolerate more failures.
fn are_weak(all: &[Tolerance]) -> Vec<bool> {
    let most = all.iter().map(|one| one.disks).max().flatten();
    all.iter().map(|one| one.is_degraded && one.disks < most).collect()
}

/// By a clock of this process.
fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// For each region, in seconds: until when it would be busy with a segment of so many bytes more; and how soon that
/// segment would be done. `until`: until when it is busy by fair queueing.
fn finish(speeds: &[Speed], until: &[f64], bytes: f64) -> Vec<(f64, f64)> {
    let most = |of: &dyn Fn(&&Speed) -> bool| speeds.iter().filter(of).map(|speed| speed.delivers).fold(0.0, f64::max);
    let known = match most(&|speed| !speed.is_new) {
        0.0 => most(&|_| true),
        known => known,
    };
    let fastest = if known > 0.0 { known } else { UNKNOWN };
    let last = until.iter().copied().fold(0.0, f64::max);
    let one = |(speed, until): (&Speed, &f64)| {
        let delivers = if speed.delivers > 0.0 {
            speed.delivers.clamp(fastest * SLOWEST, if speed.is_new { fastest } else { f64::INFINITY })
        } else {
            fastest
        };
        let (until, takes) = (until.max(last - MEMORY), bytes / delivers);
        let tried = takes.min(MEMORY);
        let done = match speed.queued > 0.0 {
            true => speed.queued / delivers + takes,
            false => tried - (last - until),
        };
        (until + tried, done)
    };
    speeds.iter().zip(until).map(one).collect()
}

impl Log {
    /// The regions for segments of a class, the best first.
    pub(super) fn choices(&self, class: Class) -> Vec<Choice> {
        let mut choices = self.by_preference();
        if let Class::Whole(number) = class {
            // If that region has no room, the file has to do with another.
            choices.sort_by_key(|choice| choice.area.number != number);
        }
        choices
    }

    /// The regions that take content, the best for the next segment first.
    pub(super) fn by_preference(&self) -> Vec<Choice> {
        let areas = self.areas();
        let taking: Vec<(Arc<Area>, Arc<dyn Region>)> = areas.taking().map(|(a, r)| (a.clone(), r.clone())).collect();
        if let [(area, _)] = &taking[..] {
            return vec![Choice { area: area.clone(), busy: 0.0 }];
        }
        let speeds: Vec<Speed> = taking.iter().map(|(_, region)| speed(&**region)).collect();
        let until: Vec<f64> =
            taking.iter().map(|(area, _)| f64::from_bits(area.until.load(Ordering::Relaxed))).collect();
        let finish = finish(&speeds, &until, self.segment() as f64);
        let given: Vec<Duration> =
            taking.iter().map(|(area, _)| Duration::from_micros(area.given.load(Ordering::Relaxed))).collect();
        let out = sit_out(&speeds, &given, now());
        let weak = are_weak(&taking.iter().map(|(_, region)| tolerance(&**region)).collect::<Vec<_>>());
        let mut choices: Vec<((bool, bool), f64, Choice)> = taking
            .into_iter()
            .zip(finish)
            .zip(weak.into_iter().zip(out))
            .map(|(((area, _), (busy, done)), out)| (out, done, Choice { area, busy }))
            .collect();
        choices.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        choices.into_iter().map(|(_, _, choice)| choice).collect()
    }
}

/// A region that a segment may go to.
#[derive(Clone)]
pub(super) struct Choice {
    pub area: Arc<Area>,
    /// Until when it is busy with that segment.
    busy: f64,
}

impl Choice {
    /// Records that a segment goes there.
    pub fn take(&self) {
        self.area.until.store(self.busy.to_bits(), Ordering::Relaxed);
        self.area.given.store(now().as_micros() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many segments each region gets.
    fn shares(speeds: &[f64], segments: usize) -> Vec<usize> {
        let speeds: Vec<Speed> = speeds
            .iter()
            .map(|delivers| Speed { delivers: *delivers, queued: 0.0, is_new: false, stutters: false })
            .collect();
        let (mut until, mut shares) = (vec![0.0; speeds.len()], vec![0; speeds.len()]);
        for _ in 0..segments {
            let finish = finish(&speeds, &until, 4e6);
            let best = (0..speeds.len()).min_by(|a, b| finish[*a].1.total_cmp(&finish[*b].1)).expect("there is one");
            until[best] = finish[best].0;
            shares[best] += 1;
        }
        shares
    }

    #[test]
    fn segments_go_where_they_are_done_first() {
        assert_eq!(shares(&[1e9, 1e9, 1e9, 1e9], 400), [100; 4], "equal ones take turns");
        let unequal = shares(&[3e8, 3e8, 1e8, 1e8], 800);
        assert!(unequal.iter().zip([300, 300, 100, 100]).all(|(got, fair)| got.abs_diff(fair) <= 8), "{unequal:?}");
        let unknown = shares(&[1e8, 0.0], 200);
        assert!(unknown[1].abs_diff(100) <= 2, "{unknown:?}: one that is new gets its share");
    }

    /// A region that stood still has hardly any speed by then.
    #[test]
    fn one_that_was_slow_is_tried_again_but_with_one_segment_at_a_time() {
        let mut speeds: Vec<Speed> =
            [1e8, 1.0].map(|delivers| Speed { delivers, queued: 0.0, is_new: false, stutters: false }).to_vec();
        let (mut until, mut given) = (vec![0.0; 2], 0);
        for _ in 0..1000 {
            let finish = finish(&speeds, &until, 4e6);
            let best = usize::from(finish[1].1 < finish[0].1);
            until[best] = finish[best].0;
            given += best;
        }
        assert!((30..=45).contains(&given), "{given} in forty seconds of work of the other");
        speeds[1].queued = 4e6;
        assert!(finish(&speeds, &until, 4e6)[1].1 > 10.0, "what it was given is not done yet");
    }

    #[test]
    fn one_that_is_new_is_not_taken_for_faster_than_the_others() {
        let speed = |delivers, is_new| Speed { delivers, queued: 0.0, is_new, stutters: false };
        let takes = |speeds: [Speed; 2]| finish(&speeds, &[0.0; 2], 4e6)[1].1;
        assert_eq!(takes([speed(1e8, false), speed(1e9, true)]), 0.04);
        assert_eq!(takes([speed(1e8, false), speed(1e9, false)]), 0.004);
        assert_eq!(takes([speed(1e8, true), speed(1e9, true)]), 0.004, "where all are");
    }

    #[test]
    fn one_that_stutters_sits_out_but_for_a_try_now_and_then() {
        let speed = |stutters, queued| Speed { delivers: 1e7, queued, is_new: false, stutters };
        let (now, just) = (Duration::from_secs(100), Duration::from_millis(97_500));
        let out = |speeds: &[Speed], given| sit_out(speeds, &vec![given; speeds.len()], now);
        assert_eq!(out(&[speed(false, 0.0), speed(true, 0.0)], just), [false, true]);
        assert_eq!(out(&[speed(false, 0.0), speed(true, 0.0)], Duration::ZERO), [false, false], "it is tried");
        assert_eq!(
            out(&[speed(false, 0.0), speed(true, 4e6)], Duration::ZERO),
            [false, true],
            "it has not done the last"
        );
        assert_eq!(out(&[speed(true, 0.0), speed(true, 4e6)], just), [false, false], "none is better");
    }

    #[test]
    fn one_that_has_lost_a_disk_sits_out_while_another_can_lose_more() {
        let one = |disks, is_degraded| Tolerance { disks, is_degraded };
        assert_eq!(are_weak(&[one(Some(1), false), one(Some(0), true)]), [false, true], "of two mirrors");
        assert_eq!(are_weak(&[one(Some(1), true), one(Some(1), false)]), [false, false], "it had three");
        assert_eq!(are_weak(&[one(Some(0), false), one(Some(0), true)]), [false, false], "none can lose more");
        assert_eq!(are_weak(&[one(Some(1), false), one(Some(0), false)]), [false, false], "it never could");
        assert_eq!(are_weak(&[one(None, true), one(Some(0), true)]), [true, false]);
    }

    #[test]
    fn what_waits_in_a_queue_counts() {
        let speeds = [
            Speed { delivers: 1e8, queued: 64e6, is_new: false, stutters: false },
            Speed { delivers: 1e8, queued: 0.0, is_new: false, stutters: false },
        ];
        let finish = finish(&speeds, &[0.0, 0.0], 4e6);
        assert!(finish[0].1 > finish[1].1);
    }
}

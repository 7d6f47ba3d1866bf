//! The transfers of the disks over time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::MB;
use crate::prelude::*;
use crate::rig::Rig;

/// The interval between two looks.
const PERIOD: Duration = Duration::from_millis(20);

/// Bytes written to each disk at points in time, in seconds since the first one.
#[derive(Default)]
pub struct Trace {
    points: Vec<(f64, Vec<u64>)>,
}

/// Does `work` and records the transfers of the disks meanwhile. `see` gets the seconds and the bytes written to all
/// disks so far.
pub fn watched<T>(
    rig: &Rig,
    mut see: impl FnMut(f64, u64) -> Result<(), Error> + Send,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<(T, Trace), Error> {
    let ended = AtomicBool::new(false);
    let first = rig.written_each()?;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut trace = Trace::default();
            loop {
                let is_last = ended.load(Ordering::Acquire);
                let written =
                    rig.written_each()?.iter().zip(&first).map(|(now, first)| now - first).collect::<Vec<u64>>();
                let at = start.elapsed().as_secs_f64();
                see(at, written.iter().sum())?;
                trace.points.push((at, written));
                if is_last {
                    return Ok(trace);
                }
                std::thread::sleep(PERIOD);
            }
        });
        let done = work();
        ended.store(true, Ordering::Release);
        let trace: Result<Trace, Error> = joined(watch);
        Ok((done?, trace?))
    })
}

impl Trace {
    /// Seconds at the end.
    pub fn end(&self) -> f64 {
        self.points.last().map_or(0.0, |(at, _)| *at)
    }

    /// Bytes written to each disk at that time, interpolated between points.
    pub fn written(&self, at: f64) -> Vec<f64> {
        let of = |point: &(f64, Vec<u64>)| point.1.iter().map(|written| *written as f64).collect::<Vec<f64>>();
        let n = self.points.partition_point(|point| point.0 < at);
        match (n.checked_sub(1).and_then(|n| self.points.get(n)), self.points.get(n)) {
            (Some(before), Some(after)) => {
                let part = (at - before.0) / (after.0 - before.0).max(1e-9);
                of(before).iter().zip(of(after)).map(|(a, b)| a + (b - a) * part).collect()
            }
            (Some(one), None) | (None, Some(one)) => of(one),
            (None, None) => Vec::new(),
        }
    }

    /// Bytes written to all disks at that time.
    pub fn all_written(&self, at: f64) -> f64 {
        self.written(at).iter().sum()
    }

    /// Bytes written in a second in this span.
    pub fn rate(&self, from: f64, to: f64) -> f64 {
        (self.all_written(to) - self.all_written(from)) / (to - from).max(1e-9)
    }

    /// The time at which `bytes` had been written.
    pub fn when(&self, bytes: f64) -> Option<f64> {
        self.points.iter().find(|(_, written)| written.iter().sum::<u64>() as f64 >= bytes).map(|point| point.0)
    }

    /// Adds the speed of all disks together, step by step.
    pub fn add_rates(&self, section: &mut Section, subject: &str, step: f64) {
        let steps = (self.end() / step) as usize;
        for n in 0..steps {
            let (from, to) = (n as f64 * step, (n + 1) as f64 * step);
            section.add(subject, &format!("{to:.2} s"), self.rate(from, to) / MB);
        }
    }

    /// Adds the speed of each disk of one subject, step by step.
    pub fn add_rates_of_each(&self, section: &mut Section, subject: &str, step: f64) {
        let steps = (self.end() / step) as usize;
        for n in 0..steps {
            let (from, to) = (n as f64 * step, (n + 1) as f64 * step);
            for (disk, (a, b)) in self.written(from).into_iter().zip(self.written(to)).enumerate() {
                section.add(&format!("{subject}, disk {}", disk + 1), &format!("{to:.2} s"), (b - a) / step / MB);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(points: &[(f64, [u64; 2])]) -> Trace {
        Trace { points: points.iter().map(|(at, written)| (*at, written.to_vec())).collect() }
    }

    #[test]
    fn what_is_between_points_is_in_proportion() {
        let trace = trace(&[(0.0, [0, 0]), (1.0, [100, 300]), (2.0, [100, 700])]);
        assert_eq!(trace.written(0.5), [50.0, 150.0]);
        assert_eq!(trace.written(9.0), [100.0, 700.0]);
        assert_eq!(trace.rate(1.0, 2.0), 400.0);
        assert_eq!((trace.when(401.0), trace.when(900.0), trace.end()), (Some(2.0), None, 2.0));
        let mut section = Section::rates("t", "t", "MB/s");
        trace.add_rates(&mut section, "a", 1.0);
        trace.add_rates_of_each(&mut section, "a", 1.0);
        assert_eq!(section.measures(), ["1.00 s", "2.00 s"]);
        assert_eq!(section.get("a, disk 1", "2.00 s").expect("there").median, 0.0);
    }
}

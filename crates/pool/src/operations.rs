//! The operations that a mount has served, by kind: how many, how many bytes, and how long each took. The server of the
//! mount tells them as the value of the extended attribute [`ATTRIBUTE`] of each of its files.

use std::time::Duration;

use exraid::meter::buckets;
pub use exraid::meter::buckets::end;
use serde::{Deserialize, Serialize};

/// Its value is [`Operations`] as JSON. It cannot be set, and lists of attributes do not have it.
pub const ATTRIBUTE: &str = "user.conquest.operations";

/// Buckets of latencies: the last one begins at a minute.
pub const BUCKETS: usize = 104;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Operations {
    /// Of the program that tells it.
    pub version: String,
    /// The server, and for how many seconds it has counted.
    pub pid: u32,
    pub seconds: f64,
    /// Those kinds that there were.
    pub kinds: Vec<Kind>,
}

/// The operations of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kind {
    /// The name of the request, as `linux/fuse.h` has it: `read`, `lookup`.
    pub name: String,
    pub requests: u64,
    /// Of these, those that were answered with EIO, ENOSPC or EROFS.
    pub failures: u64,
    /// Bytes of content that were read or written.
    pub bytes: u64,
    /// Nanoseconds that all of them took.
    pub nanos: u64,
    /// Latencies: a [bucket](buckets), and how many are in it.
    pub latencies: Vec<(usize, u64)>,
}

impl Kind {
    /// Adds others.
    pub fn add(&mut self, other: &Kind) {
        self.requests += other.requests;
        self.failures += other.failures;
        self.bytes += other.bytes;
        self.nanos += other.nanos;
        for (bucket, count) in &other.latencies {
            match self.latencies.binary_search_by_key(bucket, |(bucket, _)| *bucket) {
                Ok(n) => self.latencies[n].1 += count,
                Err(n) => self.latencies.insert(n, (*bucket, *count)),
            }
        }
    }

    /// Those since `before`.
    fn since(&self, before: &Kind) -> Kind {
        let count = |bucket| before.latencies.iter().find(|(b, _)| *b == bucket).map_or(0, |(_, count)| *count);
        let latencies = self.latencies.iter().map(|(bucket, n)| (*bucket, n.saturating_sub(count(*bucket))));
        Kind {
            name: self.name.clone(),
            requests: self.requests.saturating_sub(before.requests),
            failures: self.failures.saturating_sub(before.failures),
            bytes: self.bytes.saturating_sub(before.bytes),
            nanos: self.nanos.saturating_sub(before.nanos),
            latencies: latencies.filter(|(_, n)| *n > 0).collect(),
        }
    }

    /// The time within which this share of them was answered, to a fifth.
    pub fn within(&self, share: f64) -> Duration {
        let count = |bucket| self.latencies.iter().find(|(b, _)| *b == bucket).map_or(0, |(_, count)| *count);
        buckets::within((0..BUCKETS).map(count), share)
    }
}

impl Operations {
    /// Those since `before`; all, if another server told that.
    pub fn since(&self, before: &Operations) -> Operations {
        if self.pid != before.pid || self.seconds < before.seconds {
            return self.clone();
        }
        let kinds = self.kinds.iter().map(|kind| match before.kinds.iter().find(|old| old.name == kind.name) {
            Some(old) => kind.since(old),
            None => kind.clone(),
        });
        let kinds = kinds.filter(|kind| kind.requests > 0).collect();
        Operations { seconds: self.seconds - before.seconds, kinds, ..self.clone() }
    }

    /// The sum of those kinds.
    pub fn sum(&self, of: impl Fn(&str) -> bool) -> Kind {
        let mut sum = Kind::default();
        self.kinds.iter().filter(|kind| of(&kind.name)).for_each(|kind| sum.add(kind));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(seconds: f64, latencies: &[(usize, u64)]) -> Operations {
        let requests = latencies.iter().map(|(_, n)| n).sum();
        let kind = Kind { name: "read".into(), requests, bytes: 4096 * requests, ..Kind::default() };
        Operations {
            pid: 7,
            seconds,
            kinds: vec![Kind { latencies: latencies.into(), ..kind }],
            ..Operations::default()
        }
    }

    #[test]
    fn what_an_interval_had_is_the_difference() {
        let (before, now) = (of(10.0, &[(4, 90)]), of(12.0, &[(4, 100), (40, 90)]));
        let passed = now.since(&before);
        assert_eq!((passed.seconds, passed.kinds[0].requests, passed.kinds[0].bytes), (2.0, 100, 409_600));
        assert_eq!(passed.kinds[0].latencies, [(4, 10), (40, 90)]);
        assert_eq!((passed.kinds[0].within(0.05), passed.kinds[0].within(0.5)), (buckets::end(4), buckets::end(40)));
        assert!(now.since(&now).kinds.is_empty());
        let other = Operations { pid: 8, ..before };
        assert_eq!(now.since(&other), now);
        assert_eq!(now.sum(|name| name == "write"), Kind::default());
    }
}

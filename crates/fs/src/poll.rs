//! Waiting for work of another process or thread that does not notify.

use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(1);

/// Waits until something is `done`, at most for `limit`, by looking every millisecond. Is it?
pub fn poll_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_until_it_is_done_or_the_time_is_over() {
        let mut looks = 0;
        let third = || {
            looks += 1;
            looks == 3
        };
        assert!(poll_until(Duration::MAX, third));
        assert_eq!(looks, 3);
        assert!(poll_until(Duration::ZERO, || true), "it is looked at once at least");
        let start = Instant::now();
        assert!(!poll_until(Duration::from_millis(20), || false));
        assert!(start.elapsed() > Duration::from_millis(20));
    }
}

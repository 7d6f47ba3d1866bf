//! Waiting for what another process or thread does and does not tell.

use std::time::{Duration, Instant};

const GLANCE: Duration = Duration::from_millis(1);

/// Waits until something is `done`, at most for `patience`, by looking every millisecond. Is it?
pub fn eventually(patience: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        if start.elapsed() > patience {
            return false;
        }
        std::thread::sleep(GLANCE);
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
        assert!(eventually(Duration::MAX, third));
        assert_eq!(looks, 3);
        assert!(eventually(Duration::ZERO, || true), "it is looked at once at least");
        let start = Instant::now();
        assert!(!eventually(Duration::from_millis(20), || false));
        assert!(start.elapsed() > Duration::from_millis(20));
    }
}

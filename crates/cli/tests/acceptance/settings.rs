//! Values from the environment: the seed of the run, and other numbers.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of this run: `CONQUEST_SEED`, or the time.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| number("CONQUEST_SEED", now()))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64 % 1_000_000_000)
}

/// A number in the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

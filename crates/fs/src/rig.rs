//! For the tests of this crate's modules: a region of the test's own.

use pram::medium::BATTERY;
use pram::{Mapping, Region, Session};

/// A session on an empty region of `size` bytes in this process's memory.
pub fn session(size: u64) -> Session {
    let map = Mapping::anonymous(size).unwrap();
    let region = Region::format(map, Box::new(BATTERY), [7; 16], 1, 0).unwrap();
    Session::private(region, 64).unwrap()
}

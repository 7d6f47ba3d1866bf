//! Unpredictable numbers.

use rustix::io::Errno;
use rustix::rand::{getrandom, GetRandomFlags};

use crate::error::{Error, Result};

/// `N` random bytes from the kernel.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(n) if n == N => Ok(bytes),
        Ok(_) => Err(Error::host("a random number")(Errno::IO)),
        Err(errno) => Err(Error::host("a random number")(errno)),
    }
}

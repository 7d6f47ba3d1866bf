//! Cookies of directories for 32-bit programs, which cannot hold long ones. Each cookie gets a short number, which
//! stays valid until as many more have been given out.

use std::fs::File;
use std::io::Read;
use std::sync::{Mutex, PoisonError};

use conquest_fs::node::SHORT_COOKIES;
use rustix::io::Errno;

/// The short numbers: those that fit and are no cookies.
const FIRST: u64 = SHORT_COOKIES + 1;
const COUNT: u64 = i32::MAX as u64 - SHORT_COOKIES;

/// The cookies that the numbers stand for. Numbers are reused in a circle.
#[derive(Default)]
pub struct Cookies(Mutex<Given>);

#[derive(Default)]
struct Given {
    cookies: Vec<u64>,
    next: u64,
}

impl Cookies {
    /// The cookie to send to `thread` in place of `cookie`.
    #[inline(always)]
    pub fn shown(&self, cookie: u64, thread: u32) -> u64 {
        match cookie <= SHORT_COOKIES || !is_32_bit(thread) {
            true => cookie,
            false => self.give(cookie),
        }
    }

    fn give(&self, cookie: u64) -> u64 {
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let n = given.next % COUNT;
        given.next += 1;
        match given.cookies.get_mut(n as usize) {
            Some(place) => *place = cookie,
            None => given.cookies.push(cookie),
        }
        FIRST + n
    }

    /// The cookie that `given` stands for. EINVAL: this server has not given it out.
    #[inline(always)]
    pub fn meant(&self, given: u64) -> Result<u64, Errno> {
        match given.checked_sub(FIRST) {
            Some(n) if n < COUNT => {
                let given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                given.cookies.get(n as usize).copied().ok_or(Errno::INVAL)
            }
            _ => Ok(given),
        }
    }
}

/// Does the thread run a 32-bit program?
#[cold]
fn is_32_bit(thread: u32) -> bool {
    let mut head = [0; 5];
    let read = File::open(format!("/proc/{thread}/exe")).and_then(|mut program| program.read_exact(&mut head));
    read.is_ok() && head == *b"\x7fELF\x01"
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: u64 = 1 << 40;

    #[test]
    fn a_number_stands_for_a_long_cookie() {
        let cookies = Cookies::default();
        assert_eq!(cookies.meant(FIRST), Err(Errno::INVAL));
        let given: Vec<u64> = (0..COUNT).map(|n| cookies.give(LONG + n)).collect();
        assert!(given.iter().all(|given| (FIRST..=i32::MAX as u64).contains(given)));
        assert!(given.iter().enumerate().all(|(n, given)| cookies.meant(*given) == Ok(LONG + n as u64)));
        assert_eq!((cookies.give(7 * LONG), cookies.meant(given[0])), (given[0], Ok(7 * LONG)));
    }

    #[test]
    fn others_have_cookies_as_they_are() {
        let cookies = Cookies::default();
        let me = std::process::id();
        assert!(!is_32_bit(me) || cfg!(target_pointer_width = "32"));
        for cookie in [0, 3, SHORT_COOKIES, LONG] {
            assert_eq!((cookies.shown(cookie, u32::MAX), cookies.meant(cookie)), (cookie, Ok(cookie)));
        }
    }
}

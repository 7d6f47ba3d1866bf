//! Descriptors that stay open in somebody else's program: where its own do not look for them.
//!
//! A program counts on the lowest free number (`close(0)`, then `open`), and closes or replaces numbers that it believes free. So what a
//! session keeps open has high numbers.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{fcntl_dupfd_cloexec, Errno};
use rustix::process::{getrlimit, Resource};

/// The lowest number, where the limit of the process allows it.
const LOWEST: i32 = 1000;
/// Numbers below are those of the standard streams, also where these are closed.
const STANDARD: i32 = 3;

/// Another descriptor of what `file` has open, with a high number.
pub fn duplicate(file: impl AsFd) -> rustix::io::Result<OwnedFd> {
    match fcntl_dupfd_cloexec(&file, LOWEST) {
        // Above that all may be taken, too.
        Err(Errno::INVAL | Errno::MFILE) => {
            let high = high_in(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX));
            fcntl_dupfd_cloexec(&file, high).or_else(|_| fcntl_dupfd_cloexec(&file, STANDARD))
        }
        duplicated => duplicated,
    }
}

/// The lowest number in the upper quarter of those that a process may have.
fn high_in(limit: u64) -> i32 {
    (limit.min(LOWEST as u64) * 3 / 4) as i32
}

/// The same in its place, where that can be had.
pub fn raise(file: OwnedFd) -> OwnedFd {
    duplicate(&file).unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_is_kept_open_has_a_high_number() {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").expect("it is there"));
        let low = file.as_raw_fd();
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let kept = raise(file);
        assert!(kept.as_raw_fd() > low && kept.as_raw_fd() >= high_in(limit));
        assert_eq!([64, 1000, u64::MAX].map(high_in), [48, 750, 750]);
        let flags = rustix::io::fcntl_getfd(&kept).expect("it is open");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}

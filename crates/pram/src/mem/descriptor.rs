//! Descriptors that stay open in somebody else's program: where its own do not look for them.
//!
//! A program counts on the lowest free number (`close(0)`, then `open`), and closes or replaces numbers that it believes free. So what a
//! session keeps open has high numbers, above the program's limit where that can be. A caller that sees the program's system calls protects these
//! numbers ([`is_own`]), and moves a descriptor away from one that the program wants ([`give_up`]). Where nobody sees them, a program may
//! have closed one and opened something else there: so each use compares what is open with what was.

#![deny(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};

use rustix::io::{fcntl_dupfd_cloexec, Errno, Result};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

/// The lowest number.
const LOWEST: i32 = 1000;
/// Numbers below are those of the standard streams, also where these are closed.
const STANDARD: i32 = 3;
/// How far the limit is raised for one call.
const SPARE: u64 = 1024;
/// A program with fewer numbers, and no right to more, cannot do without ours.
const FEW: u64 = 128;
/// Numbers beyond are not known as own ones.
const MOST: usize = 1 << 20;
const BITS: usize = u64::BITS as usize;

/// A bit for each number that is ours.
static OWN: [AtomicU64; MOST / BITS] = [const { AtomicU64::new(0) }; MOST / BITS];
/// No number beyond is ours, or has been.
static LAST: AtomicI32 = AtomicI32::new(-1);
/// Those that can be moved.
static KEPT: Mutex<Vec<Weak<Place>>> = Mutex::new(Vec::new());
/// Held while the limit of the process is another than the program's.
static LIMIT: Mutex<()> = Mutex::new(());

/// Is this number one of ours? Takes no lock.
#[inline(always)]
pub fn is_own(fd: RawFd) -> bool {
    let n = fd as usize;
    OWN.get(n / BITS).is_some_and(|word| word.load(Ordering::Relaxed) >> (n % BITS) & 1 != 0)
}

/// Our numbers from `first` on.
pub fn own_from(first: u32) -> impl Iterator<Item = RawFd> {
    let last = LAST.load(Ordering::Acquire);
    (first.min(i32::MAX as u32) as i32..=last).filter(|fd| is_own(*fd))
}

fn note(fd: RawFd, is_ours: bool) {
    let n = fd as usize;
    let Some(word) = OWN.get(n / BITS) else { return };
    if is_ours {
        word.fetch_or(1 << (n % BITS), Ordering::SeqCst);
        LAST.fetch_max(fd, Ordering::SeqCst);
    } else {
        word.fetch_and(!(1 << (n % BITS)), Ordering::SeqCst);
    }
}

/// A descriptor of ours, at the number that it has.
pub struct Own {
    fd: Option<OwnedFd>,
    /// Device and inode.
    what: (u64, u64),
}

impl Own {
    pub fn new(fd: OwnedFd) -> Result<Own> {
        let what = identity(&fd)?;
        note(fd.as_raw_fd(), true);
        Ok(Own { fd: Some(fd), what })
    }

    /// At a high number.
    pub fn raised(fd: OwnedFd) -> Result<Own> {
        Own::new(duplicate(&fd).unwrap_or(fd))
    }

    /// Has the program left it as it was?
    pub fn is_intact(&self) -> bool {
        identity(self).is_ok_and(|what| what == self.what)
    }
}

impl AsFd for Own {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("open until dropped").as_fd()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let is_intact = self.is_intact();
        let Some(fd) = self.fd.take() else { return };
        note(fd.as_raw_fd(), false);
        match is_intact {
            true => drop(fd),
            // It is the program's.
            false => _ = fd.into_raw_fd(),
        }
    }
}

struct Place {
    number: AtomicI32,
    own: RwLock<Own>,
}

/// A descriptor of ours that can be moved to another number.
pub struct Kept(Arc<Place>);

/// A [`Kept`] descriptor while it is used: it stays where it is.
pub struct Lent<'k>(RwLockReadGuard<'k, Own>);

impl Kept {
    /// In the place of `fd`, at a high number where that can be had.
    pub fn new(fd: OwnedFd) -> Result<Kept> {
        let own = Own::raised(fd)?;
        let place = Arc::new(Place { number: AtomicI32::new(own.as_fd().as_raw_fd()), own: RwLock::new(own) });
        let mut kept = lock(&KEPT);
        kept.retain(|other| other.strong_count() > 0);
        kept.push(Arc::downgrade(&place));
        Ok(Kept(place))
    }

    /// Another descriptor of what `fd` has open.
    pub fn duplicate_of(fd: impl AsFd) -> Result<Kept> {
        Kept::new(duplicate(fd)?)
    }

    /// The descriptor. EBADF if the program has closed or replaced it.
    pub fn lend(&self) -> Result<Lent<'_>> {
        let own = self.0.own.read().unwrap_or_else(PoisonError::into_inner);
        match own.is_intact() {
            true => Ok(Lent(own)),
            false => Err(Errno::BADF),
        }
    }

    /// Bytes of the file.
    pub fn size(&self) -> Result<u64> {
        rustix::fs::fstat(self.lend()?).map(|stat| stat.st_size as u64)
    }

    /// Has this descriptor open what the kept one had?
    pub fn is_alike(&self, fd: impl AsFd) -> bool {
        let own = self.0.own.read().unwrap_or_else(PoisonError::into_inner);
        identity(fd).is_ok_and(|what| what == own.what)
    }

    /// Its number now. For calls that change nothing: the number may be another's as soon as it has changed.
    #[inline(always)]
    pub fn number(&self) -> RawFd {
        self.0.number.load(Ordering::SeqCst)
    }
}

impl AsFd for Lent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The program wants this number: what we have there moves to another one. EBUSY where it cannot, or is in use.
pub fn give_up(fd: RawFd) -> Result<()> {
    let kept = lock(&KEPT);
    let place = kept.iter().filter_map(Weak::upgrade).find(|place| place.number.load(Ordering::SeqCst) == fd);
    let place = place.ok_or(Errno::BUSY)?;
    let mut own = place.own.try_write().map_err(|_| Errno::BUSY)?;
    let new = Own::new(duplicate(&*own)?)?;
    place.number.store(new.as_fd().as_raw_fd(), Ordering::SeqCst);
    *own = new;
    Ok(())
}

/// Closes the descriptor with this number; false if there is none.
#[allow(unsafe_code)]
fn close(fd: RawFd) -> bool {
    // SAFETY: nothing in this process owns it.
    unsafe { libc::close(fd) == 0 }
}

/// In a child of `fork`: closes what its parent's descriptors are here.
pub fn close_inherited() {
    for fd in own_from(0).collect::<Vec<_>>() {
        note(fd, false);
        close(fd);
    }
    lock(&KEPT).clear();
}

/// What [`hold`] holds.
pub struct Held(#[expect(dead_code)] (MutexGuard<'static, Vec<Weak<Place>>>, MutexGuard<'static, ()>));

/// Takes the locks of this module: for the time of a `fork`, or of a change of the limit.
pub fn hold() -> Held {
    Held((lock(&KEPT), lock(&LIMIT)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn identity(fd: impl AsFd) -> Result<(u64, u64)> {
    rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Another descriptor of what `file` has open, with a high number.
fn duplicate(file: impl AsFd) -> Result<OwnedFd> {
    let at = |lowest| fcntl_dupfd_cloexec(&file, lowest);
    match at(LOWEST) {
        // Above that all may be taken, too.
        Err(Errno::INVAL | Errno::MFILE) => {
            let high = high_in(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX));
            beyond_limit(|| at(LOWEST)).or_else(|_| at(high)).or_else(|_| at(STANDARD))
        }
        duplicated => duplicated,
    }
}

/// The lowest number in the upper quarter of those that a process may have.
fn high_in(limit: u64) -> i32 {
    (limit.min(LOWEST as u64) * 3 / 4) as i32
}

/// Can the program spare the numbers that we need?
pub fn has_room() -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    limit >= FEW || beyond_limit(|| Ok(())).is_ok()
}

/// Opens something also where the program has opened as much as it may.
pub fn despite_limit<T>(open: impl Fn() -> Result<T>) -> Result<T> {
    match open() {
        Err(Errno::MFILE) => beyond_limit(open),
        opened => opened,
    }
}

/// Opens something with the limit of the process raised.
fn beyond_limit<T>(open: impl FnOnce() -> Result<T>) -> Result<T> {
    let _one = lock(&LIMIT);
    let before = getrlimit(Resource::Nofile);
    let most = before.current.map(|soft| soft.max(LOWEST as u64) + SPARE);
    let raised = Rlimit { current: most, maximum: before.maximum.max(most).filter(|_| before.maximum.is_some()) };
    setrlimit(Resource::Nofile, raised).map_err(|_| Errno::MFILE)?;
    let opened = open();
    // It cannot fail: limits may always be lowered.
    setrlimit(Resource::Nofile, before).map(|()| opened)?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").expect("it is there").into()
    }

    /// Puts something else at a number, as a program does that knows nothing of its owner.
    #[allow(unsafe_code)]
    fn replace(number: RawFd, by: impl AsFd) {
        use std::os::fd::FromRawFd;
        // SAFETY: it is not closed here.
        let mut there = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
        rustix::io::dup2(by, &mut there).expect("a descriptor");
    }

    #[test]
    fn what_is_kept_open_has_a_high_number() {
        let low = null().as_raw_fd();
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let kept = Kept::new(null()).expect("descriptors");
        assert!(kept.number() > low && kept.number() >= high_in(limit));
        assert_eq!([64, 1000, u64::MAX].map(high_in), [48, 750, 750]);
        let flags = rustix::io::fcntl_getfd(kept.lend().expect("it is open")).expect("it is open");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn own_numbers_are_known_until_they_are_closed() {
        let kept = Kept::new(null()).expect("descriptors");
        let number = kept.number();
        assert!(is_own(number) && own_from(number as u32).next() == Some(number));
        assert!(!is_own(0) && !is_own(-1) && !is_own(i32::MAX));
    }

    #[test]
    fn a_number_that_the_program_wants_is_given_up() {
        let kept = Kept::new(null()).expect("descriptors");
        let number = kept.number();
        let lent = kept.lend().expect("it is open");
        assert_eq!(give_up(number), Err(Errno::BUSY), "it is in use");
        drop(lent);
        assert_eq!(give_up(number), Ok(()));
        assert!(kept.number() != number && is_own(kept.number()) && kept.lend().is_ok());
        let fixed = Own::raised(null()).expect("descriptors");
        assert_eq!(give_up(fixed.as_fd().as_raw_fd()), Err(Errno::BUSY), "it may have locks");
    }

    #[test]
    fn what_the_program_has_put_there_is_not_used_nor_closed() {
        let kept = Kept::new(null()).expect("descriptors");
        let other = std::fs::File::open("/dev/zero").expect("it is there");
        let number = kept.number();
        replace(number, &other);
        assert_eq!(kept.lend().err(), Some(Errno::BADF));
        drop(kept);
        assert!(!is_own(number) && close(number), "it is the program's");
    }

    #[test]
    fn the_limit_is_as_before_when_something_was_opened_beyond() {
        let before = getrlimit(Resource::Nofile);
        // A process without the right to has a limit that cannot be raised.
        if let Ok(opened) = beyond_limit(|| fcntl_dupfd_cloexec(null(), before.current.unwrap_or(0) as i32)) {
            assert!(opened.as_raw_fd() as u64 >= before.current.unwrap_or(0));
        }
        assert_eq!(getrlimit(Resource::Nofile), before);
    }
}

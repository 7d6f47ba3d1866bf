//! The credentials of this process, as its file system calls count them, and its umask.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::OnceLock;

use conquest_fs::Caller;
use pram::mem::descriptor::despite_limit;
use rustix::fs::{open, Mode, OFlags, RawDir};
use rustix::io::Errno;

/// Most credentials that one process has in turn. Beyond that the kernel serves it.
const MOST: usize = 256;

/// Capabilities without which the superuser is refused what the pool allows it.
const NEEDED: u64 = 1 << 0 /* CHOWN */ | 1 << 1 /* DAC_OVERRIDE */ | 1 << 3 /* FOWNER */ | 1 << 4 /* FSETID */;
const DAC_READ_SEARCH: u64 = 1 << 2;

#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// May it open files by their handles?
    pub opens_handles: bool,
    /// Are the real user and group, which `access` asks for, the same?
    pub is_real: bool,
    /// Can its permissions be told by user and groups alone?
    pub is_plain: bool,
}

/// All credentials that this process has had, and which of them it has.
pub struct Identities {
    known: Box<[OnceLock<Identity>]>,
    current: AtomicUsize,
    umask: AtomicU32,
}

impl Identities {
    pub fn new() -> Result<Identities, Errno> {
        let all = Identities {
            known: (0..MOST).map(|_| OnceLock::new()).collect(),
            current: AtomicUsize::new(0),
            umask: AtomicU32::new(0),
        };
        all.refresh()?;
        Ok(all)
    }

    /// Reads those of this thread anew.
    pub fn refresh(&self) -> Result<(), Errno> {
        self.adopt(&status()?)
    }

    /// Reads those of the process anew; fails if its threads have different ones.
    pub fn refresh_of_all_threads(&self) -> Result<(), Errno> {
        let status = status()?;
        match are_threads_alike(&status)? {
            true => self.adopt(&status),
            false => Err(Errno::ACCESS),
        }
    }

    fn adopt(&self, status: &str) -> Result<(), Errno> {
        let (identity, umask) = parse(status).ok_or(Errno::INVAL)?;
        self.umask.store(umask, Ordering::Relaxed);
        let mut identity = Some(identity);
        let place = self.known.iter().position(|known| {
            let there = known.get_or_init(|| identity.take().expect("once"));
            identity.as_ref().is_none_or(|identity| identity == there)
        });
        self.current.store(place.unwrap_or(MOST), Ordering::Release);
        Ok(())
    }

    /// `None`: the kernel is to be asked, since it may allow or refuse what cannot be told here.
    #[inline(always)]
    pub fn current(&self) -> Option<&Identity> {
        self.known.get(self.current.load(Ordering::Acquire))?.get().filter(|identity| identity.is_plain)
    }

    #[inline(always)]
    pub fn caller<'a>(&self, identity: &'a Identity) -> Caller<'a> {
        let umask = self.umask.load(Ordering::Relaxed);
        Caller { uid: identity.uid, gid: identity.gid, groups: &identity.groups, umask, checked: false, owns: &[] }
    }

    pub fn set_umask(&self, umask: u32) {
        self.umask.store(umask & 0o777, Ordering::Relaxed);
    }

    /// From now on the kernel is asked.
    pub fn forget(&self) {
        self.current.store(MOST, Ordering::Release);
    }
}

/// The content of a file of the kernel, which tells no size.
pub fn read_file(path: &str) -> Result<Vec<u8>, Errno> {
    let file = despite_limit(|| open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()))?;
    let mut text = vec![0; 4096];
    let mut len = 0;
    loop {
        match rustix::io::read(&file, &mut text[len..])? {
            0 => break,
            n => len += n,
        }
        if len == text.len() {
            text.resize(2 * len, 0);
        }
    }
    text.truncate(len);
    Ok(text)
}

fn status() -> Result<String, Errno> {
    status_of("/proc/thread-self/status")
}

fn status_of(path: &str) -> Result<String, Errno> {
    String::from_utf8(read_file(path)?).map_err(|_| Errno::INVAL)
}

/// Have all threads of this process the same credentials as this one, which are in `status`? The kernel knows them by thread.
fn are_threads_alike(status: &str) -> Result<bool, Errno> {
    if status.lines().any(|line| line == "Threads:\t1") {
        return Ok(true);
    }
    let dir = open("/proc/self/task", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut room = Vec::with_capacity(4096);
    let mut threads = RawDir::new(dir, room.spare_capacity_mut());
    while let Some(thread) = threads.next() {
        let thread = thread?.file_name().to_str().map_err(|_| Errno::INVAL)?.to_owned();
        if thread.starts_with('.') {
            continue;
        }
        match status_of(&format!("/proc/self/task/{thread}/status")) {
            Ok(other) if credentials(&other).eq(credentials(status)) => {}
            // It has ended.
            Err(Errno::NOENT | Errno::SRCH) => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn credentials(status: &str) -> impl Iterator<Item = &str> {
    const FIELDS: [&str; 4] = ["Uid:", "Gid:", "Groups:", "CapEff:"];
    status.lines().filter(|line| FIELDS.iter().any(|field| line.starts_with(field)))
}

/// Are the users of this process those of the whole machine, as those of the pool are?
pub fn has_all_users() -> bool {
    let map = read_file("/proc/self/uid_map").unwrap_or_default();
    let words: Vec<&[u8]> = map.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
    words == [&b"0"[..], b"0", b"4294967295"]
}

/// Credentials and umask in `/proc/PID/status`.
fn parse(status: &str) -> Option<(Identity, u32)> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::split_ascii_whitespace);
    // Real, effective, saved, of the file system.
    let ids = |name| -> Option<Vec<u32>> { field(name)?.map(|id| id.parse().ok()).collect() };
    let (uids, gids, groups) = (ids("Uid:")?, ids("Gid:")?, ids("Groups:")?);
    let (&[uid, _, _, fsuid], &[gid, _, _, fsgid]) = (&uids[..], &gids[..]) else { return None };
    let capabilities = u64::from_str_radix(field("CapEff:")?.next()?, 16).ok()?;
    let umask = u32::from_str_radix(field("Umask:")?.next()?, 8).ok()?;
    let is_plain = match fsuid {
        0 => capabilities & NEEDED == NEEDED,
        _ => capabilities == 0,
    };
    let opens_handles = capabilities & DAC_READ_SEARCH != 0;
    let is_real = (uid, gid) == (fsuid, fsgid);
    Some((Identity { uid: fsuid, gid: fsgid, groups, opens_handles, is_real, is_plain }, umask))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tx\nUmask:\t0027\nUid:\t5\t6\t6\t6\nGid:\t7\t7\t7\t7\nGroups:\t8 9 \nCapEff:\t";

    #[test]
    fn credentials_are_those_of_the_file_system() {
        let (identity, umask) = parse(&format!("{STATUS}0000000000000000\n")).unwrap();
        let groups = vec![8, 9];
        let expected = Identity { uid: 6, gid: 7, groups, opens_handles: false, is_real: false, is_plain: true };
        assert_eq!((identity, umask), (expected, 0o27));
    }

    #[test]
    fn capabilities_that_users_do_not_tell_are_the_kernels() {
        let plain = |status: &str| parse(status).unwrap().0.is_plain;
        assert!(!plain(&format!("{STATUS}0000000000000002\n")), "more than the user may");
        let root = STATUS.replace('6', "0");
        assert!(plain(&format!("{root}000001ffffffffff\n")));
        assert!(!plain(&format!("{root}000001fffffffffd\n")), "less than the superuser may");
    }

    #[test]
    fn threads_are_alike_in_credentials() {
        let of = |status: &str| credentials(status).collect::<Vec<_>>().join("|");
        assert_eq!(of(STATUS), of(&STATUS.replace("Name:\tx", "Name:\ty").replace("0027", "0022")));
        for (from, to) in [("\t5\t6\t6\t6", "\t5\t6\t6\t0"), ("8 9", "8"), ("CapEff:\t", "CapEff:\t1")] {
            assert_ne!(of(STATUS), of(&STATUS.replace(from, to)), "{to}");
        }
    }

    #[test]
    fn this_process_is_known() {
        let all = Identities::new().unwrap();
        let known = all.known[0].get().unwrap();
        assert_eq!(known.uid, rustix::process::geteuid().as_raw());
        all.refresh().unwrap();
        assert!(all.known[1].get().is_none(), "the same is known once");
        all.forget();
        assert!(all.current().is_none());
    }
}

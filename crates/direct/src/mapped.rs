//! What the process maps of pools. The kernel maps files, and has what is stored through a mapping until it writes it: what this process
//! maps it reads by the kernel too.
//!
//! To touch a page of a mapping may take a message to the mount's server, which may need what an operation has locked. So where the process
//! maps files of the pool, data goes through memory of the engine: an operation touches none of the program's.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use conquest::Ino;
use rustix::io::Errno;

use crate::identity::read_file;

/// Inodes that may be stored to through mappings. A forked child has the mappings, and this, but not its parent's engine.
static MAPPED: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// How many there are; more than [`MOST`]: any may be.
static COUNT: AtomicUsize = AtomicUsize::new(0);
const MOST: usize = 64;
/// May memory of the process be a file of a pool? It and its forked children never forget.
static MAY_BE_A_FILE: AtomicBool = AtomicBool::new(false);

/// May touching memory of the process take an answer of the mount's server?
#[inline(always)]
pub fn may_be_a_file() -> bool {
    MAY_BE_A_FILE.load(Ordering::Relaxed)
}

/// Data of the program, for an operation to read.
#[inline(always)]
pub fn safe(data: &[u8]) -> Cow<'_, [u8]> {
    match may_be_a_file() {
        true => Cow::Owned(data.to_vec()),
        false => Cow::Borrowed(data),
    }
}

/// What the process maps already: its program and libraries may lie in the pool.
pub fn look_at_maps(dev: u64) -> Result<(), Errno> {
    let dev = format!("{:02x}:{:02x}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let maps = read_file("/proc/self/maps")?;
    let devices = maps.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(3));
    if devices.into_iter().any(|device| device == dev.as_bytes()) {
        note_memory();
    }
    Ok(())
}

#[inline(always)]
pub fn is_mapped(ino: Ino) -> bool {
    COUNT.load(Ordering::Acquire) > 0 && is_noted(ino)
}

#[cold]
fn is_noted(ino: Ino) -> bool {
    let count = COUNT.load(Ordering::Acquire);
    count > MOST || MAPPED[..count].iter().any(|noted| [0, ino].contains(&noted.load(Ordering::Acquire)))
}

pub fn note_memory() {
    MAY_BE_A_FILE.store(true, Ordering::Relaxed);
}

pub fn note(ino: Ino) {
    if !is_mapped(ino) {
        // An entry that is 0 yet counts as any.
        if let Some(entry) = MAPPED.get(COUNT.fetch_add(1, Ordering::AcqRel)) {
            entry.store(ino, Ordering::Release);
        }
    }
}

//! The medium of a memory: when a store is durable, and which calls the medium needs.

use crate::error::{Error, Result};
use crate::mem::Mapping;

/// The kinds of media, with their numbers in the memory header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MediumKind {
    /// RAM that the platform preserves: a store is durable when visible.
    Battery = 1,
    /// Persistent memory behind the processor's caches: durable when flushed and fenced.
    Dax = 2,
    /// Ordinary RAM, with a backing: durable with the next commit.
    Logged = 3,
}

impl MediumKind {
    pub fn from_number(n: u32) -> Option<Self> {
        [MediumKind::Battery, MediumKind::Dax, MediumKind::Logged].into_iter().find(|k| *k as u32 == n)
    }

    pub fn name(self) -> &'static str {
        match self {
            MediumKind::Battery => "battery",
            MediumKind::Dax => "dax",
            MediumKind::Logged => "logged",
        }
    }

    /// Fails unless a memory of this medium is opened as such: a crash leaves different undo logs on different media.
    pub fn expect(self, expected: MediumKind) -> Result<()> {
        if self == expected {
            return Ok(());
        }
        Err(Error::Unusable(format!(
            "the memory was made for the medium `{}`, but is to be opened as `{}`; correct `medium` in pool.toml, \
             or put the right memory back",
            self.name(),
            expected.name()
        )))
    }
}

/// The calls that a medium needs; a call that it does not need costs a predictable branch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// `flush` and `fence`: stores are durable only after them, and unordered between fences. Undo records
    /// then carry checksums.
    pub flush: bool,
    /// `stored`, for every store.
    pub stores: bool,
}

/// The medium below a memory. Calls come from all threads.
pub trait Medium: Send + Sync {
    fn kind(&self) -> MediumKind;
    fn needs(&self) -> Needs;

    /// The instruction by which flushed lines become durable, for display; `None`: stores are durable at once.
    fn flush_instruction(&self) -> Option<&'static str> {
        None
    }

    /// Starts to make the cache lines of `len` bytes at `off` durable; done at the next fence.
    fn flush(&self, map: &Mapping, off: u64, len: u64);

    /// Stores many bytes so that they are durable at the next fence without a flush. Returns false, and stores nothing,
    /// where the medium cannot do that.
    fn stream(&self, _map: &Mapping, _off: u64, _bytes: &[u8]) -> Result<bool> {
        Ok(false)
    }

    /// Waits until everything flushed before is durable; orders it before everything stored after.
    fn fence(&self, map: &Mapping);

    /// `bytes` have been stored at `off`. Atomic read-modify-writes report the word they left.
    fn stored(&self, off: u64, bytes: &[u8]);

    /// For media that need `stores`: lines have been marked, and the store that changes them comes next.
    fn marked(&self) {}

    /// The calling thread is about to wait for another one. True if it has waited in this call, where a medium for
    /// tests schedules the threads; else the caller sleeps.
    fn waits(&self) -> bool {
        false
    }

    /// The calling thread is between two steps of a commit, a checkpoint, or cleaning up, and others see the first.
    /// [`stored`](Self::stored) does not report such a step: the words on which processes agree lie outside the memory.
    fn stepped(&self) {}
}

/// RAM in which a store is final: the RAM survives on its own (`Battery`), or its backing does (`Logged`, see the crate
/// `backing`).
#[derive(Debug)]
pub struct Ram(MediumKind);

impl Ram {
    /// For reading a memory of any kind: stores need not be durable.
    pub fn like(kind: MediumKind) -> Ram {
        Ram(kind)
    }
}

pub const BATTERY: Ram = Ram(MediumKind::Battery);
pub const LOGGED: Ram = Ram(MediumKind::Logged);

impl Medium for Ram {
    fn kind(&self) -> MediumKind {
        self.0
    }
    fn needs(&self) -> Needs {
        Needs::default()
    }
    fn flush(&self, _: &Mapping, _: u64, _: u64) {}
    fn fence(&self, _: &Mapping) {}
    fn stored(&self, _: u64, _: &[u8]) {}
}

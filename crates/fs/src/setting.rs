//! Settings of inodes: policy that is decided once, inherited from the parent directory at creation, and stored
//! with the inode.
//!
//! Each has a name among the extended attributes, `user.conquest.NAME`, by which it is set, read back as set, and
//! unset, so that setfattr, `cp -a` and `rsync -X` carry it; and `user.conquest.effective.NAME`, which says what
//! is in effect and cannot be set. None takes room beside the inode.
//!
//! | setting | values |
//! | --- | --- |
//! | `durability` | `strict`, `fsync` |

use rustix::io::Errno;

use crate::attr::Kind;
use crate::error::Result;
use crate::layout::RawInode;

/// The attribute that sets [`Durability`].
pub const DURABILITY: &[u8] = b"user.conquest.durability";
/// The attribute that tells which is in effect.
pub const EFFECTIVE_DURABILITY: &[u8] = b"user.conquest.effective.durability";
const EFFECTIVE: &[u8] = b"user.conquest.effective.";

/// Bits of `RawInode::settings` that say a [`Durability`]; 0: not set.
const DURABILITY_BITS: u16 = 0b11;

/// When a change is durable on a medium where that takes waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Durability {
    /// When `fsync` and the like have returned, or with the next commit.
    #[default]
    Fsync = 1,
    /// When the call that made it returns.
    Strict = 2,
}

impl Durability {
    /// As it is written in attributes and options.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Fsync => "fsync",
            Durability::Strict => "strict",
        }
    }

    /// From its name.
    pub fn from_name(name: &[u8]) -> Option<Durability> {
        [Durability::Fsync, Durability::Strict].into_iter().find(|d| d.name().as_bytes() == name)
    }
}

/// Is `name` one that tells what is in effect?
pub(crate) fn is_effective(name: &[u8]) -> bool {
    name.starts_with(EFFECTIVE)
}

/// Inodes of which attributes in `user.` can be seen.
pub(crate) fn has_names(raw: &RawInode) -> bool {
    raw.kind == Kind::Regular as u8 || raw.kind == Kind::Directory as u8
}

impl RawInode {
    /// The durability that is set, if any is.
    pub(crate) fn durability(&self) -> Option<Durability> {
        match self.settings & DURABILITY_BITS {
            n if n == Durability::Fsync as u16 => Some(Durability::Fsync),
            n if n == Durability::Strict as u16 => Some(Durability::Strict),
            _ => None,
        }
    }

    #[inline(always)]
    pub(crate) fn is_strict(&self) -> bool {
        self.settings & DURABILITY_BITS == Durability::Strict as u16
    }

    pub(crate) fn set_durability(&mut self, durability: Option<Durability>) {
        self.settings = self.settings & !DURABILITY_BITS | durability.map_or(0, |d| d as u16);
    }

    /// Is everything set to a value that exists?
    pub(crate) fn settings_are_known(&self) -> bool {
        self.reserved == 0 && self.settings <= Durability::Strict as u16
    }
}

/// The value that an attribute shall be set to.
pub(crate) fn durability_of(value: &[u8]) -> Result<Durability> {
    Durability::from_name(value).ok_or_else(|| Errno::INVAL.into())
}

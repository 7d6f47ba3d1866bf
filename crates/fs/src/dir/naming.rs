//! What directories need to know of names beside the names themselves: how they are hashed, and with what they are packed.

use super::hash::{NameHash, Sip};
use crate::error::Result;
use crate::inode::Table;
use crate::packed::names::Symbols;

/// A parameter, as the hash is, so that tests need no pool.
pub trait Naming: NameHash {
    /// The symbols of the profile with this number.
    fn symbols(&self, profile: u8) -> Result<&Symbols>;

    /// How many profiles there are, by number from 0 on.
    fn profiles(&self) -> Result<u8>;
}

/// Those of a pool.
pub(crate) struct Names<'a> {
    sip: Sip,
    table: Table<'a>,
}

impl<'a> Names<'a> {
    #[inline(always)]
    pub fn new(key: u64, table: Table<'a>) -> Names<'a> {
        Names { sip: Sip::new(key), table }
    }
}

impl NameHash for Names<'_> {
    #[inline(always)]
    fn hash(&self, name: &[u8]) -> u64 {
        self.sip.hash(name)
    }
}

impl Naming for Names<'_> {
    fn symbols(&self, profile: u8) -> Result<&Symbols> {
        Ok(self.table.profile(profile)?.symbols())
    }

    fn profiles(&self) -> Result<u8> {
        self.table.profiles()
    }
}

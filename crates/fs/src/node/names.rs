//! The hash key of a pool's names, and the symbols of its profiles.

use crate::dir::Naming;
use crate::error::Result;
use crate::inode::Table;
use crate::packed::names::Symbols;
use crate::packed::profile::Numbers;
use pram::sip::{NameHash, Sip};

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

    fn profiles(&self) -> Result<Numbers> {
        self.table.profiles()
    }
}

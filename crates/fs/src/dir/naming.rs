//! How directories hash names, and with which symbols they pack them.

use crate::error::Result;
use crate::packed::names::Symbols;
use crate::packed::profile::Numbers;
use pram::sip::NameHash;

/// A parameter, as the hash is, so that tests need no pool.
pub trait Naming: NameHash {
    /// The symbols of the profile with this number.
    fn symbols(&self, profile: u8) -> Result<&Symbols>;

    /// The numbers of the profiles that there are.
    fn profiles(&self) -> Result<Numbers>;
}

//! Profiles: the codes of all fields, made from a scan (mramfs, 4.5).
//!
//! A profile is stored as bytes: a header of version, number of fields and checksum, then the buckets of each field,
//! ascending: the distance of their bases as a variable-length number, extra bits, bits of the prefix; then the symbols of names.

use super::code::{Bucket, Code, BUCKETS, ESCAPED};
use super::fields::Field;
use super::names::Symbols;
use super::varint;
use crate::layout::PROFILES;

/// How a profile begins: format and version.
const MAGIC: [u8; 4] = *b"CQP\x02";

/// Numbers of profiles of a pool.
pub type Numbers = smallvec::SmallVec<[u8; PROFILES]>;

/// The codes that pack and read inodes and names.
#[derive(Clone, Debug)]
pub struct Profile {
    pub(super) codes: Box<[Code; Field::COUNT]>,
    pub(super) symbols: Symbols,
}

/// Which codec codes each field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    AllOrNothing,
    Huffman,
    Gamma,
    /// The best one for each field.
    Hybrid,
}

impl Codec {
    pub const ALL: [Codec; 4] = [Codec::AllOrNothing, Codec::Huffman, Codec::Gamma, Codec::Hybrid];

    pub fn name(self) -> &'static str {
        match self {
            Codec::AllOrNothing => "all or nothing",
            Codec::Huffman => "Huffman",
            Codec::Gamma => "gamma",
            Codec::Hybrid => "hybrid",
        }
    }
}

impl Profile {
    #[inline(always)]
    pub fn code(&self, field: Field) -> &Code {
        &self.codes[field as usize]
    }

    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for code in &*self.codes {
            out.push(code.buckets().len() as u8);
            let mut last = 0;
            for b in code.buckets() {
                varint::put(&mut out, b.base.wrapping_sub(last));
                out.extend([b.extra, b.len]);
                last = b.base;
            }
        }
        self.symbols.to_bytes(&mut out);
        let check = pram::mem::crc32c(&out).to_le_bytes();
        [&MAGIC[..], &[Field::COUNT as u8], &check, &out].concat()
    }

    /// `None` if these bytes are no profile, one of another version, or damaged.
    pub fn from_bytes(bytes: &[u8]) -> Option<Profile> {
        let body = bytes.strip_prefix(&MAGIC)?.strip_prefix(&[Field::COUNT as u8])?;
        let (check, mut rest) = body.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*check) != pram::mem::crc32c(rest) {
            return None;
        }
        let from = &mut rest;
        let mut codes = Vec::with_capacity(Field::COUNT);
        for field in Field::ALL {
            let mut buckets = Vec::with_capacity(BUCKETS);
            let mut last = 0u64;
            for _ in 0..varint::take_byte(from)? {
                last = last.wrapping_add(varint::take(from)?);
                buckets.push(Bucket::new(last, varint::take_byte(from)?, varint::take_byte(from)?));
            }
            let code = Code::new(buckets)?;
            code.buckets().last().filter(|other| other.extra == field.width() || other.extra == ESCAPED)?;
            codes.push(code);
        }
        let codes: Box<[Code; Field::COUNT]> = codes.try_into().ok()?;
        let symbols = Symbols::from_bytes(from)?;
        rest.is_empty().then_some(Profile { codes, symbols })
    }
}

//! A dictionary: patterns that files of a pool share, which zstd gets before each. It gives single small files the gain
//! of being compressed together.

use std::sync::OnceLock;

use zstd::zstd_safe::{CDict, DDict};

use crate::layout::RawDictionary;

/// The longest: one object of the heap has it.
pub(crate) const LONGEST: usize = pram::memory::MAX_SMALL as usize - size_of::<RawDictionary>();

pub(crate) struct Dictionary {
    /// Its number, which content that was compressed with it names; not 0.
    pub number: u16,
    pub bytes: Vec<u8>,
    encoding: OnceLock<CDict<'static>>,
    decoding: OnceLock<DDict<'static>>,
}

impl Dictionary {
    pub fn new(number: u16, bytes: Vec<u8>) -> Dictionary {
        Dictionary { number, bytes, encoding: OnceLock::new(), decoding: OnceLock::new() }
    }

    /// Makes one of samples. `None`: there are too few, or they have nothing in common.
    pub fn train(number: u16, samples: &[Vec<u8>]) -> Option<Dictionary> {
        // With fewer the library gives up, or returns the samples.
        if samples.len() < 16 {
            return None;
        }
        let bytes = zstd::dict::from_samples(samples, LONGEST).ok()?;
        (!bytes.is_empty() && bytes.len() <= LONGEST).then(|| Dictionary::new(number, bytes))
    }

    /// Prepared for compressing, once.
    pub(super) fn encoding(&self, level: i32) -> &CDict<'static> {
        self.encoding.get_or_init(|| CDict::create(&self.bytes, level))
    }

    /// Prepared for decoding, once.
    pub(super) fn decoding(&self) -> &DDict<'static> {
        self.decoding.get_or_init(|| DDict::create(&self.bytes))
    }
}

impl std::fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "dictionary {} of {} bytes", self.number, self.bytes.len())
    }
}

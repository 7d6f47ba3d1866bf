//! How much of the content of small files is compressed, and how much that saves.

use serde::Serialize;

use crate::attr::Kind;
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::file::{self, Part};
use crate::node::{content_of, dictionaries, Fs};

/// Files and bytes of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    pub files: u64,
    /// Bytes of their content, and of memory that it occupies.
    pub content: u64,
    pub memory: u64,
}

impl Sum {
    /// Sparse files reach up to 8 EiB each, and damaged ones say anything: their sum stays at the top.
    fn add(&mut self, content: u64, memory: u64) {
        self.files += 1;
        self.content = self.content.saturating_add(content);
        self.memory = self.memory.saturating_add(memory);
    }
}

/// The content of files whose home is memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    pub plain: Sum,
    /// Compressed by LZ4, and by zstd.
    pub warm: Sum,
    pub cold: Sum,
    /// Of those that are plain: those that were tried and are not worth it.
    pub not_worth: Sum,
    /// Dictionaries, and the bytes that both copies of all of them occupy.
    pub dictionaries: u64,
    pub dictionary_memory: u64,
}

impl Survey {
    /// Bytes of memory that compression saves, against the content as it is.
    pub fn saved(&self) -> u64 {
        let memory = [self.warm.memory, self.cold.memory, self.dictionary_memory];
        let memory = memory.into_iter().fold(0, u64::saturating_add);
        self.warm.content.saturating_add(self.cold.content).saturating_sub(memory)
    }
}

impl Fs {
    /// Looks at every file; others may be at work.
    pub fn survey_compression(&self) -> Result<Survey> {
        let (mut survey, mut from) = (Survey::default(), 0);
        while let Some(ino) = self.table().next_used(from)? {
            from = ino + 1;
            let seen = self.session().read(ino, || {
                let Some(raw) = self.table().get(ino)? else { return Ok(None) };
                let c = content_of(ino, &raw);
                if raw.kind != Kind::Regular as u8 || c.is_large() || c.root == 0 {
                    return Ok(None);
                }
                let memory = match file::is_compressed(&c) {
                    true => {
                        let mut memory = 0;
                        file::tally(self.memory(), &c, 0, &mut |part| {
                            if let Part::Compressed { bytes, .. } = part {
                                memory = bytes;
                            }
                        })?;
                        memory
                    }
                    false => file::allocated(self.memory(), &c),
                };
                Ok::<_, Error>(Some((c, memory)))
            });
            // Damage is the business of `fsck`.
            let Ok(Some((c, memory))) = seen else { continue };
            match file::codec_of(&c) {
                Some(Codec::Lz4) => survey.warm.add(c.size, memory),
                Some(Codec::Zstd) => survey.cold.add(c.size, memory),
                None => survey.plain.add(c.size, memory),
            }
            if file::codec_of(&c).is_none() && matches!(c.trial(), file::Trial::NotQuickly | file::Trial::NotAtAll) {
                survey.not_worth.add(c.size, memory);
            }
        }
        let found = dictionaries::survey(self.session())?;
        survey.dictionaries = found.whole.len() as u64;
        for off in found.objects {
            survey.dictionary_memory += self.memory().resolve(off, crate::layout::tag::DICTIONARY).unwrap_or(0);
        }
        Ok(survey)
    }
}

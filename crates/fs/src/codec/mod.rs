//! Compression of content at rest: bytes to fewer bytes and back. Other modules handle the memory
//! ([`file`](crate::file) has the form, [`node`](crate::node) decides on compression); here only a thread's own memory is touched,
//! since a decoder must not run on memory that changes.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | a file in chunks, each compressed by itself; and back |
//! | [`dictionary`] | patterns that files share, for zstd |
//! | [`worth`] | content that is not worth trying |
//!
//! A file is cut into chunks, so that a reader of a part decodes only the chunks of that part. A chunk that would not become
//! shorter is taken as it is: its length says so.

pub(crate) mod dictionary;
pub(crate) mod worth;

use std::cell::RefCell;
use std::sync::Arc;

use lz4::block::CompressionMode;
use zstd::zstd_safe::{CCtx, CParameter, DCtx};

pub(crate) use dictionary::Dictionary;

/// Bytes of a chunk, but for the last one of a file.
pub const CHUNK: usize = 64 << 10;
/// The longest file that is compressed.
pub const MOST: u64 = 1 << 20;
/// Chunks of such a file.
pub const MOST_CHUNKS: usize = MOST as usize / CHUNK;

/// How the chunks of a file were compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Codec {
    /// Blocks of LZ4: read several times as quickly, for files that changed minutes ago.
    Lz4 = 1,
    /// Frames of zstd, with a dictionary if it names one: for files that have long not been used.
    Zstd = 2,
}

impl Codec {
    pub(crate) const ALL: [Codec; 2] = [Codec::Lz4, Codec::Zstd];

    pub(crate) fn from_code(code: u8) -> Option<Codec> {
        Codec::ALL.into_iter().find(|codec| *codec as u8 == code)
    }

    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }
}

/// The codec to compress content with.
#[derive(Clone, Default)]
pub(crate) enum Method {
    #[default]
    Lz4,
    /// With the pool's newest dictionary, if it has one.
    Zstd(Option<Arc<Dictionary>>),
}

impl Method {
    pub fn codec(&self) -> Codec {
        match self {
            Method::Lz4 => Codec::Lz4,
            Method::Zstd(_) => Codec::Zstd,
        }
    }

    fn dictionary(&self) -> Option<&Arc<Dictionary>> {
        match self {
            Method::Zstd(dictionary) => dictionary.as_ref(),
            Method::Lz4 => None,
        }
    }
}

/// A file, compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encoded {
    pub codec: Codec,
    /// The dictionary's number, or 0.
    pub dictionary: u16,
    pub size: u32,
    /// Where each chunk ends in `stream`.
    pub ends: Vec<u32>,
    pub stream: Vec<u8>,
}

/// The effort of zstd: the cold tier's aim is 65 % at 150 MB/s and more.
const LEVEL: i32 = 3;
/// The level of LZ4's slow parser.
const LZ4_LEVEL: i32 = 2;
/// Bytes of a chunk from which on that is used: long ones have most of the bytes, and gain most.
const LZ4_LONG: usize = 40 << 10;

/// How many chunks a file of `size` bytes has.
pub(crate) fn chunks_of(size: u64) -> usize {
    size.div_ceil(CHUNK as u64) as usize
}

/// Bytes of chunk `n` of a file of `size` bytes.
pub(crate) fn chunk_len(size: u64, n: usize) -> usize {
    (size - (n * CHUNK) as u64).min(CHUNK as u64) as usize
}

struct Encoder {
    context: CCtx<'static>,
    /// The dictionary that `context` refers to, kept as long.
    dictionary: Option<Arc<Dictionary>>,
    is_set: bool,
}

thread_local! {
    static ENCODER: RefCell<Option<Encoder>> = const { RefCell::new(None) };
    static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// Compresses a file, 1 to [`MOST`] bytes. `None`: the library failed, which it has no reason to.
pub(crate) fn encode(plain: &[u8], method: &Method) -> Option<Encoded> {
    let mut encoded = Encoded {
        codec: method.codec(),
        dictionary: method.dictionary().map_or(0, |dictionary| dictionary.number),
        size: u32::try_from(plain.len()).ok().filter(|size| u64::from(*size) <= MOST)?,
        ends: Vec::with_capacity(plain.len().div_ceil(CHUNK)),
        stream: vec![0; plain.len()],
    };
    let mut at = 0;
    for chunk in plain.chunks(CHUNK) {
        // One byte less than it has, or it stays as it is.
        let room = &mut encoded.stream[at..at + chunk.len() - 1];
        match encode_chunk(chunk, method, room) {
            Some(len) => at += len,
            None => {
                encoded.stream[at..at + chunk.len()].copy_from_slice(chunk);
                at += chunk.len();
            }
        }
        encoded.ends.push(at as u32);
    }
    encoded.stream.truncate(at);
    Some(encoded)
}

/// The bytes that it was compressed to, if they are in `room`.
fn encode_chunk(chunk: &[u8], method: &Method, room: &mut [u8]) -> Option<usize> {
    if room.is_empty() {
        return None;
    }
    match method {
        Method::Lz4 => {
            let mode = (chunk.len() >= LZ4_LONG).then_some(CompressionMode::HIGHCOMPRESSION(LZ4_LEVEL));
            lz4::block::compress_to_buffer(chunk, mode, false, room).ok()
        }
        Method::Zstd(dictionary) => ENCODER.with_borrow_mut(|encoder| {
            let encoder =
                encoder.get_or_insert_with(|| Encoder { context: CCtx::create(), dictionary: None, is_set: false });
            encoder.set(dictionary.as_ref())?;
            encoder.context.compress2(room, chunk).ok()
        }),
    }
}

impl Encoder {
    /// Prepares it for this dictionary.
    fn set(&mut self, dictionary: Option<&Arc<Dictionary>>) -> Option<()> {
        let is_same = match (&self.dictionary, dictionary) {
            (None, None) => true,
            (Some(has), Some(is)) => Arc::ptr_eq(has, is),
            _ => false,
        };
        if self.is_set && is_same {
            return Some(());
        }
        self.context = CCtx::create();
        for parameter in [
            CParameter::CompressionLevel(LEVEL),
            // The form has its length, its codec and a checksum.
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            self.context.set_parameter(parameter).ok()?;
        }
        if let Some(dictionary) = dictionary {
            self.context.ref_cdict(dictionary.encoding(LEVEL)).ok()?;
        }
        (self.dictionary, self.is_set) = (dictionary.cloned(), true);
        Some(())
    }
}

/// Decodes one chunk to exactly `plain`. False: these are no such bytes.
pub(crate) fn decode(codec: Codec, dictionary: Option<&Dictionary>, packed: &[u8], plain: &mut [u8]) -> bool {
    if packed.len() == plain.len() {
        plain.copy_from_slice(packed);
        return true;
    }
    if packed.is_empty() || packed.len() > plain.len() {
        return false;
    }
    let len = match codec {
        Codec::Lz4 => lz4::block::decompress_to_buffer(packed, Some(plain.len() as i32), plain).ok(),
        Codec::Zstd => DECODER.with_borrow_mut(|decoder| {
            let context = decoder.get_or_insert_with(DCtx::create);
            match dictionary {
                Some(dictionary) => context.decompress_using_ddict(plain, packed, dictionary.decoding()).ok(),
                None => context.decompress(plain, packed).ok(),
            }
        }),
    };
    len == Some(plain.len())
}

impl Encoded {
    /// Where chunk `n` lies in the stream.
    pub fn chunk(&self, n: usize) -> &[u8] {
        let start = n.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.stream[start as usize..self.ends[n] as usize]
    }

    /// Whether it decodes to `plain`. All compressed content is checked so before the plain form is given up.
    pub fn is(&self, plain: &[u8], dictionary: Option<&Dictionary>) -> bool {
        let mut chunk = vec![0; CHUNK.min(plain.len())];
        self.size as usize == plain.len()
            && plain.chunks(CHUNK).enumerate().all(|(n, is)| {
                let decoded = &mut chunk[..is.len()];
                decode(self.codec, dictionary, self.chunk(n), decoded) && decoded == is
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rng::Rng;

    pub(super) fn text(rng: &mut Rng, len: usize) -> Vec<u8> {
        let words = ["fn ", "let ", "region", " = ", "content", "(", ")", ";\n", "self.", "return ", "match ", "0x10"];
        let mut text = Vec::with_capacity(len + 16);
        while text.len() < len {
            text.extend_from_slice(words[rng.below(words.len() as u64) as usize].as_bytes());
        }
        text.truncate(len);
        text
    }

    fn methods(rng: &mut Rng) -> Vec<Method> {
        let samples: Vec<Vec<u8>> = (0..400).map(|_| text(rng, 700)).collect();
        let dictionary = Arc::new(Dictionary::train(3, &samples).expect("a dictionary"));
        vec![Method::Lz4, Method::Zstd(None), Method::Zstd(Some(dictionary))]
    }

    #[test]
    fn what_is_compressed_comes_back() {
        let mut rng = Rng::new(1);
        for method in methods(&mut rng) {
            for len in [1, 2, 15, 100, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17, MOST as usize] {
                for random in [false, true] {
                    let plain = match random {
                        true => (0..len).map(|_| rng.below(256) as u8).collect(),
                        false => text(&mut rng, len),
                    };
                    let encoded = encode(&plain, &method).unwrap();
                    assert_eq!(encoded.ends.len(), chunks_of(len as u64));
                    assert!(encoded.is(&plain, method.dictionary().map(|d| &**d)), "{len} bytes");
                    assert!(encoded.stream.len() <= len);
                    if !random && len > 4000 {
                        assert!(encoded.stream.len() * 2 < len, "{} of {len}", encoded.stream.len());
                    }
                    let mut other = plain.clone();
                    other[len / 2] ^= 1;
                    assert!(!encoded.is(&other, method.dictionary().map(|d| &**d)));
                }
            }
            assert!(encode(&vec![0; MOST as usize + 1], &method).is_none());
        }
    }

    /// Any bytes in the memory that it is copied from.
    #[test]
    fn other_bytes_are_refused_or_decoded_to_something() {
        let mut rng = Rng::new(2);
        for method in methods(&mut rng) {
            let dictionary = method.dictionary().cloned();
            let mut plain = vec![0; 3000];
            let whole = encode(&text(&mut rng, 3000), &method).unwrap();
            for round in 0..3000u64 {
                let mut packed = whole.stream.clone();
                match round % 3 {
                    0 => packed.truncate(rng.below(packed.len() as u64) as usize),
                    1 => packed.iter_mut().for_each(|byte| *byte = rng.below(256) as u8),
                    _ => {
                        let at = rng.below(packed.len() as u64) as usize;
                        packed[at] = rng.below(256) as u8;
                    }
                }
                decode(whole.codec, dictionary.as_deref(), &packed, &mut plain);
                let wrong = plain.len() - 1 - rng.below(100) as usize;
                assert!(!decode(whole.codec, dictionary.as_deref(), &whole.stream, &mut plain[..wrong]));
            }
        }
    }
}

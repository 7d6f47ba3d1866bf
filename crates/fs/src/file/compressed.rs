//! Compressed files: plain content, whole, in few bytes. Read-only: a change makes one plain first.
//!
//! Data model: root word → head | tables of chunks and objects | stream, in the same object, or its end there and the rest in others.
//!
//! An object takes what its size class has, so a long stream is [cut](cut) into pieces that fill objects of their classes, and an
//! end of which little is wasted: of `/usr`, three hundredths of what the files have.
//!
//! Nothing is decoded here, in the memory: the bytes that a reader needs are [copied out](copy_out) inside the section that watches the
//! file, or under its lock, and [decoded](Copied::decode) after it, when they are known not to have been torn.
//!
//! Invariants:
//! - C1. Compressed content is as long as the file says, and nothing of it changes as long as a root word leads to it.
//! - C2. Linked content has been decoded, and was the same as the file's plain content, under the lock.
//! - C3. A dictionary is there as long as content names it (see [`dictionaries`](crate::node)).

use pram::memory::{capacity_of, class_within, CLASSES};
use pram::{Memory, Off, Tx};
use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

use super::edit::Edit;
use super::{form, Content, Form, COMPRESSED, TRIAL};
use crate::codec::{self, Codec, Dictionary, Encoded, CHUNK};
use crate::error::{Error, Result};
use crate::layout::{tag, RawCompressed, RawStreamChunk, Root};

const HEAD: usize = size_of::<RawCompressed>();
/// Fewer bytes, head and tables included, lie in one object. Another costs a reader some hundred nanoseconds.
const ALONE: usize = 2048;
/// Most pieces that a stream is cut into beside its end.
const MOST_PIECES: usize = 40;

/// Compressed content whose head was checked for everything that must hold even if its checksum is right.
pub(super) struct Compressed {
    off: u64,
    cap: u64,
    head: RawCompressed,
    codec: Codec,
    cut: Cut,
}

impl Compressed {
    #[cold]
    #[inline(never)]
    pub fn open(r: &Memory, root: Root, size: u64) -> Result<Compressed> {
        let cap = r.resolve(root.off, tag::COMPRESSED)?;
        if cap < HEAD as u64 {
            return Err(Error::Corrupt(format!("compressed content {:#x} has no room for its head", root.off)));
        }
        let head: RawCompressed = r.read(Off::new(root.off))?;
        let (bytes, stored) = (u64::from(head.size), u64::from(head.stored));
        let codec = Codec::from_code(head.codec).filter(|codec| *codec as u8 == root.depth & !TRIAL);
        let is_right = bytes == size && (1..=codec::MOST).contains(&bytes) && (1..=bytes).contains(&stored);
        let senseless = || Error::Corrupt(format!("the head of compressed content {:#x} makes no sense", root.off));
        let codec = codec.filter(|_| is_right).ok_or_else(senseless)?;
        let cut = cut(codec::chunks_of(bytes), head.stored as usize);
        let found = Compressed { off: root.off, cap, head, codec, cut };
        match found.end_at() + found.cut.end as u64 <= root.off + cap {
            true => Ok(found),
            false => Err(senseless()),
        }
    }

    fn chunks(&self) -> usize {
        codec::chunks_of(self.head.size.into())
    }

    /// Bytes of the table of chunks.
    fn table(&self) -> usize {
        table_len(self.chunks())
    }

    /// Where the end of the stream lies.
    fn end_at(&self) -> u64 {
        self.off + (HEAD + self.table() + self.cut.pieces.len() * 8) as u64
    }

    /// Bytes that all of it occupies.
    pub fn allocated(&self) -> u64 {
        self.cap + self.cut.occupied()
    }

    /// The objects that have the pieces.
    fn objects(&self, r: &Memory) -> Result<SmallVec<[u64; 4]>> {
        let (mut words, n) = ([0u8; MOST_PIECES * 8], self.cut.pieces.len().min(MOST_PIECES));
        r.read_bytes(self.off + (HEAD + self.table()) as u64, &mut words[..n * 8])?;
        let object = |word: &[u8]| u64::from_le_bytes(word.try_into().unwrap_or_default());
        Ok(words[..n * 8].chunks_exact(8).map(object).collect())
    }

    /// Calls `object` with everything that it occupies.
    pub fn visit(&self, r: &Memory, object: &mut dyn FnMut(u64, pram::Tag)) -> Result<()> {
        let objects = self.objects(r)?;
        object(self.off, tag::COMPRESSED);
        objects.into_iter().for_each(|off| object(off, tag::COMPRESSED));
        Ok(())
    }

    pub fn free(&self, tx: &mut Tx) -> Result<()> {
        for off in self.objects(tx.memory())? {
            tx.free(off, tag::COMPRESSED)?;
        }
        Ok(tx.free(self.off, tag::COMPRESSED)?)
    }

    /// Copies bytes `from..to` of the stream.
    fn copy_stream(&self, r: &Memory, from: usize, to: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let start = bytes.len();
        bytes.resize(start + to - from, 0);
        let (mut rest, mut at, mut begin) = (&mut bytes[start..], from, 0);
        for (object, len) in self.objects(r)?.into_iter().zip(&self.cut.pieces) {
            let end = begin + usize::from(*len);
            if at < end && !rest.is_empty() {
                let (part, others) = rest.split_at_mut((end - at).min(rest.len()));
                if r.resolve(object, tag::COMPRESSED)? < u64::from(*len) {
                    return Err(self.wrong("an object of its stream is too short"));
                }
                r.read_bytes(object + (at - begin) as u64, part)?;
                at += part.len();
                rest = others;
            }
            begin = end;
        }
        if !rest.is_empty() {
            r.read_bytes(self.end_at() + (at - begin) as u64, rest)?;
        }
        Ok(())
    }

    fn wrong(&self, why: &str) -> Error {
        Error::Corrupt(format!("compressed content {:#x}: {why}", self.off))
    }
}

fn table_len(chunks: usize) -> usize {
    match chunks {
        0 | 1 => 0,
        n => n * size_of::<RawStreamChunk>(),
    }
}

/// A stream, cut.
struct Cut {
    /// Bytes of the pieces that have an object each, from the stream's begin on.
    pieces: SmallVec<[u16; 8]>,
    /// Bytes of its end, behind the head and the tables.
    end: usize,
}

impl Cut {
    /// Bytes that the pieces occupy.
    fn occupied(&self) -> u64 {
        self.pieces.iter().map(|len| capacity_of(u64::from(*len))).sum()
    }
}

/// Cuts a stream of `stored` bytes: as long as one object would have more than [`ALONE`] bytes, off goes the largest piece that fills one
/// of its class.
fn cut(chunks: usize, stored: usize) -> Cut {
    let mut cut = Cut { pieces: SmallVec::new(), end: stored };
    while HEAD + table_len(chunks) + cut.pieces.len() * 8 + cut.end > ALONE {
        let piece = CLASSES[class_within(cut.end as u64)].size as u16;
        cut.pieces.push(piece);
        cut.end -= usize::from(piece);
    }
    cut
}

/// Bytes of the memory that content would occupy that was compressed to this.
pub(crate) fn would_occupy(encoded: &Encoded) -> u64 {
    occupied(encoded.ends.len(), encoded.stream.len())
}

/// Bytes of the memory that content of so many chunks occupies of which the stream has `stored` bytes.
pub(crate) fn occupied(chunks: usize, stored: usize) -> u64 {
    let cut = cut(chunks, stored);
    capacity_of((HEAD + table_len(chunks) + cut.pieces.len() * 8 + cut.end) as u64) + cut.occupied()
}

/// A copy of the parts of a compressed file that a range needs: valid once the section or lock has ended well.
#[derive(Default)]
pub(crate) struct Copied {
    head: Option<(RawCompressed, Codec)>,
    owner: u64,
    /// The tables.
    tables: Vec<u8>,
    /// The first chunk of which the stream was copied.
    first: usize,
    /// Where in `stream` each of them ends.
    ends: SmallVec<[usize; codec::MOST_CHUNKS]>,
    stream: Vec<u8>,
}

impl Copied {
    /// The dictionary that it takes to decode it, or 0.
    pub fn dictionary(&self) -> u16 {
        self.head.map_or(0, |(head, _)| head.dictionary)
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.head.map_or(0, |(head, _)| head.size.into())
    }

    /// Decodes the bytes from `off` on, as many as there are in `buf` and were asked for.
    ///
    /// # Errors
    /// The copied bytes are damaged.
    pub fn decode(&self, dictionary: Option<&Dictionary>, off: u64, buf: &mut [u8]) -> Result<usize> {
        let Some((head, codec)) = self.head else { return Err(damaged("there is nothing of it")) };
        self.check(head)?;
        let end = (off + buf.len() as u64).min(head.size.into());
        let n = end.saturating_sub(off) as usize;
        let mut rest = &mut buf[..n];
        let mut whole = Vec::new();
        let (mut chunk, mut skip) = (off as usize / CHUNK, off as usize % CHUNK);
        while !rest.is_empty() {
            let packed = self.chunk(chunk)?;
            let len = codec::chunk_len(head.size.into(), chunk);
            let there = (len - skip).min(rest.len());
            let (part, others) = rest.split_at_mut(there);
            let is_right = match there == len {
                true => codec::decode(codec, dictionary, packed, part),
                false => {
                    whole.resize(len, 0);
                    let is_right = codec::decode(codec, dictionary, packed, &mut whole);
                    part.copy_from_slice(&whole[skip..skip + there]);
                    is_right
                }
            };
            if !is_right {
                return Err(damaged("it cannot be decoded"));
            }
            (rest, chunk, skip) = (others, chunk + 1, 0);
        }
        Ok(n)
    }

    /// The copied part of the stream for chunk `n`.
    fn chunk(&self, n: usize) -> Result<&[u8]> {
        let i = n.checked_sub(self.first).filter(|i| *i < self.ends.len());
        let i = i.ok_or_else(|| damaged("a chunk of it was not copied"))?;
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
        let packed = &self.stream[start..self.ends[i]];
        if let Some(chunk) = self.raw_chunk(n) {
            if pram::mem::crc32c(packed) != chunk.check {
                return Err(damaged("a chunk does not have its checksum"));
            }
        }
        Ok(packed)
    }

    /// The table's entry of chunk `n`, if there is one.
    fn raw_chunk(&self, n: usize) -> Option<RawStreamChunk> {
        let chunks = self.head.map_or(0, |(head, _)| codec::chunks_of(head.size.into()));
        raw_chunk(&self.tables[..table_len(chunks)], n)
    }

    fn check(&self, head: RawCompressed) -> Result<()> {
        let alone = codec::chunks_of(head.size.into()) == 1;
        let stream = if alone { &self.stream[..] } else { &[] };
        match checksum(self.owner, head, &self.tables, stream) == head.check {
            true => Ok(()),
            false => Err(damaged("it does not have its checksum")),
        }
    }

    /// Whether this is the file's present content. For a caller that has decoded it, and holds the lock.
    pub fn is_still(&self, r: &Memory, c: &Content) -> Result<bool> {
        let mut now = Copied::default();
        copy_out(r, c, 0, c.size, &mut now)?;
        Ok(now.head == self.head && now.tables == self.tables && now.stream == self.stream)
    }
}

fn damaged(why: &str) -> Error {
    Error::Corrupt(format!("compressed content: {why}"))
}

fn raw_chunk(table: &[u8], n: usize) -> Option<RawStreamChunk> {
    RawStreamChunk::read_from_bytes(table.chunks_exact(size_of::<RawStreamChunk>()).nth(n)?).ok()
}

/// The checksum of a head.
fn checksum(owner: u64, head: RawCompressed, tables: &[u8], stream: &[u8]) -> u32 {
    let sum = pram::mem::crc32c(&owner.to_le_bytes());
    let sum = pram::mem::crc32c_append(sum, RawCompressed { check: 0, ..head }.as_bytes());
    pram::mem::crc32c_append(pram::mem::crc32c_append(sum, tables), stream)
}

/// Is the content compressed?
#[inline(always)]
pub(crate) fn is_compressed(c: &Content) -> bool {
    Root::unpack(c.root).form == COMPRESSED
}

/// How, if it is.
pub(crate) fn codec_of(c: &Content) -> Option<Codec> {
    let root = Root::unpack(c.root);
    Codec::from_code(root.depth & !TRIAL).filter(|_| root.form == COMPRESSED)
}

/// The dictionary that compressed content names, or 0.
pub(crate) fn dictionary_of(r: &Memory, c: &Content) -> Result<u16> {
    match form(r, c)? {
        Form::Compressed(found) => Ok(found.head.dictionary),
        _ => Ok(0),
    }
}

/// Copies the parts that decode bytes `off..end` of a compressed file. Inside a section they may be torn.
#[inline(never)]
pub(crate) fn copy_out(r: &Memory, c: &Content, off: u64, end: u64, copied: &mut Copied) -> Result<()> {
    copied.head = None;
    copied.tables.clear();
    copied.ends.clear();
    copied.stream.clear();
    let Form::Compressed(found) = form(r, c)? else { return Err(damaged("it is not compressed")) };
    copied.owner = c.owner;
    copied.tables.resize((found.end_at() - found.off) as usize - HEAD, 0);
    r.read_bytes(found.off + HEAD as u64, &mut copied.tables)?;
    let end = end.min(c.size);
    copied.first = (off.min(end) / CHUNK as u64) as usize;
    let last = codec::chunks_of(end).max(copied.first);
    let table = &copied.tables[..found.table()];
    let bound = |n: usize| match (n, raw_chunk(table, n.wrapping_sub(1))) {
        (0, _) => 0,
        (_, Some(chunk)) => chunk.end as usize,
        (_, None) => found.head.stored as usize,
    };
    let from = bound(copied.first);
    let mut before = from;
    for n in copied.first..last {
        let end = bound(n + 1);
        if end < before || end > found.head.stored as usize {
            return Err(found.wrong("its table of chunks makes no sense"));
        }
        copied.ends.push(end - from);
        before = end;
    }
    found.copy_stream(r, from, before, &mut copied.stream)?;
    copied.head = Some((found.head, found.codec));
    Ok(())
}

/// Gives the content, of `c.size` bytes, its compressed form, and frees its old one.
pub(crate) fn compress(tx: &mut Edit, c: &mut Content, encoded: &Encoded) -> Result<()> {
    let size = c.size;
    let mut new = *c;
    link(tx, &mut new, encoded)?;
    super::free(tx, c)?;
    (c.root, c.size, c.pages) = (new.root, size, 0);
    Ok(())
}

/// Stores it to fresh objects.
fn link(tx: &mut Tx, c: &mut Content, encoded: &Encoded) -> Result<()> {
    let (chunks, stored) = (encoded.ends.len(), encoded.stream.len());
    let mut tables = Vec::new();
    if chunks > 1 {
        for (n, end) in encoded.ends.iter().enumerate() {
            let check = pram::mem::crc32c(encoded.chunk(n));
            tables.extend_from_slice(RawStreamChunk { end: *end, check }.as_bytes());
        }
    }
    let (cut, mut behind) = (cut(chunks, stored), &encoded.stream[..]);
    for len in &cut.pieces {
        let (piece, rest) = behind.split_at(usize::from(*len));
        let object = tx.alloc(tag::COMPRESSED, piece.len() as u64)?;
        tx.init_bytes(object.off, piece)?;
        tables.extend_from_slice(&object.off.to_le_bytes());
        behind = rest;
    }
    let mut head = RawCompressed {
        size: encoded.size,
        stored: stored as u32,
        check: 0,
        dictionary: encoded.dictionary,
        codec: encoded.codec as u8,
        reserved: 0,
    };
    head.check = checksum(c.owner, head, &tables, if chunks == 1 { &encoded.stream } else { &[] });
    let object = tx.alloc(tag::COMPRESSED, (HEAD + tables.len() + behind.len()) as u64)?;
    tx.init(Off::new(object.off), &head)?;
    tx.init_bytes(object.off + HEAD as u64, &tables)?;
    tx.init_bytes(object.off + (HEAD + tables.len()) as u64, behind)?;
    c.root = Root { off: object.off, form: COMPRESSED, depth: encoded.codec as u8 }.pack();
    Ok(())
}

/// Makes compressed content plain again: `plain` are its decoded bytes.
pub(crate) fn expand(tx: &mut Edit, c: &mut Content, plain: &[u8]) -> Result<()> {
    let Form::Compressed(found) = form(tx.memory(), c)? else { return Err(damaged("it is not compressed")) };
    replace(tx, c, plain)?;
    found.free(tx)
}

/// Makes `plain` the content; its old content is not freed.
pub(crate) fn replace(tx: &mut Edit, c: &mut Content, plain: &[u8]) -> Result<()> {
    let mut new = Content { owner: c.owner, ..Content::default() };
    super::write(&mut Edit::in_memory(tx), &mut new, 0, plain)?;
    *c = new;
    Ok(())
}

/// Calls `problem` with each fault, those of its dictionary apart.
pub(super) fn check(r: &Memory, c: &Content, found: Compressed, problem: &mut dyn FnMut(String)) {
    if c.pages != 0 {
        problem(format!("it says that it has {} pages, and is compressed", c.pages));
    }
    if found.head.reserved != 0 {
        problem("the head of its compressed content makes no sense".into());
    }
    if found.codec == Codec::Lz4 && found.head.dictionary != 0 {
        problem("it names a dictionary, which LZ4 has none".into());
    }
    let mut copied = Copied::default();
    let whole = copy_out(r, c, 0, c.size, &mut copied).and_then(|()| {
        copied.check(found.head)?;
        (0..found.chunks()).try_for_each(|n| copied.chunk(n).map(|_| ()))
    });
    if let Err(e) = whole {
        problem(e.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_cut_into_what_classes_hold_without_waste() {
        for stored in 1..=codec::MOST as usize {
            let chunks = codec::chunks_of(codec::MOST.min(stored as u64 * 2));
            let cut = cut(chunks, stored);
            let pieces: usize = cut.pieces.iter().map(|len| usize::from(*len)).sum();
            assert_eq!(pieces + cut.end, stored);
            assert_eq!(cut.occupied(), pieces as u64, "pieces of {stored} fill their objects");
            assert!(
                cut.pieces.len() <= MOST_PIECES && HEAD + table_len(chunks) + cut.pieces.len() * 8 + cut.end <= ALONE
            );
            let more = occupied(chunks, stored) - stored as u64;
            assert!(stored < 2048 || more * 12 < stored as u64, "{stored} bytes take {more} more");
        }
    }
}

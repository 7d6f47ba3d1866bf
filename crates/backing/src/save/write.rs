//! Writing an image.

use std::io::Write;
use std::path::Path;

use zerocopy::IntoBytes;

use super::snapshot::Snapshot;
use super::{
    chunk_crc, crc_of, Fail, Progress, RawChunk, RawSave, RawSaveEnd, SaveInfo, Target, CONTENT, END_MAGIC, GRAIN,
    IMAGE_CHUNK, MAGIC, UNPLACED, VERSION, WITH_CONTENT,
};
use pram::error::Result;
use pram::memory::{fingerprint, ChunkEntry, Memory, Meta, BLOCK, CHUNK, GROUP, OPEN_ROOT, TABLE, TABLE_AT};

/// An image that is being written: first the memory, then content, if it is to have any. Dropped, it leaves nothing.
pub struct Writer {
    target: Target,
    /// Bytes that are yet to be written.
    buf: Vec<u8>,
    end: RawSaveEnd,
    info: SaveInfo,
    /// Bytes of content so far.
    content: u64,
}

/// A part of a memory that an image holds.
struct Part {
    at: u64,
    len: u64,
    /// It is a chunk table, in which free chunks are to be absent.
    is_table: bool,
}

/// Bytes that are written at a time.
const MUCH: usize = 1 << 20;

impl Writer {
    pub fn begin(path: &Path) -> Result<Writer> {
        let end = RawSaveEnd { magic: END_MAGIC, chunks: 0, bytes: 0, sum: 0, crc: 0 };
        let info = SaveInfo::default();
        Ok(Writer { target: Target::begin(path, "saving")?, buf: Vec::with_capacity(2 * MUCH), end, info, content: 0 })
    }

    /// The memory; `content`: bytes of content that follow, about, if any may.
    pub fn memory(&mut self, snapshot: &Snapshot, content: Option<u64>, progress: Progress) -> Result<()> {
        let memory = snapshot.memory();
        let parts = parts(memory, snapshot.unplaced)?;
        let total: u64 = parts.iter().map(|p| p.len).sum();
        let holds = if snapshot.unplaced { UNPLACED } else { 0 } | if content.is_some() { WITH_CONTENT } else { 0 };
        let mut raw = RawSave {
            magic: MAGIC,
            version: VERSION,
            chunk: IMAGE_CHUNK as u32,
            uuid: memory.info.uuid,
            size: memory.size(),
            fingerprint: fingerprint(),
            saved: snapshot.time,
            chunks: parts.iter().map(|p| p.len.div_ceil(GRAIN as u64)).sum(),
            app_version: memory.info.app_version,
            holds,
            content: content.unwrap_or(0),
            reserved: [0; 76],
            crc: 0,
        };
        raw.crc = crc_of(&raw);
        self.push(raw.as_bytes())?;
        let RawSave { uuid, size, app_version, saved, .. } = raw;
        let (with_content, unplaced) = (content.is_some(), snapshot.unplaced);
        self.info = SaveInfo { uuid, size, app_version, saved, with_content, unplaced, ..self.info };

        let open_word = memory.root(OPEN_ROOT).raw();
        let (mut buf, mut done) = (vec![0; IMAGE_CHUNK as usize], 0);
        for Part { at, len, is_table } in parts {
            for offset in (at..at + len).step_by(IMAGE_CHUNK as usize) {
                let bytes = &mut buf[..IMAGE_CHUNK.min(at + len - offset) as usize];
                memory.read_bytes(offset, bytes)?;
                if is_table {
                    forget_free(bytes);
                }
                let word = open_word.checked_sub(offset).map(|at| at as usize);
                if let Some(word) = word.and_then(|at| bytes.get_mut(at..at + 8)) {
                    word.copy_from_slice(&u64::from(snapshot.to_sweep).to_le_bytes());
                }
                self.stretches(offset, bytes)?;
                done += bytes.len() as u64;
                progress(done, total);
            }
        }
        Ok(())
    }

    /// Appends content.
    pub fn content(&mut self, bytes: &[u8]) -> Result<()> {
        for bytes in bytes.chunks(IMAGE_CHUNK as usize) {
            self.chunk(CONTENT | self.content, bytes)?;
            self.content += bytes.len() as u64;
        }
        Ok(())
    }

    /// Makes the image durable, and puts it in its place.
    pub fn finish(mut self) -> Result<SaveInfo> {
        self.end.crc = crc_of(&self.end);
        let end = self.end;
        self.push(end.as_bytes())?;
        self.write_out()?;
        let info = SaveInfo { chunks: end.chunks, bytes: end.bytes, ..self.info };
        self.target.finish()?;
        Ok(info)
    }

    /// Writes some bytes of the memory, a chunk for each stretch that is not zero.
    fn stretches(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut start = 0;
        while start < bytes.len() {
            let zero = |grain: &&[u8]| grain.iter().all(|b| *b == 0);
            let skip = bytes[start..].chunks(GRAIN).take_while(zero).count() * GRAIN;
            start += skip;
            let Some(rest) = bytes.get(start..).filter(|r| !r.is_empty()) else { break };
            let len = rest.chunks(GRAIN).take_while(|g| !zero(g)).map(<[u8]>::len).sum::<usize>();
            self.chunk(offset + start as u64, &rest[..len])?;
            start += len;
        }
        Ok(())
    }

    fn chunk(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut chunk = RawChunk { offset, len: bytes.len() as u32, crc: 0 };
        chunk.crc = chunk_crc(&chunk, bytes);
        self.end.chunks += 1;
        self.end.bytes += bytes.len() as u64;
        self.end.sum = crc32c::crc32c_append(self.end.sum, &chunk.crc.to_le_bytes());
        self.push(chunk.as_bytes())?;
        self.push(bytes)
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.buf.extend_from_slice(bytes);
        if self.buf.len() >= MUCH {
            self.write_out()?;
        }
        Ok(())
    }

    fn write_out(&mut self) -> Result<()> {
        (&self.target.file).write_all(&self.buf).map_err(|e| self.target.failed(Fail::Io(e)))?;
        self.buf.clear();
        Ok(())
    }
}

/// The parts of a memory that an image holds, ascending.
fn parts(memory: &Memory, unplaced: bool) -> Result<Vec<Part>> {
    let mut parts = vec![Part { at: 0, len: TABLE_AT, is_table: false }];
    for group in 0..memory.groups() {
        parts.push(Part { at: group * GROUP + TABLE_AT, len: TABLE, is_table: true });
        for n in memory.chunks_of(group) {
            match memory.meta(n)? {
                Meta::Free | Meta::Absent => {}
                Meta::Blocks => parts.extend(resident_blocks(memory, n, unplaced)?),
                _ => parts.push(Part { at: memory.geo.chunk(n), len: CHUNK, is_table: false }),
            }
        }
    }
    Ok(parts)
}

/// The blocks of a heap chunk whose content an image holds.
fn resident_blocks(memory: &Memory, chunk: u64, unplaced: bool) -> Result<Vec<Part>> {
    // A failure is damage: without its descriptor content cannot be found.
    let Ok(blocks) = memory.blocks_of(chunk) else { return Ok(Vec::new()) };
    let kept = blocks.into_iter().filter(|(_, descriptor)| !unplaced || descriptor.place == 0);
    Ok(kept.map(|(at, _)| Part { at, len: BLOCK, is_table: false }).collect())
}

/// Makes free chunks absent in a table: a memory made from an image has memory for used ones only.
fn forget_free(table: &mut [u8]) {
    for entry in table.chunks_exact_mut(size_of::<ChunkEntry>()) {
        let word = u64::from_le_bytes(std::array::from_fn(|i| entry[i]));
        if Meta::decode(word) == Meta::Free {
            entry.fill(0);
        }
    }
}

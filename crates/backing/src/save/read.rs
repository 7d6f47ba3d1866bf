//! Reading an image, trusting nothing in it.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use zerocopy::{FromZeros, IntoBytes};

use super::{
    chunk_crc, crc_of, host, Progress, RawChunk, RawSave, RawSaveEnd, SaveInfo, CONTENT, END_MAGIC, IMAGE_CHUNK, MAGIC,
    OLDEST, UNPLACED, VERSION, WITH_CONTENT,
};
use pram::error::{Error, Result};
use pram::memory::{self, fingerprint};

/// The description of an image in its header, without the numbers of chunks and bytes.
pub fn info(image: &Path) -> Result<SaveInfo> {
    Ok(Reader::open(image)?.info)
}

/// Is there a file at `path` that is not empty and does not begin as an image does?
pub fn is_foreign(path: &Path) -> Result<bool> {
    // Reading a pipe would wait.
    if !path.is_file() {
        return Ok(false);
    }
    let mut head = [0; MAGIC.len()];
    let mut file = File::open(path).map_err(|e| host(path, "opening", e))?;
    let len = file.metadata().map_err(|e| host(path, "looking at", e))?.len();
    if len < head.len() as u64 {
        return Ok(len > 0);
    }
    file.read_exact(&mut head).map_err(|e| host(path, "reading", e))?;
    Ok(head != MAGIC)
}

/// Reads all of an image and checks it.
pub fn verify(image: &Path, progress: Progress) -> Result<SaveInfo> {
    let mut reader = Reader::open(image)?;
    while reader.next_of_memory(progress)?.is_some() {}
    reader.content().skip(progress)
}

/// The content of an image whose memory was read: all of the image has been checked when this has ended.
pub struct Content(Reader);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Content").field(&self.0.info).finish()
    }
}

impl Content {
    pub fn info(&self) -> &SaveInfo {
        &self.0.info
    }

    /// The next bytes; `None` after the last ones, when the end is right.
    pub fn next_bytes(&mut self, progress: Progress) -> Result<Option<&[u8]>> {
        if self.0.is_at_end {
            return Ok(None);
        }
        if self.0.has_next {
            self.0.has_next = false;
        } else if !self.0.read_chunk(progress)? {
            return Ok(None);
        }
        Ok(Some(&self.0.buf[..self.0.chunk.len as usize]))
    }

    /// The error of an image that cannot be used, since its content makes no sense.
    pub fn bad(&self, why: impl std::fmt::Display) -> Error {
        self.0.bad(why)
    }

    /// Checks the rest; returns the description of the image.
    pub fn skip(mut self, progress: Progress) -> Result<SaveInfo> {
        while self.next_bytes(progress)?.is_some() {}
        Ok(self.0.info)
    }
}

/// Goes through an image.
pub(crate) struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    pub info: SaveInfo,
    /// Chunks of the memory, at most; bytes of content, about.
    expected: u64,
    content: u64,
    /// Where the next chunk may begin.
    floor: u64,
    sum: u32,
    chunk: RawChunk,
    buf: Vec<u8>,
    /// A chunk of content was read, and is yet to be taken.
    has_next: bool,
    is_at_end: bool,
}

impl Reader {
    pub fn open(path: &Path) -> Result<Reader> {
        let file = File::open(path).map_err(|e| host(path, "opening", e))?;
        let info = SaveInfo::default();
        let mut reader = Reader {
            path: path.into(),
            file: BufReader::with_capacity(1 << 20, file),
            info,
            expected: 0,
            content: 0,
            floor: 0,
            sum: 0,
            chunk: RawChunk::new_zeroed(),
            buf: vec![0; IMAGE_CHUNK as usize],
            has_next: false,
            is_at_end: false,
        };
        let mut raw = RawSave::new_zeroed();
        reader.fill(raw.as_mut_bytes())?;
        reader.trust(&raw)?;
        Ok(reader)
    }

    pub fn bad(&self, why: impl std::fmt::Display) -> Error {
        Error::Unusable(format!("the image {} cannot be used: {why}", self.path.display()))
    }

    /// The content behind the memory.
    pub fn content(self) -> Content {
        Content(self)
    }

    fn fill(&mut self, buf: &mut [u8]) -> Result<()> {
        self.file.read_exact(buf).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => self.bad("it is truncated; take another copy"),
            _ => host(&self.path, "reading", e),
        })
    }

    /// The gate where the header becomes trusted.
    fn trust(&mut self, raw: &RawSave) -> Result<()> {
        if raw.magic != MAGIC {
            return Err(self.bad("it is not an image of a Conquest memory"));
        }
        if !(OLDEST..=VERSION).contains(&raw.version) {
            return Err(
                self.bad(format!("it has format version {}, this program reads version {VERSION}", raw.version))
            );
        }
        if raw.crc != crc_of(raw) {
            return Err(self.bad("its header is damaged; take another copy"));
        }
        if raw.fingerprint != fingerprint() || u64::from(raw.chunk) != IMAGE_CHUNK {
            return Err(self.bad("it was made by a build with another layout; use that build"));
        }
        memory::check_size(raw.size)?;
        let is_new = raw.version > OLDEST;
        let RawSave { uuid, size, app_version, saved, holds, .. } = *raw;
        let (with_content, unplaced) = (is_new && holds & WITH_CONTENT != 0, is_new && holds & UNPLACED != 0);
        self.info = SaveInfo { uuid, size, app_version, saved, chunks: 0, bytes: 0, with_content, unplaced };
        (self.expected, self.content) = (raw.chunks, if with_content { raw.content } else { 0 });
        Ok(())
    }

    /// The next chunk of the memory, checked; `None` behind the last one.
    pub fn next_of_memory(&mut self, progress: Progress) -> Result<Option<(u64, &[u8])>> {
        if self.has_next || self.is_at_end || !self.read_chunk(progress)? {
            return Ok(None);
        }
        if self.chunk.offset >= CONTENT {
            self.has_next = true;
            return Ok(None);
        }
        Ok(Some((self.chunk.offset, &self.buf[..self.chunk.len as usize])))
    }

    /// Reads the next chunk, and checks it; false after the trailer, which is checked too.
    fn read_chunk(&mut self, progress: Progress) -> Result<bool> {
        let mut chunk = RawChunk::new_zeroed();
        self.fill(chunk.as_mut_bytes())?;
        if chunk.as_bytes()[..8] == END_MAGIC {
            self.end(&chunk)?;
            self.is_at_end = true;
            return Ok(false);
        }
        if chunk.offset >= CONTENT && self.floor < CONTENT {
            self.floor = CONTENT;
        }
        let end = chunk.offset.checked_add(u64::from(chunk.len));
        let fits = match chunk.offset >= CONTENT {
            true => self.info.with_content && chunk.offset == self.floor && end.is_some(),
            false => chunk.offset >= self.floor && end.is_some_and(|e| e <= self.info.size),
        };
        if !fits || chunk.len == 0 || u64::from(chunk.len) > IMAGE_CHUNK {
            return Err(self.bad("it is damaged (a chunk has an impossible place); take another copy"));
        }
        let mut buf = std::mem::take(&mut self.buf);
        let read = self.fill(&mut buf[..chunk.len as usize]);
        self.buf = buf;
        read?;
        if chunk.crc != chunk_crc(&chunk, &self.buf[..chunk.len as usize]) {
            let why = format!("it is damaged (checksum of the chunk for {:#x}); take another copy", chunk.offset);
            return Err(self.bad(why));
        }
        self.floor = chunk.offset + u64::from(chunk.len);
        self.sum = crc32c::crc32c_append(self.sum, &chunk.crc.to_le_bytes());
        self.info.chunks += 1;
        self.info.bytes += u64::from(chunk.len);
        self.expected += u64::from(chunk.offset >= CONTENT);
        self.chunk = chunk;
        let all = self.info.size + self.content;
        let done = if self.floor >= CONTENT { self.info.size + (self.floor - CONTENT) } else { self.floor };
        progress(done.min(all), all);
        Ok(true)
    }

    fn end(&mut self, first: &RawChunk) -> Result<()> {
        let mut raw = RawSaveEnd::new_zeroed();
        raw.as_mut_bytes()[..16].copy_from_slice(first.as_bytes());
        self.fill(&mut raw.as_mut_bytes()[16..])?;
        let SaveInfo { chunks, bytes, .. } = self.info;
        let right = raw.crc == crc_of(&raw) && (raw.chunks, raw.bytes, raw.sum) == (chunks, bytes, self.sum);
        if !right || chunks > self.expected {
            return Err(self.bad("it is damaged (chunks are missing or its end is wrong); take another copy"));
        }
        let more = self.file.read(&mut [0]).map_err(|e| host(&self.path, "reading", e))?;
        if more > 0 {
            return Err(self.bad("something follows its end; take another copy"));
        }
        Ok(())
    }
}

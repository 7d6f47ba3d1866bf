//! Salvage: the content that the disks give without the memory.
//!
//! For each page of each inode, the newest version that a summary names. Pages that were removed, or cut off, before the
//! memory was lost are among them: disks do not record removals.

use std::collections::BTreeMap;
use std::sync::Arc;

use exraid::{Region, Uuid};
use pram::session::assert_may_wait;

use super::error::{Error, Result};
use super::part::{Identity, Owner, Part};
use super::place::{Place, BLOCK};
use super::walk::Walk;
use super::SEGMENTS;

/// Pages that are read at once.
const RUN: usize = 256;

/// The result of a scan.
#[derive(Default)]
pub struct Salvage {
    regions: Vec<Arc<dyn Region>>,
    pages: BTreeMap<Owner, Page>,
    /// Segments, and parts of them.
    pub segments: u64,
    pub parts: u64,
    /// Segments whose disk failed during the scan, and the failure.
    pub failed: Vec<(u64, exraid::Error)>,
}

/// The newest version of a page.
struct Page {
    version: u64,
    place: Place,
    crc: u32,
    written: i64,
    region: usize,
    at: u64,
    /// Other replicas: region and offset.
    replicas: Vec<(usize, u64)>,
}

/// An inode with content on the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    pub ino: u64,
    pub generation: u32,
    pub pages: u64,
    /// The page behind the last one: the file ends within the page before, or later in a hole.
    pub end: u64,
    /// When its newest part was written, nanoseconds since 1970.
    pub written: i64,
}

impl Salvage {
    /// Scans all segments of these regions. `progress`: bytes that were scanned, and all bytes.
    pub fn scan(regions: &[Arc<dyn Region>], pool: Uuid, progress: &mut dyn FnMut(u64, u64)) -> Result<Salvage> {
        assert_may_wait();
        let all: u64 = regions.iter().map(|region| region.properties().size).sum();
        let mut found = Salvage { regions: regions.to_vec(), ..Salvage::default() };
        let mut seen = 0;
        for (n, region) in regions.iter().enumerate() {
            let (identity, size) = (Identity { pool: pool.0, secret: region.secret() }, region.properties().size);
            let Some(segment) = segment_size(&**region, identity) else { continue };
            for slot in 0..size / segment {
                found.scan_one(n, identity, slot * segment, (segment / BLOCK) as u32);
                progress(seen + (slot + 1) * segment, all);
            }
            seen += size;
        }
        progress(all, all);
        Ok(found)
    }

    fn scan_one(&mut self, n: usize, identity: Identity, at: u64, blocks: u32) {
        let region = self.regions[n].clone();
        let mut walk = Walk::new(&*region, identity, at, blocks).of_the_rest();
        let (mut parts, mut block) = (Vec::<Part>::new(), 0);
        while block < blocks {
            match walk.part_at(block) {
                Some(part) => {
                    block = part.end();
                    parts.push(part);
                }
                None => block += 1,
            }
        }
        self.failed.extend(walk.failed.map(|e| (at, e)));
        // Behind the last part there may be parts of an earlier segment.
        let Some(sequence) = parts.iter().map(|part| part.sequence).max() else { return };
        self.segments += 1;
        for part in parts.iter().filter(|part| part.sequence == sequence) {
            self.parts += 1;
            // Blocks that were dead when the segment was carried here have no content.
            for (place, entry) in part.blocks().filter(|(_, entry)| entry.owner.ino != 0) {
                let page = Page {
                    version: entry.version,
                    place,
                    crc: entry.crc,
                    written: part.written,
                    region: n,
                    at: at + u64::from(place.block()) * BLOCK,
                    replicas: Vec::new(),
                };
                match self.pages.get_mut(&entry.owner) {
                    Some(known) if (known.version, known.place) == (page.version, page.place) => {
                        known.replicas.push((page.region, page.at));
                    }
                    Some(known) if (known.version, known.place) > (page.version, page.place) => {}
                    _ => drop(self.pages.insert(entry.owner, page)),
                }
            }
        }
    }

    /// Every inode with content, by number and generation.
    pub fn inodes(&self) -> Vec<Inode> {
        let mut inodes: Vec<Inode> = Vec::new();
        for (owner, page) in &self.pages {
            match inodes.last_mut().filter(|last| (last.ino, last.generation) == (owner.ino, owner.generation)) {
                Some(last) => {
                    (last.pages, last.end) = (last.pages + 1, owner.page + 1);
                    last.written = last.written.max(page.written);
                }
                None => inodes.push(Inode {
                    ino: owner.ino,
                    generation: owner.generation,
                    pages: 1,
                    end: owner.page + 1,
                    written: page.written,
                }),
            }
        }
        inodes
    }

    /// The pages of an inode, in ascending order: the number of each, and its content, verified, or the error.
    pub fn recover(&self, ino: u64, generation: u32, each: &mut dyn FnMut(u64, Result<&[u8]>)) {
        let owner = |page| Owner { ino, generation, page };
        let mut run: Vec<(u64, &Page)> = Vec::new();
        for (owner, page) in self.pages.range(owner(0)..=owner(u64::MAX)) {
            let follows = |last: &(u64, &Page)| page.region == last.1.region && page.at == last.1.at + BLOCK;
            if run.len() == RUN || !run.last().is_none_or(follows) {
                self.recover_run(&run, each);
                run.clear();
            }
            run.push((owner.page, page));
        }
        self.recover_run(&run, each);
    }

    /// Reads pages that lie one behind the other: at once, or one by one if the disk fails.
    fn recover_run(&self, run: &[(u64, &Page)], each: &mut dyn FnMut(u64, Result<&[u8]>)) {
        let Some((number, first)) = run.first() else { return };
        let mut content = vec![0; run.len() * BLOCK as usize];
        match self.regions[first.region].read_at(&mut content, first.at) {
            Ok(()) => {}
            Err(e) if run.len() == 1 => {
                return each(*number, self.recover_replica(first, &mut content).ok_or(e.into()))
            }
            Err(_) => return run.chunks(1).for_each(|one| self.recover_run(one, each)),
        }
        for ((number, page), bytes) in run.iter().zip(content.chunks_exact(BLOCK as usize)) {
            let device = self.regions[page.region].name().clone();
            let wrong = Error::Damaged { place: page.place, device, at: page.at, what: "its checksum is wrong" };
            let mut other = vec![0; BLOCK as usize];
            match crc32c::crc32c(bytes) == page.crc {
                true => each(*number, Ok(bytes)),
                false => each(*number, self.recover_replica(page, &mut other).ok_or(wrong)),
            }
        }
    }

    /// Reads a page from another replica, if one has it.
    fn recover_replica<'b>(&self, page: &Page, content: &'b mut [u8]) -> Option<&'b [u8]> {
        let has = |(region, at): &(usize, u64), content: &mut [u8]| {
            self.regions[*region].read_at(content, *at).is_ok() && crc32c::crc32c(content) == page.crc
        };
        let found = page.replicas.iter().any(|replica| has(replica, content));
        found.then_some(content)
    }
}

/// The size of the region's segments, from the first summary that is found.
fn segment_size(region: &dyn Region, identity: Identity) -> Option<u64> {
    let (least, size) = (*SEGMENTS.start(), region.properties().size);
    (0..size / least).find_map(|n| {
        let blocks = ((size - n * least).min(*SEGMENTS.end()) / BLOCK) as u32;
        let part = Walk::new(region, identity, n * least, blocks).part_at(0)?;
        let segment = u64::from(part.segment) * BLOCK;
        (SEGMENTS.contains(&segment) && n * least % segment == 0).then_some(segment)
    })
}

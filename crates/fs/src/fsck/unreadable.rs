//! Unreadable byte ranges of files, whose place on disk is gone: by path and range.
//!
//! One judgement for all reports of loss: a page is lost if reading it fails, from each of its replicas. First the table and the summaries
//! of segments tell which pages are worth reading: pages in a segment that was used again since, or whose disk is missing. A check
//! reads all others too, since no summary tells of a flipped bit.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};

use exraid::{Aligned, Buffers};
use serde::Serialize;

use crate::attr::{Ino, Kind};
use crate::error::{Error, Result};
use crate::file;
use crate::node::{content_of, Fs};
use ilfs::place::Run;
use ilfs::read::{Reach, Reading, Verdict};
use ilfs::{Log, Place};

/// Bytes of a file that are lost, as far as disks are as they are now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    pub ino: Ino,
    /// A name that leads to the file; none: it has none. A name may be any bytes: others than text are replaced.
    pub path: Option<String>,
    /// The first and the last byte.
    pub first: u64,
    pub last: u64,
    pub why: String,
    /// No disk that comes back has them.
    #[serde(default)]
    pub for_good: bool,
}

/// A page of a file that is lost.
struct LostPage {
    ino: Ino,
    generation: u32,
    /// The size of the file.
    size: u64,
    /// Its first byte.
    off: u64,
    place: Place,
    why: String,
    for_good: bool,
}

impl LostPage {
    fn last(&self) -> u64 {
        (self.off + file::PAGE).min(self.size) - 1
    }
}

/// The answers of the log on segments, by number.
type Asked = HashMap<u64, Reach>;

/// Blocks that are read at a time, and how many such reads are under way.
const READ: u32 = 64;
const WINDOW: usize = 8;

/// How content is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Segments, by their summaries.
    Segments,
    /// All of it is read.
    Content,
}

impl Fs {
    /// The content that is lost, in the order of inodes and bytes, by the summaries of segments. Others may be at work: a page that
    /// changes meanwhile may be reported, or not.
    pub fn lost(&self) -> Result<Vec<Lost>> {
        self.lost_telling(Look::Segments, &mut |_, _| {})
    }

    /// The same. `progress`: segments that were looked at, and how many have content.
    pub fn lost_telling(&self, look: Look, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<Lost>> {
        let mut lost = ranges_of(&self.lost_pages(look, progress)?);
        self.find_paths(&mut lost);
        Ok(lost)
    }

    /// Makes holes of content that is lost for good: it reads as zeros from now on. Returns that content.
    pub fn zero_lost(&self) -> Result<Vec<Lost>> {
        let Some(union) = self.union() else { return Ok(Vec::new()) };
        if !union.log().is_in_order(self.session())? {
            return Err(Error::Pool(
                "the memory of the pool was made anew, and a disk that is missing may hold what seems lost: attach it, or give it up \
                 (`conquest region remove --force`)"
                    .into(),
            ));
        }
        let mut pages = self.lost_pages(Look::Content, &mut |_, _| {})?;
        pages.retain(|page| page.for_good);
        let mut zeroed = Vec::new();
        for of_one in pages.chunk_by(|a, b| a.ino == b.ino) {
            let places: Vec<_> = of_one.iter().map(|page| (page.off / file::PAGE, page.place)).collect();
            let punched = self.punch_lost(of_one[0].ino, of_one[0].generation, &places)?;
            zeroed.extend(punched.into_iter().zip(of_one).filter(|(punched, _)| *punched).map(|(_, page)| page));
        }
        let mut zeroed = ranges_of(zeroed);
        self.find_paths(&mut zeroed);
        Ok(zeroed)
    }

    fn lost_pages(&self, look: Look, progress: &mut dyn FnMut(u64, u64)) -> Result<Vec<LostPage>> {
        let Some(union) = self.union() else { return Ok(Vec::new()) };
        let used = union.log().counts(self.session())?.used();
        let (mut asked, mut lost) = (Asked::new(), Vec::new());
        let mut from = 0;
        while let Some(block) = self.table().next_block(from)? {
            from = block + 1;
            for ino in block * crate::layout::PER_BLOCK..from * crate::layout::PER_BLOCK {
                self.lost_of(union.log(), ino, look, &mut asked, &mut lost)?;
            }
            progress(asked.len() as u64, used.max(asked.len() as u64));
        }
        Ok(lost)
    }

    fn lost_of(&self, log: &Log, ino: Ino, look: Look, asked: &mut Asked, lost: &mut Vec<LostPage>) -> Result<()> {
        let mut pages: Vec<(u64, Place)> = Vec::new();
        let (mut size, mut generation) = (0, 0);
        let see = || -> Result<()> {
            pages.clear();
            let Some(raw) = self.table().get(ino)? else { return Ok(()) };
            let content = content_of(ino, &raw);
            if raw.kind == Kind::Regular as u8 && content.is_large() {
                (size, generation) = (content.size, raw.generation);
                file::pages_on_disk(self.memory(), &content, 0..u64::MAX, &mut |off, place| pages.push((off, place)))?;
            }
            Ok(())
        };
        // A page that cannot be read at all is reported as damage.
        if self.session().read(ino, see).is_err() {
            return Ok(());
        }
        let mut doubtful = Vec::new();
        for (off, place) in &pages {
            let reach = match asked.entry(place.sequence()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(log.reach(self.session(), place.sequence())?),
            };
            if !reach.holds(place.block()) {
                doubtful.push((*off, *place));
            }
        }
        if look == Look::Content {
            doubtful = self.unreadable(log, &pages);
        }
        for (off, place) in doubtful {
            // Only pages that cannot be read are lost, and that the file still leads to.
            let Verdict::Lost { why, is_final } = log.verdict(self.session(), place)? else { continue };
            if self.leads_to(ino, generation, off, place) {
                lost.push(LostPage { ino, generation, size, off, place, why, for_good: is_final });
            }
        }
        Ok(())
    }

    /// Those of a file's pages in runs that cannot be read.
    fn unreadable(&self, log: &Log, pages: &[(u64, Place)]) -> Vec<(u64, Place)> {
        let (session, mut found) = (self.session(), Vec::new());
        let mut under_way = VecDeque::new();
        let mut end = |(reading, these): (Result<Reading, ilfs::Error>, &[(u64, Place)])| {
            if reading.and_then(|reading| reading.wait(log, session)).is_err() {
                found.extend_from_slice(these);
            }
        };
        let mut rest = pages;
        for run in Run::of(pages.iter().map(|(_, place)| *place), READ) {
            let (these, later) = rest.split_at(run.blocks as usize);
            rest = later;
            let memory = Buffers::whole(&Aligned::zeroed(run.blocks as usize * file::PAGE as usize));
            under_way.push_back((log.read(session, run, memory), these));
            if under_way.len() >= WINDOW {
                under_way.pop_front().into_iter().for_each(&mut end);
            }
        }
        under_way.into_iter().for_each(end);
        found
    }

    /// Does a page of a file lie there yet?
    fn leads_to(&self, ino: Ino, generation: u32, off: u64, place: Place) -> bool {
        let look = || -> Result<bool> {
            let Some(raw) = self.table().get(ino)?.filter(|raw| raw.generation == generation) else { return Ok(false) };
            file::is_on_disk(self.memory(), &content_of(ino, &raw), off / file::PAGE, place)
        };
        self.session().read(ino, look).unwrap_or(false)
    }

    /// Gives each its path.
    fn find_paths(&self, lost: &mut [Lost]) {
        if lost.is_empty() {
            return;
        }
        let paths = self.paths_of(lost.iter().map(|lost| lost.ino));
        lost.iter_mut().for_each(|lost| lost.path = paths.get(&lost.ino).cloned());
    }

    /// A path of each of these inodes that has one, going down from the root until all are found.
    pub fn paths_of(&self, inodes: impl Iterator<Item = Ino>) -> HashMap<Ino, String> {
        let mut wanted: HashSet<Ino> = inodes.collect();
        let (mut paths, mut below) = (HashMap::new(), vec![(crate::ROOT, String::new())]);
        let mut seen = HashSet::from([crate::ROOT]);
        while let Some((dir, path)) = below.pop().filter(|_| !wanted.is_empty()) {
            // A page that cannot be read is reported as damage.
            let _ = self.readdir(dir, 2, &mut |entry| {
                let path = format!("{path}/{}", String::from_utf8_lossy(entry.name));
                if wanted.remove(&entry.ino) {
                    paths.insert(entry.ino, path);
                } else if entry.kind == Kind::Directory && seen.insert(entry.ino) {
                    below.push((entry.ino, path));
                }
                true
            });
        }
        paths
    }
}

/// Ranges of pages, in their order.
fn ranges_of<'p>(pages: impl IntoIterator<Item = &'p LostPage>) -> Vec<Lost> {
    let mut ranges: Vec<Lost> = Vec::new();
    for page in pages {
        match ranges.last_mut() {
            Some(range) if range.ino == page.ino && range.last + 1 == page.off && range.why == page.why => {
                range.last = page.last();
            }
            _ => ranges.push(Lost {
                ino: page.ino,
                path: None,
                first: page.off,
                last: page.last(),
                why: page.why.clone(),
                for_good: page.for_good,
            }),
        }
    }
    ranges
}

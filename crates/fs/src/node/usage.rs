//! The room that an inode occupies, and where; and the number of replicas on disks.
//!
//! A file may have millions of pages. So they are looked at a few thousand at a time, with others at work between: the counts of a
//! file that changes meanwhile are of no one instant.

use std::collections::HashMap;

use super::{content_of, Fs};
use crate::attr::{Ino, Kind};
use crate::dir;
use crate::error::Result;
use crate::file::{self, Part, PAGE};
use crate::layout::{RawInode, INODE};
use crate::setting::Redundancy;
use crate::xattr;
use ilfs::Place;

/// The room that an inode occupies, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of memory: the inode itself, its attributes, names and index.
    pub metadata: u64,
    /// Content whose home is memory.
    pub content: u64,
    /// The compressed part of that, and its plain bytes.
    pub compressed: u64,
    pub plain: u64,
    /// Content that waits in memory for its place on disk, and that has room there without content.
    pub waiting: u64,
    pub promised: u64,
    /// Content in memory that is on disk too, and goes when the memory is wanted.
    pub cached: u64,
    /// Content that has a place on disk, counted once, and with every replica of it.
    pub placed: u64,
    pub disk: u64,
    /// For content with a place: its fewest replicas, and its most; and the number of regions with some of it.
    pub replicas_least: u32,
    pub replicas_most: u32,
    pub regions: u32,
}

impl Usage {
    /// Bytes of memory that are not given back when others want them.
    pub fn memory(&self) -> u64 {
        self.metadata + self.content + self.waiting
    }
}

/// `key=value`, with a comma between; readers skip keys that they do not know.
impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "memory={}", self.memory())?;
        self.fields().iter().try_for_each(|(name, value)| write!(f, ",{name}={value}"))
    }
}

/// The other way round.
impl std::str::FromStr for Usage {
    type Err = String;

    fn from_str(text: &str) -> Result<Usage, String> {
        let mut usage = Usage::default();
        for pair in text.split(',') {
            let wrong = || format!("`{pair}` is no key and number");
            let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
            usage.set(name, value.parse().map_err(|_| wrong())?);
        }
        Ok(usage)
    }
}

impl Usage {
    fn fields(&self) -> [(&'static str, u64); 12] {
        [
            ("metadata", self.metadata),
            ("content", self.content),
            ("compressed", self.compressed),
            ("plain", self.plain),
            ("waiting", self.waiting),
            ("promised", self.promised),
            ("cached", self.cached),
            ("placed", self.placed),
            ("disk", self.disk),
            ("replicas", self.replicas_least.into()),
            ("replicas_most", self.replicas_most.into()),
            ("regions", self.regions.into()),
        ]
    }

    fn set(&mut self, name: &str, value: u64) {
        let small = || u32::try_from(value).unwrap_or(u32::MAX);
        match name {
            "metadata" => self.metadata = value,
            "content" => self.content = value,
            "compressed" => self.compressed = value,
            "plain" => self.plain = value,
            "waiting" => self.waiting = value,
            "promised" => self.promised = value,
            "cached" => self.cached = value,
            "placed" => self.placed = value,
            "disk" => self.disk = value,
            "replicas" => self.replicas_least = small(),
            "replicas_most" => self.replicas_most = small(),
            "regions" => self.regions = small(),
            _ => {}
        }
    }
}

/// Segments that were looked at: their replicas, and the region of the first.
#[derive(Default)]
struct Segments(HashMap<u64, (u32, Option<u32>)>);

impl Fs {
    /// The room that an inode occupies. Of a directory: by itself, without its entries.
    pub fn usage(&self, ino: Ino) -> Result<Usage> {
        let mut usage = Usage::default();
        let raw = self.session().read(ino, || {
            let raw = self.table().get(ino)?.ok_or(rustix::io::Errno::STALE)?;
            usage = Usage { metadata: INODE + 1, ..Usage::default() };
            let mut objects = Vec::new();
            xattr::visit(self.memory(), raw.xattr, &mut |off, tag| objects.push((off, tag)))?;
            if raw.is_dir() {
                dir::visit(self.memory(), &dir::Dir::of(&raw), &mut |off, tag| objects.push((off, tag)))?;
            }
            for (off, tag) in objects {
                usage.metadata += self.memory().resolve(off, tag)?;
            }
            Ok::<_, crate::Error>(raw)
        })?;
        if raw.kind == Kind::Regular as u8 || raw.kind == Kind::Symlink as u8 {
            self.add_content(ino, &mut usage)?;
        }
        Ok(usage)
    }

    fn add_content(&self, ino: Ino, usage: &mut Usage) -> Result<()> {
        let (mut segments, mut from) = (Segments::default(), 0);
        loop {
            let mut parts = Vec::new();
            let next = self.session().read(ino, || {
                parts.clear();
                let c = content_of(ino, &self.raw(ino)?);
                file::tally(self.memory(), &c, from, &mut |part| parts.push(part))
            })?;
            for part in parts {
                self.add_part(usage, &mut segments, part)?;
            }
            match next {
                Some(next) if next > from => {
                    // It takes as long as the file is large.
                    self.before_waiting()?;
                    from = next;
                }
                _ => break,
            }
        }
        let regions: std::collections::HashSet<_> = segments.0.values().filter_map(|(_, region)| *region).collect();
        usage.regions = regions.len() as u32;
        Ok(())
    }

    fn add_part(&self, usage: &mut Usage, segments: &mut Segments, part: Part) -> Result<()> {
        match part {
            Part::Index(bytes) => usage.metadata += bytes,
            Part::Memory(bytes) => usage.content += bytes,
            Part::Compressed { bytes, plain } => {
                usage.content += bytes;
                usage.compressed += bytes;
                usage.plain += plain;
            }
            Part::Waiting => usage.waiting += PAGE,
            Part::Promised => usage.promised += PAGE,
            Part::Disk { place, cached, .. } => {
                let is_lost = self.union().is_some_and(|union| union.log().is_known_lost(place));
                let replicas = if is_lost { 0 } else { self.replicas(segments, place)? };
                let is_first = usage.placed == 0;
                usage.cached += if cached { PAGE } else { 0 };
                usage.placed += PAGE;
                usage.disk += PAGE * u64::from(replicas);
                usage.replicas_least = if is_first { replicas } else { usage.replicas_least.min(replicas) };
                usage.replicas_most = usage.replicas_most.max(replicas);
            }
        }
        Ok(())
    }

    fn replicas(&self, segments: &mut Segments, place: Place) -> Result<u32> {
        if let Some((replicas, _)) = segments.0.get(&place.sequence()) {
            return Ok(*replicas);
        }
        let Some(union) = self.union() else { return Ok(0) };
        let replicas = match union.log().replicas_of(self.session(), place)? {
            // In a region that takes nothing, and can be read.
            0 => u32::from(union.log().is_there(self.session(), place)?),
            replicas => replicas,
        };
        let region = union.log().region_of(self.session(), place)?;
        segments.0.insert(place.sequence(), (replicas, region));
        Ok(replicas)
    }

    /// The value of `user.conquest.effective.redundancy`: of a file its replicas, of a directory the redundancy of files made in it.
    pub(super) fn effective_redundancy(&self, ino: Ino, raw: &RawInode) -> Result<String> {
        if raw.kind != Kind::Regular as u8 {
            return Ok(raw.redundancy().to_string());
        }
        Ok(summary(raw.redundancy(), &self.usage(ino)?))
    }
}

/// The state of a file that is to have `wanted`.
fn summary(wanted: Redundancy, usage: &Usage) -> String {
    let placed = match (usage.placed, usage.replicas_least) {
        (0, _) => return "memory".into(),
        (_, 0) => "missing".into(),
        (_, 1) if wanted == Redundancy::Whole && usage.regions == 1 => Redundancy::Whole.to_string(),
        (_, 1) => Redundancy::None.to_string(),
        (_, replicas) => Redundancy::Mirror(replicas as u8).to_string(),
    };
    match usage.content + usage.waiting {
        0 => placed,
        bytes => format!("{placed}, {} in memory", bytes_text(bytes)),
    }
}

/// Bytes, as people read them.
fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes.div_ceil(1 << 10)),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes.div_ceil(1 << 20)),
        _ => format!("{} GiB", bytes.div_ceil(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_as_it_is_written() {
        let usage = Usage {
            metadata: 1,
            content: 2,
            compressed: 11,
            plain: 12,
            waiting: 3,
            promised: 4,
            cached: 5,
            placed: 6,
            disk: 7,
            replicas_least: 8,
            replicas_most: 9,
            regions: 10,
        };
        assert!(usage.to_string().starts_with("memory=6,"));
        assert_eq!(usage.to_string().parse(), Ok(usage));
        assert_eq!("later=7,disk=1".parse(), Ok(Usage { disk: 1, ..Usage::default() }));
        for wrong in ["", "disk", "disk=x", "disk=1,,"] {
            assert!(wrong.parse::<Usage>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_whole_state_of_a_file_is_shown() {
        let on = |replicas, regions| Usage { placed: 1 << 20, replicas_least: replicas, regions, ..Usage::default() };
        for (wanted, usage, is) in [
            (Redundancy::Mirror(2), Usage::default(), "memory"),
            (Redundancy::Mirror(2), Usage { waiting: 4096, ..Usage::default() }, "memory"),
            (Redundancy::None, on(1, 1), "none"),
            (Redundancy::Mirror(2), on(1, 2), "none"),
            (Redundancy::Whole, on(1, 1), "whole"),
            (Redundancy::Whole, on(1, 2), "none"),
            (Redundancy::None, on(3, 2), "mirror:3"),
            (Redundancy::None, on(0, 1), "missing"),
            (Redundancy::Lazy(1), Usage { waiting: 12 << 20, ..on(2, 2) }, "mirror:2, 12 MiB in memory"),
        ] {
            assert_eq!(summary(wanted, &usage), is);
        }
    }
}

//! The size of packed inodes, by codec and by profile (mramfs, chapter 3).

use conquest_fs::layout::{RawInode, INODE};
use conquest_fs::packed::block::MAX;
use conquest_fs::packed::fields::Field;
use conquest_fs::packed::profile::Codec;
use conquest_fs::packed::seen::Seen;
use conquest_fs::packed::PER_BLOCK;
use conquest_fs::packed::{builtin, pack, unpack, Profile};
use conquest_fs::setting::{Times, TIMES_AT};
use report::cells::Table;
use report::section::Plot;
use report::Section;
use zerocopy::IntoBytes;

use crate::clock::Busy;
use crate::home;
use crate::scan::Name;

/// Bytes of an inode of ext2, and of one stripped by Conquest's authors.
const EXT2: f64 = 128.0;
const STRIPPED: f64 = 53.0;
const SECOND: i64 = 1_000_000_000;

/// The inodes of a tree, block by block, and candidate profiles for them.
pub struct Coded<'a> {
    inodes: &'a [RawInode],
    seen: Seen,
    own: Vec<Profile>,
}

/// Inodes in the sample of a foreign profile.
const FOREIGN: usize = 30_000;

/// The cost of packing with a profile.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Bytes of an inode, with its share of the block's header and base.
    pub bytes: f64,
    /// Millions per second of processor time.
    pub packed: f64,
    pub read: f64,
}

impl<'a> Coded<'a> {
    /// Of inodes, and of the entries of each directory.
    pub fn of(inodes: &'a [RawInode], directories: &[Vec<Name>]) -> Coded<'a> {
        let mut seen = Seen::of(inodes);
        directories.iter().flatten().for_each(|entry| seen.add_name(&entry.name));
        let own = Codec::ALL.iter().map(|codec| seen.profile(*codec)).collect();
        Coded { inodes, seen, own }
    }

    /// The tree's own profile of a codec.
    pub fn own(&self, codec: Codec) -> &Profile {
        &self.own[codec as usize]
    }

    /// Packs all inodes and reads them back.
    pub fn cost(&self, profile: &Profile) -> Cost {
        let blocks: Vec<[Option<RawInode>; PER_BLOCK]> =
            self.inodes.chunks(PER_BLOCK).map(|block| std::array::from_fn(|n| block.get(n).copied())).collect();
        let count = self.inodes.len() as f64;
        let mut room = vec![0; blocks.len() * MAX.min(1 + self.inodes.len() * 4) / 4];
        let mut ends = Vec::with_capacity(blocks.len());
        let mut at = 0;
        let begin = Busy::now();
        for block in &blocks {
            let mut out = [0; MAX];
            let len = pack(profile, 0, block, &mut out);
            if room.len() < at + len {
                room.resize((at + len) * 2, 0);
            }
            room[at..at + len].copy_from_slice(&out[..len]);
            at += len;
            ends.push(at);
        }
        let packed = begin.seconds();
        let begin = Busy::now();
        let (mut from, mut sum) = (0, 0u64);
        for end in &ends {
            for n in 0..PER_BLOCK {
                sum = sum.wrapping_add(unpack(profile, &room[from..*end], n).map_or(0, |inode| inode.size));
            }
            from = *end;
        }
        std::hint::black_box(sum);
        let read = begin.seconds();
        let rate = |seconds: f64| count / seconds.max(1e-9) / 1e6;
        Cost { bytes: at as f64 / count.max(1.0), packed: rate(packed), read: rate(read) }
    }

    /// Figure 3.2: bytes of an inode by codec, with the tree's own profile and with others; Figure 3.3: the speeds.
    pub fn by_codec(&self) -> (Section, Section) {
        let title = "Bytes of a packed inode, the share of its block's header included (mramfs, Figure 3.2)";
        let mut bytes = Section::times("profile-codecs", title, "B");
        let title = "Millions of inodes packed and read in a second (mramfs, Figure 3.3)";
        let mut rates = Section::rates("profile-rates", title, "M/s");
        (bytes.plot, rates.plot) = (Plot::bars(), Plot::bars());
        let other = Seen::of(&home::inodes(FOREIGN, 2));
        for codec in Codec::ALL {
            let cost = self.cost(self.own(codec));
            bytes.add(codec.name(), "own profile", cost.bytes);
            bytes.add(codec.name(), "profile of made-up homes", self.cost(&other.profile(codec)).bytes);
            rates.add(codec.name(), "packed", cost.packed);
            rates.add(codec.name(), "read", cost.read);
        }
        let foreign = self.cost(builtin());
        bytes.add(Codec::Hybrid.name(), "built-in profile", foreign.bytes);
        (bytes, rates)
    }

    /// Figure 3.1: general compressors on all inodes at once, and on blocks of them.
    pub fn by_general(&self) -> Section {
        let title = "Bytes of an inode by general compressors, which cannot read one alone (mramfs, Figure 3.1)";
        let mut section = Section::times("profile-general", title, "B");
        section.plot = Plot::bars();
        let plain = self.inodes.as_bytes();
        let count = self.inodes.len().max(1) as f64;
        section.add("inodes of ext2", "each", EXT2);
        section.add("stripped ones", "each", STRIPPED);
        section.add("plain ones here", "each", INODE as f64);
        for (name, many) in [("zstd, 16 at a time", PER_BLOCK), ("zstd, 256 at a time", 256)] {
            let step = (self.inodes.len() / many / 2000).max(1);
            let (mut bytes, mut of) = (0, 0);
            for block in self.inodes.chunks(many).step_by(step) {
                bytes += zstd::bulk::compress(block.as_bytes(), 3).map_or(block.as_bytes().len(), |c| c.len());
                of += block.len();
            }
            section.add(name, "each", bytes as f64 / of.max(1) as f64);
        }
        let all = zstd::bulk::compress(plain, 9).map_or(plain.len(), |c| c.len());
        section.add("zstd, all at once", "each", all as f64 / count);
        section.add("packed, hybrid", "each", self.cost(self.own(Codec::Hybrid)).bytes);
        section
    }

    /// Figure 3.4: bits of each field by codec.
    pub fn by_field(&self) -> Section {
        let title = "Bits of each field of an inode, on average over all inodes (mramfs, Figure 3.4)";
        let mut section = Section::times("profile-fields", title, "bit");
        section.plot = Plot::bars();
        for codec in Codec::ALL {
            for (field, bits) in self.seen.bits(self.own(codec)) {
                if self.seen.field(field).total > 0 {
                    section.add(field.name(), codec.name(), bits as f64 / self.inodes.len().max(1) as f64);
                }
            }
        }
        section
    }

    /// Table 3.2: the values that the all-or-nothing codec expects.
    pub fn taken_for_granted(&self) -> Section {
        let title = "The all-or-nothing codec: what has a prefix of one bit in each field (mramfs, Table 3.2)";
        let mut table =
            Table::new(&["field", "type", "values", "share of those stored", "stored in", "bits otherwise"]);
        for field in Field::ALL.into_iter().filter(|field| self.seen.field(*field).total > 0) {
            let (tally, code) = (self.seen.field(field), self.own(Codec::AllOrNothing).code(field));
            let stored = tally.total as f64 / self.inodes.len().max(1) as f64;
            let [usual, other] = code.buckets() else { continue };
            let (kind, values) = match usual.extra {
                0 => ("A", usual.base.to_string()),
                bits => ("B", format!("of {bits} bits")),
            };
            let [share, stored] = [tally.share(usual), stored].map(percent);
            table.row([field.name().into(), kind.into(), values, share, stored, other.bits(0).to_string()]);
        }
        Section::of_table("profile-granted", title, table)
    }

    /// Table 3.3: the ranges of the gamma code of a field.
    pub fn gamma_table(&self, field: Field) -> Section {
        let name = field.name();
        let title =
            format!("The gamma code of the field `{name}` (mramfs, Table 3.3; ranges cut by dynamic programming)");
        let mut table = Table::new(&["bits of the prefix", "bits behind it", "values from", "to"]);
        let mut buckets = self.own(Codec::Gamma).code(field).buckets().to_vec();
        buckets.sort_by_key(|b| b.len);
        for b in buckets {
            let last = b.base.saturating_add(u64::MAX.checked_shr(64 - u32::from(b.extra)).unwrap_or(0));
            table.row([b.len.to_string(), b.extra.to_string(), b.base.to_string(), last.to_string()]);
        }
        Section::of_table("profile-gamma", title, table)
    }
}

/// The mean size of a directory's entry in a pool: as it is written, and packed by a profile.
pub fn entry(directories: &[Vec<Name>], profile: &Profile) -> (f64, f64) {
    let (mut plain, mut packed, mut count) = (0, 0, 0);
    for directory in directories {
        let taken = conquest_fs::packed_entries(profile, directory.iter().map(|e| (e.ino, e.kind, e.name.as_slice())));
        plain += taken.plain;
        packed += taken.packed;
        count += directory.len();
    }
    let each = |bytes: u64| bytes as f64 / count.max(1) as f64;
    (each(plain), each(packed))
}

/// The size of a directory's entry, without its inode.
pub fn names(directories: &[Vec<Name>], own: &Profile) -> Section {
    let title = "Bytes of an entry of a directory, with its name, without its inode";
    let mut section = Section::times("profile-names", title, "B");
    section.plot = Plot::bars();
    let name = |e: &Name| e.name.len() as f64;
    let count: usize = directories.iter().map(Vec::len).sum();
    section.add("the name alone", "each", directories.iter().flatten().map(name).sum::<f64>() / count.max(1) as f64);
    section.add("as it is written", "each", entry(directories, own).0);
    section.add("packed, own profile", "each", entry(directories, own).1);
    section.add("packed, built-in profile", "each", entry(directories, builtin()).1);
    section
}

/// The savings by coarser times of all inodes: bytes of an inode by the resolution of its times. A pool supports one
/// second.
pub fn coarser_times(inodes: &[RawInode]) -> Section {
    let title = "Bytes of a packed inode if its times are kept coarser (each resolution with a profile of its own)";
    let mut section = Section::times("profile-times", title, "B");
    section.notes.push("1 s is what `setfattr -n user.conquest.times -v seconds DIR` does in a pool".into());
    section.plot = Plot::bars();
    for (name, unit) in [("1 ns", 1), ("1 us", 1000), ("1 ms", 1_000_000), ("1 s", SECOND), ("1 min", 60 * SECOND)] {
        let one = |inode| if unit == SECOND { in_seconds(inode) } else { coarser(inode, unit) };
        let coarse: Vec<RawInode> = inodes.iter().map(one).collect();
        let coded = Coded::of(&coarse, &[]);
        section.add(name, "each", coded.cost(coded.own(Codec::Hybrid)).bytes);
    }
    section
}

/// An inode as a pool packs it with `Times::Seconds`.
fn in_seconds(inode: &RawInode) -> RawInode {
    Times::Seconds.packed(&RawInode { settings: inode.settings | 1 << TIMES_AT, ..*inode })
}

fn coarser(inode: &RawInode, unit: i64) -> RawInode {
    let at = |time: i64| time.div_euclid(unit).wrapping_mul(unit);
    let RawInode { mtime, ctime, atime, btime, .. } = *inode;
    RawInode { mtime: at(mtime), ctime: at(ctime), atime: at(atime), btime: at(btime), ..*inode }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The setting saves most of the noise below a second, and the section names it.
    #[test]
    fn coarser_times_save_and_the_setting_is_named() {
        let section = coarser_times(&home::inodes(6000, 3));
        assert!(section.notes.iter().any(|note| note.contains("user.conquest.times -v seconds")));
        let bytes = |name: &str| section.series.iter().find(|s| s.subject == name).expect("a resolution").median;
        assert!(bytes("1 s") + 8.0 < bytes("1 ns"));
    }
}

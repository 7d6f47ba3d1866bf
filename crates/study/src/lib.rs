//! The study of mramfs for any directory tree: the possible savings of packed inodes and compressed files, and a
//! profile for packing them.
//!
//! | module | responsibility |
//! | --- | --- |
//! | this | the whole study of a tree, for readers and as JSON |
//! | [`scan`] | the tree: its inodes as a pool would have them, its names, its small files |
//! | [`metadata`] | inodes by codec and profile (mramfs, chapter 3) |
//! | [`data`] | small files by codec (mramfs, chapter 4) |
//! | [`clock`] | processor time |
//! | [`quietly`] | reading without changing access times |
//! | [`home`] | inodes of many users, made up, with full nanosecond times |
//!
//! Data flow: tree → inodes → histograms of fields → profiles → tables and figures.

#![forbid(unsafe_code)]

mod clock;
pub mod data;
pub mod home;
pub mod metadata;
mod quietly;
pub mod scan;

use std::collections::BTreeMap;
use std::fmt::Write;

use conquest_fs::layout::INODE;
use conquest_fs::packed::fields::Field;
use conquest_fs::packed::profile::{Codec, Profile};
use report::cells::Table;
use report::table;
use report::{Machine, Outcome, Section};
use serde::Serialize;

use data::{Measured, Sample};
use metadata::{percent, Coded};
use scan::Tree;

/// The room of a tree in a pool, in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// Files up to this many bytes stay in memory.
    pub threshold: u64,
    /// The lengths of all these files.
    pub small_files: u64,
    /// Memory right after writing: inodes, names, small files.
    pub plain: u64,
    /// Memory after a quiet time: inodes packed, small files compressed.
    pub packed: u64,
    /// Content of larger files, on disks.
    pub on_disks: u64,
    pub inode: f64,
    pub entry: f64,
}

/// The study of a tree.
#[derive(Serialize)]
pub struct Study {
    pub tree: String,
    pub machine: Machine,
    pub inodes: usize,
    /// Figures of several units.
    pub tables: Vec<Section>,
    pub figures: Vec<Section>,
    pub estimate: Estimate,
    pub notes: Vec<String>,
    #[serde(skip)]
    profile: Profile,
}

/// The progress of a study.
pub enum Step<'a> {
    /// Inodes found.
    Scanned(u64),
    /// Bytes of small files read, and their total.
    Read(u64, u64),
    /// The next measurement.
    Measure(&'a str),
}

/// Studies a tree, and up to `sample` bytes of its small files; `tell` gets the progress.
pub fn study(name: &str, tree: &Tree, sample: u64, tell: &mut dyn FnMut(Step)) -> Study {
    tell(Step::Measure("inodes"));
    let coded = Coded::of(&tree.inodes, &tree.directories);
    let mut tables = vec![shape_of(name, tree), coded.taken_for_granted(), coded.gamma_table(Field::Size)];
    tell(Step::Measure("codecs of inodes"));
    let (bytes, rates) = coded.by_codec();
    tell(Step::Measure("general compressors"));
    let mut figures = vec![coded.by_general(), bytes, rates, coded.by_field()];
    tell(Step::Measure("names"));
    figures.push(metadata::names(&tree.directories, coded.own(Codec::Hybrid)));
    tell(Step::Measure("coarser times"));
    figures.push(metadata::coarser_times(&tree.inodes));
    let files = Sample::read(tree, sample, &mut |done, all| tell(Step::Read(done, all)));
    let measured = files.measure(&mut |codec| tell(Step::Measure(codec)));
    if !measured.is_empty() && !files.is_empty() {
        tables.push(data::table(&measured));
        figures.extend(data::figures(&files, &measured));
    }
    let inode = coded.cost(coded.own(Codec::Hybrid)).bytes;
    let entry = metadata::entry(&tree.directories, coded.own(Codec::Hybrid));
    let estimate = estimate(tree, inode, entry, &measured);
    Study {
        tree: name.to_owned(),
        machine: Machine::this(),
        inodes: tree.inodes.len(),
        tables,
        figures,
        notes: notes(tree, &files),
        estimate,
        profile: coded.own(Codec::Hybrid).clone(),
    }
}

/// Table 3.1: the shape of the tree.
fn shape_of(name: &str, tree: &Tree) -> Section {
    let mut table = Table::new(&[
        "tree",
        "inodes",
        "owner, group, mode",
        "of the system",
        "owners",
        "most common size",
        "bytes of a name",
    ]);
    let count = tree.inodes.len().max(1) as f64;
    let mut owners: BTreeMap<u32, u64> = BTreeMap::new();
    tree.uids.iter().for_each(|uid| *owners.entry(*uid).or_default() += 1);
    let system = owners.iter().filter(|(uid, _)| **uid < 1000).map(|(_, n)| n).sum::<u64>() as f64;
    let many = owners.values().filter(|n| **n as f64 >= count / 1000.0).count();
    let mut sizes: BTreeMap<u32, u64> = BTreeMap::new();
    tree.files.iter().for_each(|(_, size)| *sizes.entry(size.ilog2()).or_default() += 1);
    let common = sizes
        .iter()
        .max_by_key(|(_, n)| **n)
        .map_or("-".into(), |(class, _)| format!("{} to {} B", 1u64 << class, (2u64 << class) - 1));
    table.row([
        name.to_owned(),
        tree.inodes.len().to_string(),
        tree.perms.len().to_string(),
        percent(system / count),
        many.to_string(),
        common,
        format!("{:.1}", tree.name_bytes as f64 / tree.entries.max(1) as f64),
    ]);
    Section::of_table("profile-tree", "The tree (mramfs, Table 3.1)", table)
}

/// Estimates a pool with default options. Small files outside the sample are assumed to compress as well as those in
/// it.
fn estimate(tree: &Tree, inode: f64, (plain_entry, packed_entry): (f64, f64), measured: &[Measured]) -> Estimate {
    let threshold = conquest_fs::ubj::THRESHOLD;
    let small = || tree.files.iter().filter(|(_, size)| *size <= threshold);
    let small_files = small().map(|(_, size)| size).sum::<u64>();
    let in_objects = small().map(|(_, size)| scan::object(*size)).sum::<u64>();
    let on_disks = tree.files.iter().filter(|(_, size)| *size > threshold).map(|(_, size)| size).sum();
    let names = |each: f64| (each * tree.entries as f64) as u64;
    let best = measured.iter().map(|m| 1.0 - m.memory_saved()).fold(1.0, f64::min);
    let count = tree.inodes.len() as f64;
    Estimate {
        threshold,
        small_files,
        plain: (count * INODE as f64 * 1.0125) as u64 + names(plain_entry) + in_objects,
        packed: (count * inode) as u64 + names(packed_entry) + (in_objects as f64 * best) as u64,
        on_disks,
        inode,
        entry: inode + packed_entry,
    }
}

fn notes(tree: &Tree, files: &Sample) -> Vec<String> {
    let mut notes = Vec::new();
    if tree.further_names > 0 {
        notes
            .push(format!("{} further names of files that have several are counted as names only", tree.further_names));
    }
    if tree.other_mounts > 0 {
        notes.push(format!("{} entries on other file systems were left out", tree.other_mounts));
    }
    if files.unreadable > 0 {
        notes.push(format!("{} small files could not be read, and are not in the figures of data", files.unreadable));
    }
    if !files.is_empty() {
        notes.push(format!("{} of {} small files were compressed", files.len(), files.count));
    }
    if tree.failed > 0 {
        notes.push(format!("{} entries could not be looked at:", tree.failed));
        notes.extend(tree.failures.iter().cloned());
    }
    notes
}

impl Study {
    /// The study as text.
    pub fn show(&self) -> String {
        let mut out = format!("{}: {} inodes\n", self.tree, self.inodes);
        self.tables.iter().chain(&self.figures).for_each(|section| out.push_str(&table::single(section)));
        let Estimate { threshold, small_files, plain, packed, on_disks, inode, entry } = self.estimate;
        let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        let share = |bytes: u64| percent(bytes as f64 / small_files.max(1) as f64);
        let _ = write!(
            out,
            "\nA pool with this tree\n  \
             in memory, as it is written    {} ({} of its files up to {} MiB, {})\n  \
             in memory, when it is quiet    {} ({})\n  \
             on disks                       {}\n  \
             a quiet inode                  {inode:.1} B; with its name and entry {entry:.1} B\n",
            mb(plain),
            share(plain),
            threshold >> 20,
            mb(small_files),
            mb(packed),
            share(packed),
            mb(on_disks),
        );
        self.notes.iter().for_each(|note| _ = writeln!(out, "  {note}"));
        out
    }

    /// The profile, in the form that a pool reads.
    pub fn profile(&self) -> Vec<u8> {
        self.profile.to_bytes()
    }

    /// All tables and figures.
    pub fn outcome(&self) -> Outcome {
        Outcome { sections: self.tables.iter().chain(&self.figures).cloned().collect(), findings: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_many_users_is_studied() {
        let tree = Tree { inodes: home::inodes(3000, 5), ..Tree::default() };
        assert_eq!(home::inodes(3000, 5), tree.inodes);
        let mut steps = 0;
        let done = study("made up", &tree, 0, &mut |_| steps += 1);
        assert!(steps > 3);
        assert!(done.estimate.inode < 34.0, "{} bytes", done.estimate.inode);
        assert!(Profile::from_bytes(&done.profile()).is_some());
        assert!(done.show().contains("Figure 3.2") && !done.show().contains("Table 4.1"));
    }
}

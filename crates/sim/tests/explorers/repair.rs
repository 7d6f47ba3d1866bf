//! Repairs that are cut at any store: the next repair finds the same as the first one would have. No name that could be
//! read before is lost on the way.

use conquest_fs::layout::tag;
use pram::memory::TAGS;
use pram::Tag;
use rng::Rng;
use sim::crash::PERSISTENT;
use sim::explore::damage::{cross_word, flip_bit, zero_lines, Damage};
use sim::explore::{damaged_base_on, explore_repair, Damaged, Depth};
use sim::verdict::{full, sample};

/// Explores repairs after `damage` of objects with the tags `of`, by so many seeds.
fn explore(of: &[Tag], seeds: u64, damage: Damage) {
    let without: Vec<Tag> = (1..TAGS as u8).map(Tag).filter(|t| !of.contains(t)).collect();
    let (mut repairs, mut states, mut failures) = (0, 0, Vec::new());
    for kind in PERSISTENT {
        let (good, places) = damaged_base_on(kind, &without);
        for seed in sample((0..seeds).collect(), 20) {
            let mut bytes = good.clone();
            // The first place is the segment table.
            _ = damage(&mut Rng::new(seed), &mut bytes, &places[1..]);
            let damaged = Damaged { name: format!("seed {seed}"), kind, bytes };
            match explore_repair(&damaged, Depth::from_env(), if full() { usize::MAX } else { 20 }) {
                Ok(0) => {}
                Ok(cuts) => (repairs, states) = (repairs + 1, states + cuts),
                Err(f) => failures.extend(f),
            }
        }
    }
    eprintln!("{states} states of {repairs} repairs");
    let text: Vec<String> = failures.iter().map(|f| format!("{}: {}", f.id, f.text)).collect();
    assert!(failures.is_empty(), "{} repairs are wrong:\n{}", failures.len(), text[..text.len().min(10)].join("\n"));
    assert!(repairs > 0 && states > 0, "{states} states of {repairs} repairs");
}

/// Regression: a directory that had to be made anew was emptied first, and then given its names one by one. A process
/// that was killed in between, or found no memory, lost the rest.
#[test]
fn a_cut_repair_of_directories_loses_no_names() {
    explore(&[tag::BUCKET, tag::BUCKET_TABLE], 200, flip_bit);
}

#[test]
fn a_cut_repair_of_tables_is_repaired() {
    explore(&[tag::INODE_TABLE, tag::PERM, tag::SUPER], 200, flip_bit);
}

#[test]
fn a_cut_repair_of_inodes_is_repaired() {
    explore(&[tag::INODE_BLOCK, tag::XATTR, tag::INDEX], 400, flip_bit);
}

#[test]
fn a_cut_repair_of_crossed_words_is_repaired() {
    explore(&[tag::BUCKET, tag::INODE_BLOCK, tag::INDEX, tag::BUCKET_TABLE], 200, cross_word);
}

#[test]
fn a_cut_repair_of_lost_lines_is_repaired() {
    explore(&[tag::BUCKET, tag::INODE_BLOCK, tag::INDEX, tag::BUCKET_TABLE], 100, |rng, bytes, places| {
        zero_lines(rng, bytes, places, 5)
    });
}

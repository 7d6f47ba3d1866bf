//! A region with damaged bytes: whatever they are, nothing panics, hangs or corrupts memory; the check
//! answers; repair leaves a file system that is clean and works.

use std::panic::{catch_unwind, AssertUnwindSafe};

use fs::layout::tag;
use rng::Rng;
use sim::explore::{damaged_base, open_bytes, work_after_repair};
use sim::tree::snapshot;

/// What became of damaged file systems.
#[derive(Debug, Default)]
struct Tally {
    refused: u64,
    unnoticed: u64,
    repaired: u64,
}

fn survive(bytes: &[u8], tally: &mut Tally) -> Result<(), String> {
    let Ok(fs) = open_bytes(bytes) else {
        tally.refused += 1;
        return Ok(());
    };
    // Reading damage gives errors at worst.
    let readable = snapshot(&fs);
    let found = fs.fsck(false, &mut |_, _| {}).map_err(|e| format!("fsck: {e}"))?;
    if found.problems.is_empty() {
        readable.map_err(|e| format!("fsck finds nothing, but {e}"))?;
        tally.unnoticed += 1;
        return Ok(());
    }
    fs.fsck(true, &mut |_, _| {}).map_err(|e| format!("repair: {e}"))?;
    let left = fs.fsck(false, &mut |_, _| {}).map_err(|e| format!("fsck after repair: {e}"))?;
    if let Some(p) = left.problems.first() {
        return Err(format!("not repaired: {p}; found {:?}", found.problems));
    }
    snapshot(&fs).map_err(|e| format!("after repair, {e}"))?;
    work_after_repair(&fs)?;
    tally.repaired += 1;
    Ok(())
}

/// Damages `bytes`, and names what it did.
type Damage = fn(&mut Rng, &mut [u8], &[(u64, u64)]) -> String;

fn flip_bit(rng: &mut Rng, bytes: &mut [u8], places: &[(u64, u64)]) -> String {
    let at = pick(rng, places);
    bytes[at] ^= 1 << rng.below(8);
    format!("bit of {at:#x}")
}

fn set_byte(rng: &mut Rng, bytes: &mut [u8], places: &[(u64, u64)]) -> String {
    let at = pick(rng, places);
    bytes[at] = [0, 0xff, 1, 0x7f][rng.below(4) as usize];
    format!("byte {at:#x} = {:#x}", bytes[at])
}

/// A word becomes another word of the region: references that lead to real objects, but wrong ones.
fn cross_word(rng: &mut Rng, bytes: &mut [u8], places: &[(u64, u64)]) -> String {
    let (from, to) = (pick(rng, places) & !7, pick(rng, places) & !7);
    bytes.copy_within(from..from + 8, to);
    format!("word {from:#x} to {to:#x}")
}

fn pick(rng: &mut Rng, places: &[(u64, u64)]) -> usize {
    let (start, len) = places[rng.below(places.len() as u64) as usize];
    (start + rng.below(len)) as usize
}

fn rounds() -> u64 {
    if std::env::var("CONQUEST_SIM").as_deref() == Ok("full") {
        20_000
    } else {
        800
    }
}

fn inflict(damage: Damage, seed: u64) -> Tally {
    let (good, places) = damaged_base(&[tag::DATA]);
    let mut tally = Tally::default();
    let mut wrong = Vec::new();
    for round in 0..rounds() {
        let mut rng = Rng::new(seed * 1_000_000 + round);
        let mut bytes = good.clone();
        let told = damage(&mut rng, &mut bytes, &places);
        let done = catch_unwind(AssertUnwindSafe(|| survive(&bytes, &mut tally)));
        match done {
            Ok(Ok(())) => {}
            Ok(Err(e)) => wrong.push(format!("{told}: {e}")),
            Err(_) => wrong.push(format!("{told}: panicked")),
        }
    }
    eprintln!("{tally:?}");
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rounds(), wrong[..wrong.len().min(10)].join("\n"));
    tally
}

#[test]
fn flipped_bits_are_survived() {
    let tally = inflict(flip_bit, 1);
    assert!(tally.repaired > rounds() / 10, "{tally:?}");
}

#[test]
fn wrong_bytes_are_survived() {
    let tally = inflict(set_byte, 2);
    assert!(tally.repaired > rounds() / 10, "{tally:?}");
}

#[test]
fn crossed_words_are_survived() {
    let tally = inflict(cross_word, 3);
    assert!(tally.repaired > rounds() / 10, "{tally:?}");
}

//! Shows damage that scrubbing has found.

use std::collections::BTreeMap;

use conquest::Damage;

use crate::size;

/// How many ranges of a file are listed; more are counted.
const RANGES: usize = 4;

/// A line for each file, region, and kind of damage there.
pub fn describe(all: &[Damage]) -> Vec<String> {
    let mut files: BTreeMap<_, Vec<&Damage>> = BTreeMap::new();
    for one in all {
        let key = (one.ino, &one.path, one.region, &one.why, one.outcome());
        files.entry(key).or_default().push(one);
    }
    files.into_values().map(|of_one| format!("{}; {}", line(&of_one), of_one[0].outcome())).collect()
}

/// As `describe`, without the outcome: for damage that is only reported.
pub fn describe_found(all: &[Damage]) -> Vec<String> {
    let mut parts: BTreeMap<_, Vec<&Damage>> = BTreeMap::new();
    all.iter().for_each(|one| parts.entry((&one.path, one.region)).or_default().push(one));
    parts.into_values().map(|of_one| line(&of_one)).collect()
}

/// The first and last bytes of the ranges in order; adjacent ranges are merged.
fn ranges(of_one: &[&Damage]) -> Vec<(u64, u64)> {
    let mut all: Vec<_> = of_one.iter().map(|damage| (damage.first, damage.last)).collect();
    all.sort_unstable();
    all.dedup_by(|next, last| {
        let joins = next.0 <= last.1.saturating_add(1);
        if joins {
            last.1 = last.1.max(next.1);
        }
        joins
    });
    all
}

fn line(of_one: &[&Damage]) -> String {
    let (damage, ranges) = (of_one[0], ranges(of_one));
    let name = damage.path.clone().unwrap_or_else(|| format!("inode {} (without a name)", damage.ino));
    let mut text: Vec<String> = ranges.iter().take(RANGES).map(|(first, last)| format!("{first} to {last}")).collect();
    if ranges.len() > RANGES {
        let bytes: u64 = ranges.iter().map(|(first, last)| last + 1 - first).sum();
        text.push(format!("{} ranges more ({} in all)", ranges.len() - RANGES, size::show(bytes)));
    }
    let place = if damage.beside { "in its file".into() } else { format!("region {}", damage.region) };
    format!("{name}: bytes {}, {place}: {}", text.join(", "), damage.why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_line_for_what_is_wrong_with_it_however_much_that_is() {
        let why = "its checksum is wrong".to_string();
        let one = Damage {
            ino: 5,
            path: Some("/f".into()),
            first: 0,
            last: 4095,
            region: 1,
            why,
            repaired: false,
            from_memory: false,
            beside: false,
        };
        let page = |n: u64| Damage { first: n * 4096, last: n * 4096 + 4095, ..one.clone() };
        let side_by_side: Vec<Damage> = (0..100).map(page).collect();
        assert_eq!(describe(&side_by_side), ["/f: bytes 0 to 409599, region 1: its checksum is wrong; LOST"]);
        let apart: Vec<Damage> = (0..100).rev().map(|n| page(2 * n)).collect();
        let lines = describe(&apart);
        assert!(lines.len() == 1 && lines[0].starts_with("/f: bytes 0 to 4095, 8192 to 12287,"), "{lines:?}");
        assert!(lines[0].contains("96 ranges more (400 KiB in all)"), "{lines:?}");
        let other = Damage { repaired: true, ..page(7) };
        assert_eq!(describe(&[one.clone(), other]).len(), 2);
    }
}

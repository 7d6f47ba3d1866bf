//! A file occupies exactly its objects, a part at a time or not.

use super::*;
use crate::file::Part;

/// Everything that a tally says of a file, and in how many parts.
fn all(r: &Memory, c: &Content) -> (Vec<Part>, u32) {
    let (mut found, mut from, mut parts) = (Vec::new(), 0, 0);
    loop {
        parts += 1;
        match tally(r, c, from, &mut |part| found.push(part)).unwrap() {
            Some(next) => {
                assert!(next > from, "{next} after {from}");
                from = next;
            }
            None => return (found, parts),
        }
    }
}

/// Bytes of its objects: index nodes, and content.
fn objects(r: &Memory, c: &Content) -> (u64, u64) {
    let mut sums = (0, 0);
    visit(r, c, &mut |off, tag| {
        let cap = r.resolve(off, tag).unwrap();
        match tag == tag::INDEX {
            true => sums.0 += cap,
            false => sums.1 += cap,
        }
    })
    .unwrap();
    sums
}

#[track_caller]
fn check(r: &Memory, c: &Content, parts: u32) -> Vec<Part> {
    let (found, seen) = all(r, c);
    let index = found.iter().map(|part| if let Part::Index(bytes) = part { *bytes } else { 0 }).sum::<u64>();
    let memory = found.iter().map(|part| if let Part::Memory(bytes) = part { *bytes } else { 0 }).sum::<u64>();
    assert_eq!((index, memory), objects(r, c));
    assert_eq!(seen, parts);
    found
}

#[test]
fn a_file_is_counted_in_whatever_form() {
    let s = pram::Session::in_memory(8 << 20).unwrap();
    let mut c = Content { owner: 5, ..Content::default() };
    assert!(check(s.memory(), &c, 1).is_empty());
    commit(&s, &mut c, |tx, c| write(tx, c, 0, b"small")).unwrap();
    assert_eq!(check(s.memory(), &c, 1), [Part::Memory(16)]);
    commit(&s, &mut c, |tx, c| write(tx, c, 0, &[7; 70_000])).unwrap();
    check(s.memory(), &c, 1);
    // Behind some holes, at the ends of leaves, so that these are long ones; and far away, under further levels.
    for n in [40, 3, 21, 22, 23, 7] {
        commit(&s, &mut c, |tx, c| write(tx, c, (n * 512 + 511) * PAGE, b"far")).unwrap();
    }
    check(s.memory(), &c, 1);
    for n in 50..80 {
        commit(&s, &mut c, |tx, c| write(tx, c, (n * 512 + 511) * PAGE, b"far")).unwrap();
    }
    check(s.memory(), &c, 3);
    commit(&s, &mut c, |tx, c| write(tx, c, 1 << 45, b"far")).unwrap();
    commit(&s, &mut c, |tx, c| allocate(tx, c, 1 << 46, 9 * PAGE, true).map(|_| ())).unwrap();
    check(s.memory(), &c, 3);
    // Content on disk takes no memory any more.
    let pages: Vec<u64> = (50..80).map(|n| n * 512 + 511).collect();
    commit(&s, &mut c, |tx, c| {
        pages.iter().try_for_each(|page| disk::evict(tx, c, *page).map(|place| assert!(place.is_some())))
    })
    .unwrap();
    let on_disk = |part: &&Part| matches!(part, Part::Disk { cached: false, .. });
    assert_eq!(check(s.memory(), &c, 3).iter().filter(on_disk).count(), 30);
}

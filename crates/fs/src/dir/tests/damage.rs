//! With any bytes in persistent RAM: no panic, no endless loop; and the check finds it.

use super::*;
use pram::Off;

fn filled(entries: u64) -> Bench<Sip> {
    let mut rng = Rng::new(entries);
    let mut b = Bench::new(16 << 20, Sip::new(2));
    for i in 0..entries {
        b.insert(format!("name{i}").as_bytes(), entry(&mut rng)).unwrap();
    }
    b
}

/// Overwrites bytes of persistent RAM.
fn plant(b: &Bench<Sip>, off: u64, bytes: &[u8]) {
    let mut op = b.s.begin().unwrap();
    let mut tx = op.tx().unwrap();
    tx.init_bytes(off, bytes).unwrap();
    tx.commit().unwrap();
}

fn bytes_at(b: &Bench<Sip>, off: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    b.s.memory().read_bytes(off, &mut bytes).unwrap();
    bytes
}

fn objects(b: &Bench<Sip>) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    let r = b.s.memory();
    visit(r, &b.d, &mut |off, tag| all.push((off, r.resolve(off, tag).unwrap()))).unwrap();
    all
}

/// Calls everything that reads, and undone changes too.
fn exercise(b: &Bench<Sip>) {
    let r = b.s.memory();
    for i in 0..20 {
        let name = format!("name{i}");
        let _ = spot(r, &b.h, &b.d, name.as_bytes());
        let mut op = b.s.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let mut d = b.d;
        let e = Entry { ino: 1, kind: 8 };
        let _ = insert(&mut tx, &b.h, &mut d, format!("other{i}").as_bytes(), e);
        let _ = remove(&mut tx, &b.h, &mut d, name.as_bytes());
        let _ = replace(&mut tx, &b.h, &mut d, name.as_bytes(), e);
    }
    let mut listed = 0u64;
    let _ = readout::read(r, &b.h, &b.d, 0, &mut |_, _, _| {
        listed += 1;
        true
    });
    assert!(listed < 1 << 20);
    let _ = visit(r, &b.d, &mut |_, _| {});
    b.problems();
}

#[test]
fn garbage_does_no_harm() {
    for (entries, packed) in [(3, false), (3, true), (60, false), (60, true), (2000, false), (2000, true)] {
        let mut rng = Rng::new(entries);
        let mut b = filled(entries);
        if packed {
            b.pack();
        }
        let all = objects(&b);
        let before: Vec<_> = all.iter().map(|(off, cap)| bytes_at(&b, *off, *cap)).collect();
        for round in 0..600 {
            let (off, cap) = all[rng.below(all.len() as u64) as usize];
            // Mostly where headers, slots and table entries are.
            let at = off + rng.below(if round % 2 == 0 { 16.min(cap) } else { cap }) / 8 * 8;
            let old = b.s.memory().load(Off::new(at)).unwrap();
            let new = match rng.below(3) {
                0 => rng.next(),
                1 => old ^ 1 << rng.below(64),
                _ => all[rng.below(all.len() as u64) as usize].0,
            };
            plant(&b, at, &new.to_le_bytes());
            exercise(&b);
            // Insertions believe a header that says that bytes are free, so undoing them does not mend all.
            all.iter().zip(&before).for_each(|((off, _), bytes)| plant(&b, *off, bytes));
        }
        let good = b.d.root;
        for _ in 0..300 {
            b.d.root = if rng.below(2) == 0 { rng.next() } else { good ^ 1 << rng.below(64) };
            exercise(&b);
        }
        b.d.root = good;
        b.verify();
    }
}

/// Each finding of the check, from planted damage.
#[test]
fn the_check_finds_damage() {
    let small = filled(3);
    let off = Root::unpack(small.d.root).off;
    let word = small.s.memory().load(Off::new(off)).unwrap();
    let mut slots = [0; 12];
    small.s.memory().read_bytes(off + 8, &mut slots).unwrap();
    let pos = |n: usize| off + u64::from(u16::from_le_bytes([slots[4 * n], slots[4 * n + 1]]));
    let (first, second) = (pos(0), pos(1));
    let finds = |b: &Bench<Sip>, at: u64, bytes: &[u8], what: &str| {
        let old = bytes_at(b, at, bytes.len() as u64);
        plant(b, at, bytes);
        let problems = b.problems();
        assert!(problems.iter().any(|p| p.contains(what)), "{what}: {problems:?}");
        plant(b, at, &old);
        b.verify();
    };
    finds(&small, off, &(word | 1 << 63).to_le_bytes(), "header that makes no sense");
    finds(&small, off, &(word | 1 << 48).to_le_bytes(), "header that makes no sense");
    finds(&small, off, &(word + (1 << 32)).to_le_bytes(), "bytes live");
    finds(&small, off, &(word | 0xffff).to_le_bytes(), "out of bounds");
    finds(&small, off + 8, &0xffffu16.to_le_bytes(), "points outside");
    finds(&small, off, &(word + (1 << 16)).to_le_bytes(), "outside of the records");
    finds(&small, off + 10, &[slots[2] ^ 1], "not where its hash says");
    finds(&small, off + 8, &0u32.to_le_bytes(), "and has 2");
    finds(&small, off + 8, &slots[4..8], "twice");
    finds(&small, off + 8, &slots[4..8], "overlap");
    finds(&small, first + 8, b"/", "a name that is none");
    finds(&small, first + 8, b"x", "not where its hash says");
    finds(&small, first, &[0; 5], "inode number");
    finds(&small, second + 6, &[0xf0], "type that is none");

    let large = filled(2000);
    let root = Root::unpack(large.d.root);
    let buckets: Vec<u64> = objects(&large)[1..].iter().map(|o| o.0).collect();
    finds(&large, root.off, &buckets[3].to_le_bytes(), "stands in");
    finds(&large, root.off, &0u64.to_le_bytes(), "entry 0 of its table");
    finds(&large, root.off, &root.off.to_le_bytes(), "entry 0 of its table");
    finds(&large, buckets[0] + 6, &[root.depth + 1], "deeper than its table");
    finds(&large, buckets[0] + 6, &[0], "stands in");

    let mut b = filled(3);
    b.d.entries = 4;
    assert_eq!(b.problems(), ["it says that it has 4 entries, and has 3"]);
    b.d = Dir { root: 1 << 50 | b.d.root, ..b.d };
    assert!(b.problems()[0].contains("makes no sense"));
}

/// Entries with one cookie: listing could lose one of them.
#[test]
fn the_check_finds_equal_cookies() {
    struct Same;
    named!(Same);
    impl NameHash for Same {
        fn hash(&self, _: &[u8]) -> u64 {
            1
        }
    }
    let mut b = Bench::new(1 << 20, Same);
    for name in [b"a", b"b"] {
        b.insert(name, Entry { ino: 1, kind: 8 }).unwrap();
    }
    let off = Root::unpack(b.d.root).off;
    let mut slots = [0; 8];
    b.s.memory().read_bytes(off + 8, &mut slots).unwrap();
    let second = off + u64::from(u16::from_le_bytes([slots[4], slots[5]]));
    let mut op = b.s.begin().unwrap();
    let mut tx = op.tx().unwrap();
    tx.init_bytes(second + 5, &[0]).unwrap();
    tx.commit().unwrap();
    drop(op);
    assert!(b.problems()[0].contains("same cookie"));
}

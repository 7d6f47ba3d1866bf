//! Packed buckets: the same directory in fewer bytes.

use pram::Off;

use super::*;
use crate::packed::profile::Numbers;

fn filled(entries: u64) -> Bench<Sip> {
    let mut b = Bench::new(64 << 20, Sip::new(3));
    for n in 0..entries {
        let kind = if n % 10 == 0 { 4 } else { 8 };
        b.insert(format!("name{n}file{:03}.txt", n % 1000).as_bytes(), Entry { ino: 5000 + n, kind }).unwrap();
    }
    b
}

#[test]
fn takes_half_and_reads_the_same() {
    for entries in [1, 13, 50, 3000] {
        let mut b = filled(entries);
        let (before, listed) = (b.bytes(), b.list_from(0, usize::MAX));
        let (plain, packed) = b.pack();
        b.verify();
        // The cookies too, so that a listing goes on where it was.
        assert_eq!(b.list_from(0, usize::MAX), listed);
        assert_eq!(before - b.bytes(), plain - packed);
        if entries > 1 {
            assert!(packed * 2 < plain, "{packed} of {plain} for {entries} entries");
        }
        assert_eq!(b.pack(), (0, 0), "what is packed stays");
        for n in [0, 7, 41].into_iter().filter(|n| *n < listed.len()) {
            assert_eq!(b.list_from(listed[n].0, 3), &listed[n + 1..(n + 4).min(listed.len())]);
        }
    }
}

/// P3: after any removals in any order the rest has room where it lies.
#[test]
fn removing_needs_no_memory() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut b = Bench::new(1 << 20, Sip::new(seed));
        for _ in 0..1 + rng.below(60) {
            let (name, bits) = (name(&mut rng, 30), 1 + rng.below(39));
            let ino = (1 + rng.below(1 << bits)).min(crate::layout::MAX_INODES - 1);
            if !b.model.contains_key(&name) {
                b.insert(&name, Entry { ino, kind: [4, 8, 10][rng.below(3) as usize] }).unwrap();
            }
        }
        b.pack();
        while let Some(name) = b.some_name(&mut rng) {
            let form = Root::unpack(b.d.root).form;
            b.remove(&name);
            let is_as_before = Root::unpack(b.d.root).form == form || b.d.entries == 0;
            assert!(is_as_before, "removing does not unpack");
            b.verify();
        }
    }
}

/// Entries that lead elsewhere, near and far: in place, or by way of a plain bucket.
#[test]
fn entries_lead_elsewhere() {
    let mut b = filled(40);
    for n in 0..40u64 {
        b.pack();
        let name = format!("name{n}file{n:03}.txt");
        b.replace(name.as_bytes(), Entry { ino: 5000 + n * n * n * n * 100, kind: 10 });
        b.verify();
    }
}

/// Any flipped bit is reported, and costs at most the entries of the bucket.
#[test]
fn damage_is_found() {
    let mut b = filled(300);
    b.pack();
    let table = Root::unpack(b.d.root);
    assert_eq!(table.form, form::TABLE);
    let mut buckets = Vec::new();
    readout::each_bucket(b.s.memory(), &b.d, 0, &mut |bucket, _| {
        buckets.push((bucket.off(), matches!(bucket, AnyBucket::Packed(_))));
        Ok(true)
    })
    .unwrap();
    assert!(buckets.iter().all(|(_, is_packed)| *is_packed));
    let off = buckets[1].0;
    let bytes = Packed::open(b.s.memory(), off).unwrap().copy(b.s.memory(), &b.h).unwrap().len();
    let entries = bytes as u64;
    let mut rng = Rng::new(1);
    for _ in 0..200 {
        let at = off + 8 * rng.below(20);
        let old = b.s.memory().load(Off::new(at)).unwrap();
        let plant = |word: u64| {
            let mut op = b.s.begin().unwrap();
            let mut tx = op.tx().unwrap();
            tx.init_bytes(at, &word.to_le_bytes()).unwrap();
            tx.commit().unwrap();
        };
        plant(old ^ 1 << rng.below(64));
        let (mut problems, mut seen) = (Vec::new(), 0);
        check::check(b.s.memory(), &b.h, &b.d, &mut |p| problems.push(p), &mut |_, _| seen += 1);
        assert!(!problems.is_empty());
        assert_eq!(seen, 300 - entries, "{problems:?}");
        plant(old);
    }
    b.verify();
}

/// Any bytes with their check code, as damage by the program itself would be: nothing panics, or goes on forever.
#[test]
fn any_bytes_are_read() {
    let mut rng = Rng::new(6);
    for entries in [1, 20, 60] {
        let mut b = filled(entries);
        b.pack();
        let off = Root::unpack(b.d.root).off;
        let cap = b.s.memory().resolve(off, crate::layout::tag::BUCKET).unwrap();
        let mut good = vec![0; cap as usize];
        b.s.memory().read_bytes(off, &mut good).unwrap();
        for round in 0..3000 {
            let mut bad = good.clone();
            for _ in 0..1 + rng.below(4) {
                // Mostly where the shape is.
                let at = 4 + rng.below(if round % 2 == 0 { 16 } else { cap - 4 });
                bad[at as usize] = rng.next() as u8;
            }
            crate::dir::packed::reseal(&mut bad);
            let mut op = b.s.begin().unwrap();
            let mut tx = op.tx().unwrap();
            tx.init_bytes(off, &bad).unwrap();
            tx.commit().unwrap();
            drop(op);
            let mut listed = 0;
            let _ = readout::read(b.s.memory(), &b.h, &b.d, 0, &mut |_, _, _| {
                listed += 1;
                true
            });
            assert!(listed <= 4096);
            b.problems();
            let _ = visit(b.s.memory(), &b.d, &mut |_, _| {});
            for name in ["name0file000.txt", "other"] {
                let mut d = b.d;
                let mut op = b.s.begin().unwrap();
                let mut tx = op.tx().unwrap();
                let _ = spot(tx.memory(), &b.h, &d, name.as_bytes());
                let _ = replace(&mut tx, &b.h, &mut d, name.as_bytes(), Entry { ino: 9, kind: 8 });
                let _ = remove(&mut tx, &b.h, &mut d, name.as_bytes());
                let _ = insert(&mut tx, &b.h, &mut d, b"more", Entry { ino: 9, kind: 8 });
            }
        }
    }
}

/// A profile that is not there costs the names that were packed with it, and is reported.
#[test]
fn a_profile_that_is_gone_is_reported() {
    let mut b = filled(20);
    b.pack();
    let off = Root::unpack(b.d.root).off;
    let packed = Packed::open(b.s.memory(), off).unwrap();
    struct Other;
    impl NameHash for Other {
        fn hash(&self, name: &[u8]) -> u64 {
            Sip::new(3).hash(name)
        }
    }
    impl Naming for Other {
        fn symbols(&self, _: u8) -> Result<&Symbols> {
            Err(damaged(0, "there is no profile"))
        }
        fn profiles(&self) -> Result<Numbers> {
            Ok(Numbers::new())
        }
    }
    assert!(packed.copy(b.s.memory(), &Other).is_err());
    let mut problems = Vec::new();
    check::check(b.s.memory(), &Other, &b.d, &mut |p| problems.push(p), &mut |_, _| {});
    assert!(problems[0].contains("no profile"), "{problems:?}");
}

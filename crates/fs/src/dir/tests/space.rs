//! Full regions.

use super::*;

/// Fills the memory with entries until one is refused; returns how many there are.
fn fill<H: Naming>(b: &mut Bench<H>, longest: u64) -> u64 {
    let mut rng = Rng::new(5);
    loop {
        let n = name(&mut rng, longest);
        if b.model.contains_key(&n) {
            continue;
        }
        let before = b.d;
        if let Err(e) = b.insert(&n, entry(&mut rng)) {
            assert_eq!(e.errno(), Errno::NOSPC);
            assert_eq!(b.d, before);
            return b.d.entries;
        }
    }
}

#[test]
fn a_full_region_refuses_insertions_and_takes_removals() {
    for longest in [20, 255] {
        let mut b = Bench::new(2 << 20, Sip::new(1));
        let most = fill(&mut b, longest);
        b.verify();
        // Everything can be removed, in any order, while nothing can be allocated.
        let mut rng = Rng::new(1);
        while let Some(n) = b.some_name(&mut rng) {
            b.remove(&n);
            if b.d.entries % 997 == 0 {
                b.verify();
            }
        }
        assert_eq!((b.d, b.s.memory().allocated_bytes().unwrap()), (Dir::EMPTY, 0));
        // And the space is there again.
        let again = fill(&mut b, longest);
        assert!(again >= most * 9 / 10, "{again} of {most}");
    }
}

/// The undo log takes the changes of a bucket that stands in thousands of entries of a large table, or the
/// table is copied.
#[test]
fn a_shallow_bucket_of_a_deep_table_can_be_filled() {
    struct Skewed;
    named!(Skewed);
    impl NameHash for Skewed {
        /// Names that begin with a "0" go to the lower half.
        fn hash(&self, name: &[u8]) -> u64 {
            let h = Sip::new(1).hash(name) >> 1;
            if name[0] == b'0' {
                h
            } else {
                h | 1 << 63
            }
        }
    }
    let mut rng = Rng::new(1);
    let mut b = Bench::new(256 << 20, Skewed);
    for i in 0..400_000 {
        b.insert(format!("1{i}").as_bytes(), entry(&mut rng)).unwrap();
    }
    let depth = Root::unpack(b.d.root).depth;
    assert!(depth >= 13, "{depth}");
    for i in 0..3000 {
        b.insert(format!("0{i}").as_bytes(), entry(&mut rng)).unwrap();
    }
    assert_eq!(b.problems(), [""; 0]);
    for i in 0..3000 {
        b.remove(format!("0{i}").as_bytes());
    }
    for i in 0..400_000 {
        b.remove(format!("1{i}").as_bytes());
    }
    assert_eq!((b.d, b.s.memory().allocated_bytes().unwrap()), (Dir::EMPTY, 0));
}

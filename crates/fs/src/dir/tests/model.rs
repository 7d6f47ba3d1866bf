//! Random steps beside the model; and the state after an undone transaction.

use super::*;

/// Random steps; `bias` in 100 insertions.
fn steps<H: Naming>(b: &mut Bench<H>, rng: &mut Rng, n: u64, bias: u64, longest: u64) {
    for _ in 0..n {
        let known = b.some_name(rng);
        let what = rng.below(100);
        if what < bias {
            let name = name(rng, longest);
            if !b.model.contains_key(&name) {
                let e = entry(rng);
                b.insert(&name, e).unwrap();
            }
        } else if let Some(known) = known {
            if what % 4 == 0 {
                let e = entry(rng);
                b.replace(&known, e);
            } else {
                b.remove(&known);
            }
        }
        let absent = name(rng, longest);
        assert_eq!(b.lookup(&absent), b.model.get(&absent).copied());
    }
}

#[test]
fn follows_a_model() {
    for (seed, longest) in [(1, 3), (2, 10), (3, 40), (4, 255)] {
        let mut rng = Rng::new(seed);
        let mut b = Bench::new(64 << 20, Sip::new(seed));
        for bias in [90, 20, 60, 40, 95, 5] {
            steps(&mut b, &mut rng, 3000, bias, longest);
            b.verify();
            // And so it does packed, and as buckets are made plain again.
            for _ in 0..5 {
                b.pack();
                b.verify();
                steps(&mut b, &mut rng, 60, bias, longest);
                b.verify();
            }
        }
        let names: Vec<_> = b.model.keys().cloned().collect();
        names.iter().for_each(|n| b.remove(n));
        assert_eq!(b.d, Dir::EMPTY);
    }
}

#[test]
fn grows_to_two_hundred_thousand_and_back() {
    let mut rng = Rng::new(9);
    let mut b = Bench::new(256 << 20, Sip::new(9));
    let names: Vec<_> = (0..200_000).map(|i| format!("file{i:07}").into_bytes()).collect();
    for n in &names {
        b.insert(n, entry(&mut rng)).unwrap();
    }
    b.verify();
    let overhead = b.bytes() as f64 / names.len() as f64 - names[0].len() as f64;
    assert!(overhead < 40.0, "{overhead} bytes per entry beyond the name");
    // Half at random, the rest in the order of read-out, as a recursive deletion does.
    for n in names.iter().step_by(2) {
        b.remove(n);
    }
    b.verify();
    while b.d.entries > 0 {
        let batch: Vec<_> = b.list_from(0, 500).into_iter().map(|(_, n, _)| n).collect();
        batch.iter().for_each(|n| b.remove(n));
        if b.d.entries == 500 {
            assert_eq!(b.problems(), [""; 0]);
            assert!(b.bytes() < 160 << 10, "{} bytes for 500 entries", b.bytes());
        }
    }
    assert_eq!(b.d, Dir::EMPTY);
    assert_eq!(b.s.memory().allocated_bytes().unwrap(), 0);
}

#[test]
fn shrinks_when_deleted_at_random() {
    let mut rng = Rng::new(10);
    let mut b = Bench::new(64 << 20, Sip::new(10));
    let mut names: Vec<_> = (0..20_000).map(|i| format!("{i}").into_bytes()).collect();
    for n in &names {
        b.insert(n, entry(&mut rng)).unwrap();
    }
    while let Some(n) = (!names.is_empty()).then(|| names.swap_remove(rng.below(names.len() as u64) as usize)) {
        b.remove(&n);
        if names.len() % 1000 == 0 {
            b.verify();
            assert!(b.bytes() < 2 * 2048 + 100 * names.len() as u64, "{} for {}", b.bytes(), names.len());
        }
    }
    assert_eq!(b.s.memory().allocated_bytes().unwrap(), 0);
}

/// Several steps in one transaction, each using memory that another has given up, on a copy of `d` and of the
/// model.
fn steps_in<H: Naming>(tx: &mut Tx, b: &Bench<H>, rng: &mut Rng, longest: u64) -> (Dir, BTreeMap<Vec<u8>, Entry>) {
    let (mut d, mut model) = (b.d, b.model.clone());
    for _ in 0..1 + rng.below(5) {
        let known = b.some_name(rng).filter(|n| model.contains_key(n));
        let e = entry(rng);
        match (rng.below(3), known) {
            (0, Some(n)) => assert_eq!(remove(tx, &b.h, &mut d, &n).unwrap(), model.remove(&n)),
            (1, Some(n)) => assert_eq!(replace(tx, &b.h, &mut d, &n, e).unwrap(), model.insert(n, e)),
            _ => {
                let n = name(rng, longest);
                if let std::collections::btree_map::Entry::Vacant(place) = model.entry(n.clone()) {
                    insert(tx, &b.h, &mut d, &n, e).unwrap();
                    place.insert(e);
                }
            }
        }
    }
    (d, model)
}

/// Transactions of several steps, at many sizes: undone, contents and heap are as before; committed, as the
/// steps left them.
#[test]
fn transactions_are_whole_or_nothing() {
    for (seed, longest) in [(1, 8), (2, 255)] {
        let mut rng = Rng::new(seed);
        let mut b = Bench::new(64 << 20, Sip::new(seed));
        for round in 0..3000 {
            if round % 1500 < 1000 {
                let n = name(&mut rng, longest);
                if !b.model.contains_key(&n) {
                    let e = entry(&mut rng);
                    b.insert(&n, e).unwrap();
                }
            } else if let Some(n) = b.some_name(&mut rng) {
                b.remove(&n);
            }
            let mut op = b.s.begin().unwrap();
            let mut tx = op.tx().unwrap();
            let after = steps_in(&mut tx, &b, &mut rng, longest);
            if rng.below(3) == 0 {
                tx.commit().unwrap();
                drop(op);
                (b.d, b.model) = after;
            } else {
                drop(tx);
                drop(op);
            }
            if round % 20 == 0 {
                b.verify();
                b.pack();
            }
        }
        b.verify();
    }
}

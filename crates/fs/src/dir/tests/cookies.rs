//! Read-out in pieces while the directory changes; names whose hashes collide.

use std::collections::BTreeMap;

use super::*;

/// Hash functions that collide.
struct Weak(fn(&[u8]) -> u64);

named!(Weak);

impl NameHash for Weak {
    fn hash(&self, name: &[u8]) -> u64 {
        (self.0)(name)
    }
}

fn sip(name: &[u8]) -> u64 {
    Sip::new(1).hash(name)
}

const WEAK: [fn(&[u8]) -> u64; 6] = [
    |_| 0,
    |_| u64::MAX,
    // Few values.
    |n| sip(n) & 7,
    |n| sip(n) & 7 << 61,
    // Different only in bits below a cookie's; different only deep down.
    |n| sip(n) & 0xfff,
    |n| sip(n) & 0xf_ffff << 20,
];

/// Reads in pieces of `piece` entries, and changes the directory between the pieces.
fn read_in_pieces<H: Naming>(b: &mut Bench<H>, piece: usize, mut change: impl FnMut(&mut Bench<H>)) {
    let steady: Vec<_> = b.model.keys().cloned().collect();
    let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let some = b.list_from(cookie, piece);
        let Some(last) = some.last() else { break };
        cookie = last.0;
        for (_, name, _) in some {
            *seen.entry(name).or_default() += 1;
        }
        change(b);
    }
    for name in steady.iter().filter(|n| b.model.contains_key(*n)) {
        assert_eq!(seen.get(name), Some(&1), "{}", name.escape_ascii());
    }
    b.verify();
}

#[test]
fn what_is_there_throughout_is_read_once() {
    for piece in [1, 7, 100] {
        let mut rng = Rng::new(piece as u64);
        let mut b = Bench::new(64 << 20, Sip::new(3));
        for i in 0..3000 {
            b.insert(format!("steady{i}").as_bytes(), entry(&mut rng)).unwrap();
        }
        // Growth: the table doubles meanwhile.
        let mut i = 0;
        read_in_pieces(&mut b, piece, |b| {
            for _ in 0..3 * piece {
                i += 1;
                b.insert(format!("new{i}").as_bytes(), entry(&mut rng)).unwrap();
            }
        });
        // Shrinking: everything new goes, behind and before the cookie.
        let mut new: Vec<_> = b.model.keys().filter(|k| k.starts_with(b"new")).cloned().collect();
        read_in_pieces(&mut b, piece, |b| {
            for _ in 0..5 * piece {
                if !new.is_empty() {
                    b.remove(&new.swap_remove(rng.below(new.len() as u64) as usize));
                }
            }
        });
        // Entries that have been read are deleted, as by a recursive deletion.
        let mut gone = 0;
        let mut cookie = 0;
        while let Some((next, name, _)) = b.list_from(cookie, 1).pop() {
            b.remove(&name);
            (cookie, gone) = (next, gone + 1);
        }
        assert_eq!((gone, b.d), (3000 + new.len(), Dir::EMPTY));
    }
}

#[test]
fn colliding_names_are_distinguished() {
    for (i, hash) in WEAK.into_iter().enumerate() {
        let mut rng = Rng::new(i as u64);
        let mut b = Bench::new(64 << 20, Weak(hash));
        for i in 0..1000 {
            b.insert(format!("{i}").as_bytes(), entry(&mut rng)).unwrap();
        }
        b.verify();
        // Sequence numbers that became free are used again beside those in use.
        for i in (0..1000).step_by(3) {
            b.remove(format!("{i}").as_bytes());
        }
        for i in (0..1000).step_by(6) {
            b.insert(format!("{i}").as_bytes(), entry(&mut rng)).unwrap();
        }
        let mut extra = (0..500).map(|i| format!("x{i}"));
        read_in_pieces(&mut b, 9, |b| {
            if let Some(name) = extra.next() {
                b.insert(name.as_bytes(), entry(&mut Rng::new(1))).unwrap();
            }
        });
        let names: Vec<_> = b.model.keys().cloned().collect();
        names.iter().for_each(|n| b.remove(n));
        assert_eq!(b.s.memory().allocated_bytes().unwrap(), 0, "hash function {i}");
    }
}

/// More names with one hash than fit the largest bucket: an error, and nothing is lost.
#[test]
fn too_many_equal_hashes_are_refused() {
    let mut b = Bench::new(64 << 20, Weak(|_| 42));
    let mut rng = Rng::new(1);
    let refused = (0..3000).find_map(|i| b.insert(format!("{i:04}").as_bytes(), entry(&mut rng)).err());
    assert_eq!(refused.unwrap().errno(), Errno::NOSPC);
    assert!(b.model.len() > 1900, "{}", b.model.len());
    assert!(b.bytes() < 128 << 10, "{}", b.bytes());
    b.verify();
}

/// A reader without a lock beside a writer: its result under an unchanged sequence counter is right.
#[test]
fn readers_need_no_lock() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::Mutex;
    const KEY: u64 = 5;
    let s = pram::Session::in_memory(64 << 20).unwrap();
    let d = Mutex::new(Dir::EMPTY);
    let change = |f: &mut dyn FnMut(&mut Tx, &mut Dir)| {
        let mut op = s.begin().unwrap();
        op.lock(&[KEY]).unwrap();
        let mut next = *d.lock().unwrap();
        let mut tx = op.tx().unwrap();
        f(&mut tx, &mut next);
        // The inode's turn: under the lock, and read again by readers after it.
        *d.lock().unwrap() = next;
        tx.commit().unwrap();
    };
    let e = Entry { ino: 7, kind: 8 };
    for i in 0..500 {
        change(&mut |tx, d| insert(tx, &Sip::new(1), d, format!("steady{i}").as_bytes(), e).unwrap());
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rounds = 0;
            while rounds == 0 || !stop.load(Ordering::Relaxed) {
                let i = rounds % 500;
                let name = format!("steady{i}");
                let got = s.read(KEY, || {
                    let d = *d.lock().unwrap();
                    spot(s.memory(), &Sip::new(1), &d, name.as_bytes()).map(|spot| spot.map(|at| at.entry()))
                });
                assert_eq!(got.unwrap(), Some(e));
                let (mut cookie, mut steady) = (0, 0);
                loop {
                    let mut some: Vec<(u64, Vec<u8>)> = Vec::new();
                    s.read(KEY, || {
                        let d = *d.lock().unwrap();
                        some.clear();
                        readout::read(s.memory(), &Sip::new(1), &d, cookie, &mut |c, n, _| {
                            some.push((c, n.to_vec()));
                            some.len() < 50
                        })
                    })
                    .unwrap();
                    let Some((last, _)) = some.last() else { break };
                    cookie = *last;
                    steady += some.iter().filter(|(_, n)| n.starts_with(b"steady")).count();
                }
                assert_eq!(steady, 500);
                rounds += 1;
            }
            rounds
        });
        for round in 0..20 {
            for i in 0..1000 {
                change(&mut |tx, d| insert(tx, &Sip::new(1), d, format!("{round}.{i}").as_bytes(), e).unwrap());
            }
            for i in 0..1000 {
                change(&mut |tx, d| {
                    assert_eq!(remove(tx, &Sip::new(1), d, format!("{round}.{i}").as_bytes()).unwrap(), Some(e))
                });
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
}

/// 32-bit programs failed with EOVERFLOW, and those with offsets of 64 bits went on elsewhere after a seekdir.
#[test]
fn cookies_fit_31_bits_where_these_distinguish_hashes() {
    let (mut rng, mut b) = (Rng::new(1), Bench::new(64 << 20, Sip::new(3)));
    for i in 0..5000 {
        b.insert(format!("name{i}").as_bytes(), entry(&mut rng)).unwrap();
    }
    let all = b.list_from(0, usize::MAX);
    assert!(all.len() == 5000 && all.iter().all(|(cookie, ..)| *cookie <= i32::MAX as u64));
    for (n, (cookie, ..)) in all.iter().enumerate().step_by(97) {
        assert_eq!(b.list_from(*cookie, 2), all[n + 1..].iter().take(2).cloned().collect::<Vec<_>>());
    }
}

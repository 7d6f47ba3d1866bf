//! Not a test of anything: `cargo test --release -p conquest-fs --lib dir::tests::speed -- --ignored --nocapture`
//! prints the cost of operations in directories of ten, a thousand and a million entries.

use rustix::time::{clock_gettime, ClockId};

use super::*;

/// Nanoseconds that this thread has run.
fn now() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

fn time(sum: &mut f64, f: impl FnOnce()) {
    let t = now();
    f();
    *sum += now() - t;
}

/// The `i`th of `n` names, in an order that is none.
fn nth(i: u64, n: u64) -> [u8; 10] {
    let (mut rest, mut name) = (i * 611_953 % n, *b"file000000");
    for b in name[4..].iter_mut().rev() {
        *b = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    name
}

/// Lists everything, 500 entries at a time.
fn list(r: &Memory, d: &Dir) {
    let mut cookie = 0;
    loop {
        let mut left = 500;
        readout::read(r, &Sip::new(1), d, cookie, &mut |c, _, _| {
            (cookie, left) = (c, left - 1);
            left > 0
        })
        .unwrap();
        if left > 0 {
            break;
        }
    }
}

fn change(s: &Session, f: impl FnOnce(&mut Tx)) {
    let mut op = s.begin().unwrap();
    let mut tx = op.tx().unwrap();
    f(&mut tx);
    tx.commit().unwrap();
}

#[test]
#[ignore = "prints times, asserts none"]
fn by_size() {
    let s = pram::Session::in_memory(1 << 30).unwrap();
    s.memory().map().advise_huge();
    let r = s.memory();
    let e = Entry { ino: 5, kind: 8 };
    for n in [10, 1000, 1_000_000u64] {
        let rounds = (1_000_000 / n).min(1000);
        let mut sums = [0.0; 6];
        let names = || (0..n).map(|i| nth(i, n));
        for _ in 0..rounds {
            let mut d = Dir::EMPTY;
            time(&mut sums[0], || {
                names().for_each(|i| change(&s, |tx| insert(tx, &Sip::new(1), &mut d, &i, e).unwrap()))
            });
            time(&mut sums[1], || names().for_each(|i| assert!(spot(r, &Sip::new(1), &d, &i).unwrap().is_some())));
            time(&mut sums[2], || names().for_each(|i| assert!(spot(r, &Sip::new(1), &d, &i[1..]).unwrap().is_none())));
            time(&mut sums[3], || list(r, &d));
            if n == 1_000_000 {
                let mut bytes = 0;
                visit(r, &d, &mut |off, tag| bytes += r.resolve(off, tag).unwrap()).unwrap();
                println!("{:.1} bytes per entry beyond its name", bytes as f64 / n as f64 - 10.0);
            }
            time(&mut sums[4], || check::check(r, &Sip::new(1), &d, &mut |p| panic!("{p}"), &mut |_, _| {}));
            time(&mut sums[5], || {
                names().for_each(|i| change(&s, |tx| assert!(remove(tx, &Sip::new(1), &mut d, &i).unwrap().is_some())))
            });
            assert_eq!(d, Dir::EMPTY);
        }
        let [a, b, c, d, e, f] = sums.map(|t| t / (n * rounds) as f64);
        println!("{n}: insert {a:.1} ns, look up {b:.1}, in vain {c:.1}, list {d:.1}, check {e:.1}, remove {f:.1}");
    }
    let mut sums = [0.0; 2];
    time(&mut sums[0], || (0..1_000_000).for_each(|i| _ = std::hint::black_box(nth(i, 1_000_000))));
    time(&mut sums[1], || (0..1_000_000).for_each(|i| _ = std::hint::black_box(Sip::new(1).hash(&nth(i, 1_000_000)))));
    println!("of which making a name {:.1}, hash {:.1}", sums[0] / 1e6, (sums[1] - sums[0]) / 1e6);
}

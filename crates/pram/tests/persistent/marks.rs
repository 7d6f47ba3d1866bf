//! Marks of changed lines, against a model.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use pram::copy::log::LINE;
use pram::copy::marks::Marks;
use pram::Mapping;
use rng::Rng;

use crate::rig::MIB;

const SIZE: u64 = 8 * MIB + 4096;

fn marks() -> Marks {
    Marks::over(Mapping::anonymous(Marks::bytes(SIZE)).unwrap()).unwrap()
}

fn lines(marks: &Marks, generation: u64) -> BTreeSet<u64> {
    let extents = marks.extents(generation).unwrap();
    assert!(extents.windows(2).all(|w| w[0].0 + w[0].1 < w[1].0), "ascending, and neighbours are one");
    extents.iter().flat_map(|(off, len)| off / LINE..(off + len) / LINE).collect()
}

#[test]
fn marks_are_the_lines_that_were_touched() {
    let (marks, mut rng) = (marks(), Rng::new(7));
    let mut model = BTreeSet::new();
    for round in 0..2000 {
        let most = [8, 64, 300, 70_000][round % 4];
        let len = rng.below(most).min(SIZE);
        let off = rng.below(SIZE - len + 1);
        marks.mark(off, len).unwrap();
        if len > 0 {
            model.extend(off / LINE..=(off + len - 1) / LINE);
        }
        if round % 50 == 49 {
            let generation = marks.active().unwrap();
            assert_eq!(lines(&marks, generation), model);
            assert_eq!(marks.switch().unwrap(), generation);
            marks.clear(generation).unwrap();
            assert!(lines(&marks, generation).is_empty());
            model.clear();
        }
    }
}

/// Whoever is told that lines are marked does not mark them.
#[test]
fn lines_are_said_to_be_marked_only_if_all_are() {
    let (marks, mut rng) = (marks(), Rng::new(8));
    let (mut model, mut yes) = (BTreeSet::new(), 0);
    let mut draw = |most: u64| {
        let len = 1 + rng.below(most);
        // Few pages, so that neighbours are marked; and the last.
        let from = [0, SIZE - 4 * 4096][rng.below(2) as usize];
        (from + rng.below(4 * 4096 - len + 1), len)
    };
    for round in 0..20_000 {
        if round % 4 == 0 {
            let (off, len) = draw(300);
            marks.mark(off, len).unwrap();
            model.extend(off / LINE..=(off + len - 1) / LINE);
        }
        let (off, len) = draw([8, 64, 300, 4096][round % 4]);
        let all = (off / LINE..=(off + len - 1) / LINE).all(|line| model.contains(&line));
        assert!(all || !marks.has(off, len), "{off} {len}");
        yes += usize::from(marks.has(off, len));
        assert_eq!(marks.has(off, 1), model.contains(&(off / LINE)));
        if round % 1000 == 999 {
            let generation = marks.switch().unwrap();
            assert!(model.iter().all(|line| !marks.has(line * LINE, LINE)), "of the other generation");
            marks.clear(generation).unwrap();
            model.clear();
        }
    }
    assert!(yes > 1000, "{yes}");
    for (off, len) in [(SIZE - 1, 2), (u64::MAX, 1), (u64::MAX, u64::MAX), (0, u64::MAX)] {
        assert!(!marks.has(off, len), "{off} {len}");
    }
}

#[test]
fn the_ends_of_a_region_can_be_marked_and_nothing_beyond() {
    let marks = marks();
    marks.mark(0, SIZE).unwrap();
    assert_eq!(marks.extents(0).unwrap(), [(0, SIZE)]);
    marks.clear(0).unwrap();
    marks.mark(SIZE - 1, 1).unwrap();
    assert_eq!(marks.extents(0).unwrap(), [(SIZE - LINE, LINE)]);
    for (off, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (0, u64::MAX)] {
        assert!(marks.mark(off, len).is_err(), "{off} {len}");
    }
}

#[test]
fn what_a_commit_left_that_never_ended_is_taken_in() {
    let marks = marks();
    marks.mark(0, 64).unwrap();
    assert_eq!(marks.switch().unwrap(), 0);
    marks.mark(640, 64).unwrap();
    // The commit of generation 0 died. The next one has its lines too.
    assert_eq!(marks.switch().unwrap(), 1);
    assert_eq!(marks.extents(1).unwrap(), [(0, 64), (640, 64)]);
    assert!(marks.extents(0).unwrap().is_empty());
}

/// Threads that mark while another copies: nothing that changed after it was copied goes unmarked.
#[test]
fn no_change_is_lost_while_lines_are_copied() {
    let (marks, memory) = (marks(), Mapping::anonymous(SIZE).unwrap());
    let (stop, still) = (AtomicBool::new(false), std::sync::RwLock::new(()));
    let mut copy = vec![0; SIZE as usize];
    std::thread::scope(|s| {
        for seed in 0..3 {
            let (marks, memory, stop, still) = (&marks, &memory, &stop, &still);
            s.spawn(move || {
                let mut rng = Rng::new(seed);
                while !stop.load(Ordering::Relaxed) {
                    let _operation = still.read().unwrap();
                    let off = rng.below(SIZE / 8) * 8;
                    marks.mark(off, 8).unwrap();
                    memory.write(off, &rng.below(u64::MAX).to_le_bytes()).unwrap();
                }
            });
        }
        let copy_out = |generation: u64, copy: &mut [u8]| {
            for (off, len) in marks.extents(generation).unwrap() {
                memory.copy_out(off, &mut copy[off as usize..(off + len) as usize]).unwrap();
            }
            marks.clear(generation).unwrap();
        };
        for _ in 0..200 {
            let generation = {
                let _nobody = still.write().unwrap();
                marks.switch().unwrap()
            };
            copy_out(generation, &mut copy);
            let _nobody = still.write().unwrap();
            copy_out(marks.active().unwrap(), &mut copy);
            let mut now = vec![0; SIZE as usize];
            memory.copy_out(0, &mut now).unwrap();
            assert!(now == copy, "a change was not marked");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

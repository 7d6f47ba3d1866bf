//! Marks of changed lines, against a model.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use backing::log::LINE;
use pram::marks::{Extent, Marks, SETS};
use pram::Mapping;
use rng::Rng;

use crate::rig::MIB;

const SIZE: u64 = 8 * MIB + 4096;

fn marks() -> Marks {
    Marks::over(Mapping::anonymous(Marks::bytes(SIZE)).unwrap()).unwrap()
}

fn extents(marks: &Marks, set: u64) -> Vec<Extent> {
    let mut found = Vec::new();
    let see = &mut |extent| {
        found.push(extent);
        Ok(())
    };
    marks.extents(set, see).unwrap();
    found
}

/// Makes the spare set active; returns the one that was.
fn switch(marks: &Marks) -> u64 {
    let [_, spare] = marks.gather().unwrap();
    marks.switch(spare).unwrap()
}

fn lines(marks: &Marks, set: u64) -> BTreeSet<u64> {
    let extents = extents(marks, set);
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
            let set = marks.active().unwrap();
            assert_eq!(lines(&marks, set), model);
            assert_eq!(switch(&marks), set);
            marks.clear(set).unwrap();
            assert!(lines(&marks, set).is_empty());
            model.clear();
        }
    }
}

/// A caller that knows of marked lines does not mark them.
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
            let set = switch(&marks);
            assert!(model.iter().all(|line| !marks.has(line * LINE, LINE)), "of another set");
            marks.clear(set).unwrap();
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
    assert_eq!(extents(&marks, 0), [(0, SIZE)]);
    marks.clear(0).unwrap();
    marks.mark(SIZE - 1, 1).unwrap();
    assert_eq!(extents(&marks, 0), [(SIZE - LINE, LINE)]);
    for (off, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (0, u64::MAX)] {
        assert!(marks.mark(off, len).is_err(), "{off} {len}");
    }
}

#[test]
fn what_a_commit_left_that_never_ended_is_taken_in() {
    let marks = marks();
    let mut all = BTreeSet::new();
    // The committer died after each of its rounds in turn, and nothing was cleared.
    for round in 0..6 {
        marks.mark(round * 640, 64).unwrap();
        all.insert(round * 10);
        let written = switch(&marks);
        assert_eq!(lines(&marks, written), BTreeSet::from([round * 10]), "what has changed since");
        let [kept, spare] = marks.gather().unwrap();
        assert_eq!(lines(&marks, kept), all, "and what was written before");
        assert!(lines(&marks, spare).is_empty() && lines(&marks, marks.active().unwrap()).is_empty());
    }
    marks.mark(0, 64).unwrap();
    marks.clear_written().unwrap();
    assert_eq!(marks.marked().unwrap(), 1, "what was marked since stays");
}

/// The search ends at the first mark beyond the given number.
#[test]
fn few_are_counted_as_far_as_they_are_few() {
    let marks = marks();
    for page in 0..100 {
        marks.mark(page * 8192, 3 * LINE).unwrap();
    }
    assert_eq!(marks.few(0, 300, 100).unwrap().map(|few| few.len()), Some(100));
    assert_eq!(marks.few(0, 299, 100).unwrap(), None);
    assert_eq!(marks.few(0, 300, 99).unwrap(), None);
    assert_eq!((0..SETS).map(|set| marks.few(set, 0, 0).unwrap().is_some()).collect::<Vec<_>>(), [false, true, true]);
}

/// Threads mark while another copies: a line that changes after it was copied is marked.
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
        let copy_out = |set: u64, copy: &mut [u8]| {
            for (off, len) in extents(&marks, set) {
                memory.copy_out(off, &mut copy[off as usize..(off + len) as usize]).unwrap();
            }
            marks.clear(set).unwrap();
        };
        for _ in 0..200 {
            let set = {
                let _nobody = still.write().unwrap();
                switch(&marks)
            };
            copy_out(set, &mut copy);
            let _nobody = still.write().unwrap();
            copy_out(marks.active().unwrap(), &mut copy);
            let mut now = vec![0; SIZE as usize];
            memory.copy_out(0, &mut now).unwrap();
            assert!(now == copy, "a change was not marked");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A copy of a changing memory has to copy pages again that commits have written and cleared meanwhile.
#[test]
fn what_is_cleared_is_traced_page_by_page() {
    let marks = marks();
    let traced = |trace: &pram::marks::Trace| {
        let mut pages = Vec::new();
        trace
            .take(&mut |page| {
                pages.push(page);
                Ok(())
            })
            .unwrap();
        pages
    };
    let commit = |off: u64| {
        marks.mark(off, 8).unwrap();
        let [_, spare] = marks.gather().unwrap();
        marks.switch(spare).unwrap();
        marks.clear_written().unwrap();
    };
    commit(4096);
    let trace = marks.trace().unwrap();
    assert_eq!(traced(&trace), [], "of before nothing");
    marks.mark(0, 8).unwrap();
    assert_eq!(traced(&trace), [], "it is marked yet");
    commit(3 * 4096);
    commit(5 * 4096 + 100);
    assert_eq!(traced(&trace), [0, 3, 5]);
    assert_eq!(traced(&trace), []);
    commit(3 * 4096);
    drop(trace);
    commit(7 * 4096);
    let trace = marks.trace().unwrap();
    assert_eq!(traced(&trace), [], "what nobody took is no concern of the next one");
    commit(7 * 4096);
    assert_eq!(traced(&trace), [7]);
}

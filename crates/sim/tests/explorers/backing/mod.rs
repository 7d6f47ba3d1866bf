//! The medium `logged`: memory, marks and the backing on disk.
//!
//! | module | subject |
//! | --- | --- |
//! | [`away`] | memory that its backing left behind, taken up again |
//! | [`explored`] | power cuts after each request to disks, deaths at stores and writes, and both |
//! | [`faults`] | a disk that fails, at every call |
//! | [`input`] | backings of parts that do not match are refused, and nothing is written |
//! | [`many`] | three processes at once, of which one or two die; several threads of a process |
//! | [`mirror`] | the loss of a memory, or of its mirrored backing |
//! | [`several`] | two processes at once, of which one dies |
//! | [`testers`] | planted faults are found |
//! | [`woven`] | every single operation and every pair, in and between commits and checkpoints |

use sim::verdict::{Failure, Filter};

mod away;
mod explored;
mod faults;
mod input;
mod many;
mod mirror;
mod several;
mod testers;
mod woven;

/// A planted fault is found, by an id that finds it again, and is not found without the fault.
fn assert_found(
    wrong: impl Fn(&Filter) -> Vec<Failure>,
    right: impl Fn(&Filter) -> Vec<Failure>,
    is_it: impl Fn(&Failure) -> bool,
) {
    let found = wrong(&Filter::default());
    let first = found.first().expect("the fault goes unnoticed");
    let first = found.iter().find(|failure| is_it(failure)).unwrap_or_else(|| panic!("another is found: {first}"));
    eprintln!("found: {first}");
    let (_, filter) = Filter::parse(&first.id).unwrap();
    assert_eq!(wrong(&filter).first().map(|failure| &failure.id), Some(&first.id));
    assert!(right(&filter).is_empty());
}

//! Taking up a copy that was read back.

use std::sync::Arc;

use pram::copy::log::{Identity, MIN_CAPACITY};
use pram::copy::marks::Marks;
use pram::copy::{create, load, Copy, Disks};
use pram::{Error, Mapping};
use rustix::io::Errno;

use crate::rig::{MIB, UUID};
use crate::tape::{Event, Tape};

const ID: Identity = Identity { uuid: UUID };

fn disks_of(tapes: &[Tape; 3]) -> Disks {
    let [image, first, second] = tapes.clone();
    Disks { image: Arc::new(image), logs: [Arc::new(first), Arc::new(second)] }
}

/// An empty copy, on disks of which nobody knows what is durable.
fn made() -> [Tape; 3] {
    let tapes = [0, MIN_CAPACITY, MIN_CAPACITY].map(|len| Tape::of(vec![0; len as usize]));
    create(&disks_of(&tapes), ID, MIN_CAPACITY).unwrap();
    tapes.map(|tape| tape.copy())
}

fn take_up(tapes: &[Tape; 3]) -> pram::Result<Copy> {
    let marks = Marks::over(Mapping::anonymous(Marks::bytes(MIB)).unwrap())?;
    let loaded = load(&disks_of(tapes), ID, &mut |_, _| Ok(()))?;
    Copy::begin(disks_of(tapes), &marks, ID, &loaded)
}

/// Somebody may have put the files there a moment ago.
#[test]
fn all_that_was_read_back_is_flushed() {
    let tapes = made();
    take_up(&tapes).unwrap();
    for (n, tape) in tapes.iter().enumerate() {
        assert!(tape.with(|s| matches!(s.events.last(), Some(Event::Flush))), "file {n}");
    }
}

#[test]
fn a_copy_that_cannot_be_flushed_is_not_taken_up() {
    for n in 0..3 {
        let tapes = made();
        tapes[n].with(|s| s.fuse = Some((0, Errno::IO)));
        load(&disks_of(&tapes), ID, &mut |_, _| Ok(())).expect("it can be read");
        let e = take_up(&tapes).map(|_| ()).expect_err("it cannot be made durable");
        assert!(matches!(e, Error::Host { errno: Errno::IO, .. }), "file {n}: {e}");
    }
}

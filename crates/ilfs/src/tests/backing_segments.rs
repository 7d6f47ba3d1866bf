//! Segments of the backing: nothing else is written there, and recovery settles differences that a crash leaves between
//! the table and the notes.

use std::ops::Range;
use std::sync::Arc;

use exraid::duplex::raw::append;
use exraid::duplex::{Duplex, Spans};

use super::super::error::Error;
use super::super::leave::Course;
use super::super::place::Run;
use super::super::Head;
use super::rig::{block, content, session_of, snapshot, Rig, SEGMENT};

fn spans(segments: &[u32]) -> Vec<Range<u32>> {
    let mut spans = Vec::new();
    append(&mut spans, segments);
    spans
}

/// A duplex whose first stream lies in these segments: its note names them.
fn name(rig: &Rig, segments: &[u32]) -> Duplex {
    let mut streams = Spans::default();
    streams[0] = spans(segments);
    let region = rig.log.regions().remove(0);
    Duplex::create(&[(region, streams)], SEGMENT, b"", None).expect("made")
}

#[test]
fn what_is_kept_takes_no_content_and_is_none_of_the_room() {
    let rig = Rig::new(30);
    let (session, log) = (&rig.session, &rig.log);
    let before = log.counts(session).expect("counts");
    let segments = log.take_for_backing(session, 0, 7).expect("there is room");
    rig.check();
    assert!(log.are_of_backing(session, 0, &spans(&segments)).expect("an answer"));
    let after = log.counts(session).expect("counts");
    assert!(after.capacity < before.capacity && after.free == before.free - 7 && after.used() == 0);
    assert_eq!(
        (log.backing_segments(session).expect("an answer"), log.backing_in_region(session, 0).expect("an answer")),
        (7, 7)
    );
    // All free room is written, but nothing in these segments.
    let duplex = name(&rig, &segments);
    duplex.write(0, &[5; 7 << 20], 0).expect("written");
    let mut written = Vec::new();
    for seed in 0.. {
        match rig.write(Head::Cold, &[block(5, seed, seed)]) {
            Ok(places) => written.extend(places.into_iter().map(|place| (place, seed))),
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(matches!(log.take_for_backing(session, 0, 1), Err(Error::NoSpace)), "what is live has no room to spare");
    let mut stream = vec![0; 7 << 20];
    duplex.read(0, &mut stream, 0).expect("read");
    assert!(stream.iter().all(|byte| *byte == 5), "content was written there");
    for (place, seed) in &written {
        assert!(rig.read(Run::one(*place)).expect("it is read") == content(*seed));
    }
    rig.unlink(&written.iter().map(|(place, _)| *place).collect::<Vec<_>>()[..200]);
    log.release_from_backing(session, 0, &spans(&segments)).expect("given back");
    rig.check();
    assert_eq!(log.backing_segments(session).expect("an answer"), 0);
}

#[test]
fn what_no_note_names_is_given_back_and_what_one_names_is_kept_when_the_memory_is_older() {
    let rig = Rig::new(30);
    let old = snapshot(&rig.session);
    let segments = rig.log.take_for_backing(&rig.session, 0, 3).expect("there is room");
    let named = name(&rig, &segments[..2]);
    let release = |at_once| {
        let first = spans(&segments[..2]);
        rig.log.release_unnamed(&rig.session, 0, &|look| look(&first), at_once).expect("looked")
    };
    assert_eq!(release(false), 0, "it is young");
    assert_eq!(release(true), 1);
    rig.check();
    let newer = snapshot(&rig.session);
    // The memory from before they were the backing's: the note lists them.
    let Rig { disk, faults, session, log, .. } = rig;
    drop((log, session));
    let rig = Rig::of(Arc::new(session_of(&old)), disk, faults);
    rig.log.recover(&rig.session, true).expect("in order");
    rig.check();
    assert!(rig.log.are_of_backing(&rig.session, 0, &spans(&segments[..2])).expect("an answer"));
    assert_eq!(rig.log.backing_segments(&rig.session).expect("an answer"), 2);
    // And the memory from before they were given back.
    drop(named);
    exraid::duplex::forget(&*rig.log.regions()[0]).expect("forgotten");
    let Rig { disk, faults, session, log, .. } = rig;
    drop((log, session));
    let rig = Rig::of(Arc::new(session_of(&newer)), disk, faults);
    rig.log.recover(&rig.session, true).expect("in order");
    rig.check();
    assert_eq!(rig.log.backing_segments(&rig.session).expect("an answer"), 0);
    assert!(rig.log.take_for_backing(&rig.session, 0, 3).is_ok());
}

#[test]
fn a_region_with_kept_segments_stays_until_they_are_given_back() {
    let rig = Rig::on(2, 20);
    let (session, log) = (&rig.session, &rig.log);
    let segments = log.take_for_backing(session, 1, 2).expect("there is room");
    log.set_leaving(session, &[1], Course::Leave).expect("it leaves");
    assert!(!log.remove_region(session, 1).expect("looked"), "the replica lies there");
    log.release_from_backing(session, 1, &spans(&segments)).expect("given back");
    assert!(log.remove_region(session, 1).expect("looked"));
    rig.check();
}

//! Writing and reading, on a disk that works and on one that fails.

use exraid::fault::{Event, Faults};
use exraid::Class;
use rng::Rng;

use super::super::clean::Cleaned;
use super::super::error::Error;
use super::super::place::{Place, Run, BLOCK};
use super::super::room::Want;
use super::super::table::SlotState;
use super::super::{Head, LEAST};
use super::rig::{block, content, options, region_of, Rig, MIB, SEGMENT};
use super::world::{Pages, World};

/// Blocks of content of a segment of 1 MiB that is one part: 96 bytes and 32 for each fit in two blocks of summary.
const MOST: u64 = 253;

#[test]
fn what_is_written_is_read() {
    let rig = Rig::new(20);
    let mut rng = Rng::new(1);
    let mut written: Vec<(Place, u64)> = Vec::new();
    let mut seed = 0;
    for count in [1, 3, MOST - 1, 1, MOST, MOST + 1, 700] {
        let blocks: Vec<_> = (0..count).map(|page| block(5, page, seed + page)).collect();
        let head = [Head::Hot, Head::Cold][rng.below(2) as usize];
        let places = rig.write(head, &blocks).expect("it is written");
        assert_eq!(places.len() as u64, count);
        written.extend(places.into_iter().zip(seed..));
        seed += count;
        rig.check();
    }
    let mut all: Vec<Place> = written.iter().map(|(place, _)| *place).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), written.len(), "each has a place of its own");
    // In this process, and in one that knows no checksum.
    let again = |rig: &Rig| {
        for (place, seed) in &written {
            assert!(rig.read(Run::one(*place)).expect("it is read") == content(*seed), "{place}");
        }
        for run in Run::of(written.iter().map(|(place, _)| *place), 100) {
            let seed = written.iter().find(|(place, _)| *place == run.first).expect("it was written").1;
            let expected: Vec<u8> = (seed..seed + u64::from(run.blocks)).flat_map(content).collect();
            assert!(rig.read(run).expect("it is read") == expected, "{run:?}");
        }
    };
    again(&rig);
    let rig = rig.reopened();
    again(&rig);
    assert_eq!(rig.log.counts(&rig.session).expect("counts").written, seed);
}

#[test]
fn a_segment_where_nobody_waits_is_one_part() {
    let rig = Rig::new(20);
    let blocks: Vec<_> = (0..3 * MOST).map(|page| block(5, page, page)).collect();
    let places = rig.write(Head::Hot, &blocks).expect("it is written");
    let runs = Run::of(places, 10_000);
    assert_eq!(runs.len(), 3);
    for run in runs {
        assert_eq!((u64::from(run.blocks), run.first.block()), (MOST, 2));
        let (_, segment) = rig.log.find(&rig.session, run.first).expect("it is there");
        assert_eq!((segment.parts, segment.used, u64::from(segment.live)), (1, 255, MOST));
    }
}

#[test]
fn the_disk_sees_no_sector_twice() {
    let rig = Rig::new(20);
    rig.disk.record();
    for n in 0..60 {
        rig.write(Head::Hot, &[block(5, n, n), block(6, n, n)]).expect("it is written");
        rig.write(Head::Cold, &(0..n).map(|page| block(7, page, page)).collect::<Vec<_>>()).expect("it is written");
    }
    // Labels lie before and behind the segments.
    let content = MIB..MIB + 20 * SEGMENT;
    let writes = rig.disk.tape().into_iter().filter_map(|event| match event {
        Event::Write { at, bytes } => Some(at..at + bytes.len() as u64),
        _ => None,
    });
    let mut written: Vec<_> = writes.filter(|write| content.start <= write.start && write.end <= content.end).collect();
    written.sort_unstable_by_key(|range| range.start);
    assert!(written.len() > 120);
    assert!(written.windows(2).all(|pair| pair[0].end <= pair[1].start));
}

#[test]
fn a_small_log_is_refused_and_a_second_one_too() {
    let rig = Rig::new(20);
    let region = region_of(rig.faults.clone());
    let refuse = |segment| {
        super::super::Log::format(&rig.session, std::slice::from_ref(&region), segment)
            .expect_err("it is refused")
            .to_string()
    };
    assert_eq!(refuse(SEGMENT), "the pool has a log");
    assert!(refuse(SEGMENT / 2).contains("1, 2, 4 or 8 MiB"));
    assert!(refuse(8 * MIB).contains("too small"), "that would be fewer than {LEAST}");
}

#[test]
fn what_was_given_up_and_used_again_is_lost_and_never_anothers() {
    let rig = Rig::new(14);
    let blocks: Vec<_> = (0..MOST).map(|page| block(5, page, page)).collect();
    let places = rig.write(Head::Hot, &blocks).expect("it is written");
    // The segment counts as full once the next one begins.
    rig.write(Head::Hot, &[block(6, 0, 0)]).expect("it is written");
    rig.unlink(&places);
    rig.check();
    let nobody = World::with(rig, Pages::new(), 1, 3);
    assert!(matches!(nobody.clean(0).expect("it works"), Cleaned::Freed { moved: 0, newer: 0, .. }));
    let rig = nobody.rig;
    assert_eq!(rig.log.counts(&rig.session).expect("counts").freed, 1);
    let e = rig.read(Run::one(places[7])).expect_err("it is gone");
    assert!(matches!(e, Error::Lost(place) if place == places[7]), "{e}");
}

/// Any block, any byte; also in a summary.
#[test]
fn flipped_bits_are_damage_with_place_and_byte() {
    let rig = Rig::new(14);
    let blocks: Vec<_> = (0..5).map(|page| block(5, page, page)).collect();
    let places = rig.write(Head::Hot, &blocks).expect("it is written");
    let mut rng = Rng::new(3);
    for (n, place) in places.iter().enumerate() {
        // Content begins behind the label and the summary.
        let at = MIB + u64::from(place.block()) * BLOCK + rng.below(BLOCK);
        let good = rig.disk.content().bytes(at..at + 1);
        rig.disk.overwrite(at, &[good[0] ^ 1 << rng.below(8)]);
        let e = rig.read(Run { first: places[0], blocks: 5 }).expect_err("it is damaged");
        let text = format!("{place} (disk, byte {}): its checksum is wrong", u64::from(place.block()) * BLOCK);
        assert_eq!((e.to_string(), e.errno()), (text, rustix::io::Errno::IO), "block {n}");
        rig.disk.overwrite(at, &good);
    }
    let rig = rig.reopened();
    rig.disk.overwrite(MIB + 100, &[0xff]);
    let e = rig.read(Run::one(places[2])).expect_err("its checksum is not known");
    assert!(e.to_string().contains("no summary"), "{e}");
}

#[test]
fn a_failed_write_goes_elsewhere_and_its_segment_is_not_used_again() {
    for seed in 0..20 {
        let rig = Rig::new(40);
        let first = rig.write(Head::Hot, &[block(5, 0, 99)]).expect("it is written");
        rig.faults.set(|faults| (faults.torn, faults.error) = (6, 8));
        let blocks: Vec<_> = (0..400).map(|page| block(5, page, seed * 1000 + page)).collect();
        // A disk that fails all the time is given up: then try again.
        let places = (0..10).find_map(|_| {
            let done = rig.write(Head::Hot, &blocks);
            rig.check();
            match done {
                Ok(places) => Some(Some(places)),
                Err(Error::Failed(_)) => Some(None),
                Err(Error::Device(_) | Error::NoSpace) => None,
                Err(e) => panic!("{e}"),
            }
        });
        rig.faults.set(|faults| *faults = Faults::default());
        let Some(Some(places)) = places else { continue };
        for (page, place) in places.iter().enumerate() {
            let expected = content(seed * 1000 + page as u64);
            assert!(rig.read(Run::one(*place)).expect("it is read") == expected, "{place}");
            let (_, segment) = rig.log.find(&rig.session, *place).expect("it is there");
            assert_ne!(segment.state, SlotState::Free);
        }
        assert!(rig.read(Run::one(first[0])).expect("it is read") == content(99), "what was there before is there");
    }
}

#[test]
fn after_a_failed_flush_nothing_is_acknowledged() {
    let rig = Rig::new(20);
    rig.write(Head::Hot, &[block(5, 0, 1)]).expect("it is written");
    rig.faults.set(|faults| faults.error = 1);
    let e = rig.write(Head::Hot, &[block(5, 1, 2)]).expect_err("all fails");
    assert!(matches!(e, Error::Device(_)), "{e}");
    rig.faults.set(|faults| *faults = Faults::default());
    rig.write(Head::Hot, &[block(5, 1, 2)]).expect("only writes failed: it goes on");
    rig.log.fail(exraid::Error::new(Class::Media, &"disk".into(), "flush: planned"));
    let e = rig.write(Head::Hot, &[block(5, 1, 2)]).expect_err("a flush failed");
    assert!(matches!(e, Error::Failed(_)), "{e}");
    rig.check();
}

#[test]
fn writes_stop_before_the_cleaner_s_segments() {
    let rig = Rig::new(14);
    let one = |n: u64| (0..MOST).map(|page| block(n, page, page)).collect::<Vec<_>>();
    for n in 0..12 {
        rig.write(Head::Hot, &one(n)).expect("there is room");
    }
    let e = rig.write(Head::Hot, &one(12)).expect_err("the rest is the cleaner's");
    assert!(matches!(e, Error::NoSpace), "{e}");
    rig.check();
    rig.write(Head::Cold, &one(13)).expect("it is the cleaner");
    rig.write(Head::Cold, &one(14)).expect("it is the cleaner");
    let e = rig.write(Head::Cold, &one(15)).expect_err("all is full");
    assert!(matches!(e, Error::NoSpace), "{e}");
}

#[test]
fn what_is_not_finished_is_given_up() {
    let rig = Rig::new(20);
    let mut writer = rig.log.writer(&rig.session, Head::Hot, None);
    for page in 0..2 * MOST {
        writer.push(block(5, page, page)).expect("there is room");
    }
    drop(writer);
    for sequence in 1..3 {
        let (_, segment) = rig.log.find(&rig.session, Place::new(sequence, 2)).expect("it was written");
        assert_eq!(segment.live, 0);
    }
    rig.check();
}

/// Numbers are never issued twice, with any memory; and segments that the memory does not know are not overwritten.
#[test]
fn memory_that_was_put_back_issues_new_numbers() {
    let rig = Rig::new(30);
    rig.write(Head::Hot, &[block(5, 0, 1)]).expect("it is written");
    let before = super::rig::snapshot(&rig.session);
    let lost: Vec<Place> = (0..5)
        .flat_map(|n| {
            let blocks: Vec<_> = (0..100).map(|page| block(6, page, n * 100 + page)).collect();
            rig.write(Head::Hot, &blocks).expect("it is written")
        })
        .collect();
    let disk = rig.faults.clone();
    drop(rig);
    let session = super::rig::session_of(&before);
    let log = super::super::Log::open(&session, &[region_of(disk.clone())], options()).expect("the log").expect("one");
    let mut writer = log.writer(&session, Head::Hot, None);
    (0..MOST).for_each(|page| writer.push(block(7, page, page)).expect("there is room"));
    let new = writer.finish().expect("it is written");
    let issued =
        |places: &[Place]| places.iter().map(|place| place.sequence()).collect::<std::collections::BTreeSet<_>>();
    assert!(issued(&new).is_disjoint(&issued(&lost)), "{:?} {:?}", issued(&new), issued(&lost));
    assert!(issued(&new).first() > issued(&lost).last());
    // Only the segments that the lost memory alone knew are lost.
    for place in lost {
        let memory = exraid::Buffers::whole(&exraid::Aligned::zeroed(BLOCK as usize));
        let read = log.read(&session, Run::one(place), memory).and_then(|reading| reading.wait(&log, &session));
        assert!(matches!(read, Err(Error::Lost(_))), "{place}: {read:?}");
    }
}

#[test]
fn two_processes_share_a_head() {
    let rig = Rig::new(30);
    let region = region_of(rig.faults.clone());
    let other = super::super::Log::open(&rig.session, &[region], options()).expect("the log").expect("one");
    let mut all = Vec::new();
    for n in 0..100 {
        for log in [&rig.log, &other] {
            let mut writer = log.writer(&rig.session, Head::Hot, None);
            writer.push(block(5, n, n)).expect("there is room");
            all.extend(writer.finish().expect("it is written").into_iter().map(|place| (place, n)));
        }
    }
    rig.check();
    for (place, n) in all {
        assert!(rig.read(Run::one(place)).expect("it is read") == content(n), "{place}");
    }
}

/// The writer of the first part died before it was written: recovery after a loss of the memory would not find the parts
/// behind it.
#[test]
fn no_part_counts_behind_a_first_one_that_was_never_written() {
    let rig = Rig::new(20);
    let room = rig.log.take_room(&rig.session, &want(5)).expect("there is room");
    let places = rig.write(Head::Hot, &[block(5, 0, 1)]).expect("it is written elsewhere");
    assert_ne!(places[0].sequence(), room.sequence);
    assert!(rig.read(Run::one(places[0])).expect("it is read") == content(1));
    let (_, segment) = rig.log.find(&rig.session, room.place(0)).expect("it is kept for whoever took it");
    assert_eq!((segment.live, segment.failed), (5, true));
    rig.check();
}

fn want(content: u32) -> Want {
    Want {
        head: Head::Hot,
        class: super::super::storage_class::Class::None,
        content,
        stamp: None,
        priority: 1,
        due: None,
        least: 1,
    }
}

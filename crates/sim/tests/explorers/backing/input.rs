//! Backings whose parts do not belong together: the error says so, and nothing is written.

use sim::disk::{Files, PARTS};
use sim::fault::Faults;
use sim::op::Op;
use sim::story::{Step, Teller};
use sim::world::{reload, Setup, World};

const SIZE: u64 = 4 << 20;

/// Runs `tell` on a new pool; returns its result.
fn with_teller<R>(tell: impl FnOnce(&World, &mut Teller) -> R) -> R {
    let world = World::format(Setup::logged(SIZE), &Faults::with(None)).unwrap();
    let fs = world.fs.clone();
    let mut teller = Teller::new(&world, &fs);
    tell(&world, &mut teller)
}

/// Swaps of its logs, with a file that changes before each step; returns the backing after each step.
fn turns<const N: usize>(world: &World, teller: &mut Teller, steps: [Step; N], last: Option<Step>) -> Vec<Files> {
    let mut ages = Vec::new();
    teller.step(&Step::Op(Op::Create("/f".into(), 0o644))).unwrap();
    for n in 0..4 {
        for step in &steps {
            teller.step(&Step::Op(Op::Write("/f".into(), 0, 5000, n))).unwrap();
            teller.step(step).unwrap();
            ages.push(world.tape.files());
        }
        if let Some(step) = &last {
            teller.step(step).unwrap();
            ages.push(world.tape.files());
        }
    }
    ages
}

/// A pool's backing at several times: after each swap of its logs, and between.
fn ages() -> Vec<Files> {
    let steps = [Step::Fill(45), Step::Swell(300 << 10), Step::Wait, Step::Checkpoint];
    with_teller(|world, teller| turns(world, teller, steps, Some(Step::Wait)))
}

/// The backing does not load, and the error contains this text.
fn refused(files: &Files, says: &str) {
    match reload(files, SIZE) {
        Ok(_) => panic!("loads, instead of saying `{says}`"),
        Err(e) => assert!(e.contains(says), "{e}\nshould say `{says}`"),
    }
}

/// A log that is a little older than the rest differs only by its end. Before the next swap it loads as of an earlier
/// instant, as after a power cut before the end was written.
#[test]
fn a_part_of_another_age_is_refused_or_gives_what_once_was() {
    let ages = ages();
    let right: Vec<Vec<u8>> = ages.iter().map(|files| reload(files, SIZE).unwrap()).collect();
    let (mut refused, mut same, mut other) = (0, 0, 0);
    for (new, files) in ages.iter().enumerate() {
        for (old, part) in (0..ages.len()).flat_map(|old| (0..PARTS).map(move |part| (old, part))) {
            let mut mixed = files.clone();
            mixed.0[part] = ages[old].0[part].clone();
            match reload(&mixed, SIZE) {
                Err(_) => refused += 1,
                Ok(bytes) if bytes == right[new] => same += 1,
                Ok(bytes) => {
                    let age = right.iter().position(|right| *right == bytes);
                    let age = age.unwrap_or_else(|| panic!("part {part} of {old} in {new} gives what never was"));
                    assert!(age.abs_diff(new) <= 5, "part {part} of {old} in {new} gives {age}");
                    other += 1;
                }
            }
        }
    }
    assert!(refused > 300 && same > 50 && other > 0, "{refused} refused, {same} the same, {other} another");
}

#[test]
fn a_year_old_log_is_refused() {
    let ages = ages();
    let new = ages.last().unwrap();
    for log in [1, 2] {
        let mut files = new.clone();
        files.0[log] = ages[0].0[log].clone();
        refused(&files, "the logs do not belong together");
    }
    // Both, and a newer image.
    let mut files = ages[0].clone();
    files.0[0] = new.0[0].clone();
    refused(&files, "the image is of commit");
    // A year-old image.
    let mut files = new.clone();
    files.0[0] = ages[0].0[0].clone();
    refused(&files, "put the right one back");
}

#[test]
fn logs_in_each_others_place_are_refused() {
    for mut files in ages() {
        files.0.swap(1, 2);
        refused(&files, "in each other's place");
    }
}

#[test]
fn parts_of_another_pool_are_refused() {
    let files = ages().pop().unwrap();
    let says =
        ["the image cannot be used: it belongs to another pool", "the log cannot be used: it belongs to another pool"];
    for part in 0..PARTS {
        let mut foreign = files.clone();
        // Changes the UUID, in both copies of a header, with right checksums.
        for at in [0, 4096] {
            let mut header = [0; 512];
            foreign.0[part].read(&mut header, at).unwrap();
            if header.iter().all(|b| *b == 0) {
                continue;
            }
            header[16..32].copy_from_slice(b"some other pool ");
            let crc = crc32c::crc32c(&header[..76]);
            header[76..80].copy_from_slice(&crc.to_le_bytes());
            foreign.0[part].write(&header, at);
        }
        refused(&foreign, says[part.min(1)]);
    }
}

#[test]
fn a_hole_in_a_log_is_refused() {
    let (ends, whole) = with_teller(|world, teller| {
        let end = |n| {
            teller.step(&Step::Op(Op::Create(format!("/{n}"), 0o644))).unwrap();
            teller.step(&Step::Wait).unwrap();
            world.tape.log_end()
        };
        ((0..5).map(end).collect::<Vec<_>>(), world.tape.files())
    });
    let mut files = whole.clone();
    files.0[1].write(&[0xee; 512], ends[2]);
    refused(&files, "the log has a hole");
    // The last commit is different: it may never have been whole.
    let mut files = whole;
    files.0[1].write(&[0xee; 512], ends[3]);
    assert!(reload(&files, SIZE).is_ok());
}

#[test]
fn a_damaged_header_does_no_harm() {
    // The other log takes over, and something is promised before the first is checkpointed.
    let steps = [Step::Fill(45), Step::Swell(300 << 10), Step::Wait, Step::Wait, Step::Checkpoint];
    let ages = with_teller(|world, teller| turns(world, teller, steps, None));
    for (age, files) in ages.iter().enumerate() {
        let right = reload(files, SIZE).unwrap();
        for (part, at) in (0..PARTS).flat_map(|part| [(part, 0), (part, 4096)]) {
            let mut harmed = files.clone();
            let mut sector = [0; 512];
            harmed.0[part].read(&mut sector, at).unwrap();
            sector[70] ^= 1;
            harmed.0[part].write(&sector, at);
            assert!(reload(&harmed, SIZE).unwrap() == right, "age {age}: part {part}, header at {at}");
        }
    }
}

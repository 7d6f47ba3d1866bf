//! A power cut at each write and flush of an update, damage, and ends that do not belong together.

use std::sync::Arc;

use exraid::fault::{Content, Cut, FaultDisk, Faults, RamDisk};
use exraid::label::{Epoch, MemberState, END};
use exraid::{Class, Device, Label, Layout, OpenError, Uuid};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;

fn label_of(device: u8) -> Label {
    Label::new(Uuid([1; 16]), 2, Layout::Mirror, &[Uuid([device; 16]), Uuid([99; 16])], 0, SIZE, Epoch::first(77))
}

fn labelled() -> (Arc<RamDisk>, Label) {
    let disk = RamDisk::new("disk", SIZE);
    let mut label = label_of(5);
    label.write(&*disk).expect("a label");
    (disk, label)
}

fn read(content: Content) -> Result<Label, OpenError> {
    Label::read(&*RamDisk::with("disk", content))
}

#[test]
fn what_was_written_is_read() {
    let (disk, mut label) = labelled();
    assert_eq!(Label::read(&*disk).expect("a label"), label);
    assert_eq!((label.data, label.generation), (SIZE - 2 * END, 1));
    label
        .update(&*disk, |label| {
            label.sequence = 1 << 40;
            label.epoch = label.epoch.next(78);
            label.members[1].state = MemberState::Rebuilding { rebuilt: 4096 };
        })
        .expect("an update");
    let found = Label::read(&*disk).expect("a label");
    assert_eq!(found, label);
    assert_eq!((found.generation, found.sequence, found.epoch.number()), (2, 1 << 40, 2));
}

/// At each event, with many choices of unflushed sectors that reached the disk: the label is the old or the new one,
/// and the new one once the update has returned; and the next update goes through from there.
#[test]
fn a_power_cut_leaves_the_old_label_or_the_new_one() {
    let (mut old, mut new) = (0, 0);
    for damaged in [None, Some(0), Some(SIZE - END)] {
        let (disk, before) = labelled();
        if let Some(at) = damaged {
            disk.overwrite(at + 100, &[0xaa; 8]);
        }
        let mut after = before.clone();
        disk.record();
        after.update(&*disk, |label| label.sequence = 5000).expect("an update");
        let events = disk.tape().len();
        assert_eq!(events, if damaged.is_some() { 6 } else { 4 });
        for event in 0..=events {
            for seed in 0..200 {
                let left = disk.after(Cut { event, seed });
                let found = read(left.clone()).unwrap_or_else(|e| panic!("event {event}, seed {seed}: {e}"));
                assert!(found == before || found == after, "event {event}, seed {seed}: {found:?}");
                assert!(event < events || found == after, "it was acknowledged");
                (old, new) = (old + u32::from(found == before), new + u32::from(found == after));
                let disk = RamDisk::with("disk", left);
                let mut next = found;
                next.update(&*disk, |label| label.sequence = 6000).expect("the next update");
                assert_eq!(Label::read(&*disk).expect("a label").sequence, 6000);
            }
        }
    }
    assert!(old > 200 && new > 200, "both were seen: {old}, {new}");
}

/// Tests the tester: without flushes a label can be lost.
#[test]
fn without_flushes_there_are_states_without_a_label() {
    let (disk, mut label) = labelled();
    disk.record();
    let lying = FaultDisk::over(disk.clone(), 1, Faults { lost_flush: 1, ..Faults::default() });
    label.update(&*lying, |label| label.sequence = 5000).expect("it believes the disk");
    let events = disk.tape().len();
    let lost = (0..2000).filter(|seed| read(disk.after(Cut { event: events, seed: *seed })).is_err()).count();
    assert!(lost > 0, "two labels of one generation, or none");
}

#[test]
fn one_damaged_copy_is_mended_and_two_are_refused() {
    let (disk, mut label) = labelled();
    for at in [0, SIZE - END] {
        disk.overwrite(at, &[0; 4096]);
        assert_eq!(Label::read(&*disk).expect("the other one"), label);
        label.update(&*disk, |_| {}).expect("an update");
    }
    assert_eq!(label.generation, 3);
    for at in [0, SIZE - END] {
        disk.overwrite(at + 200, &[1; 3]);
    }
    let e = Label::read(&*disk).expect_err("both are damaged");
    assert!(e.to_string().contains("damaged, in both copies"), "{e}");
}

/// Flips each byte: the other copy counts, and the damaged one is rejected.
#[test]
fn no_flipped_bit_is_believed() {
    let (disk, label) = labelled();
    let content = disk.content();
    let mut rng = rng::Rng::new(8);
    for byte in 0..4096 {
        let mut damaged = content.clone();
        let bits = damaged.bytes(byte..byte + 1)[0] ^ 1 << rng.below(8);
        damaged.write(&[bits], byte);
        assert_eq!(read(damaged.clone()).expect("the other copy"), label);
        damaged.write(&[0; 4096], SIZE - END);
        read(damaged).expect_err("it is damaged");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (disk, _) = labelled();
    let refusal = |disk: &RamDisk| Label::read(disk).expect_err("refused").to_string();
    let (other, _) = {
        let disk = RamDisk::new("other", SIZE);
        let mut label = label_of(6);
        label.write(&*disk).expect("a label");
        (disk, label)
    };
    let last = other.content().bytes(SIZE - END..SIZE);
    disk.overwrite(SIZE - END, &last);
    assert!(refusal(&disk).contains("two ends are of different disks"));
    let (disk, _) = labelled();
    let short = RamDisk::with("disk", disk.content().resized(8 * MIB));
    assert!(refusal(&short).contains("it has 8388608 bytes, and had 16777216"));
    let longer = RamDisk::with("disk", disk.content().resized(SIZE + 4 * MIB));
    assert_eq!(Label::read(&*longer).expect("it has grown").size, SIZE);
    assert!(matches!(Label::read(&*RamDisk::new("empty", SIZE)), Err(OpenError::Unlabelled { .. })));
    // A copy of the first label elsewhere, as after a misdirected write.
    let empty = RamDisk::new("empty", SIZE);
    empty.overwrite(SIZE - END, &disk.content().bytes(0..4096));
    Label::read(&*empty).expect_err("it lies in the wrong place");
}

#[test]
fn an_update_of_what_somebody_else_has_updated_is_refused() {
    let (disk, mut ours) = labelled();
    let mut theirs = Label::read(&*disk).expect("a label");
    theirs.update(&*disk, |label| label.sequence = 10).expect("an update");
    let e = ours.update(&*disk, |label| label.sequence = 5).expect_err("it is not known");
    assert!(e.class == Class::Invalid && e.to_string().contains("generation 2, not 1"), "{e}");
    assert_eq!(Label::read(&*disk).expect("a label").sequence, 10);
}

/// An unreadable copy is like a damaged one; a disk that is gone is not a disk without a label.
#[test]
fn a_place_that_cannot_be_read_is_not_the_end() {
    let (disk, label) = labelled();
    let bad = FaultDisk::over(disk.clone(), 1, Faults::default());
    bad.set(|faults| faults.bad.push(0..4096));
    assert_eq!(Label::read(&*bad).expect("the other one"), label);
    let mut known = label.clone();
    known.update(&*bad, |label| label.sequence = 3).expect("a write takes the bad place");
    assert_eq!(Label::read(&*bad).expect("both").sequence, 3);
    let gone = FaultDisk::over(disk, 1, Faults { gone: true, ..Faults::default() });
    assert!(matches!(Label::read(&*gone), Err(OpenError::Transfer(e)) if e.class == Class::Gone));
}

/// Each request of an update fails, once.
#[test]
fn an_update_that_fails_leaves_a_label() {
    let (disk, before) = labelled();
    let content = disk.content();
    for failing in 1..12 {
        let disk = RamDisk::with("disk", content.clone());
        let faulty = FaultDisk::over(
            disk.clone() as Arc<dyn Device>,
            failing,
            Faults { torn: 2, error: 3, ..Faults::default() },
        );
        let mut label = before.clone();
        let done = label.update(&*faulty, |label| label.sequence = 9);
        let found = Label::read(&*disk).unwrap_or_else(|e| panic!("seed {failing}: {e}"));
        match done {
            Ok(()) => assert_eq!((&found, found.sequence), (&label, 9)),
            Err(_) => assert_eq!(label, before, "no label is made up"),
        }
    }
}

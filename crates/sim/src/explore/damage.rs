//! Memory for tests that damage it.

use std::sync::Arc;

use conquest_fs::layout::tag;
use conquest_fs::node::Policy;
use conquest_fs::Fs;
use pram::memory::TAGS;
use pram::{MediumKind, Tag};
use rng::Rng;

use super::judge::open;
use crate::check::work_with;
use crate::crash::mapping;
use crate::fault::Faults;
use crate::op::{Op, Runner};
use crate::scenario::something_of_everything;
use crate::tree::look;
use crate::world::{Setup, World};

/// A file system in which every structure occurs, and the places of its metadata: the used objects except those with the
/// tags `without`, and the segment table. For tests that damage it.
pub fn damaged_base(without: &[Tag]) -> (Vec<u8>, Vec<(u64, u64)>) {
    damaged_base_on(MediumKind::Battery, without)
}

/// The same on a medium with this discipline.
pub fn damaged_base_on(kind: MediumKind, without: &[Tag]) -> (Vec<u8>, Vec<(u64, u64)>) {
    damaged_base_of(kind, &something_of_everything(), without)
}

/// The same with all inodes packed, some of which were read since; only the places of these and of references to them.
pub fn damaged_base_packed() -> (Vec<u8>, Vec<(u64, u64)>) {
    let mut ops = something_of_everything();
    ops.extend([Op::PackInodes, Op::Read("/small".into()), Op::Read("/tree".into())]);
    let packed = [tag::INODE_TABLE, tag::PACKED, tag::PACKING];
    let without: Vec<_> = (1..TAGS as u8).map(Tag).filter(|t| !packed.contains(t)).collect();
    damaged_base_of(MediumKind::Battery, &ops, &without)
}

fn damaged_base_of(kind: MediumKind, ops: &[Op], without: &[Tag]) -> (Vec<u8>, Vec<(u64, u64)>) {
    let setup = Setup { atime: Policy::default().atime, ..Setup::alone(kind, 4 << 20) };
    let world = World::format(setup, &Faults::with(None)).expect("formats");
    let mut runner = Runner::new(&world.fs);
    for op in ops {
        let done = runner.run(op).expect("runs");
        assert!(done.is_ok(), "{op:?}: {done:?}");
    }
    let memory = world.fs.session().memory();
    let (geo, end) = (memory.geo, memory.chunks_end());
    let mut places = vec![(geo.entry(geo.first).raw(), (end - geo.first) * 16)];
    for at in (geo.heap()..geo.chunk(end)).step_by(16) {
        for tag in (1..TAGS as u8).map(Tag).filter(|t| !without.contains(t)) {
            if let (Ok(cap), Ok(true)) = (memory.resolve(at, tag), memory.is_allocated(at)) {
                places.push((at, cap));
            }
        }
    }
    (world.bytes(), places)
}

/// Opens the file system in `bytes`.
pub fn open_bytes(bytes: &[u8]) -> Result<Arc<Fs>, String> {
    open(mapping(bytes), MediumKind::Battery).map(|world| world.fs)
}

/// Works with a repaired file system.
pub fn work_after_repair(fs: &Fs) -> Result<(), String> {
    work_with(fs, &look(fs)?)
}

/// Damages bytes at some of the places, and describes the damage.
pub type Damage = fn(&mut Rng, &mut [u8], &[(u64, u64)]) -> String;

pub fn flip_bit(rng: &mut Rng, bytes: &mut [u8], places: &[(u64, u64)]) -> String {
    let (bit, at) = (rng.below(8), pick(rng, places));
    bytes[at] ^= 1 << bit;
    format!("bit of {at:#x}")
}

pub fn set_byte(rng: &mut Rng, bytes: &mut [u8], places: &[(u64, u64)]) -> String {
    let at = pick(rng, places);
    bytes[at] = [0, 0xff, 1, 0x7f][rng.below(4) as usize];
    format!("byte {at:#x} = {:#x}", bytes[at])
}

/// Copies a word over another one: references lead to real objects, but wrong ones.
pub fn cross_word(rng: &mut Rng, bytes: &mut [u8], places: &[(u64, u64)]) -> String {
    let (from, to) = (pick(rng, places) & !7, pick(rng, places) & !7);
    bytes.copy_within(from..from + 8, to);
    format!("word {from:#x} to {to:#x}")
}

fn pick(rng: &mut Rng, places: &[(u64, u64)]) -> usize {
    let (start, len) = places[rng.below(places.len() as u64) as usize];
    (start + rng.below(len)) as usize
}

/// Zeros fewer lines than two to the power of `most`.
pub fn zero_lines(rng: &mut Rng, bytes: &mut [u8], places: &[(u64, u64)], most: u64) -> String {
    let count = 1 << rng.below(most);
    for _ in 0..count {
        let at = pick(rng, places) & !63;
        bytes[at..at + 64].fill(0);
    }
    format!("{count} lines of zeros")
}

pub fn zero_line(rng: &mut Rng, bytes: &mut [u8], places: &[(u64, u64)]) -> String {
    let at = pick(rng, places) & !63;
    bytes[at..at + 64].fill(0);
    format!("line {at:#x} of zeros")
}

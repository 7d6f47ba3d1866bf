//! The explorer for blocks beside the heap: a root word leads to a block, which is written, replaced, changed in place,
//! and freed. A crash at each store leaves the word from before or after, a whole block behind it, and no loss except
//! leaks.

use std::sync::Arc;

use pram::memory::{Descriptor, BLOCK, BLOCK_TABLE, CLASSES};
use pram::{Mapping, Medium, MediumKind, Memory, Session};

use crate::choice::Choice;
use crate::crash::{each_point, points};
use crate::explore::Depth;
use crate::tape::{Tape, TapeMedium};
use crate::world::UUID;

const SIZE: u64 = 1 << 20;
const KEYS: u64 = 64;
/// The root word that leads to the block.
const ROOT: u64 = 1;
/// The place on disk that is noted for the block.
const PLACE: u64 = 42;
/// Bytes that a step changes in place.
const PART: u64 = 1000;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A block is allocated, filled with this byte, and linked.
    Link(u8),
    /// It is replaced by a copy whose first part is of this byte.
    Replace(u8),
    /// A place is noted for it.
    Place,
    /// It gives up its place, in an epoch of its own.
    GiveUp,
    /// Its first part is overwritten in place, in an epoch of its own.
    Change(u8),
    /// A block is allocated and filled, and the transaction undone.
    Undo,
    /// It is unlinked and freed.
    Free,
}

/// Each kind of step, after each other kind that makes a difference for it.
pub const STORY: [Step; 12] = [
    Step::Link(1),
    Step::Replace(2),
    Step::Place,
    Step::GiveUp,
    Step::Place,
    Step::Replace(3),
    Step::Place,
    Step::Change(4),
    Step::Undo,
    Step::Change(5),
    Step::Free,
    Step::Link(6),
];

/// The block behind the root word.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State(Option<(Vec<u8>, Descriptor)>);

impl State {
    fn of(session: &Session) -> Result<State, String> {
        let memory = session.memory();
        let block = memory.load(memory.root(ROOT)).map_err(text)?;
        if block == 0 {
            return Ok(State(None));
        }
        let descriptor = memory.descriptor(block).map_err(text)?;
        if !memory.is_allocated(block).map_err(text)? {
            return Err(format!("block {block:#x} is linked and free"));
        }
        let mut bytes = vec![0; BLOCK as usize];
        memory.read_bytes(block, &mut bytes).map_err(text)?;
        Ok(State(Some((bytes, descriptor))))
    }

    /// May a crash within a change in place have left this? Each word is from before or after, and the descriptor has
    /// the place only while all words are from before.
    fn is_between(&self, before: &State, after: &State) -> bool {
        let (State(Some((now, d))), State(Some((old, was))), State(Some((new, is)))) = (self, before, after) else {
            return false;
        };
        let mixed = now.iter().zip(old.iter().zip(new)).all(|(now, (old, new))| now == old || now == new);
        let is_noted = d.place == 0 || now == old && d.place == was.place;
        mixed && is_noted && (d.epoch == was.epoch || d.epoch == is.epoch) && d.owner == was.owner
    }
}

fn text(e: pram::Error) -> String {
    e.to_string()
}

fn play(session: &Session, n: usize, step: Step) -> pram::Result<()> {
    let memory = session.memory();
    let (root, epoch) = (memory.root(ROOT), n as u64 + 1);
    let old = memory.load(root)?;
    let mut op = session.begin_in(0)?;
    let mut tx = op.tx()?;
    match step {
        Step::Link(byte) => {
            let block = tx.alloc_block(epoch, [1, epoch])?;
            tx.store_content(block, &[byte; BLOCK as usize])?;
            tx.set(root, &block)?;
        }
        Step::Replace(byte) => {
            let block = tx.alloc_block(epoch, [1, epoch])?;
            tx.copy_content(old + PART, block + PART, BLOCK - PART)?;
            tx.store_content(block, &[byte; PART as usize])?;
            tx.set(root, &block)?;
            tx.free_block(old)?;
        }
        Step::Place => tx.set_place(old, PLACE)?,
        Step::GiveUp => tx.unset_place(old, epoch)?,
        Step::Change(byte) => {
            tx.begin_change(old, epoch)?;
            tx.store_content(old, &[byte; PART as usize])?;
        }
        Step::Undo => {
            let block = tx.alloc_block(epoch, [1, epoch])?;
            tx.zero_content(block, BLOCK)?;
            tx.set(root, &block)?;
            return Ok(());
        }
        Step::Free => {
            tx.set(root, &0)?;
            tx.free_block(old)?;
        }
    }
    tx.commit()
}

/// Frees blocks that nothing leads to, and checks that the others are rightly in use.
fn sweep(session: &Session) -> Result<(), String> {
    let memory = session.memory();
    let linked = memory.load(memory.root(ROOT)).map_err(text)?;
    let tables = || memory.chunks().filter_map(|n| memory.block_table(n).ok()).collect::<Vec<u64>>();
    let (in_use, mut expected) = (tables(), 0);
    for chunk in memory.chunks() {
        let Some((_, class)) = memory.meta(chunk).map_err(text)?.sharers() else { continue };
        let c = &CLASSES[usize::from(class)];
        for off in (0..c.count).map(|n| memory.geo.chunk(chunk) + u64::from(c.base + n * c.size)) {
            // Its chunk may have been freed with the last one.
            if !memory.is_allocated(off).unwrap_or(false) {
                continue;
            }
            if off != linked && !in_use.contains(&off) {
                let op = session.begin_in(0).map_err(text)?;
                op.sweep_object(off).map_err(text)?;
            }
        }
    }
    for table in tables() {
        if !memory.resolve(table, BLOCK_TABLE).is_ok_and(|cap| cap == 512)
            || !memory.is_allocated(table).map_err(text)?
        {
            return Err(format!("table {table:#x} is free, or none"));
        }
        expected += 512;
    }
    expected += u64::from(linked != 0) * BLOCK;
    match memory.allocated_bytes().map_err(text)? {
        found if found == expected => Ok(()),
        found => Err(format!("{found} bytes are allocated, {expected} in use")),
    }
}

/// Uses all memory, and checks that blocks in use are not touched.
fn fill(session: &Session, state: &State) -> Result<(), String> {
    let memory = session.memory();
    let linked = memory.load(memory.root(ROOT)).map_err(text)?;
    let mut blocks = Vec::new();
    loop {
        let mut op = session.begin_in(0).map_err(text)?;
        let mut tx = op.tx().map_err(text)?;
        let block = match tx.alloc_block(99, [9, 9]) {
            Ok(block) => block,
            Err(pram::Error::NoSpace) => break,
            Err(e) => return Err(text(e)),
        };
        tx.store_content(block, &[0xee; BLOCK as usize]).and_then(|()| tx.commit()).map_err(text)?;
        if block == linked || blocks.contains(&block) {
            return Err(format!("block {block:#x} is given twice"));
        }
        blocks.push(block);
    }
    let usage = session.heap().block_usage();
    if usage.used != blocks.len() as u64 + u64::from(linked != 0) || usage.free != 0 {
        return Err(format!("{} blocks are in use: {usage:?}", blocks.len()));
    }
    match &State::of(session)? {
        found if found == state => Ok(()),
        found => Err(format!("{found:?} after others were written")),
    }
}

fn open(map: Mapping, kind: MediumKind) -> Result<Session, String> {
    let medium = TapeMedium { kind, tape: Arc::default() };
    Session::private(Memory::open(map, Box::new(medium)).map_err(text)?, KEYS).map_err(text)
}

/// Explores each step of the story; returns how many states were checked. `below` is put between the memory and the
/// medium.
pub fn explore(kind: MediumKind, depth: Depth, below: &dyn Fn(TapeMedium) -> Box<dyn Medium>) -> Result<u64, String> {
    let tape = Arc::<Tape>::default();
    let medium = below(TapeMedium { kind, tape: tape.clone() });
    let map = Mapping::anonymous(SIZE).map_err(|e| e.to_string())?;
    let memory = Memory::format(map, medium, UUID, 1, 0).map_err(text)?;
    let session = Session::private(memory, KEYS).map_err(text)?;
    let mut states = 0;
    for (n, step) in STORY.into_iter().enumerate() {
        let mut base = vec![0; SIZE as usize];
        session.memory().read_bytes(0, &mut base).map_err(text)?;
        let before = State::of(&session)?;
        tape.start(None);
        let done = play(&session, n, step);
        let moments = tape.stop();
        done.map_err(|e| format!("{step:?}: {e}"))?;
        let after = State::of(&session)?;
        let medium = each_point(kind, &base, &moments, points(&moments, depth.cuts), |point, medium| {
            let end = point.events == moments.len();
            medium.choices(depth.subsets, depth.seeds).into_iter().try_for_each(|choice| {
                states += 1;
                judge(medium.crash(choice), kind, step, &before, &after, end)
                    .map_err(|e| format!("{n} {step:?} at {} {choice:?}: {e}", point.name()))
            })
        })?;
        // When the call has returned its effect is durable, also if all in doubt is lost.
        let left = open(medium.crash(Choice::None), kind)?;
        if State::of(&left)? != after {
            return Err(format!("{n} {step:?}: what was acknowledged is lost"));
        }
    }
    Ok(states)
}

fn judge(left: Mapping, kind: MediumKind, step: Step, before: &State, after: &State, end: bool) -> Result<(), String> {
    let session = open(left, kind)?;
    let found = State::of(&session)?;
    let in_place = matches!(step, Step::Change(_)) && found.is_between(before, after);
    if found != *after && (end || found != *before && !in_place) {
        return Err(format!("it leads to {found:?}, not to {before:?} or {after:?}"));
    }
    sweep(&session)?;
    fill(&session, &found)
}

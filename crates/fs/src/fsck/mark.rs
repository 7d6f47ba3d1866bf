//! Marking the objects that something refers to, and the sweep of the others.
//!
//! While others work, this is exact:
//! 1. From the start on, allocations are noted as new. Operations under way then are waited for, so their
//!    allocations are linked, or freed, before marking begins.
//! 2. Objects belong to one inode for life, and inodes are visited under their sequence counters. So an
//!    object allocated before the start, and not freed since, is marked.
//! 3. Before sweeping, operations under way are waited for again: they have then freed everything that they unlinked.
//! 4. An object that is then allocated, neither marked nor new, is a leak.

use pram::memory::{Meta, BLOCK, BLOCKS, BLOCK_TABLE, CLASSES, PER_GROUP};
use pram::{Memory, Op, Session, Tag, CHUNK};

use crate::error::Result;

/// The marks of one pass: a bit per 16 bytes of the memory.
pub struct Marks<'a> {
    session: &'a Session,
    bits: Vec<u64>,
    bytes: u64,
}

impl<'a> Marks<'a> {
    pub fn begin(session: &'a Session) -> Result<Marks<'a>> {
        // One sweep at a time; another sweep is done in a moment, or its process is dead.
        for round in 1u32.. {
            if session.runtime().start_sweep()? {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
            if round % 100 == 0 {
                session.reap()?;
            }
        }
        session.drain()?;
        Ok(Marks { session, bits: Vec::new(), bytes: 0 })
    }

    /// Marks the object at `off`; says why it cannot be one.
    pub fn mark(&mut self, off: u64, tag: Tag) -> Result<(), String> {
        let cap = self.check(off, tag)?;
        self.set(off, cap)
    }

    /// Marks the tables of chunks of blocks; the errors of each.
    pub fn mark_block_tables(&mut self) -> Result<Vec<String>> {
        let (session, mut problems) = (self.session, Vec::new());
        let memory = session.memory();
        for chunk in memory.chunks() {
            // `check_chunks` reports a chunk that is no table.
            let Ok(table) = memory.block_table(chunk) else { continue };
            if let Err(why) = self.mark(table, BLOCK_TABLE) {
                // Others may have emptied the chunk meanwhile.
                if memory.block_table(chunk).is_ok_and(|now| now == table) {
                    problems.push(format!("chunk {chunk} of blocks: {why}"));
                }
            }
        }
        Ok(problems)
    }

    /// The bytes of the object at `off`, or of the block, or why it cannot be one.
    pub fn check(&self, off: u64, tag: Tag) -> Result<u64, String> {
        let memory = self.session.memory();
        let cap = match tag {
            BLOCKS => memory.block(off).map(|_| BLOCK),
            tag => memory.resolve(off, tag),
        };
        let cap = cap.map_err(|e| e.to_string())?;
        if !memory.is_allocated(off).map_err(|e| e.to_string())? && !self.session.runtime().is_new(off) {
            return Err(format!("object {off:#x} is in use but not allocated"));
        }
        Ok(cap)
    }

    /// Marks an object that [`check`](Self::check) has found; fails if it was marked before.
    pub fn set(&mut self, off: u64, cap: u64) -> Result<(), String> {
        let n = off / 16;
        // The memory may become larger meanwhile.
        if self.bits.len() as u64 <= n / 64 {
            let chunks = self.session.memory().chunks_end();
            self.bits.resize((chunks * CHUNK / 16 / 64).max(n / 64 + 1) as usize, 0);
        }
        let word = &mut self.bits[(n / 64) as usize];
        if *word >> (n % 64) & 1 == 1 {
            if self.session.runtime().is_new(off) {
                return Ok(());
            }
            return Err(format!("object {off:#x} is in use twice"));
        }
        *word |= 1 << (n % 64);
        self.bytes += cap;
        Ok(())
    }

    /// Forgets all marks, for another pass.
    pub fn reset(&mut self) {
        self.bits.fill(0);
        self.bytes = 0;
    }

    /// Bytes marked.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_marked(&self, off: u64) -> bool {
        let n = off / 16;
        self.bits.get((n / 64) as usize).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// Counts, or frees, the objects, blocks and bytes that are allocated, neither marked nor new: in operations that `begin`
    /// gives, which a caller that has frozen the pool begins in another way than others.
    pub fn unmarked(&self, begin: Option<&dyn Fn() -> pram::Result<Op<'a>>>) -> Result<(u64, u64)> {
        let (mut objects, mut bytes) = (0, 0);
        let memory = self.session.memory();
        for_each_object(memory, &mut |off, cap| {
            // Others may have given the chunk another class since its entry was read. So: is there an object
            // now? Only then whether it is new; in this order a new one cannot be missed.
            if self.is_marked(off) || !memory.is_allocated(off).unwrap_or(false) || self.session.runtime().is_new(off) {
                return Ok(());
            }
            if self.session.heap().is_put_off(off) {
                return Ok(());
            }
            objects += 1;
            bytes += cap;
            if let Some(begin) = begin {
                begin()?.sweep_object(off)?;
            }
            Ok(())
        })?;
        Ok((objects, bytes))
    }
}

impl Drop for Marks<'_> {
    fn drop(&mut self) {
        self.session.runtime().end_sweep();
    }
}

/// Calls `f` with offset and capacity of every allocated object and block.
fn for_each_object(memory: &Memory, f: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
    let geo = &memory.geo;
    for chunk in memory.chunks() {
        let meta = memory.meta(chunk)?;
        if let Some((_, class)) = meta.sharers() {
            let c = &CLASSES[usize::from(class)];
            for w in 0..c.count.div_ceil(64) {
                let mut bits = memory.taken(chunk, class, w)?;
                while bits != 0 {
                    let index = w * 64 + bits.trailing_zeros();
                    bits &= bits - 1;
                    let within = u64::from(c.base) + u64::from(index) * u64::from(c.size);
                    f(geo.chunk(chunk) + within, u64::from(c.size))?;
                }
            }
        } else if let Meta::RunHead { len, .. } = meta {
            f(geo.chunk(chunk), u64::from(len) * CHUNK)?;
        }
    }
    Ok(())
}

/// The errors of the table of chunks itself, and which chunk can only be given up for it.
pub fn check_chunks(memory: &Memory) -> Result<Vec<(Option<u64>, String)>> {
    let mut problems = Vec::new();
    let mut run_end = 0;
    let mut head = 0;
    for chunk in memory.chunks() {
        let meta = memory.meta(chunk)?;
        let lost = match meta {
            Meta::Bad => Some(format!("chunk {chunk} has an impossible entry")),
            Meta::RunHead { len, .. } if chunk % PER_GROUP + u64::from(len) > PER_GROUP => {
                Some(format!("chunk {chunk} begins a run of {len} that leaves its group"))
            }
            Meta::Blocks if is_lost(memory, chunk)? => {
                Some(format!("chunk {chunk} of blocks leads to no table of theirs"))
            }
            Meta::RunBody { .. } if chunk >= run_end => {
                Some(format!("chunk {chunk} continues a run that is not there"))
            }
            _ => None,
        };
        if let Some(text) = lost {
            problems.push((Some(chunk), text));
            continue;
        }
        match meta {
            Meta::RunBody { dist } if chunk.checked_sub(u64::from(dist)) == Some(head) => {}
            _ if chunk < run_end => problems.push((None, format!("chunk {chunk} interrupts the run of {head}"))),
            Meta::RunHead { len, .. } => (head, run_end) = (chunk, chunk + u64::from(len)),
            _ => {}
        }
    }
    Ok(problems)
}

/// Has a chunk of blocks no table? Others may be emptying it.
fn is_lost(memory: &Memory, chunk: u64) -> Result<bool> {
    Ok(memory.block_table(chunk).is_err() && memory.meta(chunk)? == Meta::Blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        Session::in_memory(4 << 20).unwrap()
    }

    fn alloc(session: &Session) -> u64 {
        let mut op = session.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let block = tx.alloc_block(1, [1, 2]).unwrap();
        tx.commit().unwrap();
        block
    }

    /// Counts everything that is not marked, and frees it.
    fn sweep(session: &Session, marks: &Marks) -> (u64, u64) {
        marks.unmarked(Some(&|| session.begin())).unwrap()
    }

    #[test]
    fn a_block_that_was_reached_stays_and_its_table_with_it() {
        let session = session();
        let blocks: Vec<u64> = (0..20).map(|_| alloc(&session)).collect();
        let under_transfer = session.transfer(blocks[5], 1).unwrap().unwrap();
        let mut op = session.begin().unwrap();
        let mut tx = op.tx().unwrap();
        tx.free_block(blocks[5]).unwrap();
        tx.commit().unwrap();
        drop(op);

        let mut marks = Marks::begin(&session).unwrap();
        assert_eq!(marks.mark_block_tables().unwrap(), [""; 0]);
        for block in [blocks[3], blocks[17]] {
            marks.mark(block, BLOCKS).unwrap();
            assert!(marks.mark(block, BLOCKS).unwrap_err().contains("in use twice"));
        }
        for wrong in [blocks[3] + 8, 0, session.memory().block_table(blocks[0] / CHUNK).unwrap()] {
            assert!(marks.mark(wrong, BLOCKS).is_err());
        }
        assert_eq!(marks.bytes(), 2 * BLOCK + 2 * 512);
        let new = alloc(&session);
        assert_eq!(sweep(&session, &marks), (17, 17 * BLOCK));
        assert_eq!(sweep(&session, &marks), (0, 0), "what is under transfer, and new, is left alone");
        assert!(marks.mark(blocks[4], BLOCKS).unwrap_err().contains("not allocated"));
        drop(under_transfer);
        assert_eq!(session.free_ended().unwrap(), 1);
        assert_eq!(session.memory().allocated().unwrap()[0], 3 * BLOCK);
        marks.mark(new, BLOCKS).unwrap();
    }

    #[test]
    fn chunks_without_their_table_are_reported_and_given_up() {
        let session = session();
        let block = alloc(&session);
        let (memory, chunk) = (session.memory(), block / CHUNK);
        assert!(check_chunks(memory).unwrap().is_empty());
        let table = memory.block_table(chunk).unwrap();
        memory.commit_word(memory.geo.entry(chunk).field(8), 1).unwrap();
        let problems = check_chunks(memory).unwrap();
        assert!(
            problems.len() == 1 && problems[0].0 == Some(chunk) && problems[0].1.contains("no table"),
            "{problems:?}"
        );
        session.heap().reset_chunk(chunk).unwrap();
        assert!(check_chunks(memory).unwrap().is_empty());
        let mut marks = Marks::begin(&session).unwrap();
        assert_eq!(marks.mark_block_tables().unwrap(), [""; 0]);
        assert_eq!(sweep(&session, &marks), (1, 512), "the table is a leak");
        drop(marks);
        assert!(!memory.is_allocated(table).unwrap_or(false));

        // Two chunks that lead to one table.
        let [first, second] = [alloc(&session), (0..16).map(|_| alloc(&session)).last().unwrap()].map(|b| b / CHUNK);
        assert_ne!(first, second);
        let word = memory.load(memory.geo.entry(first).field(8)).unwrap();
        memory.commit_word(memory.geo.entry(second).field(8), word).unwrap();
        let problems = Marks::begin(&session).unwrap().mark_block_tables().unwrap();
        assert!(problems.len() == 1 && problems[0].contains("in use twice"), "{problems:?}");
    }
}

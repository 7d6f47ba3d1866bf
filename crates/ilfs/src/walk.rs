//! From part to part through a segment.

use exraid::{Aligned, Buffers, Region, Request, LATE};

use super::part::{Found, Identity, Part};
use super::place::BLOCK;

/// Blocks that are read at a time: the summary of a segment of one part, or many small parts.
const AHEAD: u32 = 8;

/// A segment whose summaries are read.
pub struct Walk<'r> {
    region: &'r dyn Region,
    identity: Identity,
    /// Where the segment lies in the region.
    at: u64,
    /// Blocks that may hold parts.
    blocks: u32,
    /// The first block that was read, and the bytes from there on.
    from: u32,
    bytes: Vec<u8>,
    /// Blocks that are read at a time.
    ahead: u32,
    /// The only copy that is read, if set.
    copy: Option<usize>,
    /// Ignore failures of members that are out.
    is_rest: bool,
    /// The last failure of the disk.
    pub failed: Option<exraid::Error>,
}

impl<'r> Walk<'r> {
    pub fn new(region: &'r dyn Region, identity: Identity, at: u64, blocks: u32) -> Walk<'r> {
        let (from, bytes) = (0, Vec::new());
        Walk { region, identity, at, blocks, from, bytes, ahead: AHEAD, copy: None, is_rest: false, failed: None }
    }

    /// Reads one block at a time: for looking at a single part, which is seldom there.
    pub fn narrow(self) -> Walk<'r> {
        Walk { ahead: 1, ..self }
    }

    /// Reads only one of the copies that the region keeps.
    pub fn of_copy(self, copy: usize) -> Walk<'r> {
        Walk { copy: Some(copy), ..self }
    }

    /// Does not count members that are out as failed: for looking at the others.
    pub fn of_the_rest(self) -> Walk<'r> {
        Walk { is_rest: true, ..self }
    }

    /// The part whose summary begins at `block`; `None` if no readable copy has one there.
    pub fn part_at(&mut self, block: u32) -> Option<Part> {
        if self.copy.is_some() {
            return self.part_in(block, self.copy);
        }
        if let Some(part) = self.part_in(block, None) {
            return Some(part);
        }
        // The other copies, one by one.
        let copies = self.region.copies();
        (0..copies).filter(|_| copies > 1).find_map(|copy| self.part_in(block, Some(copy)))
    }

    /// The part of the segment with this number whose summary begins at `block`.
    pub fn part_of(&mut self, sequence: u64, block: u32) -> Option<Part> {
        self.part_at(block).filter(|part| part.sequence == sequence)
    }

    /// The next part of the segment with this number, from `block` on; skips torn ones.
    pub fn next_of(&mut self, sequence: u64, block: u32) -> Option<Part> {
        (block..self.blocks).find_map(|block| self.part_of(sequence, block))
    }

    /// Was a part of that segment written at `block`, whole or not?
    pub fn was_written(&mut self, sequence: u64, block: u32) -> bool {
        let from = self.have(block, BLOCK as usize, self.copy);
        from.is_some_and(|from| Part::was_written(&self.identity, sequence, block, &self.bytes[from..]))
    }

    fn part_in(&mut self, block: u32, copy: Option<usize>) -> Option<Part> {
        let mut needed = BLOCK as usize;
        loop {
            let from = self.have(block, needed, copy)?;
            match Part::read(&self.identity, block, &self.bytes[from..]) {
                Found::Part(part) => return Some(part),
                Found::More(bytes) if bytes > needed => needed = bytes,
                _ => return None,
            }
        }
    }

    /// Reads so many bytes from `block` on unless it has them; returns where they begin.
    fn have(&mut self, block: u32, needed: usize, copy: Option<usize>) -> Option<usize> {
        let within = (block >= self.from).then(|| (block - self.from) as usize * BLOCK as usize);
        if let Some(from) = within.filter(|from| copy.is_none() && from + needed <= self.bytes.len()) {
            return Some(from);
        }
        let least = needed.div_ceil(BLOCK as usize) as u32;
        let most = self.blocks.saturating_sub(block);
        if least > most {
            return None;
        }
        // If a block further on cannot be read, only the needed ones are.
        let mut failed = None;
        for count in [least.max(self.ahead).min(most), least] {
            let memory = Buffers::whole(&Aligned::zeroed(count as usize * BLOCK as usize));
            self.region.give_way(memory.len());
            let request = Request::read(self.at + u64::from(block) * BLOCK, memory);
            let answer = match copy {
                None => self.region.ask(request, LATE),
                Some(copy) => {
                    let (done, ticket) = exraid::Ticket::new();
                    self.region.read_copy(copy, request.with_late(ticket.late()), done);
                    let Ok(answer) = ticket.wait_unless_late() else { continue };
                    answer
                }
            };
            match (answer.result, answer.buffers) {
                (Ok(()), Some(memory)) => {
                    (self.from, self.bytes) = (block, memory.to_vec());
                    return Some(0);
                }
                (Err(e), _) if self.is_rest && copy.is_some() && e.class.is_final() => {}
                (Err(e), _) => failed = Some(e),
                (Ok(()), None) => {}
            }
        }
        self.failed = failed.or(self.failed.take());
        None
    }
}

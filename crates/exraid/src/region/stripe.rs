//! A region whose content lies striped over several disks: as fast as all of them, and lost with any of them.
//!
//! Chunk c is on member c mod n, as its c div n th. A request touches one stretch of each member, so each member gets
//! one request, however long it is.

use std::ops::Range;
use std::sync::Arc;

use super::join::Join;
use super::set::{Manner, Set};
use super::Map;
use crate::device::{Answer, Done, Op};
use crate::sys::memory::Buffers;

pub struct Stripe {
    pub members: u64,
    pub chunk: u64,
}

/// The part of a request that lies on one member.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    member: u64,
    /// Range on the member.
    range: Range<u64>,
    /// The same bytes, as parts of the request.
    of: Vec<Range<u64>>,
}

impl Stripe {
    /// Where a byte lies.
    fn place(&self, at: u64) -> (u64, u64) {
        let chunk = at / self.chunk;
        (chunk % self.members, chunk / self.members * self.chunk + at % self.chunk)
    }

    fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / self.chunk + 1) * self.chunk);
            let (member, place) = self.place(at);
            let (there, of) = (place..place + end - at, at - range.start..end - range.start);
            match pieces.iter_mut().find(|piece| piece.member == member) {
                Some(piece) => {
                    piece.range.end = there.end;
                    piece.of.push(of);
                }
                None => pieces.push(Piece { member, range: there, of: vec![of] }),
            }
            at = end;
        }
        pieces
    }
}

impl Piece {
    fn memory(&self, all: &Buffers) -> Buffers {
        let mut memory = Buffers::new();
        self.of.iter().for_each(|range| memory.join(all.slice(range.clone())));
        memory
    }

    fn op(&self, whole: &Op) -> Op {
        let (at, range) = (self.range.start, self.range.clone());
        match whole {
            Op::Read { into, .. } => Op::Read { at, into: self.memory(into) },
            Op::Write { from, .. } => Op::Write { at, from: self.memory(from) },
            Op::Discard(_) => Op::Discard(range),
            Op::Reserve(_) => Op::Reserve(range),
            Op::Flush => Op::Flush,
        }
    }
}

impl Map for Stripe {
    fn size(&self, set: &Set) -> u64 {
        set.share / self.chunk * self.chunk * self.members
    }

    fn stripe(&self) -> u64 {
        self.chunk * self.members
    }

    fn origin(&self, range: Range<u64>) -> Range<u64> {
        range.start / self.chunk * self.stripe()..range.end.div_ceil(self.chunk) * self.stripe()
    }

    fn submit(&self, set: &Arc<Set>, op: Op, manner: Manner, done: Done) {
        let parts: Vec<(u64, Op)> = match &op {
            Op::Flush => (0..self.members).map(|member| (member, Op::Flush)).collect(),
            op => self.pieces(op.range()).iter().map(|piece| (piece.member, piece.op(op))).collect(),
        };
        let memory = op.into_buffers();
        let moves = memory.is_some();
        if parts.is_empty() {
            return done(Answer { result: Ok(()), buffers: memory });
        }
        let join =
            Join::new(parts.iter().map(|(member, _)| *member as usize).collect(), memory, |mut failures, buffers| {
                let result = match failures.is_empty() {
                    true => Ok(()),
                    false => Err(failures.swap_remove(0).1),
                };
                done(Answer { result, buffers });
            });
        for (member, op) in parts {
            set.send(member as usize, op, manner, join.part(member as usize, moves));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each byte has one place, each place one byte, and pieces agree with single bytes.
    #[test]
    fn pieces_lie_where_their_bytes_do() {
        let stripe = Stripe { members: 3, chunk: 4 };
        for start in 0..30 {
            for end in start..60 {
                let pieces = stripe.pieces(start..end);
                assert!(pieces.len() <= 3);
                let mut seen = 0;
                for piece in &pieces {
                    let bytes = piece.of.iter().flat_map(|of| of.clone());
                    for (there, byte) in piece.range.clone().zip(bytes) {
                        assert_eq!(stripe.place(start + byte), (piece.member, there));
                        seen += 1;
                    }
                    assert_eq!(
                        piece.of.iter().map(|of| of.end - of.start).sum::<u64>(),
                        piece.range.end - piece.range.start
                    );
                }
                assert_eq!(seen, end - start);
            }
        }
    }
}

//! Writing blocks of several classes at once: each goes to a writer of its class.

use std::collections::BTreeMap;

use pram::Session;

use super::error::Result;
use super::place::Place;
use super::storage_class::Class;
use super::write::{all_of, Block, Writer};
use super::{Head, Log};

/// Class, and priority.
pub type Kind = (Class, u8);

/// Blocks on their way to segments of their classes.
#[must_use = "what is not finished is given up"]
pub struct Sorted<'l> {
    log: &'l Log,
    session: &'l Session,
    head: Head,
    stamp: Option<u64>,
    due: Option<u32>,
    least: u64,
    /// Each with the positions of its blocks.
    writers: BTreeMap<Kind, (Writer<'l>, Vec<usize>)>,
    count: usize,
}

impl Log {
    /// As [`Log::writer`], for blocks of any classes.
    pub fn sorted<'l>(&'l self, session: &'l Session, head: Head, stamp: Option<u64>) -> Sorted<'l> {
        Sorted { log: self, session, head, stamp, due: None, least: 1, writers: BTreeMap::new(), count: 0 }
    }
}

impl<'l> Sorted<'l> {
    /// See [`Writer::due`].
    pub fn due(self, due: Option<u32>) -> Sorted<'l> {
        Sorted { due, ..self }
    }

    /// See [`Writer::least`].
    pub fn least(self, least: u64) -> Sorted<'l> {
        Sorted { least, ..self }
    }

    /// Adds a block: see [`Writer::push`].
    pub fn push(&mut self, kind: Kind, block: Block) -> Result<()> {
        let (log, session, head, stamp) = (self.log, self.session, self.head, self.stamp);
        let (due, least) = (self.due, self.least);
        let new = || (log.writer(session, head, stamp).of(kind.0, kind.1).due(due).least(least), Vec::new());
        let (writer, numbers) = self.writers.entry(kind).or_insert_with(new);
        numbers.push(self.count);
        self.count += 1;
        writer.push(block)
    }

    /// Waits until all blocks are durable; returns the places, in the order of the blocks. After an error nothing counts
    /// as written.
    pub fn finish(self) -> Result<Vec<Place>> {
        let (log, session) = (self.log, self.session);
        all_of(log, session, self.finish_some()?)
    }

    /// Like [`finish`](Sorted::finish), but blocks for which there was no room are without a place.
    pub fn finish_some(self) -> Result<Vec<Option<Place>>> {
        let mut places = vec![None; self.count];
        for (_, (writer, numbers)) in self.writers {
            match writer.finish_some() {
                Ok(of_one) => numbers.into_iter().zip(of_one).for_each(|(number, place)| places[number] = place),
                Err(e) => {
                    self.log.give_up(self.session, &places.into_iter().flatten().collect::<Vec<_>>())?;
                    return Err(e);
                }
            }
        }
        Ok(places)
    }
}

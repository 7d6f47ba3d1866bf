//! The client's data in the labels and notes of a region: marks, its lease, its note.

use std::sync::atomic::Ordering;

use super::{high_water_of, Set};
use crate::error::{Class, Error, Result};
use crate::label::{Label, MemberState, LEASE};
use crate::note::{self, Note};

impl Set {
    /// Raises the mark in all labels; durable when it returns. Other processes may have raised it further.
    pub fn raise_sequence(&self, to: u64) -> Result<()> {
        self.note_in_labels(&|label| label.sequence = label.sequence.max(to))
    }

    /// Raises the [high-water mark](Label::high_water) in the same way.
    pub fn raise_high_water(&self, to: u64) -> Result<()> {
        self.note_in_labels(&|label| label.high_water = label.high_water.max(to))?;
        self.high_water.fetch_max(to, Ordering::SeqCst);
        Ok(())
    }

    pub fn high_water(&self) -> u64 {
        self.high_water.load(Ordering::SeqCst)
    }

    /// By the labels, nothing was written beyond this byte. A mark of 0 is from a program that has no such mark and may
    /// have written anywhere. If two marks differ the higher one counts, since a disk may have lost it.
    pub fn written_end(&self) -> u64 {
        let states = self.states().clone();
        match high_water_of(&self.labels(), &states) {
            (0, _) => u64::MAX,
            (_, highest) => highest,
        }
    }

    /// Writes the client's name for the user of the disks to all labels; durable when it returns.
    pub fn set_lease(&self, lease: &[u8]) -> Result<()> {
        if lease.len() > LEASE {
            return Err(Error::new(Class::Invalid, &self.name, format!("a lease of {} bytes", lease.len())));
        }
        self.note_in_labels(&|label| label.lease = lease.to_vec())
    }

    /// Rewrites labels and notes whose two instances differ; returns their names.
    pub fn mend_ends(&self) -> Result<Vec<String>> {
        let (mut labels, mut notes) = (Vec::new(), Vec::new());
        {
            let _alone = self.alone()?;
            let (states, known) = (self.states().clone(), self.labels().clone());
            for (role, label) in known.iter().filter(|(role, _)| states[**role] != MemberState::Out) {
                let Some(part) = self.part(*role) else { continue };
                let name = part.device.name();
                if !Label::is_whole(&*part.device)? {
                    labels.push(format!("the label of {name}"));
                }
                if !note::is_whole(&*part.device, label.device, label.size) {
                    notes.push(format!("the note of {name}"));
                }
            }
        }
        if !labels.is_empty() {
            self.note_in_labels(&|_| {})?;
        }
        if let Some(note) = self.newest_note().filter(|_| !notes.is_empty()) {
            self.set_note(&note.bytes)?;
        }
        Ok(labels.into_iter().chain(notes).collect())
    }

    /// Changes fields of the labels that do not concern the membership.
    fn note_in_labels(&self, change: &dyn Fn(&mut Label)) -> Result<()> {
        let _alone = self.alone()?;
        if self.others.is_none() {
            let mut labels = self.labels();
            let states = self.states().clone();
            for (role, label) in labels.iter_mut().filter(|(role, _)| states[**role] != MemberState::Out) {
                // An unreadable one is excluded by the update, or makes it fail.
                let Some(part) = self.part(*role) else { continue };
                match label.catch_up(&*part.device) {
                    Err(e) if e.class == Class::Invalid => return Err(e),
                    _ => {}
                }
            }
        }
        self.update(change)
    }

    /// Gives a member that takes part again the others' note. (Otherwise the note would be lost with the others.)
    pub(super) fn carry_note(&self, role: usize) -> Result<()> {
        let label = self.labels().get(&role).cloned();
        match (self.newest_note(), self.part(role), label) {
            (Some(note), Some(part), Some(label)) => note::write(&*part.device, label.device, label.size, &note),
            _ => Ok(()),
        }
    }

    /// The newest note of the members in use.
    pub(super) fn newest_note(&self) -> Option<Note> {
        let labels = self.labels().clone();
        let states = self.states().clone();
        let used = labels.iter().filter(|(role, _)| states[**role] != MemberState::Out);
        let read = |(role, label): (&usize, &Label)| note::read(&*self.part(*role)?.device, label.device, label.size);
        used.filter_map(read).max_by_key(|note| note.generation)
    }

    pub fn note(&self) -> Result<Option<Vec<u8>>> {
        self.adopt()?;
        Ok(self.newest_note().map(|note| note.bytes))
    }

    pub fn set_note(&self, bytes: &[u8]) -> Result<()> {
        for (role, e) in self.write_note(bytes)? {
            if matches!(e.class, Class::Invalid | Class::NoSpace) || !self.put_out(role, &e.to_string())? {
                return Err(e);
            }
        }
        Ok(())
    }

    /// Writes a note to all members in use; returns the failures.
    fn write_note(&self, bytes: &[u8]) -> Result<Vec<(usize, Error)>> {
        let _alone = self.alone()?;
        let generation = self.newest_note().map_or(1, |note| note.generation + 1);
        let note = Note { generation, bytes: bytes.to_vec() };
        let labels = self.labels().clone();
        let states = self.states().clone();
        let write = |(role, label): (&usize, &Label)| {
            let part = self.part(*role)?;
            note::write(&*part.device, label.device, label.size, &note).err().map(|e| (*role, e))
        };
        let used = labels.iter().filter(|(role, _)| states[**role] != MemberState::Out);
        Ok(used.filter_map(write).collect())
    }
}

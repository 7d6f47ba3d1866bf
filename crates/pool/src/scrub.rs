//! Scrubbing, as somebody asks for it: all content on disks, and what a pool keeps there beside content.

use serde::Serialize;

use crate::copy::scrub;
use crate::disks::damage::{self, Damage};
use crate::Pool;
use conquest_fs::error::Result;
use conquest_fs::ubj::tend::Pace;

/// What scrubbing came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scrub {
    /// Segments and bytes of content that were verified, each copy counted.
    pub segments: u64,
    pub bytes: u64,
    pub damage: Vec<Damage>,
}

impl Pool {
    /// Verifies all content on disks, each copy of it, then labels, and the copy of the memory, and has put right what can be. `go_on` is told segments that were looked at, and
    /// of how many. What is found is kept until [`forget_damage`](Pool::forget_damage).
    pub fn scrub(&self, go_on: &mut dyn FnMut(u64, u64) -> bool) -> Result<Scrub> {
        let union = self.with_log()?;
        let slots = union.log().segments_to_scrub(self.fs.session())?;
        let (mut told, all, mut pace) = (Scrub::default(), slots.len() as u64, Pace::default());
        for (n, (sequence, _)) in slots.into_iter().enumerate() {
            if !go_on(n as u64, all) {
                break;
            }
            // It may lie elsewhere by now, or be none any more.
            let Some(slot) = union.log().slot_of(self.fs.session(), sequence)? else { continue };
            let rate = union.log().tasks(self.fs.session())?.rate;
            let one = union.scrub_one(&self.fs, sequence, slot, &mut pace, rate, &|| false)?;
            (told.segments, told.bytes) = (told.segments + 1, told.bytes + one.bytes);
            if !one.wrong.is_empty() {
                let damage = damage::ranges(&self.fs, union, &one.wrong);
                damage::add(&self.dir, damage.clone())?;
                told.damage.extend(damage);
            }
        }
        go_on(all, all);
        let beside = scrub::scrub(&self.fs, union, self.duplex.as_deref(), &|| true)?;
        damage::add(&self.dir, beside.damage.clone())?;
        told.bytes += beside.bytes;
        told.damage.extend(beside.damage);
        Ok(told)
    }

    /// Scrubbing begins, in the background.
    pub fn begin_scrub(&self) -> Result<()> {
        let (log, session) = (self.with_log()?.log(), self.fs.session());
        log.set_scrubbed(session, 0, pram::clock::seconds())?;
        self.ask_for(&|tasks| (tasks.scrub, tasks.paused) = (true, false))
    }

    /// What scrubbing has found was seen.
    pub fn forget_damage(&self) -> Result<()> {
        damage::forget(&self.dir)
    }
}

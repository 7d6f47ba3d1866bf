//! Scrubbing on request: verifies all content on disks, and what a pool keeps there beside content. Checking the backing, which changes
//! nothing.

use backing::log::Identity;
use backing::scrub::Compared;
use exraid::duplex::Duplex;
use serde::Serialize;

use crate::backing::{regions, scrub};
use crate::disks::damage::{self, Damage};
use crate::{paths, Pool};
use conquest_fs::error::{Error, Result};
use conquest_fs::maintenance::looking;
use conquest_fs::ubj::Union;
use pram::budget::Budget;

/// The result of scrubbing.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scrub {
    /// Segments and bytes of content that were verified, each replica counted.
    pub segments: u64,
    pub bytes: u64,
    pub damage: Vec<Damage>,
}

/// The result of checking the backing.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckedBacking {
    /// Bytes that were read, each copy counted.
    pub bytes: u64,
    /// Damage, none of it repaired.
    pub damage: Vec<Damage>,
    /// Why the backing cannot be used, or could not be checked.
    pub failure: Option<String>,
}

impl Pool {
    /// Verifies every replica of the content on disks, then labels, then the backing, and repairs what it can. Calls `go_on`
    /// with the number of segments verified and the number of all. Findings are stored until [`forget_damage`](Pool::forget_damage).
    pub fn scrub(&self, go_on: &mut dyn FnMut(u64, u64) -> bool) -> Result<Scrub> {
        let mut found = Scrub::default();
        if let Some(union) = self.fs.union() {
            self.scrub_content(union, &mut found, go_on)?;
        }
        let beside = scrub::scrub(&self.fs, self.fs.union().map(|union| &**union), self.duplex.as_deref(), &|| true)?;
        damage::add(&self.dir, beside.damage.clone())?;
        found.bytes += beside.bytes;
        found.damage.extend(beside.damage);
        Ok(found)
    }

    fn scrub_content(&self, union: &Union, found: &mut Scrub, go_on: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        let slots = union.log().segments_to_scrub(self.fs.session())?;
        let all = slots.len() as u64;
        let mut budget = Budget::pieces(self.fs.session().clock(), looking(|| true));
        for (n, (sequence, _)) in slots.into_iter().enumerate() {
            if !go_on(n as u64, all) {
                break;
            }
            // The segment may have moved by now, or be gone.
            let Some(slot) = union.log().slot_of(self.fs.session(), sequence)? else { continue };
            let rate = union.log().tasks(self.fs.session())?.rate;
            let one = union.scrub_one(&self.fs, sequence, slot, &mut budget, rate)?;
            (found.segments, found.bytes) = (found.segments + 1, found.bytes + one.bytes);
            if !one.wrong.is_empty() {
                let damage = damage::ranges(&self.fs, union, &one.wrong);
                damage::add(&self.dir, damage.clone())?;
                found.damage.extend(damage);
            }
        }
        go_on(all, all);
        Ok(())
    }

    /// Compares the backing, all copies of it, with its checksums, and changes nothing; `None` if the pool has no backing, or none
    /// yet.
    pub fn check_backing(&self) -> Option<CheckedBacking> {
        let is_made = || self.backing_dir().is_none_or(|backing| paths::has_backing_files(&backing));
        if backing::of(self.session()).is_none() && !self.config.backing_in_regions && !is_made() {
            return None;
        }
        let failed = |why: String| CheckedBacking { failure: Some(why), ..CheckedBacking::default() };
        match self.backing_status() {
            Ok(checked) => {
                if let Some(why) = checked?.failure {
                    return Some(failed(why));
                }
            }
            Err(e) => return Some(failed(e.to_string())),
        }
        let places = self.duplex.as_deref().map(Duplex::copies).unwrap_or_default();
        let checked = match backing::of(self.fs.session()) {
            Some(backing) => backing.examine(self.fs.session(), &mut |_| true).map_err(Error::from),
            None => self.check_at_rest(),
        };
        Some(match checked {
            Ok(compared) => {
                CheckedBacking { bytes: compared.bytes, damage: scrub::damage_of(&compared, &places), failure: None }
            }
            Err(e) => failed(e.to_string()),
        })
    }

    /// Checks the backing while no process works on the pool.
    fn check_at_rest(&self) -> Result<Compared> {
        let disks = regions::open_to_look(&self.dir, &self.config)?;
        let (id, closed) = (Identity { uuid: self.uuid()? }, backing::was_closed(self.fs.session().memory())?);
        Ok(backing::scrub::check(&disks, id, closed, &mut |_| true)?)
    }

    /// Begins scrubbing in the background.
    pub fn begin_scrub(&self) -> Result<()> {
        let (log, session) = (self.with_log()?.log(), self.fs.session());
        log.set_scrubbed(session, 0, pram::clock::seconds())?;
        self.ask_for(&|tasks| (tasks.scrub, tasks.paused) = (true, false))
    }

    /// Clears the findings of scrubbing.
    pub fn forget_damage(&self) -> Result<()> {
        damage::forget(&self.dir)
    }
}

//! Work on the disks of a pool: pending, done, and requested.

use std::cell::Cell;

use pram::budget::Budget;
use serde::Serialize;

use super::damage::{self, Damage, Found};
use crate::Pool;
use conquest_fs::error::{Error, Result};
use conquest_fs::maintenance::{looking, LEAST};
use conquest_fs::ubj::Union;
use ilfs::balance::Filled;

/// Pending work.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WorkStatus {
    /// Bytes of content that lack a replica, of these the bytes that wait for their delay (`lazy`), and bytes without any readable replica.
    pub lacking: u64,
    pub lazy: u64,
    pub lost: u64,
    /// Segments that lack a replica.
    pub segments: u64,
    /// Seconds to make the lacking replicas at the recent speed of the disks, if that is known.
    pub seconds: Option<f64>,
    /// Regions that leave, and the bytes that are left on them.
    pub leaving: Vec<LeavingStatus>,
    /// Regions that take no content, since they are missing or have failed.
    pub out_of_use: Vec<OutOfUse>,
    /// Regions that fail together with others, each with the name of its domain.
    pub domains: Vec<(u32, String)>,
    /// Balancing goes on; it and scrubbing are paused; bytes to move until all regions are equally full.
    pub balancing: bool,
    pub paused: bool,
    pub unbalanced: u64,
    /// Most bytes per second; 0: no bound.
    pub rate: u64,
    /// Scrubbing goes on, segments that are left of it, and when it began, in seconds since 1970.
    pub scrubbing: bool,
    pub scrub_left: u64,
    pub scrub_began: u64,
    /// Findings of scrubbing that are not acknowledged.
    pub damage: Vec<Damage>,
    pub more_damage: u64,
    /// Blocks of 4096 bytes that the attached processes copied for replicas.
    pub copied: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct LeavingStatus {
    pub region: u32,
    pub left: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct OutOfUse {
    pub region: u32,
    /// Seconds since 1970.
    pub since: u64,
    /// `missing` or `failed`.
    pub why: &'static str,
    pub is_there: bool,
}

impl Pool {
    pub(crate) fn with_log(&self) -> Result<&Union> {
        let none = || Error::Pool(format!("{} has no disks: `conquest region add` gives it one", self.dir.display()));
        self.fs.union().map(|union| &**union).ok_or_else(none)
    }

    /// The pending work on its disks; none if it has none.
    pub fn disk_work(&self) -> Result<Option<WorkStatus>> {
        let Some(union) = self.fs.union() else { return Ok(None) };
        let (log, session) = (union.log(), self.fs.session());
        let (lacking, tasks) = (log.lacking(session)?, log.tasks(session)?);
        let Found { damage, more } = damage::read(&self.dir)?;
        let leaving = log.leavers(session)?.into_iter().map(|region| {
            let left = log.leaving(session, &[region]).map_or(0, |leaving| leaving.live);
            LeavingStatus { region, left }
        });
        let out_of_use = log.out_of_use(session)?.into_iter().map(|fenced| OutOfUse {
            region: fenced.number,
            since: fenced.since,
            why: match fenced.cause {
                ilfs::table::Cause::Missing => "missing",
                ilfs::table::Cause::Failed => "failed",
                ilfs::table::Cause::Late => "late",
            },
            is_there: fenced.is_there,
        });
        let (scrubbed, scrub_began) = log.scrubbed(session)?;
        let scrub_left = match tasks.scrub {
            true => log.segments_to_scrub(session)?.iter().filter(|(sequence, _)| *sequence >= scrubbed).count() as u64,
            false => 0,
        };
        let speed: f64 = union.regions().iter().map(|region| region.performance().write.usual_speed).sum();
        let due = lacking.bytes - lacking.lazy.min(lacking.bytes);
        Ok(Some(WorkStatus {
            lacking: lacking.bytes,
            lazy: lacking.lazy,
            lost: lacking.lost,
            segments: lacking.segments,
            seconds: (due > 0 && speed > 0.0).then(|| 2.0 * due as f64 / speed),
            leaving: leaving.collect(),
            out_of_use: out_of_use.collect(),
            domains: self.domains()?,
            balancing: tasks.balance,
            paused: tasks.paused,
            unbalanced: log.unbalanced(session)?,
            rate: tasks.rate,
            scrubbing: tasks.scrub,
            scrub_left,
            scrub_began,
            damage,
            more_damage: more,
            copied: union.copied(session),
        }))
    }

    /// How full each region is, and the bytes to move until all are equally full.
    pub fn filled(&self) -> Result<Vec<Filled>> {
        Ok(self.with_log()?.log().filled(self.fs.session())?)
    }

    /// Changes the requests to background work.
    pub fn ask_for(&self, change: &dyn Fn(&mut ilfs::jobs::Tasks)) -> Result<()> {
        self.with_log()?.log().set_tasks(self.fs.session(), change)?;
        Ok(backing::of(self.fs.session()).map_or(Ok(()), |backing| backing.wait(self.fs.session()))?)
    }

    /// Puts a failed region back in service.
    pub fn readmit(&self, region: u32) -> Result<()> {
        if !self.disks_status().regions.iter().any(|known| known.number == region) {
            return Err(self.no_region(&format!("region {region}")));
        }
        self.with_log()?.log().readmit_asked(self.fs.session(), region)?;
        Ok(backing::of(self.fs.session()).map_or(Ok(()), |backing| backing.wait(self.fs.session()))?)
    }

    /// Spreads content over all regions. `go_on` gets the bytes that are left, between segments and in rests; false if it returned false.
    pub fn balance(&self, go_on: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        let (union, left) = (self.with_log()?, Cell::new(0));
        let mut budget = Budget::pieces(self.fs.session().clock(), looking(|| go_on(left.get())));
        loop {
            left.set(union.log().unbalanced(self.fs.session())?);
            if !budget.goes_on() {
                return Ok(false);
            }
            budget.begin(union.log().tasks(self.fs.session())?.rate);
            let moved = union.balance_next(&self.fs, &mut |bytes| {
                budget.add(bytes);
                true
            })?;
            if !budget.rest(LEAST) {
                return Ok(false);
            }
            if moved.is_none() {
                union.end_epoch_and_reclaim(self.fs.session())?;
                return Ok(true);
            }
        }
    }

    /// Rewrites a file's content on disks, in its order, in the best places now. `go_on` gets the blocks that were moved; returns their number.
    pub fn reorganise(&self, ino: u64, go_on: &mut dyn FnMut(u64) -> bool) -> Result<u64> {
        self.with_log()?.reorganise(&self.fs, ino, go_on)
    }
}

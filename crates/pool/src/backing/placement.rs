//! Maintenance of a backing in regions: it lies in two regions that fail apart, if there are two; it leaves regions that leave; its notes
//! are correct.
//!
//! An excluded member whose region is well, or another region in its place, is filled while the pool is at work. A member that is not
//! wanted any more is only retired once the new one is whole.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use backing::image::Image;
use backing::log::{Disk, Log};
use exraid::duplex::{self, Completeness, Duplex, MemberStatus, Said};

use super::regions::IMAGE;
use super::{room, scrub};
use crate::config::Config;
use crate::disks::damage;
use conquest_fs::error::{Error, Result};
use conquest_fs::node::Fs;
use conquest_fs::ubj::Union;

/// Seconds after the exclusion of a member before its region may be tried again.
const CALM: u64 = 10;
/// How often to look for segments that no note names, and to refresh the states of members in other regions.
const SELDOM: Duration = Duration::from_secs(60);
/// The rest after a failure.
const REST: Duration = Duration::from_secs(10);
/// Seconds after which an unfinished backing in regions counts as left by an interrupted move.
const OLD: u64 = 600;
/// The number of members to have.
const WANTED: usize = 2;

/// The state of this work between calls.
#[derive(Default)]
pub struct Placement {
    looked: Option<Instant>,
    rests: Option<Instant>,
    /// The epoch that this process announced.
    announced: Option<u64>,
    /// The beginning, in seconds since 1970, of the last scrub that included the backing.
    scrubbed: Option<u64>,
}

/// A pool whose backing lies in regions.
pub struct Pool<'a> {
    pub fs: &'a Fs,
    pub union: &'a Union,
    pub duplex: &'a Duplex,
    pub dir: &'a Path,
}

fn fail(e: &exraid::Error) -> Error {
    Error::Pool(format!("the pool's backing: {e}"))
}

impl Placement {
    /// Does some of the work; false if there is nothing to do.
    pub fn maintain(&mut self, pool: &Pool, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let clock = pool.fs.session().clock();
        if self.rests.is_some_and(|until| clock.instant() < until) {
            return Ok(false);
        }
        let done = self.work(pool, go_on);
        if done.is_err() {
            self.rests = Some(clock.instant() + REST);
        }
        done
    }

    fn work(&mut self, pool: &Pool, go_on: &dyn Fn() -> bool) -> Result<bool> {
        pool.note_settings()?;
        if pool.improve(&[], go_on)? {
            return Ok(true);
        }
        self.announce(pool)?;
        self.scrub(pool, go_on)
    }

    /// Checks the backing when a damaged part was found, or when everything is scrubbed in the background.
    fn scrub(&mut self, pool: &Pool, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let (log, session) = (pool.union.log(), pool.fs.session());
        let (_, began) = log.scrubbed(session)?;
        let is_asked = log.tasks(session)?.scrub && self.scrubbed != Some(began);
        if !pool.duplex.take_wrong() && !is_asked {
            return Ok(false);
        }
        self.scrubbed = is_asked.then_some(began).or(self.scrubbed);
        let scrubbed = scrub::scrub(pool.fs, Some(pool.union), Some(pool.duplex), go_on)?;
        for one in &scrubbed.damage {
            let (path, region, outcome) = (one.path.as_deref().unwrap_or_default(), one.region, one.outcome());
            tracing::error!(
                "scrub: {path}, bytes {} to {}, region {region}: {}; {outcome}",
                one.first,
                one.last,
                one.why
            );
        }
        damage::add(pool.dir, scrubbed.damage)?;
        Ok(true)
    }

    /// Writes the states of members to regions that are no members; gives back segments of the backing that no note names.
    fn announce(&mut self, pool: &Pool) -> Result<()> {
        let said = pool.duplex.for_witness().map_err(|e| fail(&e))?;
        let clock = pool.fs.session().clock();
        let is_due = self.looked.is_none_or(|looked| clock.since(looked) > SELDOM);
        if self.announced == Some(said.epoch.number()) && !is_due {
            return Ok(());
        }
        (self.looked, self.announced) = (Some(clock.instant()), Some(said.epoch.number()));
        pool.make_room();
        let members = pool.duplex.members();
        for region in pool.union.regions() {
            let number = region.number();
            if !members.iter().any(|member| member.region == number) {
                let known = duplex::named_by(&*region).ok().flatten();
                if known.is_none_or(|known| (known.id, known.epoch) != (said.id, said.epoch) || known.me.is_some()) {
                    region.set_note(&said.to_bytes()).map_err(|e| fail(&e))?;
                }
            }
            let with_named = |look: &mut dyn FnMut(&[Range<u32>]) -> ilfs::Result<()>| {
                pool.duplex.with_named(number, |named| look(named))?
            };
            pool.union.log().release_unnamed(pool.fs.session(), number, &with_named, false)?;
        }
        Ok(())
    }
}

impl Pool<'_> {
    /// Stores the text of `pool.toml` with the backing.
    fn note_settings(&self) -> Result<()> {
        let Some(config) = Config::read(self.dir)? else { return Ok(()) };
        self.duplex.set_extra(config.to_text()?.as_bytes()).map_err(|e| fail(&e))
    }

    /// Takes room for the backing ahead of need, if its regions have any.
    fn make_room(&self) {
        let size = self.fs.session().memory().size();
        let members = self.duplex.members();
        let regions = self.union.regions();
        let its = regions.iter().filter(|region| members.iter().any(|member| member.region == region.number()));
        let Some(least) = its.map(|region| region.properties().size).min() else { return };
        let Some(wanted) = room::within(size, least) else { return };
        if let Err(e) = room::grow(self.duplex, wanted) {
            tracing::debug!("room for the pool's backing: {e}");
        }
    }

    /// Moves the backing to where it should lie, and not in these regions; true if something was done.
    pub fn improve(&self, without: &[u32], go_on: &dyn Fn() -> bool) -> Result<bool> {
        let members = self.duplex.members();
        if members.iter().any(|member| member.state == Completeness::Filling && member.is_there) {
            return self.fill(go_on).map(|()| true);
        }
        let log = self.union.log();
        let fenced: Vec<u32> = log.out_of_use(self.fs.session())?.into_iter().map(|fenced| fenced.number).collect();
        let is_fenced = |member: &&MemberStatus| member.state != Completeness::Out && fenced.contains(&member.region);
        // A member that was missing when the memory was made anew: its segments may have another use by now.
        let is_strange = |member: &&MemberStatus| {
            member.state != Completeness::Out && member.is_there && !self.has_segments(member.region)
        };
        if let Some(lost) = members.iter().find(is_fenced).or_else(|| members.iter().find(is_strange)) {
            // Writes to it may never be found.
            if members.iter().any(|member| member.is_whole() && !fenced.contains(&member.region)) {
                self.duplex.put_away(lost.region).map_err(|e| fail(&e))?;
                tracing::error!("the pool's backing in region {} gets none of what is written", lost.region);
                return Ok(true);
            }
        }
        let taking = log.taking();
        let stays = |number: u32| taking.contains(&number) && !without.contains(&number);
        let good: Vec<u32> = members.iter().filter(|m| m.is_whole() && stays(m.region)).map(|m| m.region).collect();
        if good.len() < WANTED && self.begin(&members, &good, without)? {
            return Ok(true);
        }
        // If another member is whole, retire members that leave, belong to no region of the pool, or are not needed.
        let whole = members.iter().filter(|member| member.is_whole()).count();
        let numbers = log.numbers();
        let is_needless = |member: &&MemberStatus| match member.is_whole() {
            true => {
                let is_leaving = self.is_leaving(member.region, without);
                !stays(member.region) && whole > 1 && (is_leaving || good.len() >= WANTED)
            }
            false => good.len() >= WANTED || !numbers.contains(&member.region) || without.contains(&member.region),
        };
        if let Some(member) = members.iter().find(is_needless).filter(|_| !good.is_empty()) {
            self.duplex.retire(member.region).map_err(|e| fail(&e))?;
            tracing::info!("the pool's backing lies in region {} no more", member.region);
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether the segments in its note belong to the backing; true if unknown.
    fn has_segments(&self, number: u32) -> bool {
        let Ok(named) = self.duplex.segments_in(number) else { return true };
        self.union.log().are_of_backing(self.fs.session(), number, &named).unwrap_or(true)
    }

    fn is_leaving(&self, number: u32, without: &[u32]) -> bool {
        let leavers = self.union.log().leavers(self.fs.session()).unwrap_or_default();
        without.contains(&number) || leavers.contains(&number)
    }

    /// Begins to fill one more member: an excluded one whose region is well, or another region.
    fn begin(&self, members: &[MemberStatus], good: &[u32], without: &[u32]) -> Result<bool> {
        let (log, session) = (self.union.log(), self.fs.session());
        let homes = log.homes_for_backing(session, without)?;
        let mut choices: Vec<u32> = Vec::new();
        for region in &homes {
            if !good.contains(&region.number()) && log.fail_apart(session, region.number(), good)? {
                choices.push(region.number());
            }
        }
        let out =
            |number: &u32| members.iter().find(|member| member.region == *number && member.state == Completeness::Out);
        let now = seconds();
        choices.retain(|number| out(number).is_none_or(|member| now.saturating_sub(member.since) >= CALM));
        // A former member has less to copy.
        choices.sort_by_key(|number| out(number).is_none());
        let mut why = None;
        for number in choices {
            match self.duplex.begin_member(number) {
                Ok(()) => {
                    tracing::info!("the pool's backing is copied to region {number}");
                    return Ok(true);
                }
                Err(e) => why = Some((number, e)),
            }
        }
        match why {
            Some((number, e)) if good.is_empty() => Err(Error::Pool(format!(
                "the pool's backing cannot be copied to region {number}: {e}; give the pool another disk (`conquest region add`)"
            ))),
            Some((number, e)) => {
                tracing::debug!("the pool's backing cannot be copied to region {number}: {e}");
                Ok(false)
            }
            None => Ok(false),
        }
    }

    fn fill(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        match self.duplex.fill(&|stream| self.extent(stream), &mut |_| go_on()).map_err(|e| fail(&e))? {
            true => {
                tracing::info!("the pool's backing is whole in {} regions", self.whole());
                Ok(())
            }
            false => Ok(()),
        }
    }

    /// Bytes of a stream that are in use; writes beyond them while it is being filled go to all members.
    fn extent(&self, stream: usize) -> u64 {
        struct Stream<'a>(&'a Duplex, usize);
        impl Disk for Stream<'_> {
            fn read_exact_at(&self, buf: &mut [u8], at: u64) -> std::io::Result<()> {
                self.0.read(self.1, buf, at).map_err(|e| std::io::Error::other(e.to_string()))
            }
            fn write_all_at(&self, _: &[u8], _: u64) -> std::io::Result<()> {
                Err(std::io::Error::other("it is only looked at"))
            }
            fn flush(&self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let disk = Stream(self.duplex, stream);
        // A checkpoint that is under way, or a log that begins anew, writes beyond that to all members.
        let extent = if stream == IMAGE { Image::extent(&disk) } else { Log::extent(&disk) };
        extent.unwrap_or(u64::MAX)
    }

    fn whole(&self) -> usize {
        self.duplex.members().iter().filter(|member| member.is_whole()).count()
    }

    /// Moves the backing out of all of these regions.
    pub fn move_away(&self, numbers: &[u32]) -> Result<()> {
        let is_in = |member: &MemberStatus| numbers.contains(&member.region);
        while self.duplex.members().iter().any(is_in) {
            if !self.improve(numbers, &|| true)? {
                return Err(Error::Pool(format!(
                    "the pool's backing lies in region {}, and no other region takes it: give the pool another disk first \
                     (`conquest region add`)",
                    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
                )));
            }
        }
        Ok(())
    }
}

fn seconds() -> u64 {
    pram::clock::seconds()
}

/// For a pool whose backing does not lie in regions: clears the remains of an attempt to move it there.
pub fn clear(fs: &Fs, union: &Union) -> Result<()> {
    for region in union.regions() {
        // Leave one that is just being made.
        let is_old = |said: &Said| said.created / 1_000_000_000 + OLD < seconds();
        if duplex::named_by(&*region).ok().flatten().is_some_and(|said| is_old(&said)) {
            duplex::forget(&*region).map_err(|e| fail(&e))?;
        }
        union.log().release_unnamed(fs.session(), region.number(), &|look| look(&[]), false)?;
    }
    Ok(())
}

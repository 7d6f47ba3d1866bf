//! The report of a pool's disks for `status` and `region list`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exraid::label::MemberState;
use exraid::meter::stutter::Stutter;
use exraid::meter::{Flow, LONG, SHORT};
use exraid::space::addresses;
use exraid::{Class, Disk, Label, Layout, Options, Performance, Region, Uuid};
use pram::memory::BLOCK;
use pram::Session;
use serde::Serialize;

use super::gather::Broken;
use super::Disks;
use crate::config::{Config, DiskEntry};
use crate::paths::{as_text, as_text_if_any};
use conquest_fs::error::Result;
use ilfs::Log;

/// The state of a disk.
#[derive(Clone, Debug, Serialize)]
pub struct DiskStatus {
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// It existed before the pool, and outlives it.
    pub given: bool,
    /// Bytes; 0 if it cannot be opened.
    pub size: u64,
    /// For a file: the bytes that its host has given it, and the free bytes of the host beyond a reserve.
    pub backed: Option<u64>,
    pub host_free: Option<u64>,
    /// The number of its region, and that region's layout.
    pub region: Option<u32>,
    pub layout: Option<String>,
    /// Its state as a member of the region: `whole`, `out`, `rebuilding`, `missing`.
    pub state: Option<&'static str>,
    /// Why it cannot be used, or is not used.
    pub problem: Option<String>,
    /// Measurements of all processes that have the pool open.
    #[serde(flatten)]
    pub performance: PerformanceStatus,
}

/// The state of a region.
#[derive(Clone, Debug, Serialize)]
pub struct RegionStatus {
    pub number: u32,
    /// `single`, `stripe`, `mirror`, `raid5`.
    pub layout: String,
    /// Bytes on one disk before the address space goes on to the next one.
    pub chunk: Option<u32>,
    /// Bytes of content; 0 if it cannot be used.
    pub size: u64,
    /// Its addresses: the first, and the one behind the last.
    pub start: u64,
    pub end: u64,
    /// Further disks that it can do without; `None`: it has lost content, or cannot be used.
    pub tolerated: Option<usize>,
    /// By role.
    pub members: Vec<MemberStatus>,
    /// Why it cannot be used.
    pub problem: Option<String>,
    /// The name of its domain, if it has one with a name and the pool's memory could be read.
    pub domain: Option<String>,
    /// It takes no new content while another region does: one of its disks stutters.
    pub sits_out: bool,
    /// Measurements of all processes that have the pool open, for the region as a whole.
    #[serde(flatten)]
    pub performance: PerformanceStatus,
}

/// The state of a member of a region.
#[derive(Clone, Debug, Serialize)]
pub struct MemberStatus {
    /// Its path, or the path where it should be, if known.
    #[serde(serialize_with = "as_text_if_any")]
    pub path: Option<PathBuf>,
    /// The UUID of the disk in the labels of the others.
    pub uuid: String,
    /// `whole`; `out`: it missed something, and is not used; `rebuilding`; `missing`.
    pub state: &'static str,
    /// Bytes of its share up to which it has been rebuilt.
    pub rebuilt: Option<u64>,
    /// Why it is missing.
    pub problem: Option<String>,
}

/// Measurements of a disk or a region, from all processes that have the pool open.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PerformanceStatus {
    /// The horizons of speeds and loads, in seconds: a measurement of that age counts 1/e of a new one. The second is for recent values.
    pub horizon_seconds: f64,
    pub recent_horizon_seconds: f64,
    /// It delivers much less than before for the same requests.
    pub stutter: Option<StutterStatus>,
    pub read: FlowStatus,
    pub write: FlowStatus,
    /// Seconds in which half, and 99 of 100, of the last flushes were done.
    pub flush_median: f64,
    pub flush_p99: f64,
    /// Age of the oldest request under way, in seconds.
    pub oldest: f64,
    /// Failed requests, by kind of failure.
    pub errors: Vec<(String, u64)>,
}

/// The slowdown of a disk.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StutterStatus {
    /// Seconds since 1970.
    pub since: u64,
    /// Bytes per second of work: now, and formerly for the same requests.
    pub delivers: f64,
    pub used_to_deliver: f64,
    pub under_way: f64,
    #[serde(skip)]
    what: Stutter,
}

impl std::fmt::Display for StutterStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.what.fmt(f)
    }
}

impl From<Stutter> for StutterStatus {
    fn from(what: Stutter) -> StutterStatus {
        let Stutter { since, delivers, used_to, under_way } = what;
        StutterStatus { since, delivers, used_to_deliver: used_to, under_way, what }
    }
}

/// Reads, or writes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FlowStatus {
    pub requests: u64,
    pub bytes: u64,
    /// Bytes per second of work, at the horizon of half a minute, and lately; 0 if unknown.
    pub speed: f64,
    pub recent_speed: f64,
    /// Bytes per second, idle time included, at the same horizons.
    pub load: f64,
    pub recent_load: f64,
    /// Seconds in which half, and 99 of 100, of the last requests were done.
    pub median: f64,
    pub p99: f64,
    /// Requests and bytes under way.
    pub queue: u64,
    pub queued_bytes: u64,
}

/// The segments of all disks together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SegmentStatus {
    /// Segments of the backing.
    pub kept: u64,
    /// Bytes of a segment.
    pub size: u64,
    pub segments: u64,
    /// Segments in use, usable segments, and segments that wait for a commit before they are usable.
    pub used: u64,
    pub free: u64,
    pub freed: u64,
    /// Of the free segments, those for which hosts of disks reserve room; and segments that are not used again.
    pub held: u64,
    pub bad: u64,
    /// Bytes of content: of files, promised to files beyond that, and the most that fits.
    pub live: u64,
    pub promised: u64,
    pub capacity: u64,
}

impl SegmentStatus {
    /// Counts so many of the segments that take no content as the backing's.
    pub fn without_backing(self, kept: u64) -> SegmentStatus {
        SegmentStatus { kept, bad: self.bad.saturating_sub(kept), ..self }
    }
}

impl From<Flow> for FlowStatus {
    fn from(flow: Flow) -> FlowStatus {
        FlowStatus {
            requests: flow.requests,
            bytes: flow.bytes,
            speed: flow.usual_speed,
            recent_speed: flow.speed,
            load: flow.usual_load,
            recent_load: flow.load,
            median: flow.median.as_secs_f64(),
            p99: flow.p99.as_secs_f64(),
            queue: flow.queue,
            queued_bytes: flow.queued_bytes,
        }
    }
}

impl From<&Performance> for PerformanceStatus {
    fn from(found: &Performance) -> PerformanceStatus {
        let seconds = |time: Duration| time.as_secs_f64();
        let count = |class: Class| (format!("{class:?}").to_lowercase(), found.errors_of(class));
        PerformanceStatus {
            horizon_seconds: seconds(LONG),
            recent_horizon_seconds: seconds(SHORT),
            stutter: found.stutter.map(StutterStatus::from),
            read: found.read.into(),
            write: found.write.into(),
            flush_median: seconds(found.flush_median),
            flush_p99: seconds(found.flush_p99),
            oldest: seconds(found.oldest),
            errors: Class::ALL.into_iter().map(count).filter(|(_, count)| *count > 0).collect(),
        }
    }
}

impl DiskStatus {
    /// The disk at the entry's path; `with_labels`: it is opened, and its label read.
    fn of(dir: &Path, entry: &DiskEntry, with_labels: bool) -> DiskStatus {
        let mut status = DiskStatus {
            path: entry.at(dir),
            given: entry.given,
            size: 0,
            backed: None,
            host_free: None,
            // The label counts instead, if it can be read.
            region: entry.region,
            layout: None,
            state: None,
            problem: None,
            performance: PerformanceStatus::default(),
        };
        if !with_labels {
            return status;
        }
        let options = Options { read_only: true, ..Options::default() };
        let Ok(disk) = Disk::open(&status.path, &options) else { return status };
        if let Ok(label) = Label::read(&disk) {
            status.size = label.size;
            (status.region, status.layout) = (Some(label.region), Some(label.layout.to_string()));
        }
        if let Ok(Some(room)) = disk.room() {
            (status.backed, status.host_free) = (Some(room.backed), Some(room.free));
        }
        status
    }
}

impl MemberStatus {
    fn new(path: Option<PathBuf>, uuid: Uuid, state: MemberState) -> MemberStatus {
        let (state, rebuilt) = match state {
            _ if path.is_none() => (MISSING, None),
            MemberState::Whole => ("whole", None),
            MemberState::Out => ("out", None),
            MemberState::Rebuilding { rebuilt } => ("rebuilding", Some(rebuilt)),
        };
        MemberStatus { path, uuid: uuid.to_string(), state, rebuilt, problem: None }
    }

    pub fn is_whole(&self) -> bool {
        self.state == "whole"
    }

    pub fn is_missing(&self) -> bool {
        self.state == MISSING
    }
}

const MISSING: &str = "missing";

impl RegionStatus {
    fn new(number: u32, layout: Layout, size: u64, members: Vec<MemberStatus>) -> RegionStatus {
        let chunk = match layout {
            Layout::Stripe { chunk } | Layout::Raid5 { chunk } => Some(chunk),
            Layout::Single | Layout::Mirror => None,
        };
        let addresses = addresses(number, size);
        RegionStatus {
            number,
            layout: layout.to_string(),
            chunk,
            size,
            start: addresses.start,
            end: addresses.end,
            tolerated: None,
            members,
            problem: None,
            domain: None,
            sits_out: false,
            performance: PerformanceStatus::default(),
        }
    }

    fn of(region: &dyn Region) -> RegionStatus {
        let member = |member: exraid::MemberStatus| {
            MemberStatus::new(member.name.map(|name| PathBuf::from(&*name)), member.device, member.state)
        };
        let members = region.members().into_iter().map(member).collect();
        RegionStatus {
            tolerated: region.tolerated(),
            performance: (&region.performance()).into(),
            ..RegionStatus::new(region.number(), region.layout(), region.properties().size, members)
        }
    }

    fn of_broken(broken: &Broken) -> RegionStatus {
        let label = &broken.label;
        let member = |member: &exraid::label::Member| {
            let there = broken.there.iter().find(|(_, device)| *device == member.device);
            MemberStatus::new(there.map(|(path, _)| path.clone()), member.device, member.state)
        };
        let members = label.members.iter().map(member).collect();
        let problem = Some(broken.error.to_string());
        RegionStatus { problem, ..RegionStatus::new(label.region, label.layout, 0, members) }
    }

    fn member_at(&self, path: &Path) -> Option<&MemberStatus> {
        self.members.iter().find(|member| member.path.as_deref() == Some(path))
    }

    /// Whether it does without one of its disks.
    pub fn is_degraded(&self) -> bool {
        self.problem.is_none() && !self.members.iter().all(MemberStatus::is_whole)
    }

    /// Why it goes on without this member, and what to do.
    fn is_without(&self, member: &MemberStatus, dir: &Path) -> Option<String> {
        let path = member.path.as_ref()?.display();
        let (pool, region) = (dir.display(), format!("region {} ({})", self.number, self.layout));
        let replace = format!("conquest region replace {pool} {path}");
        Some(match (member.state, &member.problem) {
            ("whole", _) => return None,
            ("rebuilding", _) => format!("{path} is not rebuilt yet: `{replace}` goes on with that"),
            ("out", _) => format!("{path} missed something, and {region} goes on without it: `{replace}` puts it back"),
            (_, why) => {
                let missing = || format!("{path} is missing");
                let why = why.clone().unwrap_or_else(missing);
                format!("{why}; {region} goes on without it: put it back, or another in its place: `{replace} NEW`")
            }
        })
    }

    /// Its faults, if it goes on all the same.
    pub fn trouble(&self, dir: &Path) -> Option<String> {
        if !self.is_degraded() {
            return None;
        }
        let unnamed = |role: usize, member: &MemberStatus| {
            let is_named = member.path.is_some() || member.is_whole();
            (!is_named).then(|| {
                format!("region {} ({}) lacks its disk {} ({})", self.number, self.layout, role + 1, member.uuid)
            })
        };
        let each = self.members.iter().enumerate();
        let problems = each.filter_map(|(role, member)| self.is_without(member, dir).or_else(|| unnamed(role, member)));
        Some(problems.collect::<Vec<_>>().join("\n"))
    }
}

/// The status of disks and their regions.
pub struct DisksStatus {
    pub disks: Vec<DiskStatus>,
    pub regions: Vec<RegionStatus>,
}

/// Of the pool at `dir`, as one process has them open: `logged` are the regions that its log has.
pub fn tell(dir: &Path, config: &Config, disks: &Disks, logged: &[Arc<dyn Region>], with_labels: bool) -> DisksStatus {
    let all = || disks.regions.iter().chain(logged);
    let open = all().map(|region| RegionStatus::of(&**region));
    let mut regions: Vec<RegionStatus> = open.chain(disks.broken.iter().map(RegionStatus::of_broken)).collect();
    regions.sort_by_key(|region| region.number);
    name_missing(&mut regions, disks);
    let stutters = |region: &RegionStatus| region.performance.stutter.is_some();
    let others = regions.iter().any(|region| region.problem.is_none() && !stutters(region));
    regions.iter_mut().for_each(|region| region.sits_out = others && region.performance.stutter.is_some());
    let measured = |path: &Path| {
        let mut members = all().flat_map(|region| region.members());
        members.find(|member| member.name.as_ref().is_some_and(|name| Path::new(&**name) == path))
    };
    let tell = |entry: &DiskEntry| {
        let moved = disks.moved.iter().find(|moved| moved.from == entry.at(dir));
        let path = moved.map_or_else(|| entry.path.clone(), |moved| moved.to.clone());
        let mut status = DiskStatus::of(dir, &DiskEntry { path, ..entry.clone() }, with_labels);
        let missing = disks.missing.iter().find(|missing| missing.path == status.path);
        status.problem = missing.map(|missing| missing.error.to_string());
        let found = regions.iter().find_map(|region| Some((region, region.member_at(&status.path)?)));
        if let Some((region, member)) = found {
            (status.region, status.state) = (Some(region.number), Some(member.state));
            if region.problem.is_none() {
                status.problem = region.is_without(member, dir).or(status.problem);
            }
        }
        status.performance = measured(&status.path).map(|member| (&member.performance).into()).unwrap_or_default();
        status
    };
    DisksStatus { disks: config.disks.iter().map(tell).collect(), regions }
}

/// Labels name disks by UUID. If as many disks cannot be opened as regions lack, assigns these to those, in the order of `pool.toml`.
fn name_missing(regions: &mut [RegionStatus], disks: &Disks) {
    let members = regions.iter_mut().flat_map(|region| &mut region.members);
    let lacking: Vec<&mut MemberStatus> = members.filter(|member| member.is_missing()).collect();
    if lacking.len() != disks.missing.len() {
        return;
    }
    for (member, missing) in lacking.into_iter().zip(&disks.missing) {
        (member.path, member.problem) = (Some(missing.path.clone()), Some(missing.why.clone()));
    }
}

/// The same without opening the pool.
pub fn of_closed(dir: &Path, config: &Config) -> Result<DisksStatus> {
    Ok(tell(dir, config, &Disks::open_to_look(dir, config)?, &[], true))
}

/// The segments, if the pool has a log.
pub fn segments(session: &Session) -> Result<Option<SegmentStatus>> {
    let Some(log) = Log::open(session, &[], ilfs::Options::default())? else { return Ok(None) };
    let counts = log.counts(session)?;
    Ok(Some(SegmentStatus {
        size: log.segment(),
        segments: counts.segments,
        used: counts.used(),
        free: counts.free,
        freed: counts.freed,
        held: counts.held,
        bad: counts.bad,
        kept: 0,
        live: counts.live * BLOCK,
        promised: counts.promised * BLOCK,
        capacity: counts.capacity * BLOCK,
    }))
}

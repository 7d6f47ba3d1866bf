//! What `status` and `region list` tell of a pool's disks.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exraid::meter::Flow;
use exraid::{Class, Disk, Label, MemberStatus, Options, Performance, Region};
use pram::blocks::BLOCK;
use pram::Session;
use serde::Serialize;

use super::{open_one, Disks};
use crate::error::Result;
use crate::ilfs::{self, Log};
use crate::pool::config::Config;
use crate::pool::status::as_text;

/// How a disk stands.
#[derive(Clone, Debug, Serialize)]
pub struct DiskStatus {
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// It was there before the pool, and outlives it.
    pub given: bool,
    /// Bytes; 0 where it cannot be opened.
    pub size: u64,
    /// Of a file, the bytes that its host has given it, and has left for it beyond a reserve.
    pub backed: Option<u64>,
    pub host_free: Option<u64>,
    /// The number of its region, and what kind of one that is.
    pub region: Option<u32>,
    pub layout: Option<String>,
    /// Why it cannot be used.
    pub problem: Option<String>,
    /// What this process has measured.
    pub read: FlowStatus,
    pub write: FlowStatus,
    /// Seconds in which half, and 99 of 100, of the last flushes were done.
    pub flush_median: f64,
    pub flush_p99: f64,
    /// Failed requests, by what kind of failure it was.
    pub errors: Vec<(String, u64)>,
}

/// Reads, or writes, of a disk by the process that tells.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FlowStatus {
    pub requests: u64,
    pub bytes: u64,
    /// Bytes in a second of work, at the horizon of half a minute; 0 where nothing is known.
    pub speed: f64,
    /// Seconds in which half, and 99 of 100, of the last requests were done.
    pub median: f64,
    pub p99: f64,
}

/// The segments of all disks together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SegmentStatus {
    /// Bytes of a segment.
    pub size: u64,
    pub segments: u64,
    /// Those that hold something, those that can be used, and those that wait for a commit before they can.
    pub used: u64,
    pub free: u64,
    pub freed: u64,
    /// Of the free ones, those for which hosts of disks keep room; and segments that are not used again.
    pub held: u64,
    pub bad: u64,
    /// Bytes of content: what files have there, what is promised to them beyond it, and all that there is room for.
    pub live: u64,
    pub promised: u64,
    pub capacity: u64,
}

impl From<Flow> for FlowStatus {
    fn from(flow: Flow) -> FlowStatus {
        FlowStatus {
            requests: flow.requests,
            bytes: flow.bytes,
            speed: flow.usual_speed,
            median: flow.median.as_secs_f64(),
            p99: flow.p99.as_secs_f64(),
        }
    }
}

impl DiskStatus {
    fn new(path: PathBuf, given: bool) -> DiskStatus {
        DiskStatus {
            path,
            given,
            size: 0,
            backed: None,
            host_free: None,
            region: None,
            layout: None,
            problem: None,
            read: FlowStatus::default(),
            write: FlowStatus::default(),
            flush_median: 0.0,
            flush_p99: 0.0,
            errors: Vec::new(),
        }
    }

    /// With what is there, and its label.
    fn with_label(mut self) -> DiskStatus {
        let options = Options { read_only: true, ..Options::default() };
        let Ok(disk) = Disk::open(&self.path, &options) else { return self };
        if let Ok(label) = Label::read(&disk) {
            self.size = label.size;
            (self.region, self.layout) = (Some(label.region), Some(label.layout.to_string()));
        }
        if let Ok(Some(room)) = disk.room() {
            (self.backed, self.host_free) = (Some(room.backed), Some(room.free));
        }
        self
    }

    fn measured(mut self, found: &Performance) -> DiskStatus {
        let seconds = |time: Duration| time.as_secs_f64();
        (self.read, self.write) = (found.read.into(), found.write.into());
        (self.flush_median, self.flush_p99) = (seconds(found.flush_median), seconds(found.flush_p99));
        let count = |class: Class| (format!("{class:?}").to_lowercase(), found.errors_of(class));
        self.errors = Class::ALL.into_iter().map(count).filter(|(_, count)| *count > 0).collect();
        self
    }
}

/// The disks of the pool at `dir`, as one process has them open: `later` are the regions that came later.
pub fn of_open(dir: &Path, config: &Config, disks: &Disks, later: &[Arc<dyn Region>]) -> Vec<DiskStatus> {
    let members = disks.regions.iter().chain(later).flat_map(|region| region.members());
    let named = |member: MemberStatus| Some((member.name?.to_string(), member.performance));
    let measured: HashMap<String, Performance> = members.filter_map(named).collect();
    let missing: HashMap<&Path, &String> = disks.missing.iter().map(|(path, why)| (&**path, why)).collect();
    let tell = |entry: &crate::pool::config::DiskEntry| {
        let status = DiskStatus::new(entry.at(dir), entry.given).with_label();
        let problem = missing.get(&*status.path).map(|why| (*why).clone());
        let status = match measured.get(&*status.path.to_string_lossy()) {
            Some(performance) => status.measured(performance),
            None => status,
        };
        DiskStatus { problem, ..status }
    };
    config.disks.iter().map(tell).collect()
}

/// The same without opening the pool.
pub fn of_closed(dir: &Path, config: &Config) -> Result<Vec<DiskStatus>> {
    let uuid = config.uuid_bytes()?;
    let options = Options { read_only: true, ..Options::default() };
    let tell = |entry: &crate::pool::config::DiskEntry| {
        let problem = open_one(dir, entry, uuid, &options).err().map(|e| e.to_string());
        DiskStatus { problem, ..DiskStatus::new(entry.at(dir), entry.given).with_label() }
    };
    Ok(config.disks.iter().map(tell).collect())
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
        live: counts.live * BLOCK,
        promised: counts.promised * BLOCK,
        capacity: counts.capacity * BLOCK,
    }))
}

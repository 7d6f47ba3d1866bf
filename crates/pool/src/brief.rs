//! A pool in brief: its health, its room, and the age of its copy. The server of a mount tells it to whoever can read a
//! file of the mount, as the value of the extended attribute [`ATTRIBUTE`] of each of its files.

use serde::{Deserialize, Serialize};

use super::disks::disks_status::{self, DisksStatus, SegmentStatus};
use super::health::{self, Facts, Finding, Health};
use super::status::{BackingStatus, Status};
use super::{MediumKind, Pool};
use conquest_fs::error::Result;
use pram::memory::BLOCK;
use pram::CHUNK;

/// Its value is a [`Brief`] as JSON. It cannot be set, and lists of attributes do not have it.
pub const ATTRIBUTE: &str = "user.conquest.status";

/// Findings in it, the worst: a value has 64 KiB at most.
const FINDINGS: usize = 20;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Brief {
    /// Of the program that tells it.
    pub version: String,
    pub pool: String,
    pub uuid: String,
    pub medium: MediumKind,
    pub health: Health,
    pub findings: Vec<Finding>,
    /// The server of its mount.
    pub pid: Option<u32>,
    /// What content takes that does not give way; and the cache, which does.
    pub memory: Room,
    pub cache: u64,
    pub disks: Option<Room>,
    pub copy: Option<Copy>,
}

/// Bytes: all, and those in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    pub size: u64,
    pub used: u64,
}

/// The copy of the memory on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Copy {
    /// Seconds since the instant of its state; none: it has none yet.
    pub age: Option<f64>,
    /// Bytes that have changed since.
    pub pending: u64,
    /// The commit interval in seconds.
    pub interval: f64,
    /// The regions it lies in; none: it lies in files of its own.
    pub regions: Vec<u32>,
    /// It takes no more writes.
    pub failed: bool,
}

impl Copy {
    /// Seconds of work that the memory has and the copy has not.
    pub fn lacks(&self) -> Option<f64> {
        if self.pending == 0 {
            return Some(0.0);
        }
        self.age
    }

    fn of(backing: &BackingStatus) -> Copy {
        Copy {
            age: (backing.as_of > 0.0).then_some(backing.age),
            pending: backing.pending,
            interval: backing.interval,
            regions: backing.regions.iter().map(|region| region.region).collect(),
            failed: backing.failure.is_some(),
        }
    }
}

impl Brief {
    /// Bytes of memory and disks together.
    pub fn room(&self) -> Room {
        let disks = self.disks.unwrap_or_default();
        Room { size: self.memory.size + disks.size, used: self.memory.used + disks.used }
    }
}

impl Facts<'_> {
    /// `memory`: with the cache.
    fn brief(&self, memory: Room, cache: u64, segments: Option<&SegmentStatus>) -> Brief {
        let mut findings = self.findings();
        let health = health::of(&findings);
        findings.truncate(FINDINGS);
        let cache = cache.min(memory.used);
        let mount = self.sessions.iter().find(|session| session.is_mount() && !session.gone);
        Brief {
            version: env!("CARGO_PKG_VERSION").into(),
            pool: self.pool.display().to_string(),
            uuid: self.uuid.into(),
            medium: self.medium,
            health,
            findings,
            pid: mount.map(|session| session.pid),
            memory: Room { used: memory.used - cache, ..memory },
            cache,
            disks: segments.map(|s| Room { size: s.capacity, used: s.live + s.promised }),
            copy: self.backing.map(Copy::of),
        }
    }
}

impl Status {
    pub fn brief(&self) -> Brief {
        let memory = Room { size: self.size, used: self.used };
        let cache = self.cache.as_ref().map_or(0, |cache| cache.clean);
        self.facts().brief(memory, cache, self.segments.as_ref())
    }
}

impl Pool {
    /// The same as [`Status::brief`], without a look at each object, file and label.
    pub fn brief(&self) -> Result<Brief> {
        let (session, runtime) = (self.fs.session(), self.fs.session().runtime());
        let (backing, work) = (self.backing_status()?, self.disk_work()?);
        let DisksStatus { disks, regions } = self.known_disks(false);
        let sessions: Vec<_> = self.sessions().into_iter().map(|(_, session)| session).collect();
        let facts = Facts {
            pool: &self.dir,
            uuid: &self.config.uuid,
            medium: self.config.medium,
            backing: backing.as_ref(),
            sessions: &sessions,
            regions: &regions,
            disks: &disks,
            work: work.as_ref(),
            host_full: session.is_host_full(),
        };
        let size = session.memory().size();
        let free = runtime.free_chunks() + runtime.absent();
        let used = session.memory().geo.heap_chunks(size).saturating_sub(free) * CHUNK;
        let cache = self.fs.union().map_or(0, |union| union.sizes(session).clean) * BLOCK;
        let segments = disks_status::segments(session)?.map(|segments| segments.without_backing(self.kept()));
        Ok(facts.brief(Room { size, used }, cache, segments.as_ref()))
    }
}

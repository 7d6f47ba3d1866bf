//! The facts that `conquest status` prints.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use exraid::duplex::{Completeness, MemberStatus};
use pram::memory::{Meta, BLOCK, CLASSES};
use pram::CHUNK;
use serde::Serialize;

use super::disks::disks_status::{self, DiskStatus, RegionStatus, SegmentStatus};
use super::disks::work::WorkStatus;
use super::maintenance::report::{self, TaskState};
use super::paths::{as_text, as_text_if_any};
use super::rescue::absent::read_config;
use super::{role, CompressionConfig, MediumKind, Pool, Terms};
use conquest_fs::compress::Survey;
use conquest_fs::error::Result;
use conquest_fs::layout::tag;
use conquest_fs::node::{Packed, PackedNames};
use conquest_fs::ubj;

/// The facts that `conquest status` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    #[serde(serialize_with = "as_text")]
    pub pool: PathBuf,
    pub uuid: String,
    pub medium: MediumKind,
    #[serde(serialize_with = "as_text")]
    pub nvram: PathBuf,
    /// The instruction by which the processor writes cache lines back to memory, where the medium needs one.
    pub flush_instruction: Option<&'static str>,
    /// Bytes of the memory, and of its chunks in use and free.
    pub size: u64,
    pub used: u64,
    pub free: u64,
    /// Bytes of memory taken from the host: in use, and taken ahead.
    pub taken: u64,
    /// The host has refused more memory: the pool is full before it reaches its size.
    pub host_full: bool,
    pub inodes: u64,
    /// The attached processes.
    pub sessions: Vec<SessionStatus>,
    pub heap: Vec<HeapStatus>,
    /// The part of the chunks in use that would be free if the objects of each kind and size lay close together.
    pub fragmentation: f64,
    /// A process ended without closing the pool; a sweep is due or under way.
    pub sweep_pending: bool,
    /// The longest time, in seconds, for which a commit, a save or a repair stopped all operations, since the first process attached.
    pub longest_standstill: f64,
    /// The running epoch, and the first that is not durable. Each commit begins a new epoch.
    pub epoch: u64,
    pub durable_epoch: u64,
    /// The backing, if the pool has one.
    pub backing: Option<BackingStatus>,
    /// The regions, their disks, and the segments on them.
    pub regions: Vec<RegionStatus>,
    pub disks: Vec<DiskStatus>,
    /// Pending work on the disks, if there are any.
    pub work: Option<WorkStatus>,
    pub segments: Option<SegmentStatus>,
    /// The blocks of large files in memory, if the pool has disks and they are there.
    pub cache: Option<CacheStatus>,
    /// Compression of small files: their bytes before and after.
    pub compression: CompressionStatus,
    /// Packed inodes, and packed names.
    pub packed_inodes: Packed,
    pub packed_names: PackedNames,
}

/// Compression of files that are not in use.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CompressionStatus {
    #[serde(flatten)]
    pub found: Survey,
    /// Bytes of memory that compression saves.
    pub saved: u64,
    /// The settings: the age in seconds from which files are compressed quickly, and well; percent of the memory in use from which on
    /// younger files are too; percent of one processor that compression may take.
    pub warm_after: u64,
    pub cold_after: u64,
    pub pressure: u64,
    pub share: u32,
}

impl CompressionStatus {
    fn of(found: Survey, config: &CompressionConfig) -> CompressionStatus {
        let plan = config.plan();
        CompressionStatus {
            found,
            saved: found.saved(),
            warm_after: plan.warm.as_secs(),
            cold_after: plan.cold.as_secs(),
            pressure: config.pressure(),
            share: config.share(),
        }
    }
}

/// The union cache: blocks of large files in memory. In bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CacheStatus {
    pub memory: u64,
    /// Dirty blocks, and those of them that are committed.
    pub dirty: u64,
    pub frozen: u64,
    /// Blocks that are also on disk, and are evicted when memory is wanted.
    pub clean: u64,
    /// The settings: what making memory free ahead of need leaves, the most that the cache takes, the most dirty before write-back;
    /// the age in seconds at which write-back comes in any case, and the dirty bytes at which it begins where commits are waited for.
    pub floor: u64,
    pub ceiling: u64,
    pub dirty_most: u64,
    pub dirty_age: u64,
    pub behind: u64,
    /// Dirty blocks that no commit has yet.
    pub running: u64,
    /// Bytes written to large files, and bytes written to segments for them, by write-back and by the cleaner, since the attached
    /// processes opened the pool; and the ratio of the second to the first, if there were any.
    pub stored: u64,
    pub written: u64,
    pub written_per_stored: Option<f64>,
    /// Blocks of 4096 bytes that were evicted, and blocks that were admitted because they were read again.
    pub evicted: u64,
    pub admitted: u64,
    /// Blocks that were read, by place.
    pub hits: HitStatus,
    /// Bytes copied to give content its redundancy, without those that balancing and cleaning moved.
    pub copied: u64,
    /// Blocks that cleaning moved, and segments that it freed; and the moved blocks per freed block, if there were any.
    pub moved: u64,
    pub freed: u64,
    pub moved_per_freed: Option<f64>,
    /// Files longer than this many bytes have their content on disk, unless set otherwise.
    pub threshold: u64,
    /// Demoted files, and their bytes on disks: files within their threshold that left memory since it was short.
    pub demoted_files: u64,
    pub demoted: u64,
    /// Bytes of files that are still to move between memory and disks, since a threshold or the memory's size was changed.
    pub left: u64,
}

/// Blocks of 4096 bytes that readers found, by place, about.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct HitStatus {
    /// In memory: not committed; committed and not on disk; on disk too.
    pub running: u64,
    pub frozen: u64,
    pub clean: u64,
    /// Among the blocks that the process fetched a moment ago.
    pub kept: u64,
    /// Not in memory: they were read from a disk.
    pub missed: u64,
}

impl From<ubj::Hits> for HitStatus {
    fn from(hits: ubj::Hits) -> HitStatus {
        let ubj::Hits { running, frozen, clean, fetched, missed } = hits;
        HitStatus { running, frozen, clean, kept: fetched, missed }
    }
}

fn ratio(of: u64, to: u64) -> Option<f64> {
    (to > 0).then(|| of as f64 / to as f64)
}

impl CacheStatus {
    fn of(found: ubj::Status, survey: conquest_fs::tier::Survey) -> CacheStatus {
        CacheStatus {
            memory: found.blocks * BLOCK,
            dirty: found.dirty * BLOCK,
            frozen: found.frozen * BLOCK,
            // They are counted one after the other while other threads work.
            clean: found.blocks.saturating_sub(found.dirty) * BLOCK,
            floor: found.floor * BLOCK,
            ceiling: found.ceiling * BLOCK,
            dirty_most: found.dirty_most * BLOCK,
            dirty_age: found.age.as_secs(),
            behind: found.behind,
            running: found.dirty.saturating_sub(found.frozen) * BLOCK,
            stored: found.stored,
            written: (found.written + found.moved) * BLOCK,
            written_per_stored: ratio((found.written + found.moved) * BLOCK, found.stored),
            evicted: found.evicted,
            admitted: found.admitted,
            hits: found.hits.into(),
            copied: found.copied * BLOCK,
            moved: found.moved,
            freed: found.freed,
            moved_per_freed: ratio(found.moved, found.freed * u64::from(found.log.blocks)),
            threshold: found.threshold,
            demoted_files: survey.demoted_files,
            demoted: survey.demoted_bytes,
            left: survey.left,
        }
    }
}

const FULL: &str = "its disk is full, and nothing can be changed; it goes on by itself when there is room there";

const UNUSABLE: &str = "it cannot be used; the messages of the process that opened the pool first say why";

/// The state of the backing.
#[derive(Clone, Debug, Serialize)]
pub struct BackingStatus {
    /// Where it lies.
    #[serde(serialize_with = "as_text")]
    pub dir: PathBuf,
    /// If it lies in regions of the pool: which, and whether they are complete.
    pub regions: Vec<BackingRegion>,
    /// The instant of its state, in seconds since the epoch; and how long ago that was.
    pub as_of: f64,
    pub age: f64,
    /// Bytes that have changed since that instant.
    pub pending: u64,
    /// The commit interval in seconds: the shortest of all attached processes.
    pub interval: f64,
    /// The commit interval of the pool: of each process without one of its own.
    pub pool_interval: f64,
    /// Most bytes per second that background work writes there; none: as fast as the disk is.
    pub rate: Option<u64>,
    /// Commits, and the bytes that they wrote to the logs, since the first process attached.
    pub commits: u64,
    pub logged: u64,
    /// Why the backing takes no more writes; the pool cannot be changed then on `logged`.
    pub failure: Option<String>,
    /// How often it was made anew from memory since the first process attached, as something of it was damaged; and the last damage,
    /// or the present one while it is being made.
    pub made_anew: u64,
    pub damage: Option<String>,
}

/// A region in which the backing lies.
#[derive(Clone, Debug, Serialize)]
pub struct BackingRegion {
    pub region: u32,
    /// `whole`; `out`: it lacks recent writes; `filling`: these are being copied to it; `missing`.
    pub state: &'static str,
    /// Since when, in seconds since 1970.
    pub since: u64,
    /// Bytes of its segments.
    pub bytes: u64,
}

impl BackingRegion {
    fn of(member: &MemberStatus) -> BackingRegion {
        let state = match member.state {
            Completeness::Out => "out",
            _ if !member.is_there => "missing",
            Completeness::Whole => "whole",
            Completeness::Filling => "filling",
        };
        BackingRegion { region: member.region, state, since: member.since, bytes: member.bytes }
    }
}

/// One attached process.
#[derive(Clone, Debug, Serialize)]
pub struct SessionStatus {
    pub pid: u32,
    /// `api` or `mount`.
    pub role: String,
    /// `io_uring` or `/dev/fuse`, for mounts.
    pub transport: Option<String>,
    /// For mounts: a mount point.
    #[serde(serialize_with = "as_text_if_any")]
    pub mountpoint: Option<PathBuf>,
    /// When its changes are durable: `strict`, at return; `fsync`, after that.
    pub durability: Option<&'static str>,
    /// The commit interval in seconds, if the pool has a backing.
    pub commit: Option<f64>,
    /// The process ended without closing the pool, and no other has cleaned up after it yet.
    pub gone: bool,
    /// Its background tasks; none if the pool was only inspected, not opened.
    pub tasks: Vec<TaskState>,
}

impl SessionStatus {
    /// Whether it is the mount of the pool.
    pub fn is_mount(&self) -> bool {
        self.transport.is_some()
    }
}

/// One kind and size class of objects.
#[derive(Clone, Debug, Serialize)]
pub struct HeapStatus {
    pub kind: String,
    /// Bytes per object.
    pub size: u64,
    pub objects: u64,
    pub chunks: u64,
}

impl HeapStatus {
    /// Chunks that the objects fill.
    fn needs(&self) -> u64 {
        match CLASSES.iter().find(|class| u64::from(class.size) == self.size) {
            Some(class) => self.objects.div_ceil(class.count.into()),
            None => self.chunks,
        }
    }
}

impl BackingStatus {
    /// The status of a backing that this process does not write.
    pub(super) fn unused(dir: PathBuf, interval: f64, rate: Option<u64>, failure: String) -> BackingStatus {
        let failure = Some(failure);
        BackingStatus {
            dir,
            regions: Vec::new(),
            as_of: 0.0,
            age: 0.0,
            pending: 0,
            interval,
            pool_interval: interval,
            rate,
            commits: 0,
            logged: 0,
            failure,
            made_anew: 0,
            damage: None,
        }
    }
}

impl Status {
    /// Leaves out the process that asks.
    pub fn without(mut self, pid: u32) -> Status {
        self.sessions.retain(|session| session.pid != pid);
        self.set_interval();
        self
    }

    /// Each process commits for all, so the shortest interval counts.
    fn set_interval(&mut self) {
        if let Some(backing) = &mut self.backing {
            let shortest = self.sessions.iter().filter_map(|session| session.commit).reduce(f64::min);
            backing.interval = shortest.unwrap_or(backing.pool_interval);
        }
    }
}

impl Pool {
    /// The attached processes, with the numbers of their sessions.
    pub(super) fn sessions(&self) -> Vec<(u32, SessionStatus)> {
        let session = self.fs.session();
        let status = |info: pram::runtime::SessionInfo| {
            let (n, gone) = (info.index, !session.is_alive(info.index));
            let tasks = if gone { Vec::new() } else { report::of_session(&self.fs, n) };
            (n, SessionStatus { gone, tasks, ..session_status(info) })
        };
        session.runtime().sessions().into_iter().map(status).collect()
    }

    pub fn status(&self) -> Result<Status> {
        let heap = self.heap_status()?;
        let close: u64 = heap.iter().map(HeapStatus::needs).sum();
        let chunks: u64 = heap.iter().map(|h| h.chunks).sum();
        let session = self.fs.session();
        let (size, used) = (session.memory().size(), chunks * CHUNK);
        let epochs = session.epochs()?;
        let disks_status::DisksStatus { disks, regions } = self.disks_status();
        let mut status = Status {
            pool: self.dir.clone(),
            uuid: self.config.uuid.clone(),
            medium: self.config.medium,
            nvram: self.config.nvram_path(&self.dir),
            flush_instruction: self.fs.memory().flush_instruction(),
            size,
            used,
            free: (session.memory().geo.heap_chunks(size) * CHUNK).saturating_sub(used),
            taken: session.heap().taken(),
            host_full: session.is_host_full(),
            inodes: self.fs.count_inodes()?,
            sessions: self.sessions().into_iter().map(|(_, session)| session).collect(),
            heap,
            fragmentation: if used == 0 { 0.0 } else { 1.0 - close as f64 / chunks as f64 },
            sweep_pending: self.fs.session().runtime().leaks_pending(),
            longest_standstill: self.fs.session().runtime().longest_standstill().as_secs_f64(),
            epoch: epochs.running,
            durable_epoch: epochs.durable,
            backing: self.backing_status()?,
            regions,
            work: self.disk_work()?,
            disks,
            segments: disks_status::segments(session)?.map(|segments| segments.without_backing(self.kept())),
            cache: self.cache_status()?,
            compression: CompressionStatus::of(self.fs.survey_compression()?, &self.config.compression),
            packed_inodes: self.fs.packed_inodes()?,
            packed_names: self.fs.packed_names()?,
        };
        status.set_interval();
        Ok(status)
    }

    /// Segments of the backing.
    pub(super) fn kept(&self) -> u64 {
        let Some(duplex) = &self.duplex else { return 0 };
        duplex.members().iter().map(|member| member.bytes).sum::<u64>() / duplex.segment()
    }

    /// What this process knows of its disks, and with `with_labels` what their labels say.
    pub(super) fn known_disks(&self, with_labels: bool) -> disks_status::DisksStatus {
        // Disks may have been added since the pool was opened.
        let config = read_config(&self.dir).unwrap_or_else(|_| self.config.clone());
        let logged = self.fs.union().map_or(Vec::new(), |union| union.regions());
        disks_status::tell(&self.dir, &config, &self.disks, &logged, with_labels)
    }

    pub(super) fn disks_status(&self) -> disks_status::DisksStatus {
        let mut status = self.known_disks(true);
        let domains = self.domains().unwrap_or_default();
        for region in &mut status.regions {
            let found = domains.iter().find(|(number, _)| *number == region.number);
            region.domain = found.map(|(_, name)| name.clone());
        }
        status
    }

    fn cache_status(&self) -> Result<Option<CacheStatus>> {
        let Some(union) = self.fs.union() else { return Ok(None) };
        Ok(Some(CacheStatus::of(union.status(self.fs.session())?, union.survey(&self.fs)?)))
    }

    pub(crate) fn backing_status(&self) -> Result<Option<BackingStatus>> {
        let session = self.fs.session();
        let in_regions = self.config.backing_in_regions.then(|| self.dir.clone());
        let Some(dir) = self.config.backing_dir(&self.dir).or(in_regions) else { return Ok(None) };
        let (interval, rate) = (self.config.interval().into(), self.config.backing_rate.map(u64::from));
        let members = self.duplex.as_ref().map(|duplex| duplex.members()).unwrap_or_default();
        let Some(backing) = backing::of(session) else {
            let found = self.found.as_ref().filter(|found| found.failure.is_none());
            let failure = self.found.as_ref().and_then(|found| found.failure.clone());
            let status = BackingStatus::unused(dir, interval, rate, failure.unwrap_or_else(|| UNUSABLE.into()));
            return Ok(Some(found.map_or(status.clone(), |found| BackingStatus {
                regions: members.iter().map(BackingRegion::of).collect(),
                as_of: found.as_of as f64 / 1e9,
                age: (pram::clock::precise() - found.as_of).max(0) as f64 / 1e9,
                pending: found.pending.unwrap_or_default(),
                failure: None,
                ..status
            })));
        };
        let (now, as_of) = (pram::clock::precise(), session.runtime().backing_time());
        let (commits, logged) = session.runtime().backing_commits();
        let (made_anew, damage) = session.runtime().backing_anew();
        Ok(Some(BackingStatus {
            dir,
            regions: members.iter().map(BackingRegion::of).collect(),
            as_of: as_of as f64 / 1e9,
            age: (now - as_of).max(0) as f64 / 1e9,
            pending: backing.pending(session)?,
            interval,
            pool_interval: interval,
            rate,
            commits,
            logged,
            failure: session
                .runtime()
                .backing_failure()
                .or_else(|| session.runtime().backing_full().then(|| FULL.into())),
            made_anew,
            damage,
        }))
    }

    fn heap_status(&self) -> Result<Vec<HeapStatus>> {
        let memory = self.fs.session().memory();
        let mut found = std::collections::BTreeMap::<(u8, u64), (u64, u64)>::new();
        for s in memory.chunks() {
            let meta = memory.meta(s)?;
            let (tag, size, objects, chunks) = match (meta.sharers(), meta) {
                (Some((tag, class)), _) => {
                    let c = &CLASSES[usize::from(class)];
                    let mut objects = 0;
                    for w in 0..c.count.div_ceil(64) {
                        objects += u64::from(memory.taken(s, class, w)?.count_ones());
                    }
                    (tag, u64::from(c.size), objects, 1)
                }
                (_, Meta::RunHead { tag, len }) => (tag, u64::from(len) * CHUNK, 1, u64::from(len)),
                _ => continue,
            };
            let sum = found.entry((tag.0, size)).or_default();
            sum.0 += objects;
            sum.1 += chunks;
        }
        let name = |t: u8| tag::NAMES.get(usize::from(t)).unwrap_or(&"unknown").to_string();
        Ok(found
            .into_iter()
            .map(|((tag, size), (objects, chunks))| HeapStatus { kind: name(tag), size, objects, chunks })
            .collect())
    }
}

pub(super) fn session_status(s: pram::runtime::SessionInfo) -> SessionStatus {
    let transport = match s.role {
        role::MOUNT_URING => Some("io_uring"),
        role::MOUNT_DEV => Some("/dev/fuse"),
        _ => None,
    };
    let terms = Terms::of(s.terms);
    SessionStatus {
        pid: s.pid,
        role: match s.role {
            role::MOUNT_URING | role::MOUNT_DEV => "mount",
            role::GUEST => "guest",
            _ => "api",
        }
        .into(),
        transport: transport.map(Into::into),
        durability: terms.durability.map(|durability| durability.name()),
        commit: terms.commit_interval.map(f64::from),
        mountpoint: transport.map(|_| PathBuf::from(OsStr::from_bytes(&s.label))),
        gone: false,
        tasks: Vec::new(),
    }
}

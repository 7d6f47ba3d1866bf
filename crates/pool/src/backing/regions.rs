//! The backing in regions of the pool itself: three streams of a [`Duplex`], in up to two regions that fail apart.
//!
//! `pool.toml` and labels of the disks tell how to open the regions before there is any memory, independently of the log of segments,
//! which opens them later as another process would. Their transfers are ordinary calls, which end before a killed process does:
//! a process that takes over a commit must not find a write of it still under way.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use backing::log::Disk;
use backing::{Disks, SharedDisk};
use exraid::duplex::presence::Presence;
use exraid::duplex::{self, Duplex, Refusal, Supply};
use exraid::{Class, Options, Region};
use rustix::io::Errno;

use super::files;
use crate::config::Config;
use crate::disks::gather::{Gathered, With};
use crate::disks::grow;
use crate::disks::shared::Agreement;
use crate::disks::Disks as PoolDisks;
use conquest_fs::error::{Error, Result};
use conquest_fs::node::Fs;

/// The streams: the image, and the logs.
pub const IMAGE: usize = 0;
pub const LOGS: [usize; 2] = [1, 2];

/// How long processes that detach may still have it open, and how often to look.
const GOING: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);
/// Bytes that a stream may have beyond its need.
const NEEDLESS: u64 = 64 << 20;
/// Reads under way at a time of a backing that is read back.
const READS: usize = 4;

/// A backing in use. Its parts are dropped in this order.
pub struct InRegions {
    pub duplex: Arc<Duplex>,
    _presence: Vec<Presence>,
    _agreements: Vec<Arc<Agreement>>,
}

struct Stream {
    of: Arc<InRegions>,
    n: usize,
}

impl InRegions {
    pub fn disks(self: &Arc<InRegions>) -> Disks {
        let stream = |n| Arc::new(Stream { of: self.clone(), n }) as SharedDisk;
        Disks { image: stream(IMAGE), logs: LOGS.map(stream) }
    }
}

impl Disk for Stream {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.of.duplex.read(self.n, buf, at).map_err(to_io)
    }

    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.of.duplex.write(self.n, bytes, at).map_err(to_io)
    }

    fn flush(&self) -> io::Result<()> {
        self.of.duplex.flush().map_err(to_io)
    }

    fn write_through(&self, bytes: &[u8], at: u64) -> io::Result<io::Result<()>> {
        self.of.duplex.write_through(self.n, bytes, at).map(Ok).map_err(to_io)
    }

    fn reads_at_once(&self) -> usize {
        READS
    }

    fn copies(&self) -> usize {
        self.of.duplex.copies().len()
    }

    fn read_copy_at(&self, n: usize, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.of.duplex.read_copy(self.n, n, buf, at).map_err(to_io)
    }

    fn note_wrong(&self) {
        self.of.duplex.note_wrong();
    }

    fn put_away(&self, copies: &[usize]) -> io::Result<()> {
        for old in self.of.duplex.put_away_copies(copies).map_err(to_io)? {
            tracing::error!(
                "{old} has an older copy of the pool's backing than the others: its disk was put back from an earlier time, or has \
                 lost writes. The newer copy counts. What files had there may be old or missing, too: `conquest scrub` finds it"
            );
        }
        Ok(())
    }

    fn reserved(&self) -> Option<u64> {
        Some(self.of.duplex.known_len(self.n))
    }

    fn trim(&self, bytes: u64) {
        let has = self.of.duplex.len(self.n);
        if has > bytes + (bytes / 2).max(NEEDLESS) {
            if let Err(e) = self.of.duplex.shrink(self.n, bytes + bytes / 4) {
                tracing::warn!("giving back what the pool's backing does not need: {e}");
            }
        }
    }
}

fn to_io(e: exraid::Error) -> io::Error {
    match e.class {
        Class::NoSpace => Errno::NOSPC.into(),
        Class::Invalid => io::Error::new(io::ErrorKind::UnexpectedEof, e.to_string()),
        _ => io::Error::other(e.to_string()),
    }
}

/// Opens the backing of the pool at `dir` to work with it; as the `first` process only if no process works with it.
pub fn take(dir: &Path, config: &Config, first: bool) -> Result<Arc<InRegions>> {
    let agreement = Agreement::beside(dir, config, "disks")?;
    let common = Agreement::beside(dir, config, "copy")?;
    let options = Options { threads: true, ..agreement.options() };
    let found = Gathered::of(dir, config, config.uuid_bytes()?, &options);
    found.to_be_leased(dir, config.uuid_bytes()?)?;
    let disks = found.assemble(dir, false, With::Sharing(&agreement.sharing(dir)));
    let regions = members(&disks, dir)?;
    let presence = be_there(&regions, first, dir)?;
    let duplex = Duplex::open(&regions, Some(common.common()), false).map_err(|e| refused(dir, &disks, &e))?;
    tell(&duplex);
    let (uuid, home, sharing) = (config.uuid_bytes()?, dir.to_path_buf(), agreement.clone());
    duplex.set_finder(Box::new(move |number| {
        let options = Options { threads: true, ..sharing.options() };
        grow::open_region(&home, uuid, &sharing, &options, number).ok().flatten()
    }));
    Ok(Arc::new(InRegions { duplex: Arc::new(duplex), _presence: presence, _agreements: vec![agreement, common] }))
}

/// The same, to inspect it: nothing is changed.
pub fn look(dir: &Path, config: &Config) -> Result<Arc<InRegions>> {
    let options = Options { read_only: true, threads: true, ..Options::default() };
    let disks = Gathered::of(dir, config, config.uuid_bytes()?, &options).assemble(dir, true, With::Nobody);
    let regions = members(&disks, dir)?;
    let duplex = Duplex::open(&regions, None, true).map_err(|e| refused(dir, &disks, &e))?;
    Ok(Arc::new(InRegions { duplex: Arc::new(duplex), _presence: Vec::new(), _agreements: Vec::new() }))
}

/// Opens the backing of the pool at `dir` to inspect it, wherever it lies.
pub fn open_to_look(dir: &Path, config: &Config) -> Result<Disks> {
    match config.backing_in_regions {
        true => Ok(look(dir, config)?.disks()),
        false => files::open(&config.backing_dir(dir).unwrap_or_else(|| dir.into())),
    }
}

/// Whether any process writes to the backing of the pool at `dir`.
pub fn are_in_use(dir: &Path, config: &Config) -> bool {
    let taken = |path: PathBuf| Presence::is_taken(&path).unwrap_or(false);
    config.disks.iter().any(|entry| taken(entry.at(dir)))
}

/// The members of the backing among the regions that are there.
fn members(disks: &PoolDisks, dir: &Path) -> Result<Vec<Arc<dyn Region>>> {
    let found = duplex::look(&disks.regions).map_err(|e| refused(dir, disks, &e))?;
    let is_member = |number| found.said.members.iter().flatten().any(|member| member.region == number);
    Ok(disks.regions.iter().filter(|region| is_member(region.number())).cloned().collect())
}

fn be_there(regions: &[Arc<dyn Region>], first: bool, dir: &Path) -> Result<Vec<Presence>> {
    let names = regions.iter().flat_map(|region| region.members()).filter_map(|member| member.name);
    let paths: Vec<PathBuf> = names.map(|name| PathBuf::from(&*name)).collect();
    let (mut there, end) = (Vec::new(), Instant::now() + GOING);
    for path in &paths {
        loop {
            match Presence::take(path, first).map_err(|e| Error::host(path, &e))? {
                Some(presence) => break there.push(presence),
                None if Instant::now() >= end => {
                    return Err(Error::Pool(format!(
                        "{} holds the backing of the pool at {}, and is in use by a process that has another memory of it (of a pool directory \
                         that was copied?); unmount that pool first",
                        path.display(),
                        dir.display()
                    )))
                }
                None => std::thread::sleep(LOOK),
            }
        }
    }
    Ok(there)
}

fn tell(duplex: &Duplex) {
    for member in duplex.members().iter().filter(|member| !member.is_there) {
        tracing::warn!("the pool's backing in region {} is missing, and gets none of what is written", member.region);
    }
}

/// Why the backing cannot be used, and which disks are missing.
pub fn refused(dir: &Path, disks: &PoolDisks, e: &Refusal) -> Error {
    let missing = disks.missing.iter().map(|missing| format!("; {}: {}", missing.path.display(), missing.why));
    let broken = disks.broken.iter().map(|broken| format!("; {}", broken.error));
    let more: String = missing.chain(broken).collect();
    Error::Pool(format!(
        "the backing of the memory of the pool at {}, in its regions, cannot be used: {e}{more}",
        dir.display()
    ))
}

/// Takes segments from the log of a pool that is open.
struct LogSupply(Weak<Fs>);

/// The source of segments for the streams.
pub fn supply(fs: &Arc<Fs>) -> Arc<dyn Supply> {
    Arc::new(LogSupply(Arc::downgrade(fs)))
}

impl Supply for LogSupply {
    fn take(&self, region: u32, count: u64) -> exraid::Result<Vec<u32>> {
        let gone = || exraid::Error::new(Class::NoSpace, &"the log of segments".into(), "it is being closed");
        let fs = self.0.upgrade().ok_or_else(gone)?;
        let union = fs.union().ok_or_else(gone)?;
        union.log().take_for_backing(fs.session(), region, count).map_err(|e| {
            let class = if matches!(e, ilfs::Error::NoSpace) { Class::NoSpace } else { Class::Transient };
            exraid::Error::new(
                class,
                &format!("region {region}").into(),
                format!("taking segments for the backing: {e}"),
            )
        })
    }

    fn has(&self, region: u32, segments: &[std::ops::Range<u32>]) -> bool {
        let Some(fs) = self.0.upgrade() else { return false };
        fs.union().is_some_and(|union| union.log().are_of_backing(fs.session(), region, segments).unwrap_or(false))
    }

    fn give_back(&self, region: u32, segments: &[std::ops::Range<u32>]) {
        let Some(fs) = self.0.upgrade() else { return };
        let Some(union) = fs.union() else { return };
        if let Err(e) = union.log().release_from_backing(fs.session(), region, segments) {
            // The search for segments that no note names finds them.
            tracing::warn!("giving back segments of the backing in region {region}: {e}");
        }
    }
}

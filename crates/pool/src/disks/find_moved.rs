//! Finds devices that are not where `pool.toml` names them, by their labels: in the directories that it names, and among those
//! for which the system has further names.
//!
//! Devices change their names by themselves. Users name files: a user who moves one takes a disk away. Of two devices
//! with one label none is taken, since one of them is a copy, or lies beneath the other, and nothing tells which.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{mpsc, Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Instant;

use exraid::disk::MIN_SIZE;
use exraid::{owner, Disk, Label, Uuid, PATIENCE};

use crate::config::Config;

/// The directory in which udev keeps directories with further names of devices.
const NAMED: &str = "/dev/disk";
/// Devices that are tested at a time: one that does not answer must not hide others.
const AT_ONCE: usize = 16;

/// A disk of the pool.
pub struct Sought {
    pub path: PathBuf,
    pub label: Label,
    /// Why it must not be used.
    pub refused: Option<String>,
}

/// Disks of the pool at `dir`, with this UUID, that are at none of the paths `known`; of one region first the one with the newest
/// label.
pub fn find(dir: &Path, config: &Config, uuid: [u8; 16], known: &[PathBuf]) -> Vec<Sought> {
    let mut found = once_each(peek(candidates(dir, config, known), Uuid(uuid)));
    found.sort_by_key(|Sought { label, .. }| std::cmp::Reverse((label.epoch.number(), label.generation)));
    found
}

/// Devices, each by one name: real ones in these directories, and targets of links there.
fn candidates(dir: &Path, config: &Config, known: &[PathBuf]) -> VecDeque<PathBuf> {
    let mut seen: HashSet<u64> = known.iter().filter_map(|path| device(path)).collect();
    let parents = config.disks.iter().filter_map(|entry| Some(entry.at(dir).parent()?.to_path_buf()));
    let named = fs::read_dir(NAMED).into_iter().flatten().flatten().map(|entry| entry.path());
    let dirs = parents.chain(named).filter_map(|dir| dir.canonicalize().ok());
    let dirs: Vec<PathBuf> =
        dirs.scan(HashSet::new(), |dirs, dir| Some(dirs.insert(dir.clone()).then_some(dir))).flatten().collect();
    let entries = dirs.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    let may_be = |kind: fs::FileType| kind.is_block_device() || kind.is_symlink();
    let paths = entries.filter(|entry| entry.file_type().is_ok_and(may_be)).map(|entry| entry.path());
    let real = paths.filter_map(|path| path.canonicalize().ok());
    real.filter(|path| device(path).is_some_and(|device| is_disk(device) && seen.insert(device))).collect()
}

/// The number of a block device.
fn device(path: &Path) -> Option<u64> {
    let found = fs::metadata(path).ok()?;
    found.file_type().is_block_device().then(|| found.rdev())
}

/// Whether it can hold content. Opening a drive without a medium may move it.
fn is_disk(device: u64) -> bool {
    let file = format!("/sys/dev/block/{}:{}/size", rustix::fs::major(device), rustix::fs::minor(device));
    let sectors = fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u64>().ok());
    sectors.is_none_or(|sectors| sectors >= MIN_SIZE / 512)
}

/// Devices with a label of the pool. A device that does not answer in time is left out; opening it may leave a thread behind.
fn peek(candidates: VecDeque<PathBuf>, pool: Uuid) -> Vec<(PathBuf, Label)> {
    let threads = candidates.len().min(AT_ONCE);
    let (candidates, (sender, answers)) = (Arc::new(Mutex::new(candidates)), mpsc::channel());
    for _ in 0..threads {
        let (candidates, sender) = (candidates.clone(), sender.clone());
        let next = move || candidates.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let look = move || {
            let labelled = std::iter::from_fn(next).filter_map(|path| Some((Disk::peek(&path).ok()?, path)));
            let of_pool = labelled.filter(|(label, _)| label.pool == pool);
            // If the receiver is gone, this came too late.
            let _ = of_pool.map(|(label, path)| (path, label)).all(|found| sender.send(found).is_ok());
        };
        if let Err(e) = Builder::new().name("seek disks".into()).spawn(look) {
            tracing::warn!("no thread to look for disks: {e}");
        }
    }
    drop(sender);
    let end = Instant::now() + PATIENCE;
    let next = || answers.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
    std::iter::from_fn(next).collect()
}

/// Each label once. Following a label that exists twice, or that is another user's, could lead writes to the wrong disk.
fn once_each(found: Vec<(PathBuf, Label)>) -> Vec<Sought> {
    let mut by_label: BTreeMap<Uuid, Vec<(PathBuf, Label)>> = BTreeMap::new();
    for one in found {
        by_label.entry(one.1.device).or_default().push(one);
    }
    let judged = by_label.into_values().filter_map(|mut same| {
        same.sort_by(|one, other| one.0.cmp(&other.0));
        let paths: Vec<String> = same.iter().map(|(path, _)| path.display().to_string()).collect();
        let (path, label) = same.into_iter().next()?;
        let refused = match &paths[..] {
            [_] => owner::refuse_foreign_file(&path)
                .err()
                .map(|why| format!("its label is on {}, but {why}", path.display())),
            _ => Some(format!(
                "{} have the label of one disk, and only one of them is it: name that in pool.toml, and detach copies",
                paths.join(" and ")
            )),
        };
        Some(Sought { path, label, refused })
    });
    judged.collect()
}

//! Moving the backing of a pool's memory from its directory into regions of the pool.
//!
//! | step | action | otherwise, after a crash |
//! | --- | --- | --- |
//! | 1 | the table of segments reserves segments for it; committed | content is written there |
//! | 2 | notes beside the labels name them; durable | nothing leads to them |
//! | 3 | while no process uses the pool, all of the backing is written there; durable | |
//! | 4 | `pool.toml` says that it lies there; durable | the backing there lacks something |
//! | 5 | the files are removed; `image` stays, with a line of text: its locks tell which processes use the pool, and memory is named after it | |
//!
//! Until step 4 the files are the backing, and the next opening of the pool gives the segments back. From then on the regions have it, and the
//! next opening does step 5.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use backing::image::Image;
use backing::log::{Disk, Identity};
use backing::SharedDisk;
use exraid::duplex::raw::append;
use exraid::duplex::{Duplex, Spans};
use exraid::Region;
use rustix::fs::OFlags;

use super::Builder;
use crate::backing::room::{self, Streams};
use crate::backing::{files, regions};
use crate::config::Config;
use crate::disks::shared::Agreement;
use crate::medium::MediumKind;
use crate::memory::locks;
use crate::options::OpenOptions;
use crate::paths::{self, IMAGE, LOGS};
use crate::rescue::absent::read_config;
use crate::Pool;
use conquest_fs::error::{Error, Result};

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;
/// Room for the image to grow at first: bytes at least, and the part of its size.
const MORE: u64 = 8 << 20;
const SHARE: u64 = 4;
/// The text of `image` afterwards, so that it is not taken for anything else. Existing pools have these bytes.
const STUB: &str = "CQ-LINK: the copy of this pool's memory lies in its regions; see pool.toml\n";

/// Regions in which it lies, at most.
pub const REGIONS: usize = 2;

/// Moves the backing of the pool at `dir`, on `logged`, into its regions. No process may use the pool.
pub fn into_regions(dir: &Path) -> Result<()> {
    let config = read_config(dir)?;
    if config.backing_in_regions {
        return Ok(());
    }
    let log = prepare(dir, &config)?;
    if config.medium != MediumKind::Logged {
        return begin_in_regions(dir, log);
    }
    let _alone = Builder::begin(dir)?;
    let mut config = read_config(dir)?;
    let _held = locks::hold_unused(&config.lock_path(dir))?;
    // 3.
    let from = files::take(dir, true)?;
    let to = regions::take(dir, &config, true)?;
    let streams = to.disks();
    copy_all(&from.image, &streams.image, &dir.join(IMAGE), false)?;
    for (n, name) in LOGS.iter().enumerate() {
        copy_all(&from.logs[n], &streams.logs[n], &dir.join(name), true)?;
    }
    to.duplex.flush().map_err(|e| Error::Pool(e.to_string()))?;
    backing::identify(&streams)?;
    drop((streams, to, from));
    // 4.
    config.backing_in_regions = true;
    config.write(dir)?;
    clear(dir)
}

/// The same for a pool whose memory outlives a power cut: an empty backing, with logs of so many bytes; opening the pool fills it.
fn begin_in_regions(dir: &Path, size: u64) -> Result<()> {
    let _alone = Builder::begin(dir)?;
    let mut config = read_config(dir)?;
    let _held = locks::hold_unused(&config.lock_path(dir))?;
    let to = regions::take(dir, &config, true)?;
    let streams = to.disks();
    for (n, log) in streams.logs.iter().enumerate() {
        let zeros = vec![0; PIECE];
        let write = |at| log.write_all_at(&zeros, at).map_err(|e| Error::host(&dir.join(LOGS[n]), &e));
        (0..size).step_by(PIECE).try_for_each(write)?;
    }
    backing::create(&streams, Identity { uuid: config.uuid_bytes()? }, size)?;
    (config.backing_in_regions, config.backing) = (true, None);
    config.write(dir)
}

/// Steps 1 and 2. Returns the bytes of a log.
fn prepare(dir: &Path, config: &Config) -> Result<u64> {
    let pool = Pool::open(dir, &OpenOptions::default())?;
    let (session, Some(union)) = (pool.session(), pool.union()) else {
        return Err(Error::Pool(format!("{} has no disks that its backing could lie on", dir.display())));
    };
    let log = union.log();
    for region in log.regions() {
        exraid::duplex::forget(&*region).map_err(|e| Error::Pool(e.to_string()))?;
        log.release_unnamed(session, region.number(), &|look| look(&[]), true)?;
    }
    let sizes = match config.medium {
        MediumKind::Logged => sizes(dir)?,
        _ => {
            let log = backing::log_bytes(session.memory().size());
            [pool.status()?.used + MORE, log, log]
        }
    };
    let mut members: Vec<(Arc<dyn Region>, Spans)> = Vec::new();
    let mut why = None;
    for region in log.homes_for_backing(session, &[])? {
        if members.len() == REGIONS {
            break;
        }
        let taken: Vec<u32> = members.iter().map(|(region, _)| region.number()).collect();
        if !log.fail_apart(session, region.number(), &taken)? {
            continue;
        }
        match take_ahead(&pool, &region, &sizes) {
            Ok(spans) => members.push((region, spans)),
            Err(e) => why = Some(e),
        }
    }
    if members.is_empty() {
        let why = why.map_or_else(|| "no region takes content".into(), |e| e.to_string());
        return Err(Error::Pool(format!(
            "{}: no region has {} MiB for the backing: {why}",
            dir.display(),
            sizes.iter().sum::<u64>() >> 20
        )));
    }
    backing::of(session).map_or(Ok(()), |backing| backing.wait(session))?;
    let common = Agreement::beside(dir, config, "copy")?;
    let text = config.to_text()?;
    Duplex::create(&members, log.segment(), text.as_bytes(), Some(common.common()))
        .map_err(|e| Error::Pool(e.to_string()))?;
    Ok(sizes[regions::LOGS[0]])
}

/// Bytes that each stream needs.
fn sizes(dir: &Path) -> Result<Streams> {
    let disks = files::open(dir)?;
    let image = Image::extent(&disks.image)?;
    let mut sizes = [image + (image / SHARE).max(MORE), 0, 0];
    for (size, name) in sizes[1..].iter_mut().zip(LOGS) {
        let path = dir.join(name);
        *size = fs::metadata(&path).map_err(|e| Error::host(&path, &e))?.len();
    }
    Ok(sizes)
}

/// Takes room for the backing of a full memory, if the region has so much.
fn take_ahead(pool: &Pool, region: &Arc<dyn Region>, sizes: &Streams) -> Result<Spans> {
    let size = pool.session().memory().size();
    if let Some(mut ahead) = room::within(size, region.properties().size) {
        ahead.iter_mut().zip(sizes).for_each(|(bytes, needed)| *bytes = (*bytes).max(*needed));
        if let Ok(spans) = take(pool, region.number(), &ahead) {
            return Ok(spans);
        }
    }
    tracing::warn!(
        "{} has too little room for the backing of {} MiB of memory: once its disks and the memory are full, nothing can be changed until there is \
         room; a pool with less memory, or a larger disk, never comes to that",
        region.name(),
        size >> 20
    );
    take(pool, region.number(), sizes)
}

fn take(pool: &Pool, region: u32, sizes: &Streams) -> Result<Spans> {
    let (session, Some(union)) = (pool.session(), pool.union()) else { return Ok(Spans::default()) };
    let (log, mut spans) = (union.log(), Spans::default());
    for (n, size) in sizes.iter().enumerate() {
        match log.take_for_backing(session, region, size.div_ceil(log.segment())) {
            Ok(segments) => append(&mut spans[n], &segments),
            Err(e) => {
                spans.iter().try_for_each(|spans| log.release_from_backing(session, region, spans))?;
                return Err(e.into());
            }
        }
    }
    Ok(spans)
}

/// Copies a file of the backing; with `zeros` also its zeros. (If a disk is a file, the first write to a part of it changes the host's file
/// system: an `fsync` takes twice as long.)
fn copy_all(from: &SharedDisk, to: &SharedDisk, path: &Path, zeros: bool) -> Result<()> {
    let len = fs::metadata(path).map_err(|e| Error::host(path, &e))?.len();
    let mut bytes = vec![0; PIECE];
    for at in (0..len).step_by(PIECE) {
        let piece = &mut bytes[..(len - at).min(PIECE as u64) as usize];
        from.read_exact_at(piece, at).map_err(|e| Error::host(path, &e))?;
        if zeros || at == 0 || piece.iter().any(|byte| *byte != 0) {
            to.write_all_at(piece, at).map_err(|e| Error::host(path, &e))?;
        }
    }
    Ok(())
}

/// Step 5: removes the files of a backing that lies in regions.
pub fn clear(dir: &Path) -> Result<()> {
    for name in LOGS {
        match fs::remove_file(dir.join(name)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::host(&dir.join(name), &e)),
            _ => {}
        }
    }
    write_stub(dir)
}

/// Whether `dir` has nothing of a backing but that text.
pub fn is_elsewhere(dir: &Path) -> bool {
    let is_stub = |file: fs::File| {
        let mut text = [0; STUB.len() + 1];
        FileExt::read_at(&file, &mut text, 0).is_ok_and(|len| text[..len] == *STUB.as_bytes())
    };
    let file = paths::open_own(dir, IMAGE, OFlags::RDONLY).ok().flatten();
    file.is_some_and(is_stub) && !LOGS.iter().any(|log| dir.join(log).exists())
}

/// Writes the file `image` of a pool whose backing lies elsewhere: its locks tell which processes use the pool.
pub fn write_stub(dir: &Path) -> Result<()> {
    let path = dir.join(IMAGE);
    let file = paths::open_or_make(dir, IMAGE)?;
    let write = || {
        if file.metadata()?.len() != STUB.len() as u64 {
            FileExt::write_all_at(&file, STUB.as_bytes(), 0)?;
            file.set_len(STUB.len() as u64)?;
            file.sync_all()?;
        }
        Ok(())
    };
    write().map_err(|e| Error::host(&path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the text was put in today's words, and a pool that was there counted as one without its backing.
    #[test]
    fn the_text_of_pools_that_are_there_is_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let theirs = "CQ-LINK: the copy of this pool's memory lies in its regions; see pool.toml\n";
        fs::write(dir.path().join(IMAGE), theirs).expect("written");
        assert!(is_elsewhere(dir.path()));
        fs::write(dir.path().join(IMAGE), theirs.replace("copy", "backing")).expect("written");
        assert!(!is_elsewhere(dir.path()));
    }
}

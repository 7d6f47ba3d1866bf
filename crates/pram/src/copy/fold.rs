//! Folding: what a log holds goes into the image, by whole pages.
//!
//! The log is read, not the region: an image is as of a commit, and the region is ahead of it. So nobody waits.

use std::collections::{BTreeMap, BTreeSet};

use super::pace::Pace;
use super::SharedDisk;
use crate::error::{Error, Result};
use crate::log::{Instant, Log};
use crate::pages::{Pages, PAGE};

/// Pages of which the new content is held in memory at a time: 64 MiB. What changes more pages is read again.
const BATCH: usize = 16 << 10;

/// Brings the image to `last`, with which the log ends, at this pace. An image that is there already stays as it is.
pub fn fold(pages: &mut Pages<SharedDisk>, log: &SharedDisk, last: Instant, pace: &mut Pace) -> Result<()> {
    let (id, from) = (pages.id(), pages.instant());
    if from.commit >= last.commit {
        return Ok(());
    }
    let mut changed = BTreeSet::new();
    let end = Log::open_until(log.clone(), id, from, last.commit, |_, off, bytes| {
        changed.extend(off / PAGE..=(off + bytes.len() as u64 - 1) / PAGE);
        Ok(())
    })?;
    if end.last() != last {
        return Err(Error::Unusable(format!(
            "the log ends with commit {} where {} was written: its disk has lost something",
            end.last().commit,
            last.commit
        )));
    }
    let changed: Vec<u64> = changed.into_iter().collect();
    let mut update = pages.begin();
    for batch in changed.chunks(BATCH) {
        let mut content = BTreeMap::new();
        for page in batch {
            let mut bytes = vec![0; PAGE as usize];
            update.read(*page, &mut bytes)?;
            content.insert(*page, bytes);
        }
        Log::open_until(log.clone(), id, from, last.commit, |_, off, bytes| {
            apply(&mut content, off, bytes);
            Ok(())
        })?;
        for (page, bytes) in &content {
            pace.spend(PAGE);
            update.write(*page, bytes)?;
        }
    }
    update.finish(last)
}

/// Stores bytes of the region in those pages that are held.
fn apply(content: &mut BTreeMap<u64, Vec<u8>>, mut off: u64, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let within = (off % PAGE) as usize;
        let (now, later) = bytes.split_at(bytes.len().min(PAGE as usize - within));
        if let Some(page) = content.get_mut(&(off / PAGE)) {
            page[within..within + now.len()].copy_from_slice(now);
        }
        (off, bytes) = (off + now.len() as u64, later);
    }
}

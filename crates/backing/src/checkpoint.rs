//! Checkpointing: a log's commits go into the image, by whole pages.
//!
//! The log is read, not the memory: an image is as of a commit, and the memory is ahead of it. So no operation waits.
//!
//! The log is read once as a whole, to find the pages that change. Then, for each batch of pages, the records that
//! concern it are read: a commit's records ascend with the memory, so that most are read only once more. Operations go
//! on in the same RAM meanwhile, and every further reading would slow them down.

use std::collections::BTreeMap;

use super::SharedDisk;
use crate::image::{Image, PAGE};
use crate::log::{Instant, Log};
use pram::budget::Budget;
use pram::error::{Error, Result};
use pram::marks::by_page;

/// Pages of which the new content is held in memory at a time: 64 MiB.
const BATCH: usize = 16 << 10;

/// Brings the image to `last`, the end of the log, within this budget. An image that has come so far stays as it is.
pub fn checkpoint(pages: &mut Image<SharedDisk>, log: &SharedDisk, last: Instant, budget: &mut Budget) -> Result<()> {
    let (id, from) = (pages.id(), pages.instant());
    if from.commit >= last.commit {
        return Ok(());
    }
    // Pages, and which of their lines change.
    let mut changed: BTreeMap<u64, u64> = BTreeMap::new();
    let (end, survey) = Log::survey(log.clone(), id, from, last.commit, |off, len| {
        by_page(off, len).for_each(|(page, lines)| *changed.entry(page).or_default() |= lines);
    })?;
    if end != last {
        return Err(Error::Unusable(format!(
            "the log ends with commit {} where {} was written: its disk has lost something",
            end.commit, last.commit
        )));
    }
    let changed: Vec<(u64, u64)> = changed.into_iter().collect();
    let mut update = pages.begin();
    for batch in changed.chunks(BATCH) {
        let mut content = BTreeMap::new();
        for (page, lines) in batch {
            let mut bytes = vec![0; PAGE as usize];
            // A page that changes as a whole keeps no old bytes.
            if *lines != u64::MAX {
                update.read(*page, &mut bytes)?;
            }
            content.insert(*page, bytes);
        }
        let (first, (end, _)) = (batch[0].0, batch[batch.len() - 1]);
        survey.apply(first * PAGE..(end + 1) * PAGE, |off, bytes| apply(&mut content, off, bytes))?;
        for (page, bytes) in &content {
            budget.spend(PAGE);
            update.write(*page, bytes)?;
        }
    }
    update.finish(last)
}

/// Stores bytes of the memory in those pages that are held.
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

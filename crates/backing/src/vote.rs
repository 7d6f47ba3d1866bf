//! Copies that are behind: one of several equal disks may come back from an earlier time, or have lost writes.
//!
//! No copy counts for being first. A commit begins when the one before is durable everywhere, so every good copy has
//! all acknowledged commits but perhaps the last, and headers that are at most being replaced. A copy that has less is
//! old: it ends earlier, whole. A rotten copy has more records behind the damage, and a scrub repairs it.

use super::disk::OneCopy;
use super::image::Image;
use super::log::{Identity, Log, Position};
use super::{Disks, SharedDisk};
use pram::error::{Error, Result};

/// The commit that every good copy has.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// The log that has it.
    pub log: usize,
    /// Where its last record begins, and the checksum of that; `None`: only the header's generation is known.
    pub record: Option<(u64, u32)>,
    pub commit: u64,
}

impl Acknowledged {
    /// The last commit of logs at these positions.
    pub fn of(logs: &[Position; 2], active: usize) -> Option<Acknowledged> {
        let has_some = |n: &usize| logs[*n].tail != 0;
        let log = [active, 1 - active].into_iter().find(has_some)?;
        Some(Acknowledged { log, record: Some((logs[log].tail, logs[log].before)), commit: logs[log].last.commit })
    }
}

/// Puts away copies that are behind, if any other is not.
pub fn put_away_old(disks: &Disks, id: Identity, known: Option<Acknowledged>) -> Result<()> {
    let copies = disks.image.copies();
    if copies < 2 {
        return Ok(());
    }
    let mut old = Vec::new();
    for n in 0..copies {
        if is_old(disks, id, known, n)? {
            old.push(n);
        }
    }
    match old.len() {
        0 => Ok(()),
        len if len == copies => {
            disks.image.note_wrong();
            Ok(())
        }
        _ => disks.image.put_away(&old).map_err(|e| Error::of_io("putting an old copy away", &e)),
    }
}

fn is_old(disks: &Disks, id: Identity, known: Option<Acknowledged>, n: usize) -> Result<bool> {
    let is_behind = |own: Result<u64>, all: u64| own.is_ok_and(|own| own + 1 < all);
    let of = |disk: &SharedDisk| Log::began(disk, id).map(|began| began.generation);
    if is_behind(Image::generation(&OneCopy { disk: &disks.image, copy: Some(n) }), Image::generation(&disks.image)?) {
        return Ok(true);
    }
    for disk in &disks.logs {
        let own = Log::began(&OneCopy { disk, copy: Some(n) }, id).map(|began| began.generation);
        if is_behind(own, of(disk)?) {
            return Ok(true);
        }
    }
    let Some(known) = known else { return Ok(false) };
    let disk = &disks.logs[known.log];
    let own = OneCopy { disk, copy: Some(n) };
    match Log::began(&own, id) {
        Ok(began) if began.generation != of(disk)? => Ok(true),
        Ok(_) => Ok(known.record.is_some_and(|record| Log::ends_before(&own, id, record, known.commit))),
        // The copy cannot be read.
        Err(_) => Ok(false),
    }
}

//! What scrubbing has found wrong: kept in a file of the pool directory until somebody has seen it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ilfs::scrub::Wrong;
use crate::node::Fs;
use crate::pool::paths::DAMAGE;
use crate::ubj::Union;

/// Findings that are kept at most: beyond them only their number.
const MOST: usize = 10_000;
const PAGE: u64 = crate::file::PAGE;

/// Bytes of a file that were wrong in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    pub ino: u64,
    /// A name that leads to the file, if it has one; names of other bytes than text have these replaced.
    pub path: Option<String>,
    /// The first and the last byte.
    pub first: u64,
    pub last: u64,
    /// The region in which it was.
    pub region: u32,
    pub why: String,
    /// Another copy had it right, and it was put right from there; else these bytes are lost.
    pub repaired: bool,
}

/// What was found and not acknowledged yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub damage: Vec<Damage>,
    /// Beside these.
    pub more: u64,
}

/// Ranges of what was wrong, by file.
pub fn ranges(fs: &Fs, union: &Union, wrong: &[Wrong]) -> Vec<Damage> {
    let mut all: Vec<Damage> = Vec::new();
    for one in wrong.iter().filter(|one| one.repaired || union.page_now(fs, one)) {
        let first = one.owner.page * PAGE;
        match all.last_mut() {
            Some(last)
                if last.ino == one.owner.ino
                    && last.last + 1 == first
                    && (last.region, last.repaired) == (one.region, one.repaired)
                    && last.why == one.why =>
            {
                last.last = first + PAGE - 1;
            }
            _ => all.push(Damage {
                ino: one.owner.ino,
                path: None,
                first,
                last: first + PAGE - 1,
                region: one.region,
                why: one.why.clone(),
                repaired: one.repaired,
            }),
        }
    }
    let paths = fs.paths_of(all.iter().map(|damage| damage.ino));
    all.iter_mut().for_each(|damage| damage.path = paths.get(&damage.ino).cloned());
    all
}

/// Adds to what was found.
pub fn note(fs: &Fs, union: &Union, dir: &Path, wrong: &[Wrong]) {
    if wrong.is_empty() {
        return;
    }
    let damage = ranges(fs, union, wrong);
    for one in &damage {
        let path = one.path.clone().unwrap_or_else(|| format!("inode {}", one.ino));
        let end = if one.repaired { "put right from another copy" } else { "LOST" };
        tracing::error!(
            "scrub: {path}, bytes {} to {}, region {}: {}; {end}",
            one.first,
            one.last,
            one.region,
            one.why
        );
    }
    if let Err(e) = add(dir, damage) {
        tracing::error!("scrub: what was found cannot be kept: {e}");
    }
}

/// Adds to what was found.
pub fn add(dir: &Path, damage: Vec<Damage>) -> Result<()> {
    if damage.is_empty() {
        return Ok(());
    }
    let mut found = read(dir)?;
    for one in damage {
        match found.damage.len() < MOST {
            true if found.damage.contains(&one) => {}
            true => found.damage.push(one),
            false => found.more += 1,
        }
    }
    write(dir, &found)
}

/// What was found and not acknowledged yet.
pub fn read(dir: &Path) -> Result<Found> {
    let path = dir.join(DAMAGE);
    match std::fs::read(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Found::default()),
        Err(e) => Err(Error::host(&path, &e)),
        // It is a report: one that cannot be read is made anew.
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
    }
}

/// It was seen.
pub fn forget(dir: &Path) -> Result<()> {
    let path = dir.join(DAMAGE);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::host(&path, &e)),
        _ => Ok(()),
    }
}

fn write(dir: &Path, found: &Found) -> Result<()> {
    let (path, new) = (dir.join(DAMAGE), dir.join(format!("{DAMAGE}.new")));
    let bytes = serde_json::to_vec_pretty(found).map_err(|e| Error::Pool(e.to_string()))?;
    std::fs::write(&new, bytes).map_err(|e| Error::host(&new, &e))?;
    std::fs::rename(&new, &path).map_err(|e| Error::host(&path, &e))
}

//! The findings of scrubbing: stored in a file of the pool directory until somebody acknowledges them.
//!
//! Several processes may report findings at a time. Ordered steps of an addition:
//! 1. The file of the lock exists, and is locked. (Else: of two processes that read the same list the second replaces the first
//!    one's additions.)
//! 2. The list is read, and new findings added.
//! 3. It is written beside its place; durable. (Else: after a power cut the name leads to a file without content.)
//! 4. It takes its place, durably.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use backing::save::is_at;
use exraid::owner;
use rustix::fs::{flock, FlockOperation, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::paths::{self, DAMAGE, DAMAGE_LOCK};
use conquest_fs::error::{Error, Result};
use conquest_fs::node::Fs;
use conquest_fs::ubj::Union;
use ilfs::scrub::Wrong;

/// Findings that are stored at most: beyond them only their number.
const MOST: usize = 10_000;
const PAGE: u64 = ilfs::place::BLOCK;

/// Bytes of a file that were damaged in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    pub ino: u64,
    /// A path of the file, if it has one; bytes that are not UTF-8 are replaced.
    pub path: Option<String>,
    /// The first and the last byte.
    pub first: u64,
    pub last: u64,
    /// The region of the damaged replica.
    pub region: u32,
    pub why: String,
    /// Repaired from another replica; else these bytes are lost.
    pub repaired: bool,
    /// Repaired from memory: the content is written anew.
    #[serde(default)]
    pub from_memory: bool,
    /// The damage was in a file of the pool's backing, and in no region.
    #[serde(default)]
    pub beside: bool,
}

impl Damage {
    /// The outcome, in words.
    pub fn outcome(&self) -> &'static str {
        match (self.repaired, self.from_memory) {
            (false, _) => "LOST",
            (true, false) => "put right from another copy",
            (true, true) => "saved from memory: it is written anew",
        }
    }
}

/// Findings that are not acknowledged yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub damage: Vec<Damage>,
    /// The number of further findings.
    pub more: u64,
}

/// Damaged ranges, by file.
pub fn ranges(fs: &Fs, union: &Union, wrong: &[Wrong]) -> Vec<Damage> {
    let mut all: Vec<Damage> = Vec::new();
    for one in wrong.iter().filter(|one| one.repaired || union.page_now(fs, one)) {
        let first = one.owner.page * PAGE;
        match all.last_mut() {
            Some(last)
                if last.ino == one.owner.ino
                    && last.last + 1 == first
                    && (last.region, last.repaired, last.from_memory)
                        == (one.region, one.repaired, one.from_memory)
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
                from_memory: one.from_memory,
                beside: false,
            }),
        }
    }
    let paths = fs.paths_of(all.iter().map(|damage| damage.ino));
    all.iter_mut().for_each(|damage| damage.path = paths.get(&damage.ino).cloned());
    all
}

/// Adds findings.
pub fn note(fs: &Fs, union: &Union, dir: &Path, wrong: &[Wrong]) {
    if wrong.is_empty() {
        return;
    }
    let damage = ranges(fs, union, wrong);
    for one in &damage {
        let path = one.path.clone().unwrap_or_else(|| format!("inode {}", one.ino));
        let (first, last, region, why, outcome) = (one.first, one.last, one.region, &one.why, one.outcome());
        tracing::error!("scrub: {path}, bytes {first} to {last}, region {region}: {why}; {outcome}");
    }
    if let Err(e) = add(dir, damage) {
        tracing::error!("scrub: what was found cannot be kept: {e}");
    }
}

/// Held to change the list: a lock on [a file](DAMAGE_LOCK) in the pool directory.
struct Locked {
    path: PathBuf,
    _lock: File,
}

impl Locked {
    /// Waits for others.
    fn begin(dir: &Path) -> Result<Locked> {
        let path = dir.join(DAMAGE_LOCK);
        loop {
            let lock = paths::open_or_make(dir, DAMAGE_LOCK)?;
            match flock(&lock, FlockOperation::LockExclusive) {
                Ok(()) if is_at(&lock, &path)? => return Ok(Locked { path, _lock: lock }),
                // The locked file belonged to a process that has ended, and has no name any more.
                Ok(()) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::host(&path, &errno.into())),
            }
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Adds findings, durably.
pub fn add(dir: &Path, damage: Vec<Damage>) -> Result<()> {
    if damage.is_empty() {
        return Ok(());
    }
    // 1.
    let _locked = Locked::begin(dir)?;
    // 2.
    let mut found = read(dir)?;
    for one in damage {
        match found.damage.len() < MOST {
            true if found.damage.contains(&one) => {}
            true => found.damage.push(one),
            false => found.more += 1,
        }
    }
    // 3 and 4.
    write(dir, &found)
}

/// The findings that are not acknowledged yet.
pub fn read(dir: &Path) -> Result<Found> {
    let Some(mut file) = paths::open_own(dir, DAMAGE, OFlags::RDONLY)? else { return Ok(Found::default()) };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|e| Error::host(&dir.join(DAMAGE), &e))?;
    // It is a report: an unreadable one begins anew.
    Ok(serde_json::from_slice(&bytes).unwrap_or_default())
}

/// Clears the findings: they are acknowledged, or their pool is gone.
pub fn forget(dir: &Path) -> Result<()> {
    let path = dir.join(DAMAGE);
    if !path.exists() {
        return Ok(());
    }
    let _locked = Locked::begin(dir)?;
    let removed = fs::remove_file(&path).and_then(|()| File::open(dir)?.sync_all());
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::host(&path, &e)),
        _ => Ok(()),
    }
}

fn write(dir: &Path, found: &Found) -> Result<()> {
    let bytes = serde_json::to_vec_pretty(found).map_err(|e| Error::Pool(e.to_string()))?;
    owner::replace_within(dir, DAMAGE, &bytes).map_err(|e| Error::host(&dir.join(DAMAGE), &e))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn damage(ino: u64) -> Damage {
        let why = "its checksum is wrong".into();
        Damage {
            ino,
            path: None,
            first: 0,
            last: 4095,
            region: 1,
            why,
            repaired: false,
            from_memory: false,
            beside: false,
        }
    }

    #[test]
    fn nothing_is_lost_of_what_many_find_at_a_time() {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || (0..20).for_each(|n| add(dir, vec![damage(thread * 100 + n)]).expect("added")));
            }
        });
        let mut found: Vec<u64> = read(dir).expect("read").damage.iter().map(|damage| damage.ino).collect();
        found.sort_unstable();
        assert_eq!(found, (0..8).flat_map(|thread| (0..20).map(move |n| thread * 100 + n)).collect::<Vec<_>>());
        // A known finding is not added again.
        add(dir, vec![damage(0)]).expect("added");
        assert_eq!(read(dir).expect("read").damage.len(), 160);
        forget(dir).expect("forgotten");
        assert_eq!(read(dir).expect("read"), Found::default());
        assert_eq!(fs::read_dir(dir).expect("read").count(), 0, "nothing else is left there");
    }

    /// Root followed a link of another user, and wrote its findings into that user's choice of a file.
    #[test]
    fn no_link_is_followed_and_nothing_of_another_user_is_read() {
        let (home, out) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
        let (dir, theirs) = (home.path(), out.path().join("file"));
        fs::write(&theirs, "theirs").expect("written");
        for name in [DAMAGE_LOCK, DAMAGE] {
            symlink(&theirs, dir.join(name)).expect("a link");
            let refusal = add(dir, vec![damage(1)]).expect_err(name).to_string();
            assert!(refusal.contains("symbolic link"), "{refusal}");
            fs::remove_file(dir.join(name)).expect("removed");
        }
        for new in ["damage.json.new", ".damage.json.new"] {
            symlink(&theirs, dir.join(new)).expect("a link");
        }
        add(dir, vec![damage(1)]).expect("added");
        assert_eq!(fs::read(&theirs).expect("read"), b"theirs");
        let is_root = rustix::process::geteuid().is_root();
        if is_root && std::os::unix::fs::chown(dir.join(DAMAGE), Some(1234), None).is_ok() {
            assert!(read(dir).is_err_and(|e| e.to_string().contains("user 1234")));
        }
    }

    #[test]
    fn what_an_older_version_has_kept_is_read() {
        let home = tempfile::tempdir().expect("a directory");
        let older =
            r#"{"damage":[{"ino":7,"path":"/a","first":0,"last":9,"region":1,"why":"w","repaired":true}],"more":0}"#;
        fs::write(home.path().join(DAMAGE), older).expect("written");
        let found = read(home.path()).expect("read");
        assert!(found.damage[0].repaired && !found.damage[0].from_memory);
    }
}

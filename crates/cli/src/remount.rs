//! Following `mount -o remount`: the kernel changes its flags without telling the server, but wakes those
//! who poll the mount table. Most flags it obeys itself; when accesses are noted is for the server.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Weak};

use fs::{Atime, Policy, Pool};
use rustix::event::{poll, PollFd, PollFlags};

use crate::mounts;

/// Lets the pool's policy follow the flags of the mount at `dir`, in a thread that ends with the process.
/// `strict`: each read counts as an access, which the kernel does not know.
pub fn follow(pool: &Arc<Pool>, dir: &Path, strict: bool) {
    let (pool, dir) = (Arc::downgrade(pool), dir.to_path_buf());
    let named = std::thread::Builder::new().name("remount".into());
    let started = named.spawn(move || {
        if let Err(e) = watch(&pool, &dir, strict) {
            tracing::warn!("remounting with other flags will not change access times: {e}");
        }
    });
    if let Err(e) = started {
        tracing::warn!("cannot start a thread: {e}");
    }
}

fn watch(pool: &Weak<Pool>, dir: &Path, strict: bool) -> std::io::Result<()> {
    let table = File::open("/proc/self/mountinfo")?;
    let mut flags = None;
    loop {
        let now = flags_at(dir);
        if now != flags {
            let (Some(pool), Some(words)) = (pool.upgrade(), &now) else { return Ok(()) };
            tracing::info!("mount flags: {words}");
            pool.set_policy(Policy { atime: atime_by(words, strict), ..pool.policy() });
            flags = now;
        }
        match poll(&mut [PollFd::new(&table, PollFlags::PRI)], None) {
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled?,
        };
    }
}

fn flags_at(dir: &Path) -> Option<String> {
    mounts::conquest_at(dir).ok().flatten().map(|m| m.options)
}

/// When accesses are noted, by the flags that the kernel shows.
fn atime_by(flags: &str, strict: bool) -> Atime {
    if flags.split(',').any(|w| w == "noatime" || w == "ro") {
        Atime::Never
    } else if strict {
        Atime::Always
    } else {
        Atime::Relative
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_decide_when_accesses_are_noted() {
        assert_eq!(atime_by("rw,nosuid,noatime", true), Atime::Never);
        assert_eq!(atime_by("ro,relatime", false), Atime::Never);
        assert_eq!(atime_by("rw,relatime", false), Atime::Relative);
        assert_eq!(atime_by("rw,relatime", true), Atime::Always);
    }
}

//! Following `mount -o remount`: the kernel changes its flags without telling the server, but wakes those
//! who poll the mount table.

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
    let mut flags = flags_at(dir);
    loop {
        match poll(&mut [PollFd::new(&table, PollFlags::PRI)], None) {
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled?,
        };
        let now = flags_at(dir);
        if now == flags {
            continue;
        }
        let (Some(pool), Some(words)) = (pool.upgrade(), &now) else { return Ok(()) };
        tracing::info!("remounted: {words}");
        pool.set_policy(policy_of(words, strict));
        flags = now;
    }
}

fn flags_at(dir: &Path) -> Option<String> {
    mounts::conquest_at(dir).ok().flatten().map(|m| m.options)
}

/// What the flags that the kernel shows mean for the pool.
fn policy_of(flags: &str, strict: bool) -> Policy {
    let has = |word| flags.split(',').any(|w| w == word);
    let atime = match (has("noatime"), strict) {
        (true, _) => Atime::Never,
        (false, true) => Atime::Always,
        (false, false) => Atime::Relative,
    };
    Policy { read_only: has("ro"), atime }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_a_policy() {
        let policy = policy_of("ro,nosuid,noatime", true);
        assert!(policy.read_only && policy.atime == Atime::Never);
        let policy = policy_of("rw,relatime", false);
        assert!(!policy.read_only && policy.atime == Atime::Relative);
        assert_eq!(policy_of("rw,relatime", true).atime, Atime::Always);
    }
}

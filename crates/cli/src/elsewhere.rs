//! Where a file system is mounted besides: its server goes on as long as any of its mounts is there.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

use crate::mounts;

/// A mount of a file system.
pub struct Elsewhere {
    dir: PathBuf,
    /// Who sees it, in a mount namespace that is not ours.
    process: Option<(u32, String)>,
}

impl Elsewhere {
    /// A mount of the file system with this number (`major:minor`), if there is one that we may know of.
    pub fn find(number: &str) -> Option<Elsewhere> {
        let ours = std::process::id();
        let mut namespaces = HashSet::new();
        let mut one_of_each = std::iter::once(ours).chain(processes()).filter(|pid| {
            let namespace = std::fs::read_link(format!("/proc/{pid}/ns/mnt"));
            namespace.is_ok_and(|namespace| namespaces.insert(namespace))
        });
        one_of_each.find_map(|pid| {
            let dir = mounts::seen_by(pid).into_iter().find(|m| m.number == number)?.dir;
            Some(Elsewhere { dir, process: (pid != ours).then(|| (pid, name_of(pid))) })
        })
    }
}

/// Where it is, and what unmounts it.
impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let dir = self.dir.display();
        match &self.process {
            Some((pid, name)) => write!(
                f,
                "at {dir} in the mount namespace of process {pid} ({name}), where `nsenter --mount --target {pid} \
                 umount {dir}` unmounts it"
            ),
            None => write!(f, "at {dir}, where `umount {dir}` unmounts it"),
        }
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().into()
}

//! Finds other mounts of a file system: its server goes on as long as any of its mounts exists.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::mounts::{self, Mounted};
use crate::proc::numbered;

/// A mount of a file system.
pub struct OtherMount {
    dir: PathBuf,
    /// A process that sees it, in another mount namespace than ours.
    process: Option<(u32, String)>,
}

impl OtherMount {
    /// A mount of the file system with this number (`major:minor`), if there is one that we may see.
    pub fn find(number: &str) -> Option<OtherMount> {
        let dir_in = |mounts: Vec<Mounted>| Some(mounts.into_iter().find(|m| m.number == number)?.dir);
        if let Some(dir) = mounts::all().ok().and_then(dir_in) {
            return Some(OtherMount { dir, process: None });
        }
        let mut namespaces: HashSet<PathBuf> = namespace_of(Path::new("/proc/self")).into_iter().collect();
        let mut one_of_each = numbered("/proc").filter(|process| {
            let namespace = namespace_of(process);
            namespace.is_some_and(|namespace| namespaces.insert(namespace))
        });
        one_of_each.find_map(|process| {
            let pid = process.file_name()?.to_str()?.parse().ok()?;
            Some(OtherMount { dir: dir_in(mounts::seen_by(pid))?, process: Some((pid, name_of(pid))) })
        })
    }
}

/// Does the process see the mounts that we see? `None` if we may not know.
pub fn shares_our_mounts(pid: u32) -> Option<bool> {
    let namespace = |process: &str| namespace_of(Path::new(&format!("/proc/{process}")));
    Some(namespace(&pid.to_string())? == namespace("self")?)
}

fn namespace_of(process: &Path) -> Option<PathBuf> {
    std::fs::read_link(process.join("ns/mnt")).ok()
}

/// The directory of the mount, and the command that unmounts it.
impl fmt::Display for OtherMount {
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

fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().into()
}

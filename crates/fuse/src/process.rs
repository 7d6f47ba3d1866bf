//! Rights of the process behind a request that the request does not carry: its groups and capabilities, as /proc shows
//! them. The process waits for its answer meanwhile, so it exists. Reading /proc takes long, so it is done only for a
//! caller who would be refused otherwise.

use std::fs::read_to_string;

use crate::abi::InHeader;
use crate::mounts;

/// Numbers of capabilities.
pub const CHOWN: u32 = 0;
pub const FOWNER: u32 = 3;
pub const FSETID: u32 = 4;
pub const SYS_ADMIN: u32 = 21;

pub struct Process {
    pid: u32,
    /// The user of the request.
    uid: u32,
    status: String,
}

impl Process {
    #[cold]
    pub fn behind(head: &InHeader) -> Process {
        let status = read_to_string(format!("/proc/{}/status", head.pid)).unwrap_or_default();
        Process { pid: head.pid, uid: head.uid, status }
    }

    pub fn groups(&self) -> Vec<u32> {
        self.field("Groups:").filter_map(|id| id.parse().ok()).collect()
    }

    /// Does it act in the name of another, as overlayfs acts for the user who mounted it, and an NFS server for its
    /// clients? Then /proc does not show the rights of that other.
    pub fn is_proxy(&self) -> bool {
        // Of the four user ids the last one counts for files.
        self.field("Uid:").nth(3).and_then(|id| id.parse().ok()) != Some(self.uid)
    }

    /// Has it `capability` over an inode of this owner, and of this group if that matters? In a user namespace of its
    /// own a process has all capabilities that the namespace's maker wanted, but only over users mapped there. The same
    /// is assumed there for a proxy.
    pub fn rules(&self, capability: u32, uid: u32, gid: Option<u32>) -> bool {
        if self.shares_our_users() {
            return !self.is_proxy() && self.has(capability);
        }
        (self.is_proxy() || self.has(capability))
            && is_mapped(&self.file("uid_map"), uid)
            && gid.is_none_or(|gid| is_mapped(&self.file("gid_map"), gid))
    }

    /// Has it inode `ino` of this file system open for writing? Its mount table tells the file system: inodes of others
    /// have the same numbers.
    pub fn writes(&self, file_system: &str, ino: u64) -> bool {
        let Ok(open) = std::fs::read_dir(format!("/proc/{}/fdinfo", self.pid)) else { return false };
        let mounts = mounts::seen_by(self.pid).unwrap_or_default();
        let is_there = |id: u32| mounts.iter().any(|mount| mount.id == id && mount.number == file_system);
        let facts = open.flatten().filter_map(|file| read_to_string(file.path()).ok());
        facts.into_iter().any(|facts| mount_of_writer(&facts, ino).is_some_and(is_there))
    }

    fn has(&self, capability: u32) -> bool {
        let effective = self.field("CapEff:").next().and_then(|bits| u64::from_str_radix(bits, 16).ok());
        effective.is_some_and(|bits| bits >> capability & 1 != 0)
    }

    /// Is its user namespace ours?
    fn shares_our_users(&self) -> bool {
        read_to_string("/proc/self/uid_map").is_ok_and(|ours| ours == self.file("uid_map"))
    }

    fn field<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let found = self.status.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_default().split_ascii_whitespace()
    }

    fn file(&self, name: &str) -> String {
        read_to_string(format!("/proc/{}/{name}", self.pid)).unwrap_or_default()
    }
}

/// Does a table of lines `there here count` map `id`, as we see it?
fn is_mapped(table: &str, id: u32) -> bool {
    table.lines().any(|line| {
        let numbers: Vec<u32> = line.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect();
        matches!(numbers[..], [_, first, count] if id.checked_sub(first).is_some_and(|n| n < count))
    })
}

/// The mount by which a descriptor leads to inode `ino`, if it is open for writing. `facts`: its file in
/// /proc/PID/fdinfo.
fn mount_of_writer(facts: &str, ino: u64) -> Option<u32> {
    let fact = |name| facts.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let flags = i32::from_str_radix(fact("flags:")?, 8).ok()?;
    let writes = matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR);
    let there: u64 = fact("ino:")?.parse().ok()?;
    (writes && there == ino).then(|| fact("mnt_id:")?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn myself(uid: u32) -> Process {
        Process::behind(&InHeader { pid: std::process::id(), uid, ..Default::default() })
    }

    #[test]
    fn a_process_is_known_by_its_status() {
        let uid = rustix::process::geteuid().as_raw();
        assert!(!myself(uid).is_proxy() && myself(uid + 1).is_proxy());
        assert!(myself(uid).shares_our_users() && !myself(uid + 1).rules(FOWNER, uid, None));
        let status = "Uid:\t5\t6\t6\t6\nGroups:\t7 8 \nCapEff:\t0000000000000009\n";
        let process = Process { pid: 0, uid: 6, status: status.into() };
        assert_eq!((process.groups(), process.is_proxy()), (vec![7, 8], false));
        assert_eq!([CHOWN, FOWNER, FSETID].map(|capability| process.has(capability)), [true, true, false]);
        let unknown = Process { pid: 0, uid: 0, status: String::new() };
        assert!(unknown.groups().is_empty() && unknown.is_proxy() && !unknown.rules(FOWNER, 0, None));
    }

    #[test]
    fn who_writes_is_known_by_its_descriptors() {
        let facts = |flags| format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t45\nino:\t12\nlock:\t1: FLOCK\n");
        let of = |flags| mount_of_writer(&facts(flags), 12);
        assert_eq!(["0100000", "0100001", "02100002"].map(of), [None, Some(45), Some(45)]);
        assert_eq!((mount_of_writer(&facts("0100001"), 1), mount_of_writer("", 12)), (None, None));
        let file = tempfile::tempfile().unwrap();
        let ino = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        assert!(!myself(0).writes("of another file system", ino));
    }

    #[test]
    fn who_is_not_in_the_table_is_not_mapped() {
        let table = "         0       1000          1\n         1     100000      65536\n";
        let ids = [0, 999, 1000, 1001, 100_000, 165_535, 165_536];
        assert_eq!(ids.map(|id| is_mapped(table, id)), [false, false, true, false, true, true, false]);
        assert!(is_mapped("0 0 4294967295", 0) && !is_mapped("", 0));
    }
}

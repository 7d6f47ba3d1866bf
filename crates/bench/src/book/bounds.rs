//! What bounds a goal that is missed.

/// Words of a goal, all of which its text has, and the bound. The first that fits counts.
///
/// A bound is measured where another section of the same workload has it alone; otherwise it is supposed.
const BOUNDS: [(&[&str], &str); 37] = [
    (
        &["direct: the library in a process"],
        "some 30 page faults of 4 to 5 us each, and 39 us to load any library at all",
    ),
    (
        &["direct: the first call of a process"],
        "some 100 page faults, most of which map 16 pages of the library, and some 130 system calls",
    ),
    (
        &["direct: open + read + close"],
        "two system calls for the placeholder take a fifth of the time; no other function takes a tenth",
    ),
    (&["direct: sqlite3", "of `battery`"], "three flushed writes for each transaction: the kernel takes more than half of the processor time"),
    (&["direct", "of `battery`"], "supposed: each changed line is marked, and copied to the log"),
    (&["in process: Figure 5.2, 1 MB", "write, against tmpfs"], "each file is synced to the disk, and tmpfs has none"),
    (&["mounted: Figure 5.6"], MESSAGES),
    (&["mounted: UBJ Figure 11"], "supposed: content is copied through the server before it is written"),
    (&["mounted: UBJ Figure 12"], MESSAGES),
    (&["in process: a new disk"], "supposed: requests that are under way when the disk is added still go to the other disks"),
    (
        &["mounted: unequal disks"],
        "a fifth more than the content is written, most of it the log of the memory's backing, on two of the disks: the others wait for them",
    ),
    (&["in process: Figure 5.2, 100 MB"], "supposed: the pool allocates new extents in its host's file system, and each sync also writes a commit"),
    (&["in process: Figure 5.2, 1.01 MB"], "supposed: each sync also writes a commit"),
    (&["mounted: create + write, time of ext4"], MESSAGES),
    (
        &["in process: create + write 1 KB"],
        "supposed: allocating the file, its entry and its content, each logged before it changes",
    ),
    (&["mounted", "PostMark"], MESSAGES),
    (
        &["mounted", "create + write + fsync", "1 thread"],
        "a flushed write and five FUSE messages, measured alone beside it",
    ),
    (
        &["mounted", "sqlite3, one insert"],
        "three flushed writes and some thirty FUSE messages, measured alone beside it",
    ),
    (&["mounted", "sqlite3"], "supposed: flushes, and some thirty FUSE messages a transaction"),
    (&["mounted", "pgbench"], "supposed: a FUSE message for each write of 8 KiB and each flush"),
    (&["mounted", "webserver"], MESSAGES),
    (&["mounted", "webproxy"], MESSAGES),
    (&["mounted", "varmail"], MESSAGES),
    (&["mounted", "mapped file"], "supposed: a FUSE message for each page that is written back"),
    (
        &["mounted", "read from the cache"],
        "supposed: the way through FUSE to the page cache that the kernel keeps for it",
    ),
    (&["mounted", "1 MiB writes"], "supposed: content is copied through the server before it is written"),
    (
        &["mounted", "in order, against raw disk"],
        "supposed: FUSE messages of at most a MiB, each a copy on the two processors that also drive the disk",
    ),
    (
        &["in process", "backing every 5 s"],
        "supposed: pages that are written again and again: each is marked, copied and sent each time",
    ),
    (
        &["in process", "in order, against raw disk"],
        "supposed: copying and checksums share two processors with the driver of the disk",
    ),
    (
        &["in process", "32 at a time, against raw disk"],
        "supposed: the host's extents and a thread for each read on two processors",
    ),
    (&["in process", "random 4 KiB read from the cache"], "supposed: the copy of 4 KiB, which both do"),
    (&["in process", "against ext4"], "supposed: the copies of content, which both do"),
    (
        &["overwrites", "bytes written to disk"],
        "summaries and commits of the log, which ext4 has not where it overwrites in place",
    ),
    (&["two threads"], "supposed: the heap, tables and locks of the pool, which both use"),
    (&["two processes"], "supposed: the heap, tables and locks of the pool, which both use"),
    (&["opening a pool"], "supposed: page faults of what is read first, which lies apart in a full pool"),
    (&["stat of packed inodes, more than are remembered"], "decoding a block of sixteen inodes for each"),
];

const MESSAGES: &str =
    "a FUSE message for each open, write, close and unlink, which a file system in the kernel has not";

/// What bounds this goal, if that is known.
pub fn bound(what: &str) -> Option<&'static str> {
    BOUNDS.iter().find(|(words, _)| words.iter().all(|word| what.contains(word))).map(|(_, bound)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::goals::Verdict;

    #[test]
    fn each_goal_that_is_missed_has_a_bound() {
        let dir = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/figures"));
        let reports = crate::published::reports(dir).expect("the committed figures");
        let findings = reports.iter().flat_map(|(_, report)| &report.outcome.findings);
        let missed: Vec<&str> =
            findings.filter(|f| f.verdict == Verdict::Missed && bound(&f.what).is_none()).map(|f| &*f.what).collect();
        assert!(missed.is_empty(), "without a bound: {missed:#?}");
    }

    #[test]
    fn the_first_that_fits_counts() {
        assert!(bound("mounted: sqlite3, one insert per transaction").is_some_and(|bound| bound.contains("alone")));
        assert_eq!(bound("something else"), None);
    }
}

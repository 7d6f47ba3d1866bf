//! Disks as people name them, and as they are shown.

use std::fmt::Write;
use std::path::Path;

use fs::pool::{CacheStatus, DiskStatus, FlowStatus, NewDisk, SegmentStatus};
use fs::Pool;

use crate::failure::{Context, Failure, Result};
use crate::{locate, size};

/// What is said instead of a path where a pool is to have no disk.
pub const NONE: &str = "none";

/// Reads `PATH` or `PATH:SIZE`.
pub fn parse(text: &str) -> Result<NewDisk> {
    let Some((path, after)) = text.rsplit_once(':').filter(|(path, _)| !path.is_empty()) else {
        return whole(text);
    };
    match size::parse(after) {
        Ok(bytes) => Ok(NewDisk { path: locate::absolute(Path::new(path))?, size: Some(bytes) }),
        Err(_) if after.contains('/') || Path::new(text).exists() => whole(text),
        Err(why) => Err(Failure::new(format!("--disk {text}: {why}")).with_status(2)),
    }
}

fn whole(path: &str) -> Result<NewDisk> {
    Ok(NewDisk { path: locate::absolute(Path::new(path))?, size: None })
}

/// A line for a disk.
pub fn describe(disk: &DiskStatus) -> String {
    let path = disk.path.display();
    if let Some(problem) = &disk.problem {
        return format!("{path}: NOT USED: {problem}");
    }
    let mut out = format!("{path}, {}", size::show(disk.size));
    if let Some(backed) = disk.backed {
        let _ = write!(out, ", {} of its host", size::show(backed));
    }
    if let Some(free) = disk.host_free.filter(|free| disk.size > free.saturating_add(disk.backed.unwrap_or(0))) {
        let _ = write!(out, ", which has {} more for it", size::show(free));
    }
    for (name, flow) in [("read", &disk.read), ("write", &disk.write)] {
        if flow.requests > 0 {
            let _ = write!(out, "; {name} {}", speed(flow));
        }
    }
    if disk.flush_median > 0.0 {
        let _ = write!(out, "; flush in {}", time(disk.flush_median));
    }
    for (kind, count) in &disk.errors {
        let _ = write!(out, "; {count} FAILED ({kind})");
    }
    out
}

fn speed(flow: &FlowStatus) -> String {
    format!("{}/s in {} (99 %: {})", size::show(flow.speed as u64), time(flow.median), time(flow.p99))
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

/// What is said of the disks of a pool that was made from an image or from its copy, a line each.
pub fn kept(pool: &Path) -> Result<String> {
    let found = Pool::disks(pool).context(|| format!("cannot tell the disks of {}", pool.display()))?;
    Ok(found.iter().map(|disk| format!("\nIt keeps its disk {}", describe(disk))).collect())
}

/// How the disks' segments are used.
pub fn describe_segments(s: &SegmentStatus) -> String {
    let freed = match s.freed {
        0 => String::new(),
        freed => format!(", {freed} when the next commit is durable"),
    };
    let promised = match s.promised {
        0 => String::new(),
        promised => format!(", {} more promised", size::show(promised)),
    };
    format!(
        "{} of {}{promised}; {} of {} segments of {} in use, {} free{freed}",
        size::show(s.live),
        size::show(s.capacity),
        s.used,
        s.segments,
        size::show(s.size),
        s.free
    )
}

/// What of large files is in memory.
pub fn describe_cache(c: &CacheStatus) -> String {
    let held = match (c.dirty, c.clean) {
        (0, 0) => "nothing".into(),
        (0, clean) => format!("{}, all on disk too", size::show(clean)),
        (dirty, clean) => format!(
            "{}: {} not written yet ({} committed), {} on disk too",
            size::show(c.memory),
            size::show(dirty),
            size::show(c.frozen),
            size::show(clean)
        ),
    };
    let mut told = format!("{held}; files beyond {} go to disk", size::show(c.threshold));
    if c.demoted_files > 0 {
        let (files, bytes) = (c.demoted_files, size::show(c.demoted));
        let _ = write!(told, "; {files} smaller ones with {bytes} did, since memory was short");
    }
    if c.left > 0 {
        let _ = write!(told, "; {} have to follow a change of threshold or memory yet", size::show(c.left));
    }
    told
}

/// What was read and written through it, if anything was.
pub fn describe_work(c: &CacheStatus) -> Option<String> {
    let (hits, mut parts) = (&c.hits, Vec::new());
    let found = hits.running + hits.frozen + hits.clean + hits.kept;
    if found + hits.missed > 0 {
        let percent = |blocks: u64| blocks as f64 * 100.0 / (found + hits.missed) as f64;
        let (dirty, clean, kept) = (hits.running + hits.frozen, hits.clean, hits.kept);
        parts.push(format!(
            "{:.1} % of what was read was in memory ({:.1} % not on disk yet, {:.1} % clean, {:.1} % read ahead or just before)",
            percent(found),
            percent(dirty),
            percent(clean),
            percent(kept)
        ));
    }
    if let Some(each) = c.written_per_stored {
        parts.push(format!("{each:.2} bytes written to disks for each of {}", size::show(c.stored)));
    }
    if let Some(each) = c.moved_per_freed {
        parts.push(format!("cleaning moved {each:.2} blocks for each that it freed"));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(String, Option<u64>)> {
        parse(text).ok().map(|disk| (disk.path.display().to_string(), disk.size))
    }

    #[test]
    fn a_disk_is_a_path_and_perhaps_a_size() {
        assert_eq!(parsed("/data/disk"), Some(("/data/disk".into(), None)));
        assert_eq!(parsed("/data/disk:10G"), Some(("/data/disk".into(), Some(10 << 30))));
        assert_eq!(parsed("/dev/disk/by-path/pci-0000:00:1f.2"), None, "a size that is none");
        assert_eq!(
            parsed("/dev/disk/by-path/pci-0000:00:1f.2/part"),
            Some(("/dev/disk/by-path/pci-0000:00:1f.2/part".into(), None))
        );
        assert_eq!(parsed("/a:b/c:64M"), Some(("/a:b/c".into(), Some(64 << 20))));
        assert_eq!(parsed("/data/disk:10Q"), None);
    }

    #[test]
    fn times_are_shown_for_people() {
        assert_eq!(time(2.0), "2.0 s");
        assert_eq!(time(0.0123), "12.3 ms");
        assert_eq!(time(85e-6), "85 µs");
    }
}

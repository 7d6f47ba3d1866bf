//! Shows disks and regions.

use std::fmt::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use conquest::Pool;
use conquest::{CacheStatus, DiskStatus, FlowStatus, PerformanceStatus, RegionStatus, SegmentStatus, WorkStatus};

use crate::failure::{Context, Result};
use crate::{damage, size};

/// Regions and their disks, a line each. `row` gets the kind of line.
pub fn describe_all(regions: &[RegionStatus], disks: &[DiskStatus], mut row: impl FnMut(&str, String)) {
    for region in regions.iter().filter(|region| region.members.len() > 1) {
        row("region", describe_region(region));
        for (role, member) in region.members.iter().enumerate().filter(|(_, member)| member.path.is_none()) {
            row("disk", format!("{} of region {} is MISSING: {}", role + 1, region.number, member.uuid));
        }
    }
    disks.iter().for_each(|disk| row("disk", describe(disk)));
    describe_stutters(regions, row);
}

/// How regions with a disk that stutters are used, a line each.
fn describe_stutters(regions: &[RegionStatus], mut row: impl FnMut(&str, String)) {
    let stutters = |region: &&RegionStatus| region.performance.stutter.is_some();
    for region in regions.iter().filter(stutters) {
        row("stutters", format!("region {}: {}", region.number, sitting_out(region)));
    }
}

/// Why a region takes no new content, or takes it in spite of a disk that stutters.
pub fn sitting_out(region: &RegionStatus) -> String {
    let Some(stutter) = &region.performance.stutter else { return String::new() };
    match region.sits_out {
        true => {
            format!("sitting out new content since {}: {stutter}; it is tried every few seconds", since(stutter.since))
        }
        false => format!("takes content all the same, as no other region is better: {stutter}"),
    }
}

/// A line for a region of several disks.
pub fn describe_region(region: &RegionStatus) -> String {
    let whole = region.members.iter().filter(|member| member.is_whole()).count();
    let chunk = region.chunk.map(|chunk| format!(", chunks of {}", size::show(chunk.into()))).unwrap_or_default();
    let mut out = format!("{}, {} of {} disks{chunk}", region.number, region.layout, region.members.len());
    if let Some(problem) = &region.problem {
        let _ = write!(out, ": NOT USED: {problem}");
        return out;
    }
    let _ = write!(out, ", {}", size::show(region.size));
    if whole < region.members.len() {
        let _ = write!(out, ", DEGRADED: {whole} whole");
    }
    let _ = match region.tolerated {
        None => write!(out, ", content is LOST"),
        Some(0) => write!(out, ", can lose none"),
        Some(n) => write!(out, ", can lose {n}"),
    };
    out.push_str(&measured(&region.performance));
    out
}

/// A line for a disk.
pub fn describe(disk: &DiskStatus) -> String {
    let path = disk.path.display();
    if let Some(problem) = &disk.problem {
        return match disk.state {
            Some("rebuilding") => format!("{path}: NOT WHOLE: {problem}"),
            _ => format!("{path}: NOT USED: {problem}"),
        };
    }
    let mut out = format!("{path}, {}", size::show(disk.size));
    if let Some(backed) = disk.backed {
        let _ = write!(out, ", {} of its host", size::show(backed));
    }
    if let Some(free) = disk.host_free.filter(|free| disk.size > free.saturating_add(disk.backed.unwrap_or(0))) {
        let _ = write!(out, ", which has {} more for it", size::show(free));
    }
    out.push_str(&measured(&disk.performance));
    out
}

/// The measurements of the processes that have the pool open.
fn measured(found: &PerformanceStatus) -> String {
    let mut out = String::new();
    if let Some(stutter) = &found.stutter {
        let _ = write!(out, ", STUTTERS since {}: {stutter}", since(stutter.since));
    }
    for (name, flow) in [("read", &found.read), ("write", &found.write)] {
        if flow.requests > 0 {
            let _ = write!(out, "; {name} {}", speed(flow));
        }
    }
    if found.flush_median > 0.0 {
        let _ = write!(out, "; flush in {}", time(found.flush_median));
    }
    for (kind, count) in &found.errors {
        let _ = write!(out, "; {count} FAILED ({kind})");
    }
    out
}

fn speed(flow: &FlowStatus) -> String {
    let mut text =
        format!("{}/s in {} (99 %: {})", size::show(flow.recent_speed as u64), time(flow.median), time(flow.p99));
    if flow.queue > 0 {
        let _ = write!(text, ", {} with {} under way", flow.queue, size::show(flow.queued_bytes));
    }
    text
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

/// The notices about the disks of a pool that was made from an image or from its backing, a line each.
pub fn disk_lines(pool: &Path) -> Result<String> {
    let (_, found) = Pool::disks(pool).context(|| format!("cannot tell the disks of {}", pool.display()))?;
    Ok(found.iter().map(|disk| format!("\nIts disk is {}", describe(disk))).collect())
}

pub fn describe_segments(s: &SegmentStatus) -> String {
    let freed = match s.freed {
        0 => String::new(),
        freed => format!(", {freed} when the next commit is durable"),
    };
    let promised = match s.promised {
        0 => String::new(),
        promised => format!(", {} more promised", size::show(promised)),
    };
    let backing = match s.kept {
        0 => String::new(),
        bytes => format!(", {bytes} for the backing"),
    };
    format!(
        "{} of {}{promised}; {} of {} segments of {} in use, {} free{freed}{backing}",
        size::show(s.live),
        size::show(s.capacity),
        s.used,
        s.segments,
        size::show(s.size),
        s.free
    )
}

/// The content of large files in memory.
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
    let mut text = format!("{held}; files beyond {} go to disk", size::show(c.threshold));
    if c.demoted_files > 0 {
        let (files, bytes) = (c.demoted_files, size::show(c.demoted));
        let _ = write!(text, "; {files} smaller ones with {bytes} did, since memory was short");
    }
    if c.left > 0 {
        let _ = write!(text, "; {} have to follow a change of threshold or memory yet", size::show(c.left));
    }
    text
}

/// Reads and writes through the cache, if there were any.
pub fn describe_work(c: &CacheStatus) -> Option<String> {
    let (hits, mut parts) = (&c.hits, Vec::new());
    let found = hits.running + hits.frozen + hits.clean + hits.kept;
    if found + hits.missed > 0 {
        let percent = |blocks: u64| blocks as f64 * 100.0 / (found + hits.missed) as f64;
        let (dirty, clean, fetched) = (hits.running + hits.frozen, hits.clean, hits.kept);
        parts.push(format!(
            "{:.1} % of what was read was in memory ({:.1} % not on disk yet, {:.1} % clean, {:.1} % read ahead or just before)",
            percent(found),
            percent(dirty),
            percent(clean),
            percent(fetched)
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

/// Lines for pending work on the disks. `row` gets the kind of line.
pub fn describe_disk_work(work: &WorkStatus, mut row: impl FnMut(&str, String)) {
    for out in &work.out_of_use {
        let since = since(out.since);
        let (is, then) = match (out.why, out.is_there) {
            ("missing", false) => {
                ("is MISSING", "attach it, or give it up: `conquest region remove POOL NUMBER --force`")
            }
            ("missing", true) => ("was missing and is there again", "it takes content soon"),
            ("late", _) => (
                "DOES NOT ANSWER and takes nothing",
                "what only it has waits for it; it is used again by itself when it answers, or give it up: `conquest region remove POOL NUMBER --force`",
            ),
            _ => (
                "has FAILED and takes nothing",
                "`conquest region remove POOL NUMBER` moves what it holds, `conquest region readmit POOL NUMBER` has it take content again",
            ),
        };
        row("region", format!("{} {is}, since {since}: {then}", out.region));
    }
    for (region, domain) in &work.domains {
        row("domain", format!("{domain}: region {region}"));
    }
    if work.lost > 0 {
        row(
            "LOST",
            format!(
                "{} of content have no replica that can be read: `conquest fsck` names the files",
                size::show(work.lost)
            ),
        );
    }
    if work.lacking > 0 {
        let time = work.seconds.map(|seconds| format!(", some {}", duration(seconds))).unwrap_or_default();
        let lazy =
            if work.lazy > 0 { format!("; of these {} lazily, later", size::show(work.lazy)) } else { String::new() };
        row("replicas", format!("{} in {} segments lack one{lazy}{time}", size::show(work.lacking), work.segments));
    }
    for leaving in &work.leaving {
        row("leaving", format!("region {}: {} are left to be moved", leaving.region, size::show(leaving.left)));
    }
    let paused = if work.paused { ", PAUSED: `conquest region balance POOL --resume`" } else { "" };
    if work.balancing {
        let rate = if work.rate > 0 { format!(", {} a second at most", size::show(work.rate)) } else { String::new() };
        row("balance", format!("{} are to be moved{rate}{paused}", size::show(work.unbalanced)));
    }
    if work.scrubbing {
        row("scrub", format!("{} segments are left, since {}{paused}", work.scrub_left, since(work.scrub_began)));
    }
    let damage = damage::describe(&work.damage);
    damage.iter().take(SHOWN).for_each(|line| row("damage", line.clone()));
    let more = damage.len().saturating_sub(SHOWN) as u64 + work.more_damage;
    if more > 0 {
        row("damage", format!("and {more} more: `conquest status --json` tells them"));
    }
    if !work.damage.is_empty() {
        row("", "once this has been seen: `conquest scrub POOL --forget`".into());
    }
}

/// The number of findings shown.
const SHOWN: usize = 10;

/// The time that has passed since `seconds` after 1970, in words.
fn since(seconds: u64) -> String {
    format!("{} ago", duration((unix_now() as u64).saturating_sub(seconds) as f64))
}

/// Seconds since 1970.
pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn duration(seconds: f64) -> String {
    match seconds as u64 {
        s @ 0..=99 => format!("{s} s"),
        s @ 100..=5999 => format!("{} min", s / 60),
        s @ 6000..=172_799 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_for_people() {
        assert_eq!(time(2.0), "2.0 s");
        assert_eq!(time(0.0123), "12.3 ms");
        assert_eq!(time(85e-6), "85 µs");
    }
}

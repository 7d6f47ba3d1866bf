//! A pool at a glance, for `conquest status` and `list`: its health, what is wrong, and the room that is left, on a
//! screen of fifteen lines.

use std::fmt::Write;
use std::path::Path;

use conquest::brief::{Brief, Copy, Room};
use conquest::health::{self, Finding, Health};
use conquest::{Looked, MemberStatus, PerformanceStatus, Pool, RegionStatus, Released, SessionStatus, Status};
use report::cells::align;
use serde::Serialize;

use crate::failure::{Context, Result};
use crate::mounts::Mounted;
use crate::stopped_processes::Stopped;
use crate::{mounts, servers, size, stall};

/// Lines of a glance at most.
const LINES: usize = 15;
/// Findings shown of them.
const FINDINGS: usize = 5;

/// What is known about a pool without changing anything of it.
pub struct Glance {
    pub of: Seen,
    /// The mount points that this command sees.
    pub places: Vec<Place>,
    /// The attached processes that are stopped.
    pub stopped: Vec<u32>,
    pub findings: Vec<Finding>,
}

pub fn look(pool: &Path) -> Result<Glance> {
    let (of, places, stopped, mut findings) = match read(pool)? {
        Seen::Status(status) => {
            // This command itself has the pool open meanwhile.
            let status = Box::new(status.without(std::process::id()));
            let places = places_of(pool, &status.sessions)?;
            let live = status.sessions.iter().filter(|session| !session.gone);
            let stopped: Vec<Stopped> = live.filter_map(|user| Stopped::among(&[user.pid])).collect();
            let mut findings = status.findings();
            findings.extend(stopped.iter().map(|stopped| of_stopped(stopped, &status.sessions)));
            let stopped = stopped.iter().map(|stopped| stopped.pid).collect();
            (Seen::Status(status), places, stopped, findings)
        }
        Seen::Released(r) => {
            let findings = health::of_closed(&r.pool, r.failure.as_deref(), &r.regions, &r.disks);
            (Seen::Released(r), places_of(pool, &[])?, Vec::new(), findings)
        }
    };
    findings.extend(places.iter().filter_map(|place| place.finding(pool)));
    Ok(Glance { of, places, stopped, findings: health::sorted(findings) })
}

pub enum Seen {
    Status(Box<Status>),
    Released(Box<Released>),
}

fn read(pool: &Path) -> Result<Seen> {
    let path = pool.to_path_buf();
    stall::watched(pool, move |_| {
        let cannot = || format!("cannot look at the pool at {}", path.display());
        Ok(match Pool::look(&path).context(cannot)? {
            Looked::Pool(pool) => Seen::Status(pool.status().context(cannot)?.into()),
            Looked::Released(released) => Seen::Released(released),
        })
    })
}

/// A directory where the pool is mounted.
#[derive(Serialize)]
pub struct Place {
    pub dir: String,
    /// `rw,nosuid` and the like.
    pub options: String,
    /// False: its server is gone.
    pub alive: bool,
}

impl Place {
    /// What is wrong with a mount of the pool at `pool`.
    fn finding(&self, pool: &Path) -> Option<Finding> {
        let what = format!("its server is gone: calls to {} fail", self.dir);
        let remedy = Some(format!("conquest mount {} {}", pool.display(), self.dir));
        (!self.alive).then_some(Finding { health: Health::Dead, what, remedy })
    }
}

fn places_of(pool: &Path, sessions: &[SessionStatus]) -> Result<Vec<Place>> {
    // No call goes to a mount: its server may be stopped.
    let served = sessions.iter().any(|session| session.is_mount() && !session.gone);
    let places = mounts::of(pool)?.into_iter();
    let place = |m: Mounted| {
        let alive = served && !servers::of(&m).is_empty();
        Place { dir: m.dir.display().to_string(), options: m.options, alive }
    };
    Ok(places.map(place).collect())
}

/// A notice of a stopped process: it may be meant to be.
fn of_stopped(stopped: &Stopped, users: &[SessionStatus]) -> Finding {
    let what = format!("process {} is STOPPED, and {}", stopped.pid, waits_for(stopped.pid, users));
    Finding { health: Health::Ok, what, remedy: Some(stopped.remedy()) }
}

/// The description of the processes that wait for a stopped process: not all have a mount.
fn waits_for(pid: u32, users: &[SessionStatus]) -> &'static str {
    match users.iter().any(|user| user.pid == pid && user.mountpoint.is_some()) {
        true => "whatever asks its mount waits",
        false => "whatever needs what it has locked waits",
    }
}

pub fn of(s: &Status, places: &[Place], findings: &[Finding]) -> String {
    let mut out = head(&s.pool.display().to_string(), findings, &used_by(places, &s.sessions), &s.brief());
    table(&mut out, &s.regions);
    out
}

pub fn of_released(r: &Released, places: &[Place], findings: &[Finding]) -> String {
    let mut out = verdict(&r.pool.display().to_string(), findings, &used_by(places, &[]), &r.medium.to_string());
    out.push_str(
        "memory  none: it was given back, or lost with the machine; mounting the pool makes it from the copy on disk\n",
    );
    table(&mut out, &r.regions);
    out
}

/// What a mount tells whoever may not read the pool itself.
pub fn of_brief(brief: &Brief, mounted: &Mounted) -> String {
    let mode = mounted.options.split(',').next().unwrap_or_default();
    let pid = brief.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    head(&brief.pool, &brief.findings, &format!("{mode} at {}{pid}", mounted.dir.display()), brief)
}

/// The verdict, and the sizes.
fn head(pool: &str, findings: &[Finding], used: &str, brief: &Brief) -> String {
    let interval = brief.copy.as_ref().map(|copy| format!(", {} s", copy.interval)).unwrap_or_default();
    let mut out = verdict(pool, findings, used, &format!("{}{interval}", brief.medium));
    // The cache is evicted when the memory is needed.
    let cache = if brief.cache > 0 { format!(" + {} cache", size::show(brief.cache)) } else { String::new() };
    let _ = writeln!(out, "memory  {}{cache}", part(&brief.memory));
    if let Some(disks) = &brief.disks {
        let _ = writeln!(out, "disks   {}", part(disks));
    }
    if let Some(copy) = &brief.copy {
        let _ = writeln!(out, "copy    {}", of_copy(copy));
    }
    out
}

/// The first line, and what is wrong.
fn verdict(pool: &str, findings: &[Finding], used: &str, medium: &str) -> String {
    let mut out = format!("{pool}  {}  {used}  {medium}\n", health::of(findings).shown());
    for finding in findings.iter().take(FINDINGS) {
        let _ = writeln!(out, "! {}", line(finding));
    }
    if findings.len() > FINDINGS {
        let _ = writeln!(out, "! and {} more: `conquest status --json` tells them", findings.len() - FINDINGS);
    }
    out
}

/// What is wrong, and what mends it.
fn line(finding: &Finding) -> String {
    match &finding.remedy {
        Some(remedy) => format!("{}: {remedy}", finding.what),
        None => finding.what.clone(),
    }
}

/// Where the pool is mounted, and who else uses it.
fn used_by(places: &[Place], sessions: &[SessionStatus]) -> String {
    let server = sessions.iter().find(|session| session.is_mount() && !session.gone);
    let pid = server.map(|server| format!(" (pid {})", server.pid)).unwrap_or_default();
    let mounted = match places {
        [] => "not mounted".into(),
        [place, rest @ ..] => {
            let mode = place.options.split(',').next().unwrap_or_default();
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            format!("{mode} at {}{more}{pid}", place.dir)
        }
    };
    match sessions.iter().filter(|session| !session.is_mount() && !session.gone).count() {
        0 => mounted,
        1 => format!("{mounted}, in use by 1 process"),
        n => format!("{mounted}, in use by {n} processes"),
    }
}

fn part(room: &Room) -> String {
    format!("{} of {} ({})", size::show(room.used), size::show(room.size), percent(room))
}

pub fn percent(room: &Room) -> String {
    format!("{:.0} %", room.used as f64 * 100.0 / room.size.max(1) as f64)
}

fn of_copy(copy: &Copy) -> String {
    let age = match (copy.failed, copy.lacks()) {
        (true, _) => "takes no more writes".into(),
        (_, Some(0.0)) => "complete".into(),
        (_, None) => format!("not begun, {} to write", size::show(copy.pending)),
        (_, Some(age)) => format!("{age:.1} s old, {} to write", size::show(copy.pending)),
    };
    let regions: Vec<String> = copy.regions.iter().map(u32::to_string).collect();
    match &regions[..] {
        [] => age,
        [one] => format!("{age}, on region {one}"),
        [first @ .., last] => format!("{age}, on regions {} and {last}", first.join(", ")),
    }
}

/// The regions and their disks; those that are well are left out where there is no room for all.
fn table(out: &mut String, regions: &[RegionStatus]) {
    if regions.is_empty() {
        return;
    }
    let heads = ["REGION", "KIND", "SIZE", "STATE", "READ MB/s", "WRITE MB/s", "P99"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    let lines = |region: &RegionStatus| if region.members.len() > 1 { 1 + region.members.len() } else { 1 };
    let room = LINES.saturating_sub(out.lines().count() + 2);
    let is_short = regions.iter().map(lines).sum::<usize>() > room;
    let shown = regions.iter().filter(|region| !is_short || !is_well(region));
    let mut left_out = regions.len();
    for region in shown {
        if rows.len() > room {
            break;
        }
        left_out -= 1;
        rows.push(row(region.number.to_string(), &region.layout, region.size, state(region), &region.performance));
        if region.members.len() > 1 {
            rows.extend(region.members.iter().enumerate().map(|(role, member)| of_member(region.number, role, member)));
        }
    }
    if rows.len() > 1 {
        out.push_str(&align(&rows));
    }
    if left_out > 0 {
        let _ = writeln!(out, "{left_out} more regions: conquest region list");
    }
}

fn is_well(region: &RegionStatus) -> bool {
    region.problem.is_none()
        && region.tolerated.is_some()
        && !region.is_degraded()
        && region.performance.stutter.is_none()
}

fn state(region: &RegionStatus) -> &'static str {
    match region {
        _ if region.problem.is_some() => "NOT USED",
        _ if region.tolerated.is_none() => "LOST",
        _ if region.is_degraded() => "DEGRADED",
        _ if region.performance.stutter.is_some() => "SLOW",
        _ => "ok",
    }
}

fn of_member(region: u32, role: usize, member: &MemberStatus) -> Vec<String> {
    let name = member.path.as_ref().and_then(|path| path.file_name());
    let name = name.map_or_else(|| member.uuid.chars().take(8).collect(), |name| name.to_string_lossy().into_owned());
    let state = if member.is_whole() { "ok".into() } else { member.state.to_uppercase() };
    let mut cells = vec![format!(" {region}.{}", role + 1), name, "-".into(), state];
    cells.extend(["-", "-", "-"].map(String::from));
    cells
}

fn row(number: String, kind: &str, bytes: u64, state: &str, found: &PerformanceStatus) -> Vec<String> {
    let speed = |flow: &conquest::FlowStatus| match flow.requests {
        0 => "-".into(),
        _ => format!("{:.0}", flow.recent_speed / 1e6),
    };
    let slowest = found.read.p99.max(found.write.p99);
    let p99 = if slowest > 0.0 { format!("{:.1} ms", slowest * 1e3) } else { "-".into() };
    let cells = [number, kind.into(), size::show(bytes), state.into(), speed(&found.read), speed(&found.write), p99];
    cells.into()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn only_a_mount_is_waited_for_as_such() {
        let user = |pid, mountpoint: Option<&str>| SessionStatus {
            pid,
            role: String::new(),
            transport: None,
            mountpoint: mountpoint.map(PathBuf::from),
            durability: None,
            commit: None,
            gone: false,
            tasks: Vec::new(),
        };
        let users = [user(7, None), user(8, Some("/mnt")), user(8, None)];
        assert!(waits_for(8, &users).contains("mount"));
        assert!(!waits_for(7, &users).contains("mount"));
    }
}

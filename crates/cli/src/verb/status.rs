//! `conquest status`: the content of a pool, and the processes that use it.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use conquest::Pool;
use conquest::{
    Activity, BackingRegion, BackingStatus, CompressionStatus, DiskStatus, Looked, RegionStatus, Released,
    SessionStatus, Status, TaskState,
};
use serde::Serialize;

use crate::failure::{Context, Result};
use crate::mounts::Mounted;
use crate::stopped_processes::Stopped;
use crate::{disks, locate, mounts, say, servers, size, stall};

/// Show the content of a pool and the processes that use it.
#[derive(clap::Args)]
#[command(
    after_help = "Nothing of the pool changes. Exit status: 0 all is well, 1 its backing has failed, content is lost, its server is gone, or it \
    could not be looked at.\n\nExamples:\n  conquest status /srv/pool\n  conquest status /mnt/fast          (where it is mounted)\n  \
    conquest status /srv/pool --heap           (what the memory is used for)\n  \
    conquest status /srv/pool --json | jq .sessions"
)]
pub struct Args {
    /// The pool directory, or where it is mounted [default: the pool of `conquest up`]
    pool: Option<PathBuf>,
    /// Also show the use of the memory, by kind and size of objects
    #[arg(long)]
    heap: bool,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// The output of `--json`: the facts, and the version of the program that reports them.
#[derive(Serialize)]
struct Answer {
    version: &'static str,
    #[serde(flatten)]
    status: Status,
    /// The mount points that this command sees.
    places: Vec<Place>,
    /// The attached processes that are stopped.
    stopped: Vec<u32>,
}

/// A directory where the pool is mounted.
#[derive(Serialize)]
struct Place {
    dir: String,
    /// `rw,nosuid` and the like.
    options: String,
    /// False: its server is gone.
    alive: bool,
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

pub fn run(args: &Args) -> Result<ExitCode> {
    let pool = locate::pool_or_memory(&args.pool.clone().map_or_else(locate::default_pool, Ok)?)?;
    let status = match read(&pool)? {
        // This command itself has the pool open meanwhile.
        Seen::Status(status) => status.without(std::process::id()),
        Seen::Released(released) => return tell_released(args, *released),
    };
    let places = places_of(&pool, &status.sessions)?;
    let live = status.sessions.iter().filter(|session| !session.gone);
    let stopped: Vec<Stopped> = live.filter_map(|user| Stopped::among(&[user.pid])).collect();
    if args.json {
        let stopped = stopped.iter().map(|stopped| stopped.pid).collect();
        let code = exit_code(is_well(&status, &places));
        let answer = Answer { version: env!("CARGO_PKG_VERSION"), status, places, stopped };
        say(&serde_json::to_string_pretty(&answer).context(|| "cannot write JSON".into())?)?;
        return Ok(code);
    }
    let mut shown = text(&status, &places, &stopped);
    if args.heap {
        heap(&mut shown, &status);
    }
    say(shown.trim_end())?;
    Ok(exit_code(is_well(&status, &places)))
}

enum Seen {
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

fn exit_code(is_well: bool) -> ExitCode {
    if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Does its backing hold what it should, is all content present, and does its mount answer?
fn is_well(status: &Status, places: &[Place]) -> bool {
    let has_failed = status.backing.as_ref().is_some_and(|backing| backing.failure.is_some());
    let is_lost = status.work.as_ref().is_some_and(|work| work.lost > 0);
    !has_failed && !is_lost && are_well(&status.regions, &status.disks) && places.iter().all(|place| place.alive)
}

/// Do all regions have their content, and is each disk present that they need?
fn are_well(regions: &[RegionStatus], disks: &[DiskStatus]) -> bool {
    let has_content = |region: &RegionStatus| region.problem.is_none() && region.tolerated.is_some();
    let is_spare = |disk: &DiskStatus| {
        regions
            .iter()
            .any(|region| Some(region.number) == disk.region && has_content(region) && region.members.len() > 1)
    };
    regions.iter().all(has_content) && disks.iter().all(|disk| disk.problem.is_none() || is_spare(disk))
}

/// The facts of a pool whose memory is not loaded. It is not loaded for this answer.
#[derive(Serialize)]
struct ReleasedAnswer {
    version: &'static str,
    #[serde(flatten)]
    released: Released,
    /// Bytes of memory.
    taken: u64,
    places: Vec<Place>,
    sessions: [u32; 0],
}

fn tell_released(args: &Args, released: Released) -> Result<ExitCode> {
    let places = places_of(&released.pool, &[])?;
    let is_well = released.failure.is_none() && are_well(&released.regions, &released.disks) && places.is_empty();
    match args.json {
        true => {
            let answer =
                ReleasedAnswer { version: env!("CARGO_PKG_VERSION"), released, taken: 0, places, sessions: [] };
            say(&serde_json::to_string_pretty(&answer).context(|| "cannot write JSON".into())?)?;
        }
        false => say(text_of_released(&released, &places).trim_end())?,
    }
    Ok(exit_code(is_well))
}

fn text_of_released(r: &Released, places: &[Place]) -> String {
    let mut out = String::new();
    let backing = match (&r.failure, &r.backing_dir) {
        (Some(why), _) => format!("FAILED: {why}"),
        (None, Some(dir)) => format!("in {}", dir.display()),
        (None, None) => "in the pool's regions".into(),
    };
    let rows = [
        ("pool", r.pool.display().to_string()),
        ("uuid", r.uuid.clone()),
        ("medium", r.medium.to_string()),
        (
            "memory",
            "none: it was given back, or lost with the machine; mounting the pool makes it from the backing".into(),
        ),
        ("backing", backing),
    ];
    for (name, value) in rows {
        let _ = writeln!(out, "{name:14} {value}");
    }
    disks::describe_all(&r.regions, &r.disks, |kind, line| _ = writeln!(out, "{kind:14} {line}"));
    out.push_str("in use by      nobody\n");
    describe_places(&mut out, places);
    out
}

fn describe_places(out: &mut String, places: &[Place]) {
    for place in places {
        let gone = if place.alive { "" } else { ": its server is gone; `conquest up` or `mount` mounts it again" };
        let _ = writeln!(out, "mounted at     {} ({}){gone}", place.dir, place.options);
    }
}

/// The compressed content, if there is any.
fn compressed(c: &CompressionStatus) -> Option<String> {
    let (warm, cold) = (c.found.warm, c.found.cold);
    if warm.files + cold.files == 0 {
        return None;
    }
    let of = |name: &str, sum: conquest_fs::compress::Sum| {
        format!("{name} {} files {} → {}", sum.files, size::show(sum.content), size::show(sum.memory))
    };
    let plain = c.found.plain;
    Some(format!(
        "{}, {}; plain {} files {}; {} saved; {} dictionaries ({})",
        of("warm", warm),
        of("cold", cold),
        plain.files,
        size::show(plain.memory),
        size::show(c.saved),
        c.found.dictionaries,
        size::show(c.found.dictionary_memory),
    ))
}

fn text(s: &Status, places: &[Place], stopped: &[Stopped]) -> String {
    let mut out = String::new();
    // Clean blocks of the cache are evicted when the memory is needed.
    let clean = s.cache.as_ref().map_or(0, |cache| cache.clean.min(s.used));
    let used = s.used - clean;
    let percent = if s.size == 0 { 0.0 } else { used as f64 * 100.0 / s.size as f64 };
    let cached = if clean > 0 { format!(", {} of cache that gives way", size::show(clean)) } else { String::new() };
    let rows = [
        ("pool", s.pool.display().to_string()),
        ("uuid", s.uuid.clone()),
        ("medium", format!("{}, {}", s.medium, s.nvram.display())),
        ("cpu flush", s.flush_instruction.unwrap_or("not needed").into()),
        ("size", size::show(s.size)),
        ("used", format!("{} ({percent:.1} %), {} free{cached}", size::show(used), size::show(s.free))),
        ("memory", memory(s)),
        ("inodes", s.inodes.to_string()),
        ("fragmentation", format!("{:.1} %", s.fragmentation * 100.0)),
        ("sweep", if s.sweep_pending { "due: a process died without closing" } else { "not needed" }.into()),
    ];
    for (name, value) in rows {
        let _ = writeln!(out, "{name:14} {value}");
    }
    if let Some(backing) = &s.backing {
        let _ = writeln!(out, "{:14} {}", "backing", of_backing(backing));
    }
    disks::describe_all(&s.regions, &s.disks, |kind, line| _ = writeln!(out, "{kind:14} {line}"));
    if let Some(segments) = &s.segments {
        let _ = writeln!(out, "{:14} {}", "on disk", disks::describe_segments(segments));
    }
    if let Some(work) = &s.work {
        disks::describe_disk_work(work, |kind, line| _ = writeln!(out, "{kind:14} {line}"));
    }
    if let Some(cache) = &s.cache {
        let _ = writeln!(out, "{:14} {}", "union cache", disks::describe_cache(cache));
        if let Some(work) = disks::describe_work(cache) {
            let _ = writeln!(out, "{:14} {work}", "");
        }
    }
    if let Some(shown) = compressed(&s.compression) {
        let _ = writeln!(out, "{:14} {shown}", "compressed");
    }
    if s.packed_inodes.inodes > 0 {
        let conquest_fs::node::Packed { inodes, plain_bytes, packed_bytes, .. } = s.packed_inodes;
        let (plain, packed) = (size::show(plain_bytes), size::show(packed_bytes));
        _ = writeln!(out, "{:14} {inodes} inodes {plain} → {packed}", "packed");
    }
    if s.packed_names.buckets > 0 {
        let (plain, packed) = (size::show(s.packed_names.plain_bytes), size::show(s.packed_names.packed_bytes));
        _ = writeln!(out, "{:14} names in directories {plain} → {packed}", "packed");
    }
    match s.sessions.is_empty() {
        true => out.push_str("in use by      nobody\n"),
        false => s.sessions.iter().for_each(|session| describe(&mut out, session)),
    }
    describe_places(&mut out, places);
    for process in stopped {
        let (waits, remedy) = (waits_for(process.pid, &s.sessions), process.remedy());
        let _ = writeln!(out, "STOPPED        pid {}, and {waits}: {remedy}", process.pid);
    }
    out
}

/// The memory that the pool takes, and its size.
fn memory(s: &Status) -> String {
    let taken = size::show(s.taken);
    match s.host_full {
        false => format!("{taken} taken of the host"),
        true => format!("{taken} taken of the host, which has NO MORE: the pool is full until it has"),
    }
}

fn of_backing(backing: &BackingStatus) -> String {
    let state = match &backing.failure {
        Some(why) => return format!("FAILED: {why}"),
        None if backing.pending == 0 => "holds everything".into(),
        None if backing.as_of == 0.0 => format!("holds nothing yet of {}", size::show(backing.pending)),
        None => format!("as of {:.1} s ago, {} have changed since", backing.age, size::show(backing.pending)),
    };
    let rate = backing.rate.map(|rate| format!(", at most {} a second", size::show(rate))).unwrap_or_default();
    let regions: Vec<String> = backing.regions.iter().map(in_region).collect();
    let regions = if regions.is_empty() { String::new() } else { format!("; in {}", regions.join(", ")) };
    format!("{state}; every {} s{rate}{regions}{}", backing.interval, made_anew(backing))
}

/// Says that the backing was made anew from memory, or is being made, and why.
fn made_anew(backing: &BackingStatus) -> String {
    match (backing.made_anew, &backing.damage) {
        (_, None) => String::new(),
        (0, Some(why)) => format!("; it is being made anew from memory: {why}"),
        (1, Some(why)) => format!("; it was made anew from memory: {why}"),
        (times, Some(why)) => format!("; it was made anew from memory {times} times, the last time: {why}"),
    }
}

/// The state of a region with the backing.
fn in_region(of: &BackingRegion) -> String {
    let since = || humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + std::time::Duration::from_secs(of.since));
    match of.state {
        "whole" => format!("region {}", of.region),
        "filling" => format!("region {} (being copied to it since {})", of.region, since()),
        "missing" => format!("region {} (MISSING)", of.region),
        _ => format!("region {} (OUT: it lacks what was written since {})", of.region, since()),
    }
}

fn describe(out: &mut String, s: &SessionStatus) {
    let transport = s.transport.as_ref().map(|t| format!(" over {t}")).unwrap_or_default();
    let place = s.mountpoint.as_ref().map(|d| format!(" at {}", d.display())).unwrap_or_default();
    let durability = s.durability.map(|d| format!(", durability {d}")).unwrap_or_default();
    let commit = s.commit.map(|c| format!(", commits every {c} s")).unwrap_or_default();
    let gone = if s.gone { ": GONE without closing the pool; another process cleans up after it" } else { "" };
    let _ = writeln!(out, "in use by      pid {} ({}{place}{transport}{durability}{commit}){gone}", s.pid, s.role);
    for task in &s.tasks {
        let _ = writeln!(out, "  {:12} {}", task.name, of_task(task, disks::unix_now()));
    }
}

fn of_task(task: &TaskState, now: f64) -> String {
    let ago = |since: f64| Duration::from_secs((now - since).max(0.0) as u64);
    let state = match task.state {
        Activity::Running => "running",
        Activity::Asleep => "asleep",
        Activity::Waiting => "waiting",
        Activity::Ended => {
            return "ENDED by a defect: mount the pool again, and report what its server.log says".into()
        }
    };
    let why = if task.why.is_empty() { String::new() } else { format!(": {}", task.why) };
    let progress = task.progress.as_ref().map(|p| format!(", {} of {} {}", p.done, p.total, p.of)).unwrap_or_default();
    let error = task
        .last_error
        .as_ref()
        .map(|error| format!("; last error {} ago: {}", humantime::format_duration(ago(error.at)), error.what));
    format!("{state} for {}{progress}{why}{}", humantime::format_duration(ago(task.since)), error.unwrap_or_default())
}

/// The description of the processes that wait for a stopped process: not all have a mount.
fn waits_for(pid: u32, users: &[SessionStatus]) -> &'static str {
    match users.iter().any(|user| user.pid == pid && user.mountpoint.is_some()) {
        true => "whatever asks its mount waits",
        false => "whatever needs what it has locked waits",
    }
}

fn heap(out: &mut String, s: &Status) {
    if s.heap.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{:20} {:>10} {:>12} {:>10}", "objects", "bytes each", "count", "chunks");
    for class in &s.heap {
        let _ = writeln!(out, "{:20} {:>10} {:>12} {:>10}", class.kind, class.size, class.objects, class.chunks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conquest::{Progress, TaskError};

    #[test]
    fn a_task_tells_what_it_does_and_its_last_error() {
        let task = TaskState {
            name: "compression",
            state: Activity::Running,
            why: "".into(),
            since: 1000.5,
            at_most: None,
            runs: 3,
            progress: Some(Progress { done: 256, total: 1000, of: "inodes".into() }),
            last_error: None,
        };
        assert_eq!(of_task(&task, 1062.7), "running for 1m 2s, 256 of 1000 inodes");
        let last_error = Some(TaskError { what: "compressing: no memory".into(), at: 1055.0 });
        let task = TaskState { state: Activity::Waiting, why: "its share".into(), progress: None, last_error, ..task };
        let text = of_task(&task, 1000.0);
        assert_eq!(text, "waiting for 0s: its share; last error 0s ago: compressing: no memory");
        assert!(of_task(&TaskState { state: Activity::Ended, ..task }, 1000.0).contains("ENDED"));
    }

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

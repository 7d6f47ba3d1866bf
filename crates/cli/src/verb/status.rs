//! `conquest status`: the health of a pool, what it holds, and the processes that use it.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use conquest::health::{self, Finding, Health};
use conquest::{Activity, BackingRegion, BackingStatus, CompressionStatus, Released, SessionStatus, Status, TaskState};
use serde::Serialize;

use crate::failure::{Context, Result};
use crate::glance::{Glance, Place, Seen};
use crate::{ask, disks, glance, locate, say, size};

/// Show the health of a pool, what it holds, and the processes that use it.
#[derive(clap::Args)]
#[command(
    after_help = "Nothing of the pool changes. The first line has its health; lines that begin with `!` say what is wrong, and after the \
    colon what mends it.\n\nExit status: 0 all is well, 1 it is not, 2 that cannot be known.\n\nExamples:\n  \
    conquest status /srv/pool\n  conquest status /mnt/fast          (where it is mounted)\n  \
    conquest status /srv/pool -v               (all that is known)\n  \
    conquest status /srv/pool --json | jq .health"
)]
pub struct Args {
    /// The pool directory, or where it is mounted [default: the pool of `conquest up`]
    pool: Option<PathBuf>,
    /// Show all that is known: backing, cache, compression, background work
    #[arg(long, short)]
    verbose: bool,
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
    health: Health,
    findings: Vec<Finding>,
    #[serde(flatten)]
    status: Status,
    /// The mount points that this command sees.
    places: Vec<Place>,
    /// The attached processes that are stopped.
    stopped: Vec<u32>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let pool = args.pool.clone().map_or_else(locate::default_pool, Ok)?;
    match shown(args, &pool) {
        // Who may not open the pool is told by its mount.
        Err(failure) if !rustix::process::geteuid().is_root() => {
            let mounts = ask::mounts(Some(&pool)).unwrap_or_default().into_iter();
            let known = mounts.filter_map(|mounted| ask::brief(&mounted).known().map(|brief| (mounted, brief))).next();
            let Some((mounted, brief)) = known else { return Err(failure.with_status(UNKNOWN)) };
            let health = brief.health;
            match args.json {
                true => say(&serde_json::to_string_pretty(&brief).context(|| "cannot write JSON".into())?)?,
                false => say(glance::of_brief(&brief, &mounted).trim_end())?,
            }
            Ok(exit_code(health))
        }
        shown => shown.map_err(|failure| failure.with_status(UNKNOWN)),
    }
}

/// The exit status if the state of the pool cannot be told.
const UNKNOWN: u8 = 2;

fn shown(args: &Args, pool: &Path) -> Result<ExitCode> {
    let pool = locate::pool_or_memory(pool)?;
    let (status, places, stopped, findings) = match glance::look(&pool)? {
        Glance { of: Seen::Status(status), places, stopped, findings } => (*status, places, stopped, findings),
        Glance { of: Seen::Released(released), places, findings, .. } => {
            return tell_released(args, *released, places, findings)
        }
    };
    let health = health::of(&findings);
    if args.json {
        let answer = Answer { version: env!("CARGO_PKG_VERSION"), health, findings, status, places, stopped };
        say(&serde_json::to_string_pretty(&answer).context(|| "cannot write JSON".into())?)?;
        return Ok(exit_code(health));
    }
    let mut out = glance::of(&status, &places, &findings);
    if args.verbose {
        _ = write!(out, "\n{}", text(&status, &places));
    }
    if args.heap {
        heap(&mut out, &status);
    }
    say(out.trim_end())?;
    Ok(exit_code(health))
}

fn exit_code(health: Health) -> ExitCode {
    match health {
        Health::Ok => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// The facts of a pool whose memory is not loaded. It is not loaded for this answer.
#[derive(Serialize)]
struct ReleasedAnswer {
    version: &'static str,
    health: Health,
    findings: Vec<Finding>,
    #[serde(flatten)]
    released: Released,
    /// Bytes of memory.
    taken: u64,
    places: Vec<Place>,
    sessions: [u32; 0],
}

fn tell_released(args: &Args, released: Released, places: Vec<Place>, findings: Vec<Finding>) -> Result<ExitCode> {
    let health = health::of(&findings);
    if args.json {
        let version = env!("CARGO_PKG_VERSION");
        let answer = ReleasedAnswer { version, health, findings, released, taken: 0, places, sessions: [] };
        say(&serde_json::to_string_pretty(&answer).context(|| "cannot write JSON".into())?)?;
        return Ok(exit_code(health));
    }
    let mut out = glance::of_released(&released, &places, &findings);
    if args.verbose {
        _ = write!(out, "\n{}", text_of_released(&released, &places));
    }
    say(out.trim_end())?;
    Ok(exit_code(health))
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

fn text(s: &Status, places: &[Place]) -> String {
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
}

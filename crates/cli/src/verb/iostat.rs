//! `conquest iostat`: the operations that mounts serve.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use conquest::operations::{Kind, Operations};
use report::cells::align;
use serde::Serialize;

use crate::failure::{Context, Failure, Result};
use crate::mounts::Mounted;
use crate::{ask, glance, say};

/// Show how many operations the mounts of pools serve, and how long they take.
#[derive(clap::Args)]
#[command(
    after_help = "The first line is of the time since the pool was mounted, each further one of an interval. Counted is what the kernel \
    asks the server of a mount: not what the kernel answers by itself, nor what programs do under `conquest run`. P99 is the time \
    within which 99 of 100 were answered, to a fifth.\n\nExamples:\n  conquest iostat\n  \
    conquest iostat /mnt/fast 5            (each five seconds)\n  conquest iostat /mnt/fast 1 10 -v      (ten times, by kind)\n  \
    conquest iostat --json | jq '.pools[].operations'"
)]
pub struct Args {
    /// A pool directory, or where it is mounted [default: all that are mounted]; then an interval in seconds [default: once], and how often
    /// [default: until it is interrupted]
    #[arg(value_name = "POOL] [INTERVAL [COUNT]")]
    args: Vec<String>,
    /// Show each kind of operation
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON, one line for each interval
    #[arg(long)]
    json: bool,
}

/// What the arguments say.
#[derive(Debug, PartialEq)]
struct Plan {
    pool: Option<PathBuf>,
    interval: Option<Duration>,
    count: u64,
}

/// Of one pool.
#[derive(Serialize)]
struct Seen {
    pool: String,
    mount: String,
    /// The part of memory and disks that is in use.
    used: Option<String>,
    operations: Operations,
}

#[derive(Serialize)]
struct Answer<'s> {
    version: &'static str,
    pools: &'s [Seen],
}

/// Intervals after which the heads of the columns are shown again.
const PAGE: u64 = 20;

pub fn run(args: &Args) -> Result<()> {
    let plan = plan(&args.args)?;
    let mut before: Vec<Seen> = Vec::new();
    let begun = Instant::now();
    for n in 0..plan.count {
        if let Some(interval) = plan.interval.filter(|_| n > 0) {
            let next = interval.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
            std::thread::sleep(next.saturating_sub(begun.elapsed()));
        }
        let now = look(plan.pool.as_deref())?;
        let of = |seen: &Seen| before.iter().find(|old| old.pool == seen.pool).map(|old| &old.operations);
        let passed: Vec<Seen> = now.iter().map(|seen| seen.since(of(seen))).collect();
        match args.json {
            true => {
                let answer = Answer { version: env!("CARGO_PKG_VERSION"), pools: &passed };
                say(&serde_json::to_string(&answer).context(|| "cannot write JSON".into())?)?;
            }
            false if args.verbose => say(passed.iter().map(of_kinds).collect::<String>().trim_end())?,
            false => say(of_pools(&passed, n % PAGE == 0).trim_end())?,
        }
        before = now;
    }
    Ok(())
}

fn plan(args: &[String]) -> Result<Plan> {
    let is_number = |arg: &&String| arg.parse::<f64>().is_ok();
    let (pool, numbers) = match args {
        [first, rest @ ..] if !is_number(&first) => (Some(PathBuf::from(first)), rest),
        all => (None, all),
    };
    let wrong =
        || Failure::new("after the pool come an interval in seconds and a count, such as `5 10`").with_status(2);
    let interval = match numbers.first() {
        Some(text) => {
            let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=1e6).contains(seconds)).ok_or_else(wrong)?;
            Some(Duration::from_secs_f64(seconds))
        }
        None => None,
    };
    let count = match (numbers.get(1), interval) {
        (Some(text), _) => text.parse::<u64>().ok().filter(|count| *count > 0).ok_or_else(wrong)?,
        (None, Some(_)) => u64::MAX,
        (None, None) => 1,
    };
    if numbers.len() > 2 {
        return Err(wrong());
    }
    Ok(Plan { pool, interval, count })
}

fn look(pool: Option<&std::path::Path>) -> Result<Vec<Seen>> {
    let mounts = ask::mounts(pool)?;
    let seen: Vec<Seen> = mounts.iter().filter_map(seen).collect();
    match (seen.is_empty(), pool) {
        (true, Some(pool)) => Err(Failure::new(format!(
            "the mount of {} does not answer, or is another user's: `conquest list` shows its health",
            pool.display()
        ))),
        (true, None) => Err(Failure::new("no pool is mounted whose server answers: `conquest list` shows the pools")),
        _ => Ok(seen),
    }
}

fn seen(mounted: &Mounted) -> Option<Seen> {
    let operations = ask::operations(mounted).known()?;
    let used = ask::brief(mounted).known().map(|brief| glance::percent(&brief.room()));
    let (pool, mount) = (mounted.source.display().to_string(), mounted.dir.display().to_string());
    Some(Seen { pool, mount, used, operations })
}

impl Seen {
    fn since(&self, before: Option<&Operations>) -> Seen {
        let operations = before.map_or_else(|| self.operations.clone(), |before| self.operations.since(before));
        Seen { pool: self.pool.clone(), mount: self.mount.clone(), used: self.used.clone(), operations }
    }
}

const SYNCS: [&str; 3] = ["fsync", "fsyncdir", "syncfs"];

fn of_pools(pools: &[Seen], with_heads: bool) -> String {
    let heads =
        ["POOL", "USED", "READ /s", "MB/s", "P99", "WRITE /s", "MB/s", "P99", "SYNC /s", "P99", "OTHER /s", "P99"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for seen in pools {
        let (operations, seconds) = (&seen.operations, seen.operations.seconds);
        let mut cells = vec![seen.pool.clone(), seen.used.clone().unwrap_or_else(|| "-".into())];
        let content = |cells: &mut Vec<String>, kind: &Kind, has_bytes: bool| {
            cells.push(per_second(kind.requests as f64, seconds));
            if has_bytes {
                cells.push(per_second(kind.bytes as f64 / 1e6, seconds));
            }
            cells.push(time(kind.within(0.99)));
        };
        content(&mut cells, &operations.sum(|name| name == "read"), true);
        content(&mut cells, &operations.sum(|name| name == "write"), true);
        content(&mut cells, &operations.sum(|name| SYNCS.contains(&name)), false);
        content(&mut cells, &operations.sum(|name| name != "read" && name != "write" && !SYNCS.contains(&name)), false);
        rows.push(cells);
    }
    let text = align(&rows);
    match with_heads {
        true => text,
        false => text.split_once('\n').map_or_else(String::new, |(_, rest)| rest.into()),
    }
}

/// Each kind of operation of a pool, those that take the most time first.
fn of_kinds(seen: &Seen) -> String {
    let heads = ["OPERATION", "/s", "MB/s", "MEDIAN", "P99", "MEAN", "OF TIME", "FAILED"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    let mut kinds: Vec<&Kind> = seen.operations.kinds.iter().collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.nanos));
    let all: u64 = kinds.iter().map(|kind| kind.nanos).sum();
    for kind in kinds {
        let seconds = seen.operations.seconds;
        rows.push(vec![
            kind.name.clone(),
            per_second(kind.requests as f64, seconds),
            if kind.bytes > 0 { per_second(kind.bytes as f64 / 1e6, seconds) } else { "-".into() },
            time(kind.within(0.5)),
            time(kind.within(0.99)),
            time(Duration::from_nanos(kind.nanos / kind.requests.max(1))),
            format!("{:.0} %", kind.nanos as f64 * 100.0 / all.max(1) as f64),
            kind.failures.to_string(),
        ]);
    }
    format!("{} at {}, {:.1} s\n{}\n", seen.pool, seen.mount, seen.operations.seconds, align(&rows))
}

fn per_second(what: f64, seconds: f64) -> String {
    let rate = what / seconds.max(1e-3);
    match rate {
        0.0 => "-".into(),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

fn time(took: Duration) -> String {
    match took.as_micros() {
        0 => "-".into(),
        micros if micros < 1000 => format!("{micros} us"),
        micros if micros < 1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        micros => format!("{:.1} s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_an_interval_and_a_count_may_be_given() {
        let of = |args: &[&str]| plan(&args.iter().map(|arg| arg.to_string()).collect::<Vec<_>>());
        let second = Some(Duration::from_secs(1));
        assert_eq!(of(&[]).expect("a plan"), Plan { pool: None, interval: None, count: 1 });
        assert_eq!(of(&["/p"]).expect("a plan"), Plan { pool: Some("/p".into()), interval: None, count: 1 });
        assert_eq!(of(&["1"]).expect("a plan"), Plan { pool: None, interval: second, count: u64::MAX });
        assert_eq!(
            of(&["/p", "1", "3"]).expect("a plan"),
            Plan { pool: Some("/p".into()), interval: second, count: 3 }
        );
        for wrong in [&["/p", "x"][..], &["0"], &["1", "0"], &["1", "2", "3"], &["/p", "-1"], &["nan"], &["inf"]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }
}

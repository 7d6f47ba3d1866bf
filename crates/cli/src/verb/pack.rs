//! `conquest pack`: compresses the content of unused small files at once.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use conquest::Pool;
use conquest_fs::codec::Codec;
use conquest_fs::compress::{Compressor, Plan, Walked};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;

use crate::failure::{Context, Failure, Result};
use crate::paths_in_pools::{self, Failures, Inside};
use crate::{locate, progress, say, size};

/// Compress the content of unused small files now, instead of gradually in the background.
#[derive(clap::Args)]
#[command(
    after_help = "Without --now those files are compressed that maintenance would: which those are, the pool's settings and \
    the setting `compression` of each file say (user.conquest.compression: auto, always, never, warm, cold).\n\
    What is compressed is read as before, and is plain again when it is changed. Inodes and names are packed too, inodes with times in whole seconds where \
    user.conquest.times is `seconds`.\n\n\
    Examples:\n  conquest pack /srv/pool --now\n  conquest pack /mnt/fast/archive --now\n  \
    conquest pack /mnt/fast/src --now --tier warm\n  conquest pack /mnt/fast/src --undo\n  \
    conquest pack /srv/pool --now --json | jq .saved\n\n\
    Exit status: 0 done, 1 some files could not be compressed, or it was interrupted (what is done stays), or it failed, 2 wrong usage."
)]
pub struct Args {
    /// The pool directory, where it is mounted, or files and directories in a mounted pool
    #[arg(value_name = "POOL|PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Also compress files used a moment ago
    #[arg(long)]
    now: bool,
    /// The method: `warm` is quick, `cold` saves more
    #[arg(long, value_enum, requires = "now")]
    tier: Option<Tier>,
    /// Decompress the content again
    #[arg(long, conflicts_with_all = ["now", "tier"])]
    undo: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Tier {
    /// LZ4
    Warm,
    /// zstd, with a dictionary of the pool's own files
    Cold,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Answer {
    version: &'static str,
    pool: String,
    #[serde(flatten)]
    done: Walked,
    /// The packed inodes, and the bytes of their blocks before and after.
    inodes: conquest_fs::node::Packed,
    /// The packed names in directories.
    names: conquest_fs::node::PackedNames,
    /// The saved bytes of memory; negative if it grew.
    saved: i64,
    seconds: f64,
    interrupted: bool,
}

/// The range of the walk: a whole pool, or the files below a path.
enum Where {
    Pool(PathBuf),
    Below(Inside),
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let (mut failures, mut all_well) = (Failures::default(), true);
    let asked = Interrupt::catch()?;
    for path in &args.paths {
        match pack(args, path, &asked) {
            Ok(answer) => {
                all_well &= answer.done.failed == 0 && !answer.interrupted;
                tell(args, &answer)?;
                if answer.interrupted {
                    break;
                }
            }
            Err(e) => failures.tell(e),
        }
    }
    failures.end(if args.undo { "made plain" } else { "compressed" })?;
    Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn place(path: &Path) -> Result<Where> {
    let found = locate::absolute(path)?;
    match crate::mounts::conquest_at(&found)? {
        Some(mounted) => Ok(Where::Pool(mounted.source)),
        None if Pool::exists(&found) => Ok(Where::Pool(found)),
        None => Inside::find(path).map(Where::Below),
    }
}

fn pack(args: &Args, path: &Path, asked: &Interrupt) -> Result<Answer> {
    let place = place(path)?;
    let dir = match &place {
        Where::Pool(dir) => dir.clone(),
        Where::Below(inside) => inside.mounted.source.clone(),
    };
    let cannot = || format!("cannot compress what is in {}", path.display());
    let pool = Pool::open(&dir, &conquest::OpenOptions::default()).context(cannot)?;
    let plan = match (args.now, args.tier) {
        (true, Some(Tier::Warm)) => Plan::now(Codec::Lz4),
        (true, _) => Plan::now(Codec::Zstd),
        (false, _) => pool.compression().plan(),
    };
    let began = Instant::now();
    let mut show = progress::count(if args.undo { "files" } else { "files looked at" });
    let mut inodes = Numbers::All;
    let done = match (&place, args.undo) {
        (Where::Pool(_), undo) => {
            let mut go_on = |n: u64, of: u64, _: &Walked| {
                show(n, of);
                !asked.is_there()
            };
            match undo {
                true => pool.expand_all(&mut go_on),
                false => pool.compress_due(plan, &mut go_on),
            }
            .context(cannot)?
        }
        (Where::Below(inside), undo) => {
            let (done, seen) = below(&pool, &inside.path, plan, undo, asked, &mut show)?;
            inodes = Numbers::These(seen);
            done
        }
    };
    drop(show);
    let (names, inodes) = match args.undo {
        true => Default::default(),
        false => pack_metadata(&pool, &inodes, args.now, asked).context(cannot)?,
    };
    pool.sync().context(cannot)?;
    Ok(Answer {
        version: env!("CARGO_PKG_VERSION"),
        pool: dir.display().to_string(),
        done,
        inodes,
        names,
        saved: (done.before + inodes.plain_bytes + names.plain_bytes) as i64
            - (done.after + inodes.packed_bytes + names.packed_bytes) as i64,
        seconds: began.elapsed().as_secs_f64(),
        interrupted: asked.is_there(),
    })
}

fn below(
    pool: &Pool,
    top: &Path,
    plan: Plan,
    undo: bool,
    asked: &Interrupt,
    show: &mut dyn FnMut(u64, u64),
) -> Result<(Walked, BTreeSet<u64>)> {
    let cannot = || format!("cannot compress what is in {}", top.display());
    if !undo && plan.cold < Duration::MAX {
        pool.train_if_due(&mut || !asked.is_there()).context(cannot)?;
    }
    let mut compressor = Compressor::new(pool, plan).context(cannot)?;
    let mut see = |ino: u64| match undo {
        true => compressor.expand(ino),
        false => compressor.see(ino).map(|_| ()),
    };
    let metadata = top.symlink_metadata().context(cannot)?;
    let mut inodes = BTreeSet::from([metadata.ino()]);
    if !metadata.is_dir() {
        see(metadata.ino()).context(cannot)?;
        return Ok((compressor.done, inodes));
    }
    let (mut seen, mut unread) = (0, Vec::new());
    let walked = paths_in_pools::below(
        top,
        &mut |entry, left| {
            seen += 1;
            show(seen, seen + left);
            if asked.is_there() {
                return Err(Failure::new("interrupted"));
            }
            inodes.insert(entry.metadata.ino());
            match entry.metadata.is_file() {
                true => see(entry.metadata.ino()).context(cannot),
                false => Ok(()),
            }
        },
        &mut |e| unread.push(e),
    );
    match walked {
        Err(_) if asked.is_there() => {}
        walked => walked?,
    }
    let mut failures = Failures::default();
    unread.into_iter().for_each(|e| failures.tell(e));
    failures.end("read")?;
    Ok((compressor.done, inodes))
}

/// The inodes to pack.
enum Numbers {
    All,
    These(BTreeSet<u64>),
}

/// Packs names first, as in [`pack_metadata`](Pool::pack_metadata).
fn pack_metadata(
    pool: &Pool,
    which: &Numbers,
    now: bool,
    asked: &Interrupt,
) -> conquest_fs::Result<(conquest_fs::node::PackedNames, conquest_fs::node::Packed)> {
    let age = if now { Duration::ZERO } else { pool.compression().packed() };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(age);
    let since = conquest_fs::Time(since.as_nanos() as i64);
    let go_on = || !asked.is_there();
    match which {
        Numbers::All => pool.pack_metadata(0..pool.inode_blocks(), since, &go_on),
        Numbers::These(inodes) => {
            let (mut names, mut packed) =
                (conquest_fs::node::PackedNames::default(), conquest_fs::node::Packed::default());
            for ino in inodes.iter().take_while(|_| go_on()) {
                names += pool.pack_names_in(*ino, since)?;
            }
            for ino in inodes.iter().take_while(|_| go_on()) {
                packed += pool.pack_inodes_beside(*ino, since)?;
            }
            Ok((names, packed))
        }
    }
}

fn tell(args: &Args, answer: &Answer) -> Result<()> {
    if args.json {
        return say(&serde_json::to_string_pretty(answer).context(|| "cannot write JSON".into())?);
    }
    say(&text(answer, args.undo))
}

fn text(answer: &Answer, undo: bool) -> String {
    let Walked { files, compressed, not_worth, busy, expanded, failed, content, before, after } = answer.done;
    let mut out = match undo {
        true => format!("{expanded} of {files} files are plain again"),
        false => {
            let percent = if before == 0 { 0.0 } else { 100.0 - after as f64 * 100.0 / before as f64 };
            format!(
                "{compressed} of {files} files compressed, {} of content: memory {} → {} ({percent:.1} % saved); {not_worth} are not worth it",
                size::show(content),
                size::show(before),
                size::show(after),
            )
        }
    };
    if answer.inodes.inodes > 0 {
        let conquest_fs::node::Packed { inodes, plain_bytes, packed_bytes, .. } = answer.inodes;
        let (plain, packed) = (size::show(plain_bytes), size::show(packed_bytes));
        out.push_str(&format!("; {inodes} inodes packed: {plain} → {packed}"));
    }
    if answer.names.buckets > 0 {
        let (plain, packed) = (size::show(answer.names.plain_bytes), size::show(answer.names.packed_bytes));
        out.push_str(&format!("; names: {plain} → {packed}"));
    }
    if busy > 0 {
        out.push_str(&format!(", {busy} are in use"));
    }
    if failed > 0 {
        out.push_str(&format!("; {failed} could not be read: run `conquest fsck {}`", answer.pool));
    }
    if answer.interrupted {
        out.push_str("; interrupted, what is done stays");
    }
    out
}

/// Reports whether Ctrl-C, or a signal like it, has asked for the end.
struct Interrupt(fuse::Signals);

impl Interrupt {
    fn catch() -> Result<Interrupt> {
        fuse::Signals::catch().map(Interrupt).context(|| "cannot receive signals".into())
    }

    fn is_there(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(done: Walked) -> Answer {
        Answer {
            version: "1",
            pool: "/p".into(),
            done,
            inodes: conquest_fs::node::Packed::default(),
            names: Default::default(),
            saved: 0,
            seconds: 0.0,
            interrupted: false,
        }
    }

    #[test]
    fn what_was_done_is_reported() {
        let done = Walked {
            files: 10,
            compressed: 6,
            not_worth: 3,
            content: 1 << 20,
            before: 1 << 20,
            after: 1 << 19,
            ..Walked::default()
        };
        let shown = text(&answer(done), false);
        assert!(
            shown.contains("6 of 10 files") && shown.contains("50.0 % saved") && shown.contains("3 are not worth it")
        );
        assert!(!shown.contains("fsck"));
        let shown = text(&answer(Walked { failed: 2, ..done }), false);
        assert!(shown.contains("2 could not be read: run `conquest fsck /p`"));
        let shown =
            text(&Answer { interrupted: true, ..answer(Walked { expanded: 4, files: 5, ..Walked::default() }) }, true);
        assert!(shown.starts_with("4 of 5 files are plain again; interrupted"));
    }
}

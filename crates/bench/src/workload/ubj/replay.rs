//! What the workloads read and write (UBJ, Table 1), and one trace of each through three caches (UBJ 4): the miss ratio by the size of the cache (Figure 6); the part of the union
//! that is journal (Figure 7), the part of the hits in it (Figure 8), and its change over time (Figure 9).
//!
//! Disks are files in memory: the counts do not depend on their speed. The first quarter of a trace does not count.

use report::cells::Table;
use rustix::io::Errno;

use super::cache::{Cache, Found, Rig};
use super::trace::{Kind, Trace, BLOCK};
use super::Bench;
use crate::prelude::*;
use crate::workload::filebench::personality::Stock;

/// One part in this many of a trace comes first and does not count.
const BEFORE: usize = 4;
/// How often the share of frozen blocks is measured.
const LOOKS: usize = 50;
/// The size with the widest gap between the caches in the paper: Figures 7 to 9 are of this size.
const WIDEST: f64 = 0.7;
/// The workload of Figure 9.
const SHOWN: &str = "fileserver";

pub fn run(bench: &Bench<'_>) -> Outcome {
    let section = |id: &str, title: String, unit, plot| {
        let title = format!("UBJ Figure {title}; disks in memory");
        Section { id: format!("ubj-{id}").into(), ..Section::times("", title, unit).drawn(plot) }
    };
    let of_widest = format!("{WIDEST} footprints");
    let mut common = [
        section("7", format!("7, journal's part of a cache of {of_widest}"), "part", Plot::bars()),
        section("8", format!("8, part of the hits that frozen blocks serve, {of_widest}"), "part", Plot::bars()),
        section(
            "9",
            format!("9, journal's part of a cache of {of_widest} over time, {SHOWN}"),
            "part",
            Plot::lines("percent of the trace"),
        ),
    ];
    let (mut outcome, mut table) = (Outcome::default(), Table::new(&COLUMNS));
    for stock in Stock::of_ubj() {
        let title = format!("6, cache miss ratio of {} by the size of the cache, times the footprint", stock.name);
        let plot = Plot::lines("size of the cache / footprint");
        let mut misses = section(&format!("6-{}", stock.name), title, "misses per reference", plot);
        if let Err(e) = one(bench, &stock, &mut misses, &mut common, &mut table) {
            bench.context.failed(&format!("ubj: {}", stock.name), &e);
            misses.skip("replay", format!("FAILED: {e}"));
        }
        outcome.findings.extend(of_misses(stock.name, &misses));
        outcome.sections.push(misses);
    }
    outcome.findings.extend(of_hits(&common[1]));
    outcome.sections.extend(common);
    outcome.sections.push(Section::of_table("ubj-table-1", "UBJ Table 1, the traces", table));
    outcome
}

/// The trace of a workload: a stored one, or one that is recorded now, and stored if requested.
fn recorded(bench: &Bench<'_>, stock: &Stock) -> Result<Trace, Error> {
    let path = bench.args.traces.as_ref().map(|dir| dir.join(stock.name).with_extension("trace"));
    if let Some(path) = path.as_ref().filter(|path| path.exists()) {
        let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
        return Trace::parse(&text).map_err(|e| e.at(path.display().to_string()));
    }
    let footprint = bench.context.mib(bench.args.footprint, 32);
    let references = bench.context.size(bench.args.references, 8_000) as u64;
    let trace = Trace::record(&stock.sized(footprint), references)?;
    if let Some(path) = &path {
        std::fs::write(path, trace.to_text()).map_err(Error::file(path))?;
    }
    Ok(trace)
}

/// All sizes of all caches for the trace of one workload.
fn one(
    bench: &Bench<'_>,
    stock: &Stock,
    misses: &mut Section,
    [shares, hits, change]: &mut [Section; 3],
    table: &mut Table,
) -> Result<(), Error> {
    let trace = recorded(bench, stock).map_err(|e| e.at("the trace"))?;
    table.row(characteristics(stock.name, &trace));
    misses.notes.push(format!(
        "{} references to {} MiB, cache sizes as they came out within 2 %",
        trace.references.len(),
        trace.footprint() * BLOCK / MIB
    ));
    let is_wanted = |size: &f64| !bench.context.quick || [WIDEST, 2.0].contains(size);
    for size in bench.args.sizes.iter().copied().filter(is_wanted) {
        for cache in Cache::ALL {
            bench.context.progress.say(format!("ubj: {}, {} of {size} footprints", stock.name, cache.name()));
            let blocks = (trace.footprint() as f64 * size) as u64;
            let replayed = match replay(bench, cache, blocks, &trace) {
                // A pool with so little memory may not take a large write of the trace.
                Err(Error::At { place, source }) if is_full(&source) => {
                    misses.skip(cache.name(), format!("{size} footprints are too little memory: {place}: {source}"));
                    continue;
                }
                replayed => replayed.map_err(|e| e.at(format!("{}, {size}", cache.name())))?,
            };
            misses.add(cache.name(), &size.to_string(), replayed.found.miss_ratio());
            if size == WIDEST && cache == Cache::Union {
                let counted = &replayed.shares[replayed.shares.len() / BEFORE..];
                shares.add(cache.name(), stock.name, counted.iter().sum::<f64>() / counted.len().max(1) as f64);
                hits.add(cache.name(), stock.name, replayed.found.frozen_share());
            }
            if size == WIDEST && cache != Cache::None && stock.name == SHOWN {
                for (n, share) in replayed.shares.iter().enumerate() {
                    change.add(cache.name(), &format!("{} %", n * 100 / LOOKS), *share);
                }
            }
        }
    }
    Ok(())
}

const COLUMNS: [&str; 5] = ["workload", "MiB gone over", "reads and writes", "KiB of each", "reads to writes"];

/// A row of the table of workloads.
fn characteristics(name: &str, trace: &Trace) -> [String; 5] {
    let of = |is_wanted: fn(Kind) -> bool| {
        let wanted = trace.references.iter().filter(|reference| is_wanted(reference.kind));
        wanted.fold((0u64, 0u64), |(count, blocks), reference| (count + 1, blocks + reference.count))
    };
    let (reads, writes) = (of(|kind| kind == Kind::Read), of(|kind| matches!(kind, Kind::Write | Kind::Part)));
    let count = reads.0 + writes.0;
    let each = (reads.1 + writes.1) as f64 * BLOCK as f64 / 1024.0 / count.max(1) as f64;
    let ratio = reads.0 as f64 / writes.0.max(1) as f64;
    let footprint = trace.footprint() * BLOCK / MIB;
    [name.into(), footprint.to_string(), count.to_string(), format!("{each:.0}"), format!("{ratio:.2}")]
}

fn is_full(e: &Error) -> bool {
    matches!(e, Error::Fs(e) if e.errno() == Errno::NOSPC)
}

/// The results of a trace in a cache.
struct Replayed {
    found: Found,
    /// The journal's part of the memory, measured repeatedly.
    shares: Vec<f64>,
}

fn replay(bench: &Bench<'_>, cache: Cache, blocks: u64, trace: &Trace) -> Result<Replayed, Error> {
    let mut rig = Rig::new(&bench.context.base, cache, blocks, trace)?;
    let (count, mut before, mut shares) = (trace.references.len(), Found::default(), Vec::new());
    let step = count.div_ceil(LOOKS).max(1);
    for (n, reference) in trace.references.iter().enumerate() {
        if n == count / BEFORE {
            before = rig.found;
        }
        if n % step == 0 {
            shares.push(rig.journal_share()?);
        }
        rig.apply(reference)?;
    }
    Ok(Replayed { found: rig.found.since(before), shares })
}

/// The result of the paper: the union misses hardly more often than a cache without a journal, and a journal beside the
/// cache costs much.
fn of_misses(workload: &str, misses: &Section) -> [Finding; 2] {
    let at = WIDEST.to_string();
    let row = |cache: Cache, base: Cache, what: &str, goal| {
        let what = format!("UBJ Figure 6, {workload}, {at} footprints: misses {what}");
        let measured = [cache, base].map(|cache| misses.text(cache.name(), &at)).join(" / ");
        Finding::judge(MediumKind::Battery, what, goal, measured, misses.ratio(&at, cache.name(), base.name()))
    };
    let with_journal = "with a journal beside the cache, times those of the union";
    [
        row(Cache::Union, Cache::None, "of the union, times those with no journal", Goal::at_most(1.1, 1.02)),
        row(Cache::Beside, Cache::Union, with_journal, Goal::factor(1.0, 1.2)),
    ]
}

/// The result of the paper: 16 to 48 % of the hits are in frozen blocks.
fn of_hits(hits: &Section) -> [Finding; 2] {
    let least = hits.series.iter().min_by(|a, b| a.median.total_cmp(&b.median));
    let most = hits.series.iter().max_by(|a, b| a.median.total_cmp(&b.median));
    let row = |what: &str, (required, aim), series: Option<&report::Series>| {
        let measured = series.map_or("-".into(), |series| format!("{}: {:.2}", series.measure, series.median));
        let value = series.map(|series| 100.0 * series.median);
        let (what, goal) = (format!("UBJ Figure 8: hits in frozen blocks, {what}"), Goal::at_least(required, aim, "%"));
        let value = value.ok_or_else(|| "no trace was replayed at this size".to_owned());
        Finding::judge(MediumKind::Battery, what, goal, measured, value)
    };
    [row("fewest", (0.5, 16.0), least), row("most", (16.0, 48.0), most)]
}

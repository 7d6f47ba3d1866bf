//! One trace through three caches (UBJ 4): how often what is wanted is not there, by the size of the cache (Figure 6); which part
//! of the union is journal (Figure 7), and how many of the hits find it there (Figure 8); and how that part changes (Figure 9).
//!
//! Disks are files in memory: what is counted does not depend on how fast they are. A fourth of a trace comes before what counts.

use clap::ValueEnum;
use conquest::MediumKind;
use rustix::io::Errno;

use super::cache::{Cache, Found, Rig};
use super::trace::{Trace, BLOCK};
use super::Bench;
use crate::args::Personality;
use crate::error::Error;
use crate::workload::filebench::personality::Stock;
use report::goals::{Finding, Goal};
use report::plot::Plot;
use report::{Outcome, Section};

const MIB: u64 = 1 << 20;
/// Of a trace one part in so many comes before what counts.
const BEFORE: usize = 4;
/// How often it is looked how much is frozen.
const LOOKS: usize = 50;
/// Where the gap between the caches is widest in the paper: Figures 7 to 9 are of this size.
const WIDEST: f64 = 0.7;
/// Whose journal Figure 9 shows.
const SHOWN: Personality = Personality::Fileserver;

pub fn run(bench: &Bench<'_>) -> Outcome {
    let about = "disks in memory";
    let section = |id: String, title: String, unit: &'static str| Section {
        id: id.into(),
        ..Section::times("ubj", format!("{title}; {about}"), unit)
    };
    let mut shares = Section {
        plot: Plot::bars(),
        ..section("ubj-7".into(), format!("UBJ Figure 7, journal's part of a cache of {WIDEST} footprints"), "part")
    };
    let mut hits = Section {
        plot: Plot::bars(),
        ..section(
            "ubj-8".into(),
            format!("UBJ Figure 8, part of the hits that frozen blocks serve, {WIDEST} footprints"),
            "part",
        )
    };
    let mut change = Section {
        plot: Plot::lines("percent of the trace"),
        ..section(
            "ubj-9".into(),
            format!("UBJ Figure 9, journal's part of a cache of {WIDEST} footprints over time, fileserver"),
            "part",
        )
    };
    let mut outcome = Outcome::default();
    for &which in Personality::value_variants() {
        let stock = Stock::of_ubj(which);
        let mut misses = section(
            format!("ubj-6-{}", stock.name),
            format!("UBJ Figure 6, cache miss ratio of {} by the size of the cache, times the footprint", stock.name),
            "misses per reference",
        );
        misses.plot = Plot::lines("size of the cache / footprint");
        match bench.trace(&stock) {
            Ok(trace) => {
                misses.notes.push(format!(
                    "{} references to {} MiB, cache sizes as they came out within 2 %",
                    trace.references.len(),
                    trace.footprint() * BLOCK / MIB
                ));
                let one = one(bench, which, &stock, &trace, [&mut misses, &mut shares, &mut hits, &mut change]);
                if let Err(e) = one {
                    bench.context.failed(&format!("ubj: {}", stock.name), &e);
                    misses.skip("replay", format!("FAILED: {e}"));
                }
            }
            Err(e) => {
                bench.context.failed(&format!("ubj: the trace of {}", stock.name), &e);
                misses.skip("replay", e.to_string());
            }
        }
        outcome.findings.extend(of_misses(stock.name, &misses));
        outcome.sections.push(misses);
    }
    outcome.findings.extend(of_hits(&hits));
    outcome.sections.extend([shares, hits, change]);
    outcome
}

/// All sizes of all caches for one trace.
fn one(
    bench: &Bench<'_>,
    which: Personality,
    stock: &Stock,
    trace: &Trace,
    [misses, shares, hits, change]: [&mut Section; 4],
) -> Result<(), Error> {
    for &size in &bench.sizes() {
        for cache in Cache::ALL {
            bench.context.progress.say(format!("ubj: {}, {} of {size} footprints", stock.name, cache.name()));
            let blocks = (trace.footprint() as f64 * size) as u64;
            let replayed = match replay(bench, cache, blocks, trace) {
                // A pool with so little memory may not take what the trace writes at once.
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
            if size == WIDEST && cache != Cache::None && which == SHOWN {
                for (n, share) in replayed.shares.iter().enumerate() {
                    change.add(cache.name(), &format!("{} %", n * 100 / LOOKS), *share);
                }
            }
        }
    }
    Ok(())
}

fn is_full(e: &Error) -> bool {
    matches!(e, Error::Fs(e) if e.errno() == Errno::NOSPC)
}

/// What a trace has met in a cache.
struct Replayed {
    found: Found,
    /// The journal's part of the memory, from time to time.
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

/// What the paper found: the union misses hardly more often than a cache without a journal, and a journal beside the cache
/// costs much.
fn of_misses(workload: &str, misses: &Section) -> [Finding; 2] {
    let at = WIDEST.to_string();
    let row = |cache: Cache, base: Cache, what: String, goal| {
        let measured = [cache, base].map(|cache| misses.text(cache.name(), &at)).join(" / ");
        Finding::judge(MediumKind::Battery, what, goal, measured, misses.ratio(&at, cache.name(), base.name()))
    };
    let named = format!("UBJ Figure 6, {workload}, {at} footprints: misses");
    [
        row(
            Cache::Union,
            Cache::None,
            format!("{named} of the union, times those with no journal"),
            Goal::at_most(1.1, 1.02),
        ),
        row(
            Cache::Beside,
            Cache::Union,
            format!("{named} with a journal beside the cache, times those of the union"),
            Goal::factor(1.0, 1.2),
        ),
    ]
}

/// What the paper found: 16 to 48 % of the hits are in frozen blocks.
fn of_hits(hits: &Section) -> Vec<Finding> {
    let least = hits.series.iter().min_by(|a, b| a.median.total_cmp(&b.median));
    let most = hits.series.iter().max_by(|a, b| a.median.total_cmp(&b.median));
    let missing = || "no trace was replayed at this size".to_owned();
    let row = |what: &str, goal, series: Option<&report::Series>| {
        let measured = series.map_or("-".into(), |series| format!("{}: {:.2}", series.measure, series.median));
        let value = series.map(|series| 100.0 * series.median).ok_or_else(missing);
        Finding::judge(
            MediumKind::Battery,
            format!("UBJ Figure 8: hits in frozen blocks, {what}"),
            goal,
            measured,
            value,
        )
    };
    let percent = |required, aim| Goal { unit: "%".into(), ..Goal::factor(required, aim) };
    vec![row("fewest", percent(0.5, 16.0), least), row("most", percent(16.0, 48.0), most)]
}

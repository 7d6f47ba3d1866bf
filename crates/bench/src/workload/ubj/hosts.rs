//! Figures 2 and 10 to 13: pools against ext4.

use std::ops::RangeInclusive;
use std::process::Command;

use super::Bench;
use crate::command;
use crate::prelude::*;
use crate::raw::Raw;
use crate::workload::filebench::personality::{Flow, VARMAIL};
use crate::workload::filebench::{measure, once, passes};
use crate::workload::plan::Shape;
use crate::workload::postmark::Run;

const ROUNDS: usize = 5;

/// How many times as good as BF-ext4 a pool is: the aim is the result of the paper.
fn row(section: &Section, own: Who, figure: &str, what: &str, measure: &str, aim: f64) -> Finding {
    let what = format!("{}: UBJ Figure {figure}, {what}, against {}", own.how(), JOURNAL.name);
    section.row(own.medium(), what, Goal::factor(1.0, aim)).factor(measure, own.name, JOURNAL.name)
}

/// Bytes written to disk for an operation of Filebench, against those of ext4 without a journal. All writes to a loop
/// device beneath count, metadata and journals included, until nothing is dirty.
pub fn traffic(bench: &Bench<'_>, setting: &Setting<'_>) -> Outcome {
    let seconds = bench.context.seconds(bench.args.long);
    let title = format!("UBJ Figure 2, bytes written to disk for an operation of Filebench, {seconds} s each");
    let section = setting.times("ubj-2", title, "B/op").against(BARE.name).drawn(Plot::bars());
    let note = "of a pool, files of up to 64 KiB are in persistent RAM alone: they go to no disk";
    let mut sections = [section.noting(note)];
    let sizes = bench.sizes_of(bench.context.mib(2048, 512));
    let mut peers = setting.counted_peers(&[BARE, ORDERED, JOURNAL, BATTERY_MOUNTED], sizes, &mut sections);
    for stock in bench.stocks() {
        let (label, flow) = (format!("ubj: traffic of {}", stock.name), Flow::new(&stock));
        // The rounds differ little: one is enough.
        bench.context.rounds(&label, 1, &mut peers, &mut sections, |peer, round, sections| {
            on_place!(&peer.place, place => flow.prepare(place).and_then(|()| place.settle()))?;
            let before = peer.written()?;
            let operations = on_place!(&peer.place, place => {
                let operations = passes(place, &flow, seconds, round as u64)?;
                place.settle()?;
                operations
            });
            let written = peer.written()? - before;
            on_place!(&peer.place, place => flow.remove(place).and_then(|()| place.settle()))?;
            sections[0].add(peer.who.name, stock.name, written as f64 / operations.max(1) as f64);
            Ok(())
        });
    }
    // The result of the paper: a journal of everything makes it 2.7 times as much on average, and the union hardly adds
    // any.
    let row = |name: &str| {
        let (section, [own, bare, journal]) = (&sections[0], [BATTERY_MOUNTED, BARE, JOURNAL].map(|who| who.name));
        let what = format!("UBJ Figure 2, {name}: bytes written, times those of {bare} (beside {journal})");
        let row = section.row(BATTERY_MOUNTED.medium(), what, Goal::at_most(1.2, 1.0));
        row.judge([(own, name), (bare, name), (journal, name)], section.ratio(name, own, bare))
    };
    Outcome { findings: bench.stocks().iter().map(|stock| row(stock.name)).collect(), sections: sections.into() }
}

/// Filebench against ext4 with a journal of everything: operations per second, and the seconds for a million of them.
pub fn filebench(bench: &Bench<'_>, setting: &Setting<'_>) -> Outcome {
    let seconds = bench.context.seconds(bench.args.seconds);
    let rates = setting.rates("ubj-10", format!("UBJ Figure 10, Filebench, {seconds} s a round"), "1/s");
    let title = "UBJ Figure 10, what a million operations of Filebench take";
    let times = setting.times("ubj-10-time", title, "s");
    let [mut times, rates] = [times, rates].map(|section| section.against(JOURNAL.name).drawn(Plot::bars()));
    let mut sections = [rates];
    let sizes = bench.sizes_of(bench.context.mib(4096, 512));
    let mut peers = setting.peers(&[JOURNAL, ORDERED, BATTERY, BATTERY_MOUNTED], sizes, &mut sections);
    for stock in bench.stocks() {
        measure(bench.context, &stock, seconds, &mut peers, &mut sections);
    }
    let [rates] = sections;
    // The same rounds as times.
    times.skipped.clone_from(&rates.skipped);
    for series in &rates.series {
        series.rounds.iter().for_each(|rate| times.add(&series.subject, &series.measure, 1e6 / rate));
    }
    // The results of the paper; it says that fileserver gains less than varmail.
    let paper = [("varmail", 3.4), ("fileserver", 1.1), ("webserver", 1.23), ("webproxy", 1.11)];
    let both = |(name, aim)| [BATTERY, BATTERY_MOUNTED].map(|own| row(&rates, own, "10", name, name, aim));
    let findings = paper.into_iter().flat_map(both).collect();
    Outcome { sections: vec![times, rates], findings }
}

/// The two sections of a figure: a line for each subject over a number.
fn pair(setting: &Setting<'_>, titles: [(&str, String); 2], unit: &'static str, axis: &'static str) -> [Section; 2] {
    titles.map(|(id, title)| setting.rates(id, title, unit).against(JOURNAL.name).drawn(Plot::lines(axis)))
}

/// One file that is written in order, and then completely at random, in calls of 4 KiB, with a sync at the end: the
/// same as IOzone with `-i 0 -i 2 -e`. Done by fio, since every distribution has a package of it.
pub fn iozone(bench: &Bench<'_>, setting: &Setting<'_>) -> Outcome {
    const HOW: [&str; 2] = ["random write", "sequential write"];
    let context = bench.context;
    let filesets: Vec<u64> = bench.few(&bench.args.filesets).iter().map(|&f| context.size(f, 8) as u64).collect();
    let title = |how| format!("UBJ Figure 11, the pattern of IOzone by fio, {how} of 4 KiB by the size of the file");
    let titles = [("ubj-11-random", title(HOW[0])), ("ubj-11-sequential", title(HOW[1]))];
    let mut sections = pair(setting, titles, "MiB/s", "MiB of the file");
    let most = filesets.iter().copied().max().unwrap_or(0) * MIB;
    let sizes = bench.sizes_of(3 * most + 512 * MIB);
    let mut peers = setting.peers(&[JOURNAL, ORDERED, BATTERY_MOUNTED], sizes, &mut sections);
    for &fileset in &filesets {
        let label = format!("ubj: IOzone, {fileset} MiB");
        context.rounds(&label, ROUNDS, &mut peers, &mut sections, |peer, _, sections| {
            let file = Raw::at(peer.dir()?.join("iozone"), fileset * MIB)?;
            // In order first.
            let sequential = file.write_buffered("write")?;
            let speeds = [file.write_buffered("randwrite")?, sequential];
            for (section, speed) in sections.iter_mut().zip(speeds) {
                section.add(peer.who.name, &format!("{fileset} MiB"), speed / MIB as f64);
            }
            Ok(())
        });
    }
    let mut findings = Vec::new();
    for (section, how) in sections.iter().zip(HOW) {
        findings.extend(filesets.iter().map(|fileset| {
            let measure = format!("{fileset} MiB");
            row(section, BATTERY_MOUNTED, "11", &format!("{how}, {measure}"), &measure, 2.1)
        }));
    }
    Outcome { findings, sections: sections.into() }
}

/// PostMark on files of 500 KB on average: bytes read, and written, in a second of its transactions, by the number of
/// files.
pub fn postmark(bench: &Bench<'_>, setting: &Setting<'_>) -> Outcome {
    const SIZES: RangeInclusive<u64> = 100_000..=900_000;
    const HOW: [&str; 2] = ["read", "written"];
    let context = bench.context;
    let files = context.size(bench.args.files, 20);
    let counts: Vec<usize> = bench.few(&bench.args.transactions).iter().map(|&n| context.size(n, 50)).collect();
    let title = |how| format!("UBJ Figure 12, PostMark, {files} files of 500 KB, {how} by the number of transactions");
    let titles = [("ubj-12-read", title(HOW[0])), ("ubj-12-write", title(HOW[1]))];
    let mut sections = pair(setting, titles, "MiB/s", "transactions");
    let most = counts.iter().copied().max().unwrap_or(0);
    // About half of the transactions make a file, and as many remove one.
    let sizes = bench.sizes_of((files + most / 20 + 50) as u64 * SIZES.end() * 5 / 4 + 512 * MIB);
    let mut peers = setting.peers(&[JOURNAL, ORDERED, BATTERY_MOUNTED], sizes, &mut sections);
    for &count in &counts {
        let run = Run::new(&Shape::of_paper(files, count).sized(SIZES), 4096);
        let label = format!("ubj: PostMark, {count} transactions");
        context.rounds(&label, ROUNDS, &mut peers, &mut sections, |peer, _, sections| {
            let [rate, ..] = on_place!(&peer.place, place => run.round(place))?;
            for (section, bytes) in sections.iter_mut().zip(run.bytes()) {
                section.add(peer.who.name, &count.to_string(), rate * bytes / MIB as f64);
            }
            Ok(())
        });
    }
    let mut findings = Vec::new();
    for (section, how) in sections.iter().zip(HOW) {
        findings.extend(counts.iter().map(|count| {
            let what = format!("{how}, {count} transactions");
            row(section, BATTERY_MOUNTED, "12", &what, &count.to_string(), 2.09)
        }));
    }
    Outcome { findings, sections: sections.into() }
}

/// The time of an operation of varmail, by the period of commits. On `logged` a pool has one; on `battery` each write
/// commits, independent of the period.
pub fn period(bench: &Bench<'_>, setting: &Setting<'_>) -> Outcome {
    let (context, seconds) = (bench.context, bench.context.seconds(bench.args.long));
    let title = format!("UBJ Figure 13, latency of an operation of varmail by the period of commits, {seconds} s each");
    let section = setting.times("ubj-13", title, "us/op").against(JOURNAL.name);
    let mut sections = [section.drawn(Plot::lines("seconds from commit to commit"))];
    let sizes = bench.sizes_of(context.mib(2048, 512));
    let mut peers = setting.peers(&[JOURNAL, BATTERY_MOUNTED, LOGGED_MOUNTED], sizes, &mut sections);
    let flow = Flow::new(&VARMAIL.times(1, context.quick));
    let periods = bench.few(&bench.args.periods);
    for &period in periods {
        let label = format!("ubj: varmail, commits each {period} s");
        context.rounds(&label, 1, &mut peers, &mut sections, |peer, round, sections| {
            commit_each(bench, peer, period)?;
            let rate = on_place!(&peer.place, place => {
                flow.prepare(place).and_then(|()| place.settle())?;
                let rate = once(place, &flow, seconds, round as u64)?;
                flow.remove(place).and_then(|()| place.settle())?;
                rate
            });
            sections[0].add(peer.who.name, &format!("{period} s"), flow.threads() as f64 * 1e6 / rate);
            Ok(())
        });
    }
    // The result of the paper: its latency hardly depends on the period, and is less than that of ext4 at each.
    let section = &sections[0];
    let at = |period: &usize| format!("{period} s");
    let of_each = |period: &usize| {
        row(section, BATTERY_MOUNTED, "13", &format!("varmail, a commit each {}", at(period)), &at(period), 3.4)
    };
    let mut findings: Vec<Finding> = periods.iter().map(of_each).collect();
    if let Some((short, long)) = periods.iter().min().map(at).zip(periods.iter().max().map(at)) {
        findings.extend([BATTERY_MOUNTED, LOGGED_MOUNTED].map(|own| {
            let what = format!("mounted: UBJ Figure 13, varmail, a commit each {short}, times the latency at {long}");
            let row = section.row(own.medium(), what, Goal::at_most(1.2, 1.05));
            row.between((own.name, &short), (own.name, &long))
        }));
    }
    Outcome { findings, sections: sections.into() }
}

/// Mounts the peer again with another period, if it has one.
fn commit_each(bench: &Bench<'_>, peer: &Peer, period: usize) -> Result<(), Error> {
    let mut mount = match peer.pool_dir() {
        None => Command::new("mount"),
        Some(pool) if peer.who == LOGGED_MOUNTED => {
            let mut mount = Command::new(&bench.context.program);
            mount.arg("mount").arg(pool);
            mount
        }
        Some(_) => return Ok(()),
    };
    command::run(mount.args(["-o", &format!("remount,commit={period}")]).arg(peer.dir()?))
}

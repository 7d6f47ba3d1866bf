//! `conquest bench publish`: measures every published workload, each into a file of its own.
//!
//! A run may end at any time. The next one measures the workloads that the same programs have not measured on this
//! machine within a day.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use report::{plot, table, Machine, Outcome, Report};

use crate::args::{Publish, What};
use crate::context::{Context, Workload};
use crate::error::Error;
use crate::published::{file, WORKLOADS};

/// Most columns of a table.
const COLUMNS: usize = 30;

/// A machine is quiet if other programs take less than this part of its processors.
const QUIET: f64 = 0.03;
/// The time over which that is measured, and how often: what a workload leaves behind takes a while.
const LOOK: Duration = Duration::from_secs(2);
const LOOKS: usize = 15;
/// Figures older than this are measured again.
const FRESH: Duration = Duration::from_secs(24 * 60 * 60);

pub fn run(context: &Context, publish: &Publish) -> Result<Outcome, Error> {
    writable(&publish.to)?;
    let blank = Report { build: Some(build(&context.program)?), ..Report::begin(context.quick) };
    let is_wanted = |name: &str| publish.only.is_empty() || publish.only.iter().any(|only| only == name);
    let earlier = |name: &str| Report::read(&file(&publish.to, name)).ok();
    let mut plan: Vec<Planned> = WORKLOADS
        .into_iter()
        .filter(|(name, _)| is_wanted(name))
        .map(|(name, line)| Planned { name, line, seconds: earlier(name).and_then(|report| report.seconds) })
        .collect();
    let mut outcome = Outcome::default();
    for n in 0..plan.len() {
        let Planned { name, line, .. } = plan[n];
        let place = format!("{} of {}, {}: {name}", n + 1, plan.len(), left(&plan, n));
        if let Some(known) = earlier(name).filter(|known| !publish.again && is_current(known, &blank)) {
            context.progress.print(&format!("{place}: there since {}; --again measures it again", known.date));
            plan[n].seconds = known.seconds;
            outcome.extend(known.outcome);
            continue;
        }
        context.progress.print(&place);
        context.progress.within(format!("{place}: "));
        let others = quiet(publish.busy || context.quick)?;
        let what = What::parse(line)?;
        let Some(workload) = what.workload() else { continue };
        let (start, failed, begun) = (Instant::now(), context.failures(), Report::begin(context.quick));
        match measure(workload, context) {
            Ok(one) if context.failures() == failed => {
                plan[n].seconds = Some(start.elapsed().as_secs_f64());
                let machine = Machine { others: Some(others), ..begun.machine };
                let (build, seconds) = (blank.build.clone(), plan[n].seconds);
                write(&publish.to, name, &Report { outcome: one.clone(), machine, build, seconds, ..begun })?;
                outcome.extend(one);
            }
            Ok(one) => outcome.extend(one),
            Err(e) => context.failed(name, &e),
        }
    }
    context.progress.within(String::new());
    Ok(outcome)
}

/// Runs one workload and prints its tables.
pub fn measure(workload: &dyn Workload, context: &Context) -> Result<Outcome, Error> {
    let outcome = workload.run(context)?;
    for section in &outcome.sections {
        // A course over time is only for the plot.
        match section.measures().len() {
            ..=COLUMNS => context.progress.print(&table::section(section)),
            points => {
                context.progress.print(&format!("\n{}: {points} points, in the JSON and the plot", section.title))
            }
        }
    }
    Ok(outcome)
}

/// Makes the directory if it is missing, and fails if no file can be made in it: the user should learn of that before
/// the first workload.
pub fn writable(dir: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(dir).map_err(Error::file(dir))?;
    tempfile::tempfile_in(dir).map(drop).map_err(Error::file(dir))
}

/// A workload that is still to be measured, and how long it took before.
struct Planned {
    name: &'static str,
    line: &'static str,
    seconds: Option<f64>,
}

/// The time that the plan takes from its `n`th workload on, from how long they took before; those that nothing is known
/// of count as the others on average.
fn left(plan: &[Planned], n: usize) -> String {
    let known: Vec<f64> = plan.iter().filter_map(|planned| planned.seconds).collect();
    if known.is_empty() {
        return "time left unknown".into();
    }
    let usual = known.iter().sum::<f64>() / known.len() as f64;
    let seconds: f64 = plan[n..].iter().map(|planned| planned.seconds.unwrap_or(usual)).sum();
    format!("about {:.0} min left", (seconds / 60.0).ceil())
}

/// Writes a report as a whole, and its plots.
fn write(dir: &Path, name: &str, report: &Report) -> Result<(), Error> {
    let (path, part) = (file(dir, name), dir.join(format!("{name}.part")));
    let file = File::create(&part).map_err(Error::file(&part))?;
    report.write(file).map_err(Error::file(&part))?;
    std::fs::rename(&part, &path).map_err(Error::file(&path))?;
    plot::write(dir, &report.outcome).map_err(Error::io("the plots"))
}

/// Are these the figures that a run would have that begins now?
fn is_current(known: &Report, blank: &Report) -> bool {
    let age = humantime::parse_rfc3339(&known.date).ok().and_then(|then| SystemTime::now().duration_since(then).ok());
    let machine = |report: &Report| Machine { load: 0.0, others: None, ..report.machine.clone() };
    age.is_some_and(|age| age < FRESH)
        && known.quick == blank.quick
        && known.build == blank.build
        && known.failures.is_empty()
        && machine(known) == machine(blank)
}

/// Tells the programs that are measured from others.
fn build(conquest: &Path) -> Result<String, Error> {
    let this = std::env::current_exe().map_err(Error::io("the path of this program"))?;
    let sum = [this.as_path(), conquest].into_iter().try_fold(0, |sum, path| {
        // A program in PATH has no file of that name.
        let bytes = std::fs::read(path).or_else(|e| if path.is_relative() { Ok(Vec::new()) } else { Err(e) });
        bytes.map(|bytes| crc32c::crc32c_append(sum, &bytes)).map_err(Error::file(path))
    })?;
    Ok(format!("{} {sum:08x}", env!("CARGO_PKG_VERSION")))
}

/// Waits until the machine is quiet; returns the part of the processors that others take. If it stays busy, that is
/// refused unless `busy`.
fn quiet(busy: bool) -> Result<f64, Error> {
    let mut others = 1.0;
    for _ in 0..if busy { 1 } else { LOOKS } {
        let before = processors()?;
        std::thread::sleep(LOOK);
        others = processors()?.busy_since(before);
        if others < QUIET {
            break;
        }
    }
    match others < QUIET || busy {
        true => Ok(others),
        false => Err(Error::Usage(format!(
            "other programs take {:.0} % of the processors, and figures of a busy machine say little: run this again when it is \
             quiet, which continues, or measure with --busy",
            others * 100.0
        ))),
    }
}

/// Time of all processors since the machine started, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    all: u64,
    idle: u64,
}

impl Ticks {
    fn busy_since(self, before: Ticks) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        1.0 - self.idle.saturating_sub(before.idle) as f64 / all as f64
    }

    /// Parses /proc/stat. A processor that waits for a disk, or that the host took, is not idle.
    fn parse(stat: &str) -> Option<Ticks> {
        const COUNTED: usize = 8;
        const IDLE: usize = 3;
        let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = words.take(COUNTED).map_while(|word| word.parse().ok()).collect();
        Some(Ticks { all: ticks.iter().sum(), idle: *ticks.get(IDLE)? })
    }
}

fn processors() -> Result<Ticks, Error> {
    const PATH: &str = "/proc/stat";
    let text = std::fs::read_to_string(PATH).map_err(Error::file(PATH))?;
    Ticks::parse(&text).ok_or_else(|| Error::Wrong(format!("{PATH}: no times of processors")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_idle_is_busy() {
        let of = |line: &str| Ticks::parse(line).expect("times");
        let before = of("cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 1 2 3\n");
        let after = of("cpu  15 5 10 180 5 0 0 5 7 7\n");
        assert_eq!((before.all, after.all), (120, 220));
        assert!((after.busy_since(before) - 0.2).abs() < 1e-9);
        assert_eq!(Ticks::parse("intr 1"), None);
    }

    #[test]
    fn figures_of_the_same_programs_and_machine_are_kept_for_a_day() {
        let blank = Report { build: Some("a".into()), ..Report::begin(false) };
        assert!(is_current(&blank, &blank));
        let busier = Machine { load: 9.0, others: Some(0.5), ..blank.machine.clone() };
        assert!(is_current(&Report { machine: busier, ..blank.clone() }, &blank));
        let others = [
            Report { build: Some("b".into()), ..blank.clone() },
            Report { quick: true, ..blank.clone() },
            Report { date: "2001-01-01T00:00:00Z".into(), ..blank.clone() },
            Report { machine: Machine { kernel: "1".into(), ..blank.machine.clone() }, ..blank.clone() },
            Report { failures: vec!["x".into()], ..blank.clone() },
        ];
        assert!(others.iter().all(|other| !is_current(other, &blank)));
    }

    #[test]
    fn the_time_left_is_that_of_before() {
        let planned = |seconds| Planned { name: "n", line: "l", seconds };
        assert_eq!(left(&[planned(None)], 0), "time left unknown");
        assert_eq!(left(&[planned(Some(100.0)), planned(Some(200.0)), planned(None)], 1), "about 6 min left");
    }

    #[test]
    fn a_report_is_written_as_a_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), "one", &Report::begin(true)).expect("written");
        let names: Vec<_> = std::fs::read_dir(dir.path()).expect("list").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["one.json"]);
    }
}

//! The pages docs/FIGURES.md and README.md, made from the files of `conquest bench publish`.
//!
//! No figure of ours is typed: [`tables`] reads the reports of the published workloads, one file each. It takes from them the
//! goals that are missed, the figures of the papers ([`book`]), the ratios of small files against the host's file
//! systems, all other goals and results, and the machines. A missing figure of small files is an error, not a gap; a
//! workload that was never published has no rows.

use conquest::MediumKind;

use crate::args::Figures;
use crate::book;
use crate::error::Error;
use crate::peer::{Who, BATTERY, BATTERY_MOUNTED, EXT4, LOGGED, LOGGED_MOUNTED, TMPFS, XFS};
use crate::published::{code, reports, table, times, SMALL_FILES};
use crate::workload::smallfile::{CACHED, CREATE, READ, STAT, SYNC, UNLINK};
use report::goals::{Finding, Verdict};
use report::plot;
use report::{Report, Section};

/// The lines around tables: all tables, or the [`FEW`].
const ALL_BEGIN: &str = "<!-- all figures: made by `conquest bench figures --write FILE` -->";
const FEW_BEGIN: &str = "<!-- a few figures: made by `conquest bench figures --write FILE` -->";
const END: &str = "<!-- end of figures -->";

/// The few figures in README, the default medium alone, good and bad.
const FEW: [(&str, Few); 6] = [
    ("mounted: create + write + fsync of small files", Few::SmallFile(LOGGED_MOUNTED, SYNC)),
    ("mounted: create + write + close of small files", Few::SmallFile(LOGGED_MOUNTED, CREATE)),
    ("mounted: random 4 KiB overwrite + fsync of a large file", {
        Few::Goal("large", "mounted: random 4 KiB overwrite + fsync, against ext4 data=ordered")
    }),
    ("mounted: pgbench, 4 clients", Few::Goal("databases", "mounted: pgbench, 4 clients, against ext4 data=ordered")),
    ("as a library: create + write + close of small files", Few::SmallFile(LOGGED, CREATE)),
    ("as a library: open + read + close of small files", Few::SmallFile(LOGGED, READ)),
];

/// The source of one of them.
#[derive(Clone, Copy)]
enum Few {
    /// A phase of the workload of small files, against ext4.
    SmallFile(Who, &'static str),
    /// A goal of a workload, by its text, on the default medium.
    Goal(&'static str, &'static str),
}

/// The phases of that workload, by their names in the tables.
const OPERATIONS: [(&str, &str); 6] = [
    ("create + write + fsync", SYNC),
    ("create + write + close", CREATE),
    ("stat", STAT),
    ("open + read + close, first", READ),
    ("open + read + close, again", CACHED),
    ("unlink", UNLINK),
];

/// The number of operations that depend on the medium; one row is enough for each other operation.
const WRITING: usize = 2;

/// `conquest bench figures`.
pub fn run(args: &Figures) -> Result<(), Error> {
    let reports = reports(&args.from)?;
    let Some(page) = &args.write else {
        print!("{}", tables(&reports)?);
        return Ok(());
    };
    let text = std::fs::read_to_string(page).map_err(Error::file(page))?;
    let written = filled(&text, &reports).map_err(|e| e.at(page.display().to_string()))?;
    std::fs::write(page, written).map_err(Error::file(page))?;
    reports.iter().try_for_each(|(_, report)| plot::write(&args.from, &report.outcome).map_err(Error::io("the plots")))
}

/// The page with its tables: the few or all, by its marks.
fn filled(page: &str, reports: &[(&str, Report)]) -> Result<String, Error> {
    match page.contains(FEW_BEGIN) {
        true => replace(page, FEW_BEGIN, &few(reports)?),
        false => replace(page, ALL_BEGIN, &tables(reports)?),
    }
}

/// The page with `tables` between the lines that mark their place.
fn replace(page: &str, begin: &str, tables: &str) -> Result<String, Error> {
    let missing = |line| Error::Usage(format!("there is no line `{line}` to put the figures at"));
    let (before, rest) = page.split_once(begin).ok_or_else(|| missing(begin))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| missing(END))?;
    Ok(format!("{before}{begin}\n\n{tables}{END}{after}"))
}

/// All tables, the missed goals first.
fn tables(reports: &[(&str, Report)]) -> Result<String, Error> {
    let findings = || reports.iter().flat_map(|(_, report)| &report.outcome.findings);
    let is_missed = |finding: &&Finding| finding.verdict == Verdict::Missed;
    let mut out = format!("## Goals that are missed\n\n{}", missed(findings().filter(is_missed)));
    out += &book::page(reports);
    out += "## Small files beside today's file systems\n\n";
    out += &small_files(report_of(reports, SMALL_FILES)?)?;
    let reached = numbers(findings().filter(|finding| !is_missed(finding)));
    Ok(out
        + "## Goals that are reached\n\n"
        + &reached
        + "## Origin\n\n"
        + &origins(reports)
        + &book::other_plots(reports))
}

/// The table of the [`FEW`].
fn few(reports: &[(&str, Report)]) -> Result<String, Error> {
    let rows = FEW.into_iter().map(|(what, from)| {
        let factor = match from {
            Few::SmallFile(who, measure) => {
                let section = small_file_section(report_of(reports, SMALL_FILES)?)?;
                section.factor(measure, who.name, EXT4.name).map_err(Error::Usage)?
            }
            Few::Goal(workload, what) => goal(report_of(reports, workload)?, what)?,
        };
        Ok([what.into(), format!("{} x", times(factor))])
    });
    let rows: Vec<_> = rows.collect::<Result<_, Error>>()?;
    Ok(table(&["default medium", "times as fast as ext4"], rows.into_iter()))
}

fn report_of<'a>(reports: &'a [(&str, Report)], workload: &str) -> Result<&'a Report, Error> {
    let found = reports.iter().find(|(name, _)| *name == workload).map(|(_, report)| report);
    found.ok_or_else(|| Error::Usage(format!("{workload} was not published")))
}

fn goal(report: &Report, what: &str) -> Result<f64, Error> {
    let mut findings = report.outcome.findings.iter();
    let found = findings.find(|finding| finding.medium == MediumKind::Logged && finding.what == what);
    found.and_then(|finding| finding.value).ok_or_else(|| Error::Usage(format!("there is no figure of `{what}`")))
}

/// Ratios of small files, mounted and in process.
fn small_files(report: &Report) -> Result<String, Error> {
    let section = small_file_section(report)?;
    let mut out = against(section, "mounted over io_uring", [LOGGED_MOUNTED, BATTERY_MOUNTED])?;
    out += &against(section, "in process", [LOGGED, BATTERY])?;
    Ok(out)
}

fn small_file_section(report: &Report) -> Result<&Section, Error> {
    let section = report.outcome.sections.iter().find(|section| section.id == SMALL_FILES);
    section.ok_or_else(|| Error::Usage("no section of small files".into()))
}

/// One table: how many times as fast as the host's file systems the pools on `logged` and `battery` are.
fn against(section: &Section, how: &str, whos: [Who; 2]) -> Result<String, Error> {
    let row = |own: Who, (operation, measure): (&str, &str)| {
        let factor = |base: Who| section.factor(measure, own.name, base.name).map(times).map_err(Error::Usage);
        let [ext4, xfs, tmpfs] = [factor(EXT4)?, factor(XFS)?, factor(TMPFS)?];
        Ok([operation.into(), code(own.medium()), ext4, xfs, tmpfs])
    };
    let [logged, battery] = whos;
    let on_logged = OPERATIONS.into_iter().map(|operation| row(logged, operation));
    let on_battery = OPERATIONS.into_iter().take(WRITING).map(|operation| row(battery, operation));
    let rows: Vec<_> = on_logged.chain(on_battery).collect::<Result<_, Error>>()?;
    let heads = [how, "medium", "times as fast as ext4", "as XFS", "as tmpfs"];
    Ok(table(&heads, rows.into_iter()))
}

/// The goals and results, the default medium first.
fn numbers<'a>(findings: impl Iterator<Item = &'a Finding>) -> String {
    let mut findings: Vec<&Finding> = findings.collect();
    findings.sort_by_key(|finding| finding.medium != MediumKind::Logged);
    let rows = findings.into_iter().map(|finding| row(finding, finding.verdict()));
    table(&["what", "medium", "measured", "result", "to reach", "verdict"], rows)
}

/// The goals that are missed, each with its bound.
fn missed<'a>(findings: impl Iterator<Item = &'a Finding>) -> String {
    let mut findings: Vec<&Finding> = findings.collect();
    findings.sort_by_key(|finding| finding.medium != MediumKind::Logged);
    let rows = findings.into_iter().map(|finding| {
        let doubt = if finding.is_hidden() { "the spread of the rounds reaches it; " } else { "" };
        row(finding, format!("{doubt}{}", book::bound(&finding.what).unwrap_or("not known")))
    });
    table(&["what", "medium", "measured", "result", "to reach", "bounded by"], rows)
}

fn row(finding: &Finding, last: String) -> [String; 6] {
    let Finding { what, medium, measured, goal, .. } = finding;
    [what.clone(), code(medium), measured.clone(), finding.result(), goal.show(goal.required), last]
}

/// The machines and dates of the measurements, a row for each run.
fn origins(reports: &[(&str, Report)]) -> String {
    let runs = reports.chunk_by(|(_, a), (_, b)| (&a.date, &a.machine) == (&b.date, &b.machine));
    let rows = runs.map(|run| {
        let names: Vec<String> = run.iter().map(|(name, _)| format!("[{name}](figures/{name}.json)")).collect();
        let Report { date, machine, .. } = &run[0].1;
        [
            names.join(", "),
            date.clone(),
            format!("Linux {}", machine.kernel),
            format!("{} x {}", machine.processors, machine.processor),
            format!("{:.1} GiB", machine.memory as f64 / f64::from(1 << 30)),
            format!("{:.1}", machine.load),
            machine.others.map_or("-".into(), |others| format!("{:.0} %", others * 100.0)),
        ]
    });
    table(&["figures", "date", "kernel", "machine", "RAM", "load before", "taken by others"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::What;
    use crate::peer::{ALL, BTRFS};
    use crate::published::{file, published, WORKLOADS};
    use report::goals::Goal;
    use report::Outcome;
    use std::path::Path;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    /// A report of small files on everything that a table needs, except `left_out`.
    fn report(left_out: Who) -> Report {
        let mut section = Section::times(SMALL_FILES, "Small files", "us/op");
        let whos = ALL.into_iter().filter(|who| *who != left_out);
        for (n, who) in whos.enumerate() {
            OPERATIONS.iter().for_each(|(_, measure)| section.add(who.name, measure, (n + 1) as f64));
        }
        Report { outcome: Outcome { sections: vec![section], findings: Vec::new() }, ..Report::begin(false) }
    }

    #[test]
    fn what_is_published_are_workloads() {
        for (name, line) in WORKLOADS {
            let what = What::parse(line).expect(line);
            assert!(what.workload().is_some(), "{name}");
        }
    }

    #[test]
    fn the_pages_show_the_figures_that_are_committed() {
        let reports = reports(&root().join("docs/figures")).expect("the committed figures");
        for name in ["README.md", "docs/FIGURES.md"] {
            let page = std::fs::read_to_string(root().join(name)).expect(name);
            let again = filled(&page, &reports).expect("the place of the figures");
            assert!(page == again, "{name} and docs/figures differ: run `conquest bench figures --write {name}`");
        }
        let drawn = reports.iter().flat_map(|(_, report)| plot::of(&report.outcome));
        for (name, section, plot) in drawn {
            let committed = std::fs::read_to_string(root().join("docs/figures").join(&name)).expect(&name);
            assert!(
                committed == plot::draw(section, plot),
                "{name} is not the plot of docs/figures: write FIGURES again"
            );
        }
    }

    #[test]
    fn a_figure_of_the_few_that_is_not_there_is_an_error() {
        let e = few(&[(SMALL_FILES, report(BTRFS))]).expect_err("no large files");
        assert!(e.to_string().contains("large was not published"), "{e}");
        let e = goal(&report(BTRFS), "mounted").expect_err("no goals");
        assert!(e.to_string().contains("`mounted`"), "{e}");
    }

    #[test]
    fn ratios_of_small_files_have_a_row_for_each_operation_and_medium() {
        let text = small_files(&report(BTRFS)).expect("all is there");
        // tmpfs 1, ext2 2, ext4 3, XFS 4, in process on `logged` 5.
        assert!(text.contains("| stat | `logged` | 0.60 | 0.80 | 0.20 |\n"), "{text}");
        assert!(text.contains("| create + write + fsync | `battery` |"), "{text}");
        assert!(!text.contains("| stat | `battery` |"), "{text}");
    }

    #[test]
    fn a_figure_that_is_not_there_is_an_error() {
        let e = small_files(&report(XFS)).expect_err("no XFS");
        assert!(e.to_string().contains("xfs was not measured"), "{e}");
    }

    #[test]
    fn what_was_never_published_has_no_rows_and_what_is_drawn_has_a_link() {
        let dir = tempfile::tempdir().expect("a directory");
        let written = |name: &str, report: &Report| {
            report.write(std::fs::File::create(file(dir.path(), name)).expect("a file")).expect("written");
        };
        assert!(reports(dir.path()).expect_err("small files").to_string().contains("smallfile.json"));
        written(SMALL_FILES, &report(BTRFS));
        let tables = || tables(&reports(dir.path()).expect("reports"));
        assert!(!tables().expect("one is enough").contains("(figures/ubj-2.svg)"));
        let mut section = Section { plot: report::section::Plot::bars(), ..Section::rates("ubj-2", "t", "B") };
        section.add("a", "x", 1.0);
        let outcome = Outcome { sections: vec![section], findings: Vec::new() };
        written("ubj-traffic", &Report { outcome, ..Report::begin(false) });
        let text = tables().expect("both");
        assert!(text.contains("(figures/ubj-2.svg)\n"), "{text}");
    }

    #[test]
    fn quick_and_failed_runs_are_not_published() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = file(dir.path(), SMALL_FILES);
        let tried = |report: &Report| {
            report.write(std::fs::File::create(&path).expect("a file")).expect("written");
            published(&path).map(|report| report.date).map_err(|e| e.to_string())
        };
        let good = report(BTRFS);
        assert_eq!(tried(&good), Ok(good.date.clone()));
        let quick = Report { quick: true, ..good.clone() };
        assert!(tried(&quick).expect_err("quick").contains("--quick"));
        let failed = Report { failures: vec!["xfs: no room".into()], ..good };
        assert!(tried(&failed).expect_err("failed").contains("xfs: no room"));
    }

    #[test]
    fn the_default_medium_comes_first_with_each_verdict() {
        let judge = |medium, what: &str, value| Finding::judge(medium, what, Goal::factor(2.0, 3.0), "m".into(), value);
        let findings =
            [judge(MediumKind::Battery, "b", Ok(2.5)), judge(MediumKind::Logged, "l", Err("no disk".into()))];
        let text = numbers(findings.iter());
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(rows[0], "| l | `logged` | m | - | >= 2 x | skipped: no disk |");
        assert_eq!(rows[1], "| b | `battery` | m | 2.50 x | >= 2 x | reached |");
    }

    #[test]
    fn what_was_measured_in_one_run_has_one_origin() {
        let first = report(BTRFS);
        let later = Report { date: "2030-01-01T00:00:00Z".into(), ..first.clone() };
        let text = origins(&[("a", first.clone()), ("b", first), ("c", later)]);
        let rows: Vec<&str> = text.lines().skip(2).filter(|line| !line.is_empty()).collect();
        assert!(rows[0].starts_with("| [a](figures/a.json), [b](figures/b.json) | "), "{text}");
        assert!(rows.len() == 2 && rows[1].contains("| 2030-01-01T00:00:00Z |"), "{text}");
    }

    #[test]
    fn a_page_keeps_what_is_around_its_figures() {
        let page = format!("before\n{ALL_BEGIN}\nold\n{END}\nafter\n");
        let new = replace(&page, ALL_BEGIN, "new\n\n").expect("both lines are there");
        assert_eq!(new, format!("before\n{ALL_BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(replace(&new, ALL_BEGIN, "new\n\n").expect("still"), new);
        for line in [ALL_BEGIN, END] {
            let e = replace(&page.replace(line, ""), ALL_BEGIN, "new").expect_err("a line is missing");
            assert!(e.to_string().contains(line), "{e}");
        }
    }
}

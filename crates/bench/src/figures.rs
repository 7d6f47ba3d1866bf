//! The tables of figures in README.md, made of what `conquest bench publish` has written.
//!
//! No figure is typed: [`tables`] reads the reports of the [`workloads`], one file each, and takes from them ratios of
//! small files against the host's file systems, the numbers to reach of all other workloads, what machine they are from, and
//! which plots there are. A figure that is not there is an error, not a gap; a workload that was never published has no rows.

use std::path::{Path, PathBuf};

use fs::MediumKind;

use crate::args::{
    defaults, Disks, Durable, Figures, Filebench, Kind, Large, Largefile, Mramfs, Part, PostmarkLarge, Ubj, What,
};
use crate::error::Error;
use crate::workload::smallfile::{CACHED, CREATE, READ, STAT, SYNC, UNLINK};
use report::goals::{quantity, Finding};
use report::plot;
use report::{Report, Section};

/// The lines between which the tables stand.
const BEGIN: &str = "<!-- figures: made by `conquest bench figures --write README.md` -->";
const END: &str = "<!-- end of figures -->";

/// The workload whose ratios have tables of their own.
const SMALL_FILES: &str = "smallfile";

/// The phases of that workload, as the tables call them.
const OPERATIONS: [(&str, &str); 6] = [
    ("create + write + fsync", SYNC),
    ("create + write + close", CREATE),
    ("stat", STAT),
    ("open + read + close, first", READ),
    ("open + read + close, again", CACHED),
    ("unlink", UNLINK),
];

/// Operations that depend on the medium; of others one row is enough.
const WRITING: usize = 2;

/// What is published, by the names of the files: in sizes that make it some forty minutes in all.
pub fn workloads() -> Vec<(&'static str, What)> {
    let journal = Durable { journal: true, only: vec![Part::Fsync, Part::Sqlite], ..defaults() };
    let large = Large { size: 2048, ..defaults() };
    let filebench = Filebench { seconds: 2.0, ..defaults() };
    let largefile = Largefile { files: 4, ..defaults() };
    let postmark_large = PostmarkLarge { files: 1_000, transactions: 1_000, ..defaults() };
    let mramfs = Mramfs { files: 20_000, transactions: 20_000, units: 300, backlog: 256, ..defaults() };
    let ubj = Ubj { seconds: 2.0, long: 5.0, ..defaults() };
    vec![
        (SMALL_FILES, What::Smallfile(defaults())),
        ("postmark", What::Postmark(defaults())),
        ("durable", What::Durable(defaults())),
        ("durable-journal", What::Durable(journal)),
        ("places", What::Places),
        ("scale", What::Scale(defaults())),
        ("open", What::Open(defaults())),
        ("fsck", What::Fsck(defaults())),
        ("memory", What::Memory(defaults())),
        ("bigdir", What::Bigdir(defaults())),
        ("large", What::Large(large)),
        ("filebench", What::Filebench(filebench)),
        ("databases", What::Databases(defaults())),
        ("sustained", What::Sustained(defaults())),
        ("largefile", What::Largefile(largefile)),
        ("postmark-large", What::PostmarkLarge(postmark_large)),
        ("ubj", What::Ubj(ubj)),
        ("disks", What::Disks(Disks { ..defaults() })),
        ("packed", What::Packed(defaults())),
        ("compression", What::Compression(defaults())),
        ("mramfs", What::Mramfs(mramfs)),
    ]
}

/// The file of a workload in the directory `dir`.
pub fn file(dir: &Path, workload: &str) -> PathBuf {
    dir.join(workload).with_extension("json")
}

/// `conquest bench figures`.
pub fn run(args: &Figures) -> Result<(), Error> {
    let tables = tables(&args.from)?;
    let Some(page) = &args.write else {
        print!("{tables}");
        return Ok(());
    };
    let text = std::fs::read_to_string(page).map_err(Error::file(page))?;
    let written = replace(&text, &tables).map_err(|e| e.at(page.display().to_string()))?;
    std::fs::write(page, written).map_err(Error::file(page))
}

/// The page with `tables` between the lines that mark their place.
fn replace(page: &str, tables: &str) -> Result<String, Error> {
    let missing = |line| Error::Usage(format!("there is no line `{line}` to put the figures at"));
    let (before, rest) = page.split_once(BEGIN).ok_or_else(|| missing(BEGIN))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| missing(END))?;
    Ok(format!("{before}{BEGIN}\n\n{tables}{END}{after}"))
}

/// All tables, of the reports in `dir`.
fn tables(dir: &Path) -> Result<String, Error> {
    let is_there = |name: &str| name == SMALL_FILES || file(dir, name).exists();
    let known = workloads().into_iter().filter(|(name, _)| is_there(name));
    let reports = known.map(|(name, _)| Ok((name, published(&file(dir, name))?)));
    let reports: Vec<(&str, Report)> = reports.collect::<Result<_, Error>>()?;
    let (of_small_files, others): (Vec<_>, Vec<_>) = reports.iter().partition(|(name, _)| *name == SMALL_FILES);
    let mut out = String::new();
    for (name, report) in of_small_files {
        out += &small_files(report).map_err(|e| e.at(file(dir, name).display().to_string()))?;
    }
    out += &numbers(others.into_iter().flat_map(|(_, report)| &report.outcome.findings));
    Ok(out + &origins(&reports) + &plots(&reports))
}

/// A report that may be shown: of a whole run, in which nothing failed.
fn published(path: &Path) -> Result<Report, Error> {
    let report = Report::read(path).map_err(Error::file(path))?;
    let refused = match (report.quick, report.failures.first()) {
        (true, _) => "measured with --quick".to_owned(),
        (_, Some(failure)) => failure.clone(),
        _ => return Ok(report),
    };
    Err(Error::Usage(format!("no figures to publish: {refused}")).at(path.display().to_string()))
}

/// Ratios of small files, mounted and in process.
fn small_files(report: &Report) -> Result<String, Error> {
    let section = report.outcome.sections.iter().find(|section| section.id == SMALL_FILES);
    let section = section.ok_or_else(|| Error::Usage("no section of small files".into()))?;
    let mut out = against(section, "mounted over io_uring", [Kind::LoggedUring, Kind::BatteryUring])?;
    out += &against(section, "in process", [Kind::LoggedInproc, Kind::BatteryInproc])?;
    Ok(out)
}

/// One table: how many times as fast as the host's file systems the pools on `logged` and `battery` are.
fn against(section: &Section, how: &str, [logged, battery]: [Kind; 2]) -> Result<String, Error> {
    let row = |medium, kind: Kind, (operation, measure): (&str, &str)| {
        let factor = |base: Kind| section.factor(measure, kind.name(), base.name()).map(times).map_err(Error::Usage);
        let [ext4, xfs, tmpfs] = [factor(Kind::Ext4)?, factor(Kind::Xfs)?, factor(Kind::Tmpfs)?];
        Ok([operation.into(), code(medium), ext4, xfs, tmpfs])
    };
    let on_logged = OPERATIONS.into_iter().map(|operation| row(MediumKind::Logged, logged, operation));
    let writing = OPERATIONS.into_iter().take(WRITING);
    let on_battery = writing.map(|operation| row(MediumKind::Battery, battery, operation));
    let rows: Vec<_> = on_logged.chain(on_battery).collect::<Result<_, Error>>()?;
    let heads = [how, "medium", "times as fast as ext4", "as XFS", "as tmpfs"];
    Ok(table(heads, rows.into_iter()))
}

/// The numbers to reach, the default medium first.
fn numbers<'a>(findings: impl Iterator<Item = &'a Finding>) -> String {
    let mut findings: Vec<&Finding> = findings.collect();
    findings.sort_by_key(|finding| finding.medium != MediumKind::Logged);
    let rows = findings.into_iter().map(|finding| {
        let Finding { what, medium, measured, value, goal, verdict, reason } = finding;
        let result = value.map_or("-".into(), |value| quantity(value, &goal.unit));
        let verdict = reason.as_ref().map_or(verdict.word().into(), |reason| format!("{}: {reason}", verdict.word()));
        [what.clone(), code(*medium), measured.clone(), result, goal.show(goal.required), verdict]
    });
    table(["what", "medium", "measured", "result", "to reach", "verdict"], rows)
}

/// Where and when the figures were measured, a row for each run.
fn origins(reports: &[(&str, Report)]) -> String {
    let runs = reports.chunk_by(|(_, a), (_, b)| (&a.date, &a.machine) == (&b.date, &b.machine));
    let rows = runs.map(|run| {
        let names: Vec<String> = run.iter().map(|(name, _)| format!("[{name}](docs/figures/{name}.json)")).collect();
        let Report { date, machine, .. } = &run[0].1;
        [
            names.join(", "),
            date.clone(),
            format!("Linux {}", machine.kernel),
            format!("{} x {}", machine.processors, machine.processor),
            format!("{:.1} GiB", machine.memory as f64 / f64::from(1 << 30)),
            format!("{:.1}", machine.load),
        ]
    });
    table(["figures", "date", "kernel", "machine", "RAM", "load before"], rows)
}

/// Where what is drawn lies.
fn plots(reports: &[(&str, Report)]) -> String {
    let of_one =
        |report| plot::of(report).map(|(file, ..)| format!("[{}](docs/figures/{file})", file.trim_end_matches(".svg")));
    let links: Vec<String> = reports.iter().flat_map(|(_, report)| of_one(&report.outcome)).collect();
    match links.is_empty() {
        true => String::new(),
        false => format!("Plots: {}\n\n", links.join(", ")),
    }
}

fn code(medium: MediumKind) -> String {
    format!("`{medium}`")
}

/// A factor, in as many digits as matter.
fn times(factor: f64) -> String {
    match factor {
        f if f >= 10.0 => format!("{f:.0}"),
        f if f >= 1.0 => format!("{f:.1}"),
        f => format!("{f:.2}"),
    }
}

/// A table of a page, with an empty line after it.
fn table<const N: usize>(heads: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut out = line(&heads.map(String::from)) + &line(&heads.map(|_| "---".into()));
    out.extend(rows.map(|cells| line(&cells)));
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::goals::Goal;
    use report::Outcome;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    /// A report of small files on all that a table needs, but for `left_out`.
    fn report(left_out: Kind) -> Report {
        let mut section = Section::times(SMALL_FILES, "Small files", "us/op");
        let kinds = Kind::ALL.into_iter().filter(|kind| *kind != left_out);
        for (n, kind) in kinds.enumerate() {
            OPERATIONS.iter().for_each(|(_, measure)| section.add(kind.name(), measure, (n + 1) as f64));
        }
        Report { outcome: Outcome { sections: vec![section], findings: Vec::new() }, ..Report::begin(false) }
    }

    #[test]
    fn the_readme_shows_the_figures_that_are_committed() {
        let page = std::fs::read_to_string(root().join("README.md")).expect("README.md");
        let tables = tables(&root().join("docs/figures")).expect("the committed figures");
        let again = replace(&page, &tables).expect("the place of the figures");
        assert!(page == again, "README.md and docs/figures differ: run `conquest bench figures --write README.md`");
    }

    #[test]
    fn ratios_of_small_files_have_a_row_for_each_operation_and_medium() {
        let text = small_files(&report(Kind::Btrfs)).expect("all is there");
        // tmpfs 1, ext4 2, XFS 3, in process and mounted on `logged` 4 and 5.
        assert!(text.contains("| stat | `logged` | 0.40 | 0.60 | 0.20 |\n"), "{text}");
        assert!(text.contains("| create + write + fsync | `battery` |"), "{text}");
        assert!(!text.contains("| stat | `battery` |"), "{text}");
    }

    #[test]
    fn a_figure_that_is_not_there_is_an_error() {
        let e = small_files(&report(Kind::Xfs)).expect_err("no XFS");
        assert!(e.to_string().contains("xfs was not measured"), "{e}");
    }

    #[test]
    fn what_was_never_published_has_no_rows_and_what_is_drawn_has_a_link() {
        let dir = tempfile::tempdir().expect("a directory");
        let written = |name: &str, report: &Report| {
            report.write(std::fs::File::create(file(dir.path(), name)).expect("a file")).expect("written");
        };
        assert!(tables(dir.path()).expect_err("small files").to_string().contains("smallfile.json"));
        written(SMALL_FILES, &report(Kind::Btrfs));
        assert!(!tables(dir.path()).expect("one is enough").contains("ubj"));
        let mut section = Section { plot: plot::Plot::bars(), ..Section::rates("ubj-2", "t", "B") };
        section.add("a", "x", 1.0);
        let outcome = Outcome { sections: vec![section], findings: Vec::new() };
        written("ubj", &Report { outcome, ..Report::begin(false) });
        let text = tables(dir.path()).expect("both");
        assert!(text.ends_with("Plots: [ubj-2](docs/figures/ubj-2.svg)\n\n"), "{text}");
    }

    #[test]
    fn quick_and_failed_runs_are_not_published() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = file(dir.path(), SMALL_FILES);
        let tried = |report: &Report| {
            report.write(std::fs::File::create(&path).expect("a file")).expect("written");
            published(&path).map(|report| report.date).map_err(|e| e.to_string())
        };
        let good = report(Kind::Btrfs);
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
        let first = report(Kind::Btrfs);
        let later = Report { date: "2030-01-01T00:00:00Z".into(), ..first.clone() };
        let text = origins(&[("a", first.clone()), ("b", first), ("c", later)]);
        let rows: Vec<&str> = text.lines().skip(2).filter(|line| !line.is_empty()).collect();
        assert!(rows[0].starts_with("| [a](docs/figures/a.json), [b](docs/figures/b.json) | "), "{text}");
        assert!(rows.len() == 2 && rows[1].contains("| 2030-01-01T00:00:00Z |"), "{text}");
    }

    #[test]
    fn a_page_keeps_what_is_around_its_figures() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = replace(&page, "new\n\n").expect("both lines are there");
        assert_eq!(new, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(replace(&new, "new\n\n").expect("still"), new);
        for line in [BEGIN, END] {
            let e = replace(&page.replace(line, ""), "new").expect_err("a line is missing");
            assert!(e.to_string().contains(line), "{e}");
        }
    }
}

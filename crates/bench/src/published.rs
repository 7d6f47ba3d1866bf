//! What is published: the workloads, the files of their reports, and how figures look on a page.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use report::cells::{markdown, Table};
use report::Report;

use crate::error::Error;

/// The workload whose ratios have tables of their own.
pub const SMALL_FILES: &str = "smallfile";

/// The published workloads, by the names of their files. Parts that figures of a paper need are files of their own, so
/// that a run that was ended continues with the next figure.
pub const WORKLOADS: [(&str, &str); 37] = [
    (SMALL_FILES, "smallfile"),
    ("postmark", "postmark"),
    ("durable", "durable"),
    ("durable-journal", "durable --journal --only fsync,sqlite"),
    ("places", "places"),
    ("scale", "scale"),
    ("open", "open"),
    ("fsck", "fsck"),
    ("memory", "memory"),
    ("bigdir", "bigdir"),
    ("large", "large --size 2048"),
    ("filebench", "filebench --seconds 2"),
    ("databases", "databases"),
    ("sustained", "sustained"),
    ("largefile", "largefile --files 4"),
    ("postmark-large", "postmark-large --files 1000 --transactions 1000"),
    ("ubj-traffic", "ubj --only traffic --long 5"),
    ("ubj-replay", "ubj --only replay"),
    ("ubj-filebench", "ubj --only filebench --seconds 2"),
    ("ubj-iozone", "ubj --only iozone"),
    ("ubj-postmark", "ubj --only postmark"),
    ("ubj-period", "ubj --only period --long 5"),
    ("disks-baseline", "disks --only baseline"),
    ("disks-growth", "disks --only growth"),
    ("disks-unequal", "disks --only unequal"),
    ("disks-misconfigured", "disks --only misconfigured"),
    ("disks-degraded", "disks --only degraded"),
    ("disks-failure", "disks --only failure"),
    ("disks-mirrored", "disks --only mirrored"),
    ("disks-lazy", "disks --only lazy"),
    ("disks-raid5", "disks --only raid5"),
    ("disks-others", "disks --only foreground,reorganised,hanging"),
    ("study", "study"),
    ("packed", "packed"),
    ("compression", "compression"),
    ("mramfs", "mramfs --files 20000 --transactions 20000 --units 300 --backlog 256"),
    ("direct", "direct"),
];

/// The command line of a published workload.
pub fn command_of(workload: &str) -> &'static str {
    WORKLOADS.iter().find(|(name, _)| *name == workload).map_or("", |(_, line)| line)
}

/// For the command line.
pub fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(WORKLOADS.map(|(name, _)| name))
}

/// The file of a workload in the directory `dir`.
pub fn file(dir: &Path, workload: &str) -> PathBuf {
    dir.join(workload).with_extension("json")
}

/// The reports in `dir`: that of small files, and the others that exist.
pub fn reports(dir: &Path) -> Result<Vec<(&'static str, Report)>, Error> {
    let is_there = |name: &str| name == SMALL_FILES || file(dir, name).exists();
    let known = WORKLOADS.into_iter().filter(|(name, _)| is_there(name));
    known.map(|(name, _)| Ok((name, published(&file(dir, name))?))).collect()
}

/// Reads a report that may be shown: of a whole run without failures.
pub fn published(path: &Path) -> Result<Report, Error> {
    let report = Report::read(path).map_err(Error::file(path))?;
    let refused = match (report.quick, report.failures.first()) {
        (true, _) => "measured with --quick".to_owned(),
        (_, Some(failure)) => failure.clone(),
        _ => return Ok(report),
    };
    Err(Error::Usage(format!("no figures to publish: {refused}")).at(path.display().to_string()))
}

pub fn code(text: impl Display) -> String {
    format!("`{text}`")
}

/// A factor, in its significant digits.
pub fn times(factor: f64) -> String {
    match factor {
        f if f >= 10.0 => format!("{f:.0}"),
        f if f >= 1.0 => format!("{f:.1}"),
        f => format!("{f:.2}"),
    }
}

/// A table of a page, with an empty line after it.
pub fn table<R: Into<Vec<String>>>(heads: &[&str], rows: impl Iterator<Item = R>) -> String {
    let columns = heads.iter().map(|head| (*head).to_owned().into()).collect();
    markdown(&Table { columns, rows: rows.map(Into::into).collect() })
}

//! `conquest bench` as a user runs it: it measures, says what it could not, and leaves nothing behind.
//! Needs no root: what does is then reported as skipped, which the second test asks for.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_conquest");
    Command::new(program).arg("bench").args(arguments).output().expect("the program starts")
}

/// Runs a benchmark and returns its JSON.
fn report(name: &str, arguments: &[&str]) -> Value {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}-{}.json", std::process::id()));
    let path = file.display().to_string();
    let output = bench(&[arguments, &["--quick", "--json", &path]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&file).expect("a report");
    std::fs::remove_file(&file).expect("remove the report");
    serde_json::from_str(&text).expect("JSON")
}

/// The median of a series of the first section.
fn median(report: &Value, subject: &str, measure: &str) -> f64 {
    let series = report["sections"][0]["series"].as_array().expect("series");
    let found = series.iter().find(|s| s["subject"] == subject && s["measure"] == measure);
    found.unwrap_or_else(|| panic!("{subject}, {measure}: {series:?}"))["median"].as_f64().expect("a number")
}

#[test]
fn everything_is_published_each_in_a_file_of_its_own_and_nothing_is_left() {
    let temporary = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on the disk");
    let (disk, to) = (temporary(), temporary());
    let [disk_dir, to_dir] = [&disk, &to].map(|dir| dir.path().to_str().expect("plain").to_owned());
    let all = report("publish", &["publish", "--dir", &disk_dir, "--to", &to_dir, "--on", "tmpfs,battery-inproc"]);
    let mut findings = 0;
    let published = |name: &str| -> Value {
        let text = std::fs::read_to_string(to.path().join(name).with_extension("json")).expect(name);
        serde_json::from_str(&text).expect("JSON")
    };
    for name in
        ["smallfile", "postmark", "durable", "durable-journal", "places", "scale", "open", "fsck", "memory", "bigdir"]
    {
        let report = published(name);
        assert_eq!(report["machine"], all["machine"], "{name}");
        findings += report["findings"].as_array().expect("findings").len();
    }
    assert_eq!(findings, all["findings"].as_array().expect("findings").len());
    assert!(median(&published("memory"), "conquest", "entry") > 0.0);
    assert!(median(&published("fsck"), "conquest", "whole pool") > 0.0);
    assert!(median(&published("open"), "full", "open") > 0.0);
    assert_eq!(std::fs::read_dir(disk.path()).expect("list").count(), 0);
    // Of such a run no tables are made.
    let output = bench(&["figures", &to_dir]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("smallfile.json") && said.contains("--quick"), "{said}");
}

#[test]
fn small_files_are_measured_and_what_was_left_out_is_said() {
    let report = report("smallfile", &["smallfile", "--on", "tmpfs,logged-inproc,battery-inproc"]);
    for subject in ["tmpfs", "conquest logged", "conquest battery"] {
        for measure in ["create+write", "stat", "open+read", "unlink"] {
            assert!(median(&report, subject, measure) > 0.0);
        }
    }
    let skipped = report["sections"][0]["skipped"].as_array().expect("skipped");
    assert!(skipped.iter().any(|s| s["subject"] == "ext4"), "{skipped:?}");
    let rows = report["findings"].as_array().expect("findings");
    let of_xfs = rows.iter().find(|r| r["what"].as_str().is_some_and(|w| w.contains("XFS"))).expect("a row");
    assert_eq!(of_xfs["verdict"], "skipped");
    assert_eq!(of_xfs["value"], Value::Null);
}

#[test]
fn two_processes_share_a_pool_under_load() {
    let report = report("scale", &["scale"]);
    let skipped = report["sections"][0]["skipped"].as_array().expect("skipped");
    if !skipped.is_empty() {
        eprintln!("skipped: {skipped:?}");
        return;
    }
    assert!(median(&report, "two processes", "all four") > 0.0);
}

#[test]
fn durability_is_measured_and_leaves_nothing_on_the_disk() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on the disk");
    let report = report("durable", &["durable", "--dir", &dir.path().display().to_string()]);
    let rows = report["findings"].as_array().expect("findings");
    // All but the mounted ones, which not every machine can have.
    for row in ["without fsync", "running copy", "log per operation", "after a power cut"] {
        let found = rows.iter().find(|r| r["what"].as_str().is_some_and(|w| w.contains(row))).expect(row);
        assert!(found["value"].as_f64().is_some_and(|v| v > 0.0), "{found}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
}

#[test]
fn a_disk_that_is_memory_is_told_and_nothing_is_measured() {
    let report = report("memory-disk", &["durable", "--dir", "/dev/shm"]);
    for row in report["findings"].as_array().expect("findings") {
        assert_eq!(row["verdict"], "skipped", "{row}");
        assert!(row["reason"].as_str().is_some_and(|r| r.contains("--dir")), "{row}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_known_before_the_run() {
    let output = bench(&["memory", "--quick", "--json", "/nonexistent/report.json"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/report.json"));
}

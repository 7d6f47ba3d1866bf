//! `conquest bench` as a user runs it: it measures, reports what it skipped, and leaves nothing behind. It needs no
//! root: the parts that do are then reported as skipped, which the second test checks.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_conquest-bench");
    Command::new(program).args(arguments).output().expect("the program starts")
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
    let arguments = ["publish", "--dir", &disk_dir, "--to", &to_dir, "--on", "tmpfs,battery-inproc"];
    let all = report("publish", &arguments);
    let mut count = 0;
    let published = |name: &str| -> Value {
        let text = std::fs::read_to_string(to.path().join(name).with_extension("json")).expect(name);
        serde_json::from_str(&text).expect("JSON")
    };
    let small =
        ["smallfile", "postmark", "durable", "durable-journal", "places", "scale", "open", "fsck", "memory", "bigdir"];
    let large = ["large", "filebench", "databases", "sustained", "largefile", "postmark-large", "ubj-replay"];
    for name in small.into_iter().chain(large).chain(["disks-growth", "study", "packed", "mramfs", "direct"]) {
        assert_eq!(published(name)["machine"]["kernel"], all["machine"]["kernel"], "{name}");
    }
    for entry in std::fs::read_dir(to.path()).expect("list").flatten() {
        let name = entry.file_name().into_string().expect("plain");
        let Some(name) = name.strip_suffix(".json") else { continue };
        let report = published(name);
        assert!(report["seconds"].as_f64().is_some() && report["machine"]["others"].as_f64().is_some(), "{name}");
        count += findings(&report).len();
    }
    assert_eq!(count, findings(&all).len());
    // What is there is not measured again.
    let date = published("memory")["date"].clone();
    let again = bench(&[&arguments[..], &["--quick", "--only", "memory,fsck"]].concat());
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && said.contains("2 of 2, about 1 min left: memory: there since"), "{said}");
    assert_eq!(published("memory")["date"], date);
    assert!(median(&published("memory"), "conquest", "entry") > 0.0);
    assert!(median(&published("fsck"), "conquest", "whole pool") > 0.0);
    assert!(median(&published("open"), "full", "open") > 0.0);
    for plot in
        ["largefile-5.2a", "largefile-5.2c", "postmark-5.6", "ubj-6-varmail", "ubj-8", "ubj-9", "ubj-10", "mramfs-5.3"]
    {
        let text = std::fs::read_to_string(to.path().join(format!("{plot}.svg"))).expect(plot);
        assert!(text.starts_with("<svg"), "{plot}");
    }
    assert_eq!(std::fs::read_dir(disk.path()).expect("list").count(), 0);
    // Such a run is not made into tables.
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
    let of_xfs = finding(&report, "XFS");
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
    // All rows except the mounted ones, which not every machine supports.
    for row in ["without fsync", "with a backing", "log per operation", "after a power cut"] {
        let found = finding(&report, row);
        assert!(found["value"].as_f64().is_some_and(|v| v > 0.0), "{found}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
}

#[test]
fn a_disk_that_is_memory_is_reported_and_nothing_is_measured() {
    let report = report("memory-disk", &["durable", "--dir", "/dev/shm"]);
    for row in findings(&report) {
        assert_eq!(row["verdict"], "skipped", "{row}");
        assert!(row["reason"].as_str().is_some_and(|r| r.contains("--dir")), "{row}");
    }
}

/// Runs a benchmark of large files on the disk, as small as possible, and checks that nothing is left there.
fn on_disk(name: &str, arguments: &[&str]) -> Value {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on the disk");
    let path = dir.path().display().to_string();
    let report = report(name, &[arguments, &["--dir", &path, "--rounds", "1"]].concat());
    assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    report
}

fn sections(report: &Value) -> &Vec<Value> {
    report["sections"].as_array().expect("sections")
}

fn findings(report: &Value) -> &Vec<Value> {
    report["findings"].as_array().expect("findings")
}

/// The finding whose text contains `part`.
fn finding<'r>(report: &'r Value, part: &str) -> &'r Value {
    let found = findings(report).iter().find(|row| row["what"].as_str().is_some_and(|what| what.contains(part)));
    found.unwrap_or_else(|| panic!("no row of {part}"))
}

fn ids(report: &Value) -> Vec<&str> {
    sections(report).iter().map(|s| s["id"].as_str().expect("a name")).collect()
}

/// Checks that each subject of a section has each of its measures, or is skipped with a reason.
fn is_complete(report: &Value, subjects: &[&str]) {
    assert!(!sections(report).is_empty());
    for section in sections(report) {
        let named = |part: &str, subject: &str| {
            let found = section[part].as_array().expect("a list");
            found.iter().any(|s| s["subject"] == subject)
        };
        for subject in subjects {
            assert!(named("series", subject) || named("skipped", subject), "{subject}: {section}");
        }
        for series in section["series"].as_array().expect("series") {
            assert!(series["median"].as_f64().is_some_and(|median| median >= 0.0), "{series}");
        }
    }
}

#[test]
fn large_files_are_measured_in_both_settings_and_nothing_is_left() {
    let parts = ["large", "--only", "synced,cached", "--setting", "own-disk,ram-backed"];
    let report = on_disk("large", &parts);
    is_complete(&report, &["ext4 data=ordered", "conquest battery+uring", "conquest logged+uring"]);
    assert_eq!(ids(&report), ["large-synced", "large-cached", "large-synced-ram", "large-cached-ram"]);
}

#[test]
fn written_bytes_are_counted_and_nothing_is_left() {
    let report = on_disk("volume", &["large", "--only", "volume", "--on", "ext4"]);
    is_complete(&report, &["ext4 without a journal", "ext4 data=journal"]);
    let series = report["sections"][0]["series"].as_array().expect("series");
    let written = |subject| series.iter().find(|s| s["subject"] == subject).and_then(|s| s["median"].as_f64());
    // If both could be made: a journal of content writes all of it twice.
    if let (Some(bare), Some(journal)) = (written("ext4 without a journal"), written("ext4 data=journal")) {
        assert!(bare > 0.5 && journal > 1.5 * bare, "{bare}, {journal}");
    }
}

#[test]
fn servers_of_filebench_are_measured_and_nothing_is_left() {
    let report = on_disk("filebench", &["filebench", "--only", "varmail,webserver", "--seconds", "0.1"]);
    is_complete(&report, &["ext4 data=journal", "conquest battery", "conquest battery+uring"]);
    assert!(median(&report, "conquest battery", "varmail") > 0.0);
}

#[test]
fn the_papers_large_files_are_measured_and_nothing_is_left() {
    let report = on_disk("largefile", &["largefile", "--on", "tmpfs,battery-inproc"]);
    is_complete(&report, &["tmpfs", "ext4 data=ordered", "conquest battery"]);
    assert!(median(&report, "conquest battery", "random write") > 0.0);
    let report = on_disk("postmark-large", &["postmark-large", "--on", "battery-inproc", "--percent", "0,10"]);
    assert!(median(&report, "conquest battery", "10 %") > 0.0);
}

#[test]
fn one_trace_goes_through_three_caches_and_stays_where_that_is_wanted() {
    let traces = tempfile::tempdir().expect("a directory");
    let dir = traces.path().display().to_string();
    let arguments = ["ubj", "--only", "replay", "--traces", &dir, "--plots", &dir];
    let first = on_disk("replay", &arguments);
    for cache in ["BF-no", "BF-Jm", "UBJ"] {
        let [small, large] = ["0.7", "2"].map(|size| median(&first, cache, size));
        assert!((0.0..=1.0).contains(&large) && large <= small && small <= 1.0, "{cache}: {small}, {large}");
    }
    assert!(finding(&first, "most")["value"].as_f64().is_some_and(|percent| percent > 0.0));
    let text = std::fs::read_to_string(traces.path().join("varmail.trace")).expect("a trace");
    let is_trace = text.starts_with("conquest trace 1\n");
    assert!(is_trace && traces.path().join("ubj-6-varmail.svg").exists());
    // A stored trace is replayed: a file that is no trace is refused.
    std::fs::write(traces.path().join("varmail.trace"), "x").expect("written");
    let output = bench(&["ubj", "--quick", "--only", "replay", "--traces", &dir]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("varmail.trace"), "{said}");
}

#[test]
fn the_figures_of_the_union_are_measured_and_nothing_is_left() {
    let parts = ["ubj", "--only", "traffic,filebench,iozone,postmark,period"];
    let report = on_disk("ubj", &parts);
    is_complete(&report, &["ext4 data=journal", "conquest battery+uring"]);
    let random = ["ubj-11-random", "ubj-11-sequential", "ubj-12-read", "ubj-12-write", "ubj-13"];
    assert_eq!(ids(&report), [&["ubj-2", "ubj-10-time", "ubj-10"][..], &random].concat());
}

#[test]
fn the_figures_of_the_thesis_on_mramfs_are_measured_where_they_can_be() {
    let report = report("mramfs", &["mramfs", "--on", "tmpfs,ext2,battery-inproc,battery-uring"]);
    let single = ["mramfs-5.3", "mramfs-5.4", "mramfs-5.3-memory"];
    let hundred = ["mramfs-5.3-dirs", "mramfs-5.4-dirs", "mramfs-5.3-dirs-memory"];
    assert_eq!(ids(&report), [&single[..], &hundred, &["mramfs-5.5", "mramfs-5.5-memory"]].concat());
    // These do not depend on the machine.
    for measure in ["transactions", "creation alone"] {
        assert!(median(&report, "tmpfs", measure) > 0.0 && median(&report, "conquest in process", measure) > 0.0);
    }
    // A subject that was not measured is listed: it is either measured or skipped.
    for subject in ["tmpfs", "ext2", "xfs", "btrfs", "conquest", "conquest, compressing"] {
        for section in sections(&report) {
            let of = |list: &str| section[list].as_array().expect(list).iter().any(|one| one["subject"] == subject);
            assert!(of("series") || of("skipped") || section["skipped"][0]["subject"] == "all", "{subject}: {section}");
        }
    }
    let memory = sections(&report).iter().find(|s| s["id"] == "mramfs-5.3-memory").expect("it is there");
    let used = |s: &Value| s["median"].as_f64().expect("a number");
    assert!(memory["series"].as_array().expect("series").iter().all(|series| used(series) > 0.0), "{memory}");
}

#[test]
fn direct_access_is_measured_beside_tmpfs_and_skipped_with_the_reason() {
    let report = report("direct", &["direct", "--only", "files,start", "--on", "tmpfs"]);
    is_complete(&report, &["tmpfs", "ext4", "conquest battery+uring", "conquest battery direct"]);
    for operation in ["create + write + close", "stat", "open + read + close", "rename", "unlink"] {
        assert!(median(&report, "tmpfs", operation) > 0.0);
    }
    let row = finding(&report, "direct: stat");
    assert!(row["reason"].as_str().is_some_and(|reason| reason.contains("--on")), "{row}");
}

#[test]
fn databases_are_measured_where_they_are_installed() {
    let arguments = ["databases", "--only", "sqlite,redis", "--on", "ext4,logged-uring"];
    let report = on_disk("databases", &arguments);
    is_complete(&report, &["ext4 data=ordered"]);
}

#[test]
fn a_report_that_cannot_be_written_is_known_before_the_run() {
    let output = bench(&["memory", "--quick", "--json", "/nonexistent/report.json"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/report.json"));
}

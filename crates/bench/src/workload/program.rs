//! Debian's `postmark` itself, on the mounted file systems, with the settings of the paper.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::args::Kind;
use crate::clock::now;
use crate::context::Context;
use crate::error::Error;
use crate::subject::Subject;
use crate::workload::plan::SIZES;
use report::Section;
use report::Skipped;

const ROUNDS: usize = 3;

/// Wall-clock seconds, and the transaction rates that the program reports.
pub fn run(
    context: &Context,
    subjects: &[Subject],
    sizes: &[usize],
    transactions: usize,
    block: usize,
) -> Result<[Section; 2], Error> {
    let title = |what| format!("Debian's postmark by number of files: {what} ({transactions} transactions)");
    let mut wall = Section::times("postmark-program-time", title("whole run"), "s");
    let mut rate = Section::rates("postmark-program-rate", title("transaction rate as reported"), "1/s");
    rate.notes.push("postmark counts whole seconds: rates are rough unless there are many transactions".into());
    wall.baseline = Some(Kind::Tmpfs.name().into());
    rate.baseline.clone_from(&wall.baseline);
    for round in 0..context.rounds(ROUNDS) {
        for &files in sizes {
            for subject in subjects {
                let Some(dir) = subject.dir() else { continue };
                context.say_round("postmark", round, ROUNDS, format_args!("{files} files, {}", subject.name()));
                match once(dir, &script(dir, files, transactions, block)) {
                    Ok((seconds, reported)) => {
                        wall.add(subject.name(), &files.to_string(), seconds);
                        rate.add(subject.name(), &files.to_string(), reported);
                    }
                    Err(Error::Program { said, .. }) if said == NOT_INSTALLED => {
                        let skipped = Skipped { subject: "postmark".into(), reason: said };
                        wall.skipped.push(skipped.clone());
                        rate.skipped.push(skipped);
                        return Ok([wall, rate]);
                    }
                    Err(e) => context.failed(&format!("postmark on {}", subject.name()), &e),
                }
            }
        }
    }
    Ok([wall, rate])
}

const NOT_INSTALLED: &str = "not installed (Debian package: postmark)";

/// The commands for one run. Unbuffered, so that a call is a block, as in our own workload.
fn script(dir: &Path, files: usize, transactions: usize, block: usize) -> String {
    let dirs = (files as f64).sqrt().round();
    format!(
        "set location {}\nset number {files}\nset transactions {transactions}\nset size {} {}\n\
         set subdirectories {dirs}\nset read {block}\nset write {block}\nset bias read 8\n\
         set bias create 5\nset buffering false\nset report verbose\nrun\nquit\n",
        dir.display(),
        SIZES.start(),
        SIZES.end(),
    )
}

/// Runs the program: wall-clock seconds, reported transactions per second.
fn once(dir: &Path, script: &str) -> Result<(f64, f64), Error> {
    let failed = |said: String| Error::Program { program: "postmark".into(), said };
    let start = now();
    let mut child =
        Command::new("postmark").current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(
            |e| match e.kind() {
                std::io::ErrorKind::NotFound => failed(NOT_INSTALLED.into()),
                _ => failed(e.to_string()),
            },
        )?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(script.as_bytes()).map_err(Error::io("postmark"))?;
    }
    let output = child.wait_with_output().map_err(Error::io("postmark"))?;
    let seconds = (now() - start) as f64 / 1e9;
    let text = String::from_utf8_lossy(&output.stdout);
    match transaction_rate(&text) {
        // It goes on, and exits with 0, when files cannot be created; it says so in one way only.
        Some(rate) if !text.contains("Error:") => Ok((seconds, rate)),
        _ => Err(failed(text.lines().find(|l| l.contains("Error:")).unwrap_or("no report").trim().into())),
    }
}

/// From the line `\t3 seconds of transactions (6666 per second)`.
fn transaction_rate(report: &str) -> Option<f64> {
    let line = report.lines().find(|l| l.contains("of transactions ("))?;
    line.split_once('(')?.1.split_once(' ')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_read() {
        let report = "Time:\n\t4 seconds total\n\t3 seconds of transactions (6666 per second)\n\nFiles:\n";
        assert_eq!(transaction_rate(report), Some(6666.0));
        assert_eq!(transaction_rate("Error: cannot open"), None);
    }

    #[test]
    fn the_script_has_the_settings_of_the_paper() {
        let script = script(Path::new("/mnt/x"), 10_000, 200_000, 512);
        for line in ["set location /mnt/x", "set subdirectories 100", "set bias read 8", "set size 512 16384"] {
            assert!(script.lines().any(|l| l == line), "{line}");
        }
    }
}

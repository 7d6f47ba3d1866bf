//! Debian's `postmark` itself, on the mounted file systems, with the settings of the paper.

use std::path::Path;
use std::process::Command;

use super::plan::SIZES;
use crate::command::fed;
use crate::prelude::*;

const ROUNDS: usize = 3;

/// Wall-clock seconds, and the transaction rates that the program reports.
pub fn run(
    context: &Context,
    peers: &[Peer],
    sizes: &[usize],
    transactions: usize,
    block: usize,
) -> Result<[Section; 2], Error> {
    let title = |what| format!("Debian's postmark by number of files: {what} ({transactions} transactions)");
    let wall = Section::times("postmark-program-time", title("whole run"), "s").against(TMPFS.name);
    let rate = Section::rates("postmark-program-rate", title("transaction rate as reported"), "1/s");
    let note = "postmark counts whole seconds: rates are rough unless there are many transactions";
    let mut sections = [wall, rate.against(TMPFS.name).noting(note)];
    let mut mounted: Vec<_> = peers.iter().filter(|peer| !peer.who.is_in_process()).collect();
    for round in 0..context.count(ROUNDS) {
        for &files in sizes {
            let label = format!("postmark, {files} files");
            context.once_each((&label, round, ROUNDS), &mut mounted, &mut sections, |peer, sections| {
                let dir = peer.dir()?;
                let (seconds, reported) = once(dir, &script(dir, files, transactions, block, false))?;
                sections[0].add(peer.who.name, &files.to_string(), seconds);
                sections[1].add(peer.who.name, &files.to_string(), reported);
                Ok(())
            });
        }
    }
    Ok(sections)
}

/// The commands for one run. Unbuffered, a call is a block, as in our own workload.
pub fn script(dir: &Path, files: usize, transactions: usize, block: usize, buffered: bool) -> String {
    let dirs = (files as f64).sqrt().round();
    format!(
        "set location {}\nset number {files}\nset transactions {transactions}\nset size {} {}\n\
         set subdirectories {dirs}\nset read {block}\nset write {block}\nset bias read 8\n\
         set bias create 5\nset buffering {buffered}\nset report verbose\nrun\nquit\n",
        dir.display(),
        SIZES.start(),
        SIZES.end(),
    )
}

/// Runs the program: wall-clock seconds, reported transactions per second.
fn once(dir: &Path, script: &str) -> Result<(f64, f64), Error> {
    let start = now();
    let text = fed(Command::new("postmark").current_dir(dir), script.into())?;
    let seconds = seconds_since(start);
    Ok((seconds, reported(&text)?))
}

/// The rate of transactions that the program reports.
pub fn reported(text: &str) -> Result<f64, Error> {
    let failed = |said: &str| Error::Program { program: "postmark".into(), said: said.trim().into() };
    match transaction_rate(text) {
        // It continues, and exits with 0, when files cannot be created; only this word in its output tells.
        Some(rate) if !text.contains("Error:") => Ok(rate),
        _ => Err(failed(text.lines().find(|l| l.contains("Error:")).unwrap_or("no report"))),
    }
}

/// Parses the line `\t3 seconds of transactions (6666 per second)`.
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
        let script = script(Path::new("/mnt/x"), 10_000, 200_000, 512, false);
        for line in ["set location /mnt/x", "set subdirectories 100", "set bias read 8", "set size 512 16384"] {
            assert!(script.lines().any(|l| l == line), "{line}");
        }
    }
}

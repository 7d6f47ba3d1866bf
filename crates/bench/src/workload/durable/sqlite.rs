//! sqlite3 with its defaults except `synchronous=FULL`: transactions of one insert each, through the mount and on the
//! disk itself. Beside it the parts of a transaction by themselves: the program, the disk, a message.

use std::path::Path;
use std::process::Command;

use super::limits::{self, Written};
use super::{Beside, Setup, DISK, LOGGED};
use crate::command::{fed, require};
use crate::disk::Disk;
use crate::prelude::*;

/// Few rounds: one takes long if the disk is slow to flush.
const ROUNDS: usize = 3;
const INSERT: &str = "transaction";
/// The flushes that a transaction at least waits for, one after another: of the journal, of its header, and of the
/// database.
const FLUSHES: usize = 3;
/// The name of these flushes by themselves.
const ALONE: &str = "its three flushed writes alone";
/// sqlite3 by itself: on tmpfs, whose flush does nothing.
const MEMORY: &str = "sqlite3 alone, on tmpfs";
pub const PROGRAM: &str = "sqlite3";

pub(super) fn run(setup: &Setup<'_>) -> Outcome {
    let count = setup.context.size(setup.args.transactions, 50);
    let disk = setup.name();
    let title = format!("sqlite3, synchronous=FULL, {count} transactions of one insert, mounted, and {disk} itself");
    let mut sections = [Section::times("durable-sqlite", title, "us/op").against(DISK)];
    setup.attempt(&mut sections, |disk, sections| measure(setup, disk, &mut sections[0], count));
    let what = format!("mounted: sqlite3, one insert per transaction, faster than {disk}");
    let row = sections[0].row(MediumKind::Logged, what, Goal::factor(1.5, 3.0));
    Outcome { findings: vec![row.factor(INSERT, LOGGED, DISK)], sections: sections.into() }
}

fn measure(setup: &Setup<'_>, disk: &Disk, section: &mut Section, count: usize) -> Result<(), Error> {
    require(PROGRAM)?;
    let pool = setup.logged(disk, "sqlite", setup.bytes(), None)?;
    let mount = setup.mount(&pool, "sqlite")?;
    let beside = Beside::make(disk, "sqlite.dir")?;
    let memory = tempfile::tempdir_in(&setup.context.base).map_err(Error::file(&setup.context.base))?;
    let script = script(count);
    let mut alone = Written::make(beside.path())?;
    let mut flushes = Section::rates("flushes", "", "flushes");
    for round in 0..setup.context.count(ROUNDS) {
        for (subject, dir) in [(LOGGED, mount.dir.as_path()), (DISK, beside.path()), (MEMORY, memory.path())] {
            setup.context.say_round("sqlite3", round, ROUNDS, subject);
            let database = dir.join(format!("round{round}.db"));
            let (figure, per_op) = disk.flushes(count, || once(&database, &script, count));
            section.add(subject, INSERT, figure.map_err(|e| e.at(subject))?);
            let on_disk = per_op.filter(|_| subject != MEMORY);
            on_disk.into_iter().for_each(|figure| flushes.add(subject, INSERT, figure));
            std::fs::remove_file(&database).map_err(Error::file(&database))?;
        }
        section.add(ALONE, INSERT, alone.round(FLUSHES * count)? * FLUSHES as f64);
        section.add(limits::MESSAGE, INSERT, limits::messages(&mount.dir, count)?);
    }
    let notes = flushes.series.iter();
    section
        .notes
        .extend(notes.map(|of| format!("{}: {:.2} flushes of the device per transaction", of.subject, of.median)));
    Ok(())
}

/// `count` transactions of one insert each.
pub fn script(count: usize) -> String {
    let insert = |i| format!("INSERT INTO t VALUES({i}, 'a row of a table, as long as rows are: {i:040}');\n");
    (0..count).map(insert).collect()
}

/// Runs the transactions, all of which must exist in the end; returns microseconds per transaction.
fn once(database: &Path, script: &str, count: usize) -> Result<f64, Error> {
    sqlite(database, "CREATE TABLE t(k INTEGER PRIMARY KEY, v TEXT);\n".into())?;
    let start = now();
    sqlite(database, format!("PRAGMA synchronous=FULL;\n{script}"))?;
    let figure = us_per_op(start, count);
    let said = sqlite(database, "SELECT count(*) FROM t;\n".into())?;
    if said.trim() != count.to_string() {
        return Err(Error::Wrong(format!("sqlite3 made {count} rows and finds {}", said.trim())));
    }
    Ok(figure)
}

/// Feeds a script to the program, which ends at the first error; returns its output.
pub fn sqlite(database: &Path, script: String) -> Result<String, Error> {
    fed(Command::new(PROGRAM).args(["-batch", "-bail", "-init", "/dev/null"]).arg(database), script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_counted_and_errors_reported() {
        if let Err(e) = require(PROGRAM) {
            return eprintln!("skipped: {e}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let database = dir.path().join("x.db");
        assert!(once(&database, &script(3), 3).expect("three rows") > 0.0);
        let again = once(&database, &script(3), 3).expect_err("the table is there");
        assert!(again.to_string().contains("already exists"), "{again}");
        let other = once(&dir.path().join("y.db"), &script(3), 4).expect_err("a row is missing");
        assert!(matches!(other, Error::Wrong(_)), "{other}");
    }
}

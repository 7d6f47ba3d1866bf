//! Transactions of one update each of sqlite3 with `synchronous=FULL`, on a large base, in both of its journal modes.

use std::path::Path;

use super::{Database, Load, Options};
use crate::command::require;
use crate::prelude::*;
use crate::workload::durable::sqlite::{sqlite, PROGRAM};

const WAL: &str = "sqlite3, WAL";
const DELETE: &str = "sqlite3, DELETE";
/// Bytes of a row in the base, a little less than its space there.
const ROW: u64 = 400;

/// sqlite3, or the reason why it cannot be measured.
pub fn load(context: &Context, args: &Options) -> Result<Load, Error> {
    require(PROGRAM)?;
    let (base, count) = (context.mib(args.base, 8), context.size(args.transactions, 50));
    let mib = base / MIB;
    Ok(Load {
        title: format!("sqlite3, synchronous=FULL: {count} updates of a row each on a base of {mib} MiB: transactions"),
        measures: &[WAL, DELETE],
        goals: [Goal::factor(1.0, 1.3), Goal::factor(4.0, 8.0)],
        bytes: 2 * base + 512 * MIB,
        database: Box::new(Sqlite { rows: base / ROW, count }),
    })
}

struct Sqlite {
    rows: u64,
    count: usize,
}

impl Database for Sqlite {
    fn prepare(&self, dir: &Path) -> Result<(), Error> {
        let script = format!(
            "PRAGMA synchronous=OFF;\nCREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB);\n\
             INSERT INTO t SELECT value, randomblob({ROW}) FROM generate_series(1, {});\n",
            self.rows
        );
        sqlite(&dir.join("x.db"), script).map(drop)
    }

    fn measure(&self, dir: &Path, measure: &str, round: u64) -> Result<f64, Error> {
        let database = dir.join("x.db");
        let mode = if measure == WAL { "WAL" } else { "DELETE" };
        sqlite(&database, format!("PRAGMA journal_mode={mode};\n"))?;
        // Other values than those there: overwriting a value by itself writes nothing.
        let mut random = Rng::new(2 * round + u64::from(measure == WAL));
        let update = |_| {
            let (row, value) = (random.within(1, self.rows), random.next() >> 1);
            format!("UPDATE t SET v = printf('%0{ROW}d', {value}) WHERE k = {row};\n")
        };
        let script: String = (0..self.count).map(update).collect();
        let start = now();
        let said = sqlite(&database, format!("PRAGMA synchronous=FULL;\n{script}SELECT total_changes();\n"))?;
        let rate = per_second(self.count as u64, start);
        match said.trim() == self.count.to_string() {
            true => Ok(rate),
            false => Err(Error::Wrong(format!("sqlite3 changed {} rows of {}", said.trim(), self.count))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_made_and_updated_in_both_modes() {
        if let Err(e) = require(PROGRAM) {
            return eprintln!("skipped: {e}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let load = Sqlite { rows: MIB / ROW, count: 10 };
        load.prepare(dir.path()).expect("a base");
        assert!(std::fs::metadata(dir.path().join("x.db")).expect("it is there").len() >= MIB);
        for measure in [WAL, DELETE] {
            assert!(load.measure(dir.path(), measure, 0).expect(measure) > 0.0);
        }
    }
}

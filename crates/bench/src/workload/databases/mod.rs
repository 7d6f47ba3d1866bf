//! Databases on large files, mounted, against ext4 with its journal of metadata: durable operations per second.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`postgres`] | PostgreSQL: pgbench with 4 clients |
//! | [`sqlite`] | sqlite3: transactions of one update on a base of half a gigabyte, with WAL and DELETE |
//! | [`redis`] | redis: SET by 20 clients, with appendfsync always |
//! | [`server`] | servers that run for a round: starting, waiting until they answer, stopping |
//!
//! A program that is missing is reported, and its part skipped.

mod postgres;
mod redis;
mod server;
mod sqlite;

use std::path::Path;

use rustix::fs::Mode;

use crate::prelude::*;

const ROUNDS: usize = 3;
const WHOS: [Who; 3] = [ORDERED, BATTERY_MOUNTED, LOGGED_MOUNTED];

/// Makes a database ready, or returns why it cannot be measured.
type Ready = fn(&Context, &Options) -> Result<Load, Error>;

const PARTS: [Part<Ready>; 3] = [
    ("postgres", "pgbench with 4 clients", postgres::load),
    ("sqlite", "Transactions of one update, with the journal modes WAL and DELETE", sqlite::load),
    ("redis", "SET by 20 clients with appendfsync always", redis::load),
];

options! { Options {
    grounds;
    only: "NAME,..." of &PARTS, "Which of them [default: all]";
    scale: count "N" = 50, "The scale of pgbench; 50 is a base of 750 MB";
    seconds: count "SECONDS" = 8, "Seconds of a round of pgbench";
    base: count "MIB" = 500, "MiB of the base of sqlite3";
    transactions: count "N" = 2_000, "Transactions of sqlite3 per round";
    requests: count "N" = 50_000, "Requests to redis per round";
    cache: count "MIB" = 1024, "MiB of persistent RAM of pools that have a disk";
} }

impl InSettings for Options {
    const ID: &str = "databases";

    fn grounds(&self) -> &Grounds {
        &self.grounds
    }

    fn begin(&self, context: &Context) -> Result<(), Error> {
        // The user of PostgreSQL is not root, and must pass through this directory; nobody else sees it in the run's
        // namespace.
        let through = Mode::RWXU | Mode::XGRP | Mode::XOTH;
        Ok(rustix::fs::chmod(&context.base, through)?)
    }

    fn measure(&self, setting: &Setting<'_>) -> Outcome {
        let mut outcome = Outcome::default();
        for (name, _, load) in wanted(&PARTS, &self.only) {
            let id = format!("databases-{name}");
            match load(setting.context, self) {
                Ok(load) => outcome.extend(self.measure_load(setting, &id, &load)),
                Err(missing) => {
                    let mut section = Section { title: id.clone(), ..setting.rates(&id, "", "1/s") };
                    section.skip(ORDERED.name, missing.to_string());
                    outcome.sections.push(section);
                }
            }
        }
        outcome
    }
}

/// A database and its measurement.
struct Load {
    title: String,
    /// The measures of each round.
    measures: &'static [&'static str],
    /// The least result and the aim, on `logged` and on `battery`.
    goals: [Goal; 2],
    /// The most bytes that it needs.
    bytes: u64,
    database: Box<dyn Database>,
}

trait Database {
    /// Makes the base in a directory.
    fn prepare(&self, dir: &Path) -> Result<(), Error>;
    /// Runs one of the measures on it; returns operations per second.
    fn measure(&self, dir: &Path, measure: &str, round: u64) -> Result<f64, Error>;
}

impl Options {
    fn measure_load(&self, setting: &Setting<'_>, id: &str, load: &Load) -> Outcome {
        let context = setting.context;
        let title = format!("{}, mounted", load.title);
        let mut sections = [setting.rates(id, title, "1/s").against(ORDERED.name)];
        let sizes = Sizes { disk: load.bytes, ram: context.mib(self.cache, 128) };
        let mut peers = setting.peers(&WHOS, sizes, &mut sections);
        context.rounds(id, ROUNDS, &mut peers, &mut sections, |peer, round, sections| {
            let dir = peer.dir()?.join("base");
            if round == 0 {
                std::fs::create_dir(&dir).map_err(Error::file(&dir))?;
                load.database.prepare(&dir)?;
            }
            for measure in load.measures {
                on_place!(&peer.place, place => place.settle())?;
                sections[0].add(peer.who.name, measure, load.database.measure(&dir, measure, round as u64)?);
            }
            Ok(())
        });
        let [on_logged, on_battery] = &load.goals;
        let mut findings = Vec::new();
        for (own, goal) in [(BATTERY_MOUNTED, on_battery), (LOGGED_MOUNTED, on_logged)] {
            findings.extend(load.measures.iter().map(|measure| {
                let what = format!("mounted: {measure}, against {}", ORDERED.name);
                sections[0].row(own.medium(), what, goal.clone()).factor(measure, own.name, ORDERED.name)
            }));
        }
        Outcome { findings, sections: sections.into() }
    }
}

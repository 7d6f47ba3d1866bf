//! Databases whose files are large ones, mounted, against ext4 with its journal of metadata: operations that are durable per
//! second.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`postgres`] | PostgreSQL: pgbench with 4 clients |
//! | [`sqlite`] | sqlite3: transactions of one update on a base of half a gigabyte, with WAL and DELETE |
//! | [`redis`] | redis: SET by 20 clients, with appendfsync always |
//! | [`server`] | servers that run for a round: starting, waiting until they answer, stopping |
//!
//! A program that is missing is told, and its part skipped.

mod postgres;
mod redis;
mod server;
mod sqlite;

use std::path::PathBuf;

use clap::ValueEnum;
use conquest::MediumKind;
use rustix::fs::Mode;

use crate::args::{Database, Databases};
use crate::context::Context;
use crate::error::Error;
use crate::place::{on_place, Place};
use crate::setting::{self, Setting};
use crate::side::{self, rounds, Side, Sizes, Who, BATTERY_MOUNTED, LOGGED_MOUNTED, ORDERED};
use report::goals::{Finding, Goal};
use report::{Outcome, Section};

const ROUNDS: usize = 3;
const MIB: u64 = 1 << 20;
const WHOS: [Who; 3] = [ORDERED, BATTERY_MOUNTED, LOGGED_MOUNTED];

pub fn run(context: &Context, args: &Databases) -> Result<Outcome, Error> {
    // The user of PostgreSQL is not root, and must come through; nobody else sees it in the run's namespace.
    let through = Mode::RWXU | Mode::XGRP | Mode::XOTH;
    rustix::fs::chmod(&context.base, through)?;
    let mut outcome = Outcome::default();
    for setting in Setting::all(context, &args.grounds) {
        match setting {
            Ok(setting) => {
                let wanted = |which: &&Database| args.only.is_empty() || args.only.contains(which);
                for &which in Database::value_variants().iter().filter(wanted) {
                    let mut one = one(&setting, args, which);
                    setting.tell(&mut one.findings);
                    outcome.extend(one);
                }
            }
            Err((which, reason)) => {
                let mut section = Section::rates("databases", "Databases", "1/s");
                section.id = setting::id("databases", which).into();
                section.skip(ORDERED.name(), reason);
                outcome.sections.push(section);
            }
        }
    }
    Ok(outcome)
}

/// A database, as it is measured.
trait Load {
    /// Of a section.
    fn id(&self) -> &'static str;
    fn title(&self) -> String;
    /// What is measured in each round.
    fn measures(&self) -> &'static [&'static str];
    /// At least, and the aim, on a medium.
    fn goal(&self, medium: MediumKind) -> Goal;
    /// Bytes that it needs at most.
    fn bytes(&self) -> u64;
    /// Makes the base in a directory.
    fn prepare(&self, dir: &std::path::Path) -> Result<(), Error>;
    /// One of the measures on it; operations per second.
    fn measure(&self, dir: &std::path::Path, measure: &str, round: u64) -> Result<f64, Error>;
}

fn one(setting: &Setting<'_>, args: &Databases, which: Database) -> Outcome {
    let context = setting.context;
    let load: Result<Box<dyn Load>, (&'static str, String)> = match which {
        Database::Postgres => postgres::load(context, args).map_err(|e| (postgres::ID, e)),
        Database::Sqlite => sqlite::load(context, args).map_err(|e| (sqlite::ID, e)),
        Database::Redis => redis::load(context, args).map_err(|e| (redis::ID, e)),
    };
    let load = match load {
        Ok(load) => load,
        Err((id, missing)) => {
            let mut section = Section::rates(id, id, "1/s");
            section.id = setting.id(id).into();
            section.skip(ORDERED.name(), missing);
            return Outcome { sections: vec![section], findings: Vec::new() };
        }
    };
    let title = format!("{}, mounted; {}", load.title(), setting.name);
    let mut section = Section::rates(load.id(), title, "1/s");
    section.id = setting.id(load.id()).into();
    section.baseline = Some(ORDERED.name().into());
    let sizes = Sizes { disk: load.bytes(), ram: context.size(args.cache, 128) as u64 * MIB };
    let (mut sides, skipped) = side::make(setting, &WHOS, |who| Side::make(setting, who, sizes));
    section.skipped = skipped;
    let mut sections = [section];
    rounds(setting, load.id(), ROUNDS, &mut sides, &mut sections, |side, round, sections| {
        let dir = below(side)?;
        if round == 0 {
            std::fs::create_dir(&dir).map_err(Error::file(&dir))?;
            load.prepare(&dir)?;
        }
        for measure in load.measures() {
            on_place!(&side.place, place => place.settle())?;
            sections[0].add(side.name(), measure, load.measure(&dir, measure, round as u64)?);
        }
        Ok(())
    });
    let row = |own: Who, measure: &'static str| {
        let measured = [own, ORDERED].map(|who| sections[0].text(who.name(), measure)).join(" / ") + " /s";
        let what = format!("mounted: {measure}, against {}", ORDERED.name());
        let value = sections[0].factor(measure, own.name(), ORDERED.name());
        Finding::judge(own.medium(), what, load.goal(own.medium()), measured, value)
    };
    let owns = [BATTERY_MOUNTED, LOGGED_MOUNTED];
    let findings = owns.into_iter().flat_map(|own| load.measures().iter().map(move |measure| (own, *measure)));
    Outcome { findings: findings.map(|(own, measure)| row(own, measure)).collect(), sections: sections.into() }
}

/// Where a database lies.
fn below(side: &Side) -> Result<PathBuf, Error> {
    let dir = side.dir().ok_or_else(|| Error::Wrong(format!("{} is not mounted", side.name())))?;
    Ok(dir.join("base"))
}

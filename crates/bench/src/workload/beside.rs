//! Files that a program changes in a pool directly, in a directory that a mount's kernel knows, against one that it does not know.

use std::path::Path;

use conquest::{Caller, FormatOptions, SetAttr};
use conquest_fs::node::Rename;
use conquest_fs::path::{Open, View};

use crate::prelude::*;
use crate::program::{Mount, Own};

const ROUNDS: usize = 7;
const FILES: usize = 2000;
const UNKNOWN: &str = "directory that the mount does not know";
const KNOWN: &str = "directory that it has listed";
/// Also each file that is there, and each name that is not.
const ALL_KNOWN: &str = "directory of which it knows all names";
const OPERATIONS: [&str; 6] = ["create", "rename", "write", "chmod", "stat", "unlink"];

options! { Options {} }

/// Files of a directory of the pool, which is seen through the mount at `there`.
struct Files<'a> {
    view: &'a View<'a>,
    dir: &'a str,
    there: &'a Path,
    subject: &'static str,
}

impl Files<'_> {
    /// The mount gets to know what its users look at.
    fn look(&self) -> Result<(), Error> {
        if self.subject == UNKNOWN {
            return Ok(());
        }
        let listed = std::fs::read_dir(self.there).map_err(Error::file(self.there))?;
        listed.take(FILES).for_each(drop);
        if self.subject == ALL_KNOWN {
            (0..FILES)
                .flat_map(|n| [format!("f{n}"), format!("g{n}")])
                .for_each(|name| drop(self.there.join(name).metadata()));
        }
        Ok(())
    }

    fn measure(
        &self,
        section: &mut Section,
        what: &str,
        act: impl Fn(&[u8], &[u8]) -> conquest::Result<()>,
    ) -> Result<(), Error> {
        let names = (0..FILES).map(|n| ["f", "g"].map(|kind| format!("{}/{kind}{n}", self.dir).into_bytes()));
        let names: Vec<_> = names.collect();
        self.look()?;
        let start = now();
        names.iter().try_for_each(|[name, by]| act(name, by))?;
        section.add(self.subject, what, us_per_op(start, FILES));
        Ok(())
    }

    fn change(&self, section: &mut Section) -> Result<(), Error> {
        let view = self.view;
        let open = |name: &[u8]| view.open(name, Open::new().write(true));
        self.measure(section, "create", |name, _| view.create(name, 0o644)?.write_all_at(&[7; 1024], 0))?;
        self.measure(section, "write", |name, _| open(name)?.write_all_at(&[8; 64], 0))?;
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        self.measure(section, "chmod", |name, _| view.setattr(name, &mode).map(drop))?;
        self.measure(section, "stat", |name, _| view.stat(name).map(drop))?;
        self.measure(section, "rename", |name, by| view.rename(name, by, Rename::Replace))?;
        self.measure(section, "unlink", |_, by| view.unlink(by))
    }
}

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let title = "Changing files directly, beside a mount";
        let mut section = Section::times("beside", title, "us per operation");
        let own = Own::make(context.base.join("beside.pool"), FormatOptions::on(MediumKind::Battery, context.bytes()))?;
        let pool = own.open()?;
        let view = View::new(&pool, Caller::root());
        match Mount::of(&own.dir, context.base.join("beside"), &context.program) {
            // Nothing can be mounted here.
            Err(e) => section.skip(KNOWN, e.to_string()),
            Ok(mount) => {
                for round in 0..context.count(ROUNDS) {
                    context.say_round("beside", round, ROUNDS, "");
                    for (n, subject) in [UNKNOWN, KNOWN, ALL_KNOWN].into_iter().enumerate() {
                        let name = format!("d{round}-{n}");
                        view.mkdir(name.as_bytes(), 0o755)?;
                        let there = mount.dir.join(&name);
                        Files { view: &view, dir: &name, there: &there, subject }.change(&mut section)?;
                    }
                }
            }
        }
        let row = |operation: &str| {
            let what = format!("a direct {operation} where the mount knows the directory, against where not");
            let goal = Goal::at_most(1.5, 1.2);
            section.row(MediumKind::Battery, what, goal).between((KNOWN, operation), (UNKNOWN, operation))
        };
        let findings = OPERATIONS.iter().map(|operation| row(operation)).collect();
        Ok(Outcome { findings, sections: vec![section] })
    }
}

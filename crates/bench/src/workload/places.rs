//! Mounts a pool at a second directory while it is mounted at one, with the program as a user starts it.

use conquest::FormatOptions;

use crate::prelude::*;
use crate::program::{Mount, Own};

const ROUNDS: usize = 21;
const SUBJECT: &str = "conquest logged";
const SECOND: &str = "second place";
const SERVERS: &str = "servers";

options! { Options {} }

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let times = Section::times("places", "Mounting a pool at a directory, and at a second one", "ms");
        let title = "Servers of a pool that is mounted at two directories";
        let mut sections = [times, Section::times("places-servers", title, "servers")];
        let how = FormatOptions::on(MediumKind::Logged, context.bytes());
        let pool = Own::make(context.base.join("places.pool"), how)?;
        let mount = |place: &str| {
            let start = now();
            let mount = Mount::of(&pool.dir, context.base.join(place), &context.program);
            mount.map(|mount| (mount, seconds_since(start) * 1e3))
        };
        for round in 0..context.count(ROUNDS) {
            context.say_round("places", round, ROUNDS, "");
            let (first, took) = match mount("first") {
                Ok(mounted) => mounted,
                // This machine cannot mount.
                Err(e) => {
                    sections.iter_mut().for_each(|section| section.skip(SUBJECT, e.to_string()));
                    break;
                }
            };
            sections[0].add(SUBJECT, "first place", took);
            let (_second, took) = mount("second")?;
            sections[0].add(SUBJECT, SECOND, took);
            sections[1].add(SUBJECT, SERVERS, first.servers()?.len() as f64);
        }
        let row = |section: &Section, what, goal, measure| {
            section.row(MediumKind::Logged, what, goal).median(SUBJECT, measure)
        };
        let (times, servers) = (&sections[0], &sections[1]);
        let findings = vec![
            row(times, "mounting at a second directory", Goal::quantity(5.0, 3.0, "ms"), SECOND),
            row(servers, "servers of a pool mounted at two directories", Goal::quantity(1.0, 1.0, "servers"), SERVERS),
        ];
        Ok(Outcome { findings, sections: sections.into() })
    }
}

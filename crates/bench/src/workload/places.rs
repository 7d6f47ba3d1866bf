//! Mounting a pool at a second directory while it is mounted at one, with the program as a user starts it.

use conquest::MediumKind;

use crate::clock::now;
use crate::context::Context;
use crate::error::Error;
use crate::program::{Logged, Mount};
use report::goals::{Finding, Goal};
use report::{Outcome, Section};

const ROUNDS: usize = 21;
const SUBJECT: &str = "conquest logged";
const FIRST: &str = "first place";
const SECOND: &str = "second place";
const SERVERS: &str = "servers";

pub fn run(context: &Context) -> Result<Outcome, Error> {
    let mut times = Section::times("places", "Mounting a pool at a directory, and at a second one", "ms");
    let mut servers =
        Section::times("places-servers", "Servers of a pool that is mounted at two directories", "servers");
    let pool = Logged::make(context.base.join("places.pool"), context.bytes())?;
    for round in 0..context.rounds(ROUNDS) {
        context.say_round("places", round, ROUNDS, "");
        if let Err(reason) = once(context, &pool, &mut times, &mut servers)? {
            times.skip(SUBJECT, &reason);
            servers.skip(SUBJECT, reason);
            break;
        }
    }
    let sections = vec![times, servers];
    Ok(Outcome { findings: findings(&sections), sections })
}

/// One round; or why nothing can be mounted here.
fn once(
    context: &Context,
    pool: &Logged,
    times: &mut Section,
    servers: &mut Section,
) -> Result<Result<(), String>, Error> {
    let mount = |place: &str| {
        let start = now();
        let mount = Mount::of(&pool.dir, context.base.join(place), &context.program);
        mount.map(|mount| (mount, (now() - start) as f64 / 1e6))
    };
    let (first, took) = match mount("first") {
        Ok(mounted) => mounted,
        Err(e) => return Ok(Err(e.to_string())),
    };
    times.add(SUBJECT, FIRST, took);
    let (_second, took) = mount("second")?;
    times.add(SUBJECT, SECOND, took);
    servers.add(SUBJECT, SERVERS, first.servers()?.len() as f64);
    Ok(Ok(()))
}

fn findings(sections: &[Section]) -> Vec<Finding> {
    let row = |section: &Section, what: &str, goal: Goal, measure: &str| {
        let measured = format!("{} {}", section.text(SUBJECT, measure), section.unit);
        Finding::judge(MediumKind::Logged, what, goal, measured, section.median(SUBJECT, measure))
    };
    vec![
        row(&sections[0], "mounting at a second directory", Goal::quantity(5.0, 3.0, "ms"), SECOND),
        row(&sections[1], "servers of a pool mounted at two directories", Goal::quantity(1.0, 1.0, "servers"), SERVERS),
    ]
}

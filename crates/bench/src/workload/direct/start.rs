//! The price of direct access for a process: of the library, of the first call on a pool, and of `conquest run`.

use super::*;
use crate::command::spawn;

const ROUNDS: usize = 9;
const IDLE: &str = "a process without a call on the pool";
const CALL: &str = "with one call";
const RUN: &str = "conquest run";

pub fn run(context: &Context, args: &Options) -> Result<Outcome, Error> {
    let processes = context.size(args.processes, 20);
    let ids = ["direct-start", "direct-start-wall", "direct-start-server"];
    let mut sections = sections(ids, "A process that asks for one file", "us/op");
    let mut subjects = subjects(context, &mut sections);
    let elsewhere = context.base.as_path();
    context.rounds("start", ROUNDS, &mut subjects, &mut sections, |subject, _, sections| {
        let there = subject.dir.join("file");
        std::fs::write(&there, []).map_err(Error::file(&there))?;
        let mut each = |measure, mut command: Command| {
            subject.measure(sections, (measure, 1e6 / processes as f64), || {
                (0..processes).try_for_each(|_| done(&mut command))
            })
        };
        for (measure, path) in [(IDLE, elsewhere), (CALL, &there)] {
            each(measure, test(subject, path))?;
        }
        if subject.is_direct() {
            let mut command = super::run(&subject.peer, &context.program);
            command.args(["--", "test", "-e"]).arg(elsewhere);
            each(RUN, command)?;
        }
        Ok(())
    });
    let section = &sections[0];
    let row = |who: Who, what, goal, [with, without]: [(&str, &str); 2]| {
        let figure = |(subject, measure)| section.median(subject, measure);
        let value = figure(with).and_then(|with| Ok(with - figure(without)?));
        section.row(who.medium(), what, goal).judge([with, without], value)
    };
    let idle = |who: Who| {
        let goal = Goal::quantity(60.0, 40.0, "us");
        row(
            who,
            "direct: the library in a process without a call on a pool",
            goal,
            [(who.name, IDLE), (TMPFS.name, IDLE)],
        )
    };
    let call = |who: Who| {
        let goal = Goal::quantity(300.0, 120.0, "us");
        row(who, "direct: the first call of a process on a pool", goal, [(who.name, CALL), (who.name, IDLE)])
    };
    let rows = DIRECTS.into_iter().flat_map(|who| [idle(who), call(who)]).collect();
    Ok(Outcome { findings: rows, sections: sections.into() })
}

fn test(subject: &Subject, path: &Path) -> Command {
    let mut command = Command::new("test");
    command.envs(subject.environment.iter().map(|(name, value)| (name, value))).arg("-e").arg(path);
    command
}

fn done(command: &mut Command) -> Result<(), Error> {
    let status = spawn(command)?.wait().map_err(Error::io("test"))?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::Wrong(format!("a file that is there is not found: {status}"))),
    }
}

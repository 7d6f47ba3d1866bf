//! Programs of the machine, as they are installed, on a tree of C headers, a database and PostMark's files.

use std::fs;

use super::*;
use crate::command::{self, fed};
use crate::workload::durable::sqlite;
use crate::workload::program::{reported, script};

const ROUNDS: usize = 5;
const MS: f64 = 1e3;
/// Bytes of a call of PostMark.
const BLOCK: usize = 512;

/// The programs' input.
#[derive(Clone, Copy, PartialEq)]
enum Input {
    Nothing,
    Database,
    /// PostMark's settings, for buffered files or not.
    PostMark(bool),
}

/// A command: its name in the report, if it is measured; the command line; its input.
type Step = (&'static str, &'static str, Input);

/// In the order of a round. SOURCE is the directory of the tree, its archive, and its repository without files.
const STEPS: [Step; 14] = [
    ("tar x", "tar xf SOURCE/tree.tar", Input::Nothing),
    ("cp -r", "cp -r SOURCE/tree copy", Input::Nothing),
    ("find", "find tree", Input::Nothing),
    ("ls -lR", "ls -lR tree", Input::Nothing),
    ("du", "du -s tree", Input::Nothing),
    ("grep -r", "grep -r typedef tree", Input::Nothing),
    ("rm -r", "rm -r copy", Input::Nothing),
    ("sqlite3", "sqlite3 test.db", Input::Database),
    ("", "cp -r SOURCE/repository .", Input::Nothing),
    ("git checkout", "git -C repository checkout -qf main", Input::Nothing),
    // In the tree of tar, whose files are old: git reads those again that are as young as the index. The first one
    // writes the index for the second.
    ("", "git --git-dir repository/.git --work-tree tree status", Input::Nothing),
    ("git status", "git --git-dir repository/.git --work-tree tree status", Input::Nothing),
    ("postmark, buffered", "postmark", Input::PostMark(true)),
    ("postmark, unbuffered", "postmark", Input::PostMark(false)),
];

const GOALS: [Goals; 12] = [
    ("tar x", [(0.9, 1.5), (1.2, 2.0)]),
    ("cp -r", [(0.9, 1.5), (1.2, 2.0)]),
    ("find", [(1.0, 1.4), (1.1, 1.5)]),
    ("ls -lR", [(1.0, 1.4), (1.1, 1.5)]),
    ("du", [(1.0, 1.4), (1.1, 1.5)]),
    ("grep -r", [(1.0, 1.4), (1.1, 1.5)]),
    ("rm -r", [(2.0, 2.5), (4.0, 5.0)]),
    ("sqlite3", [(1.0, 1.5), (2.5, 4.0)]),
    ("git checkout", [(1.0, 1.5), (1.0, 1.2)]),
    ("git status", [(1.0, 1.5), (1.0, 1.2)]),
    ("postmark, buffered", [(1.8, 2.5), (3.0, 4.0)]),
    ("postmark, unbuffered", [(1.8, 2.8), (3.0, 4.8)]),
];

/// The sizes of a run.
struct Load {
    source: PathBuf,
    inserts: usize,
    transactions: usize,
}

pub fn run(context: &Context, args: &Options) -> Result<Outcome, Error> {
    let load = Load {
        source: context.base.join("source"),
        inserts: context.size(args.transactions, 50),
        transactions: context.size(args.postmark, 500),
    };
    let title = format!(
        "Programs on {}, {} transactions of sqlite3, {} of postmark",
        args.source.display(),
        load.inserts,
        load.transactions
    );
    let ids = ["direct-commands", "direct-commands-wall", "direct-commands-server"];
    let mut sections = sections(ids, &title, "ms");
    let made = prepare(context, &args.source, &load.source);
    match made {
        Err(e) => sections.iter_mut().for_each(|section| section.skip("all", e.to_string())),
        Ok(()) => rounds(context, &load, &mut sections),
    }
    // A failure leaves it to the end of the run.
    let _ = fs::remove_dir_all(&load.source);
    let rows = GOALS.into_iter().flat_map(|goals| {
        let missing = program_of(goals.0).and_then(|program| command::require(program).err());
        findings(&sections[0], goals).into_iter().map(move |row| match &missing {
            Some(e) => row.skipped(e.to_string()),
            None => row,
        })
    });
    Ok(Outcome { findings: rows.collect(), sections: sections.into() })
}

fn program_of(measure: &str) -> Option<&'static str> {
    STEPS.iter().find(|(name, ..)| *name == measure).and_then(|(_, line, _)| line.split(' ').next())
}

/// Each step on each subject, round by round, without the programs that are not installed.
fn rounds(context: &Context, load: &Load, sections: &mut [Section]) {
    let is_there = |(_, line, _): &&Step| command::require(line.split(' ').next().unwrap_or("")).is_ok();
    let steps: Vec<_> = STEPS.iter().filter(is_there).collect();
    let mut subjects = subjects(context, sections);
    for round in 0..context.count(ROUNDS) {
        let dir = format!("round{round}");
        context.once_each(("programs", round, ROUNDS), &mut subjects, sections, |subject, _| {
            command::run(subject.command("mkdir", "").arg(&dir))
        });
        for step in &steps {
            let label = ["programs", step.1].join(": ");
            context.once_each((&label, round, ROUNDS), &mut subjects, sections, |subject, sections| {
                once(subject, sections, step, &dir, load)
            });
        }
        context.once_each(("programs: the end", round, ROUNDS), &mut subjects, sections, |subject, _| {
            command::run(subject.command("rm", "").args(["-r", &dir]))?;
            subject.settle()
        });
    }
}

fn once(
    subject: &Subject,
    sections: &mut [Section],
    (measure, line, input): &Step,
    dir: &str,
    load: &Load,
) -> Result<(), Error> {
    let line = line.replace("SOURCE", &load.source.display().to_string());
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = subject.command(words[0], dir);
    command.args(&words[1..]);
    let text = match *input {
        Input::Nothing => String::new(),
        Input::Database => {
            "CREATE TABLE t(k INTEGER PRIMARY KEY, v TEXT);\n".to_owned() + &sqlite::script(load.inserts)
        }
        Input::PostMark(buffered) => {
            let (there, files) = (subject.dir.join(dir), load.transactions.div_ceil(5));
            script(&there, files, load.transactions, BLOCK, buffered)
        }
    };
    let said = match *measure {
        "" => fed(&mut command, text)?,
        measure => subject.measure(sections, (measure, MS), || fed(&mut command, text))?,
    };
    match input {
        Input::PostMark(_) => reported(&said).map(drop),
        _ => Ok(()),
    }
}

/// Makes the tree, its archive, and, if there is git, a repository of it without files. Only the headers of Linux, if quick.
fn prepare(context: &Context, from: &Path, to: &Path) -> Result<(), Error> {
    let part = from.join("linux");
    let from = if context.quick && part.is_dir() { &part } else { from };
    let (tree, repository) = (to.join("tree"), to.join("repository"));
    fs::create_dir_all(&repository).map_err(Error::file(&repository))?;
    command::run(Command::new("cp").arg("-a").arg(from).arg(&tree))?;
    command::run(Command::new("tar").arg("-C").arg(to).args(["-cf"]).arg(to.join("tree.tar")).arg("tree"))?;
    if command::require("git").is_err() {
        return Ok(());
    }
    let git = |words: &[&str]| {
        let me = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"];
        let mut git = Command::new("git");
        git.current_dir(&repository).args(me).args(words).env("GIT_WORK_TREE", &tree);
        command::run(git.env("GIT_CONFIG_GLOBAL", "/dev/null"))
    };
    command::run(Command::new("git").args(["init", "-q", "-b", "main"]).arg(&repository))?;
    git(&["add", "-A"])?;
    git(&["commit", "-qm", "the tree"])?;
    git(&["repack", "-adq"])?;
    let index = repository.join(".git/index");
    fs::remove_file(&index).map_err(Error::file(&index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_goal_has_a_step() {
        assert!(GOALS.iter().all(|(measure, _)| program_of(measure).is_some()));
        assert_eq!(STEPS.iter().filter(|(measure, ..)| !measure.is_empty()).count(), GOALS.len());
    }
}

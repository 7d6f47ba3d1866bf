//! Operations on the files of one directory, each in a process of its own that measures itself. In a second directory
//! the mount's kernel gets to know all files before each operation, as `ls -l` would have it do.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;

use clap::ValueEnum;

use super::*;
use crate::clock::process_time;
use crate::command;

const ROUNDS: usize = 7;
const CONTENT: [u8; 1024] = [7; 1024];
const MODES: [(Phase, Goals, &str); 5] = [
    (Phase::Create, ("create + write + close", [(3.5, 5.0), (9.0, 12.0)]), "known: create + write + close"),
    (Phase::Stat, ("stat", [(3.5, 5.0), (4.0, 5.0)]), "known: stat"),
    (Phase::Read, ("open + read + close", [(5.0, 6.0), (5.5, 7.0)]), "known: open + read + close"),
    (Phase::Rename, ("rename", [(3.0, 3.5), (8.0, 9.0)]), "known: rename"),
    (Phase::Unlink, ("unlink", [(6.0, 7.0), (12.0, 15.0)]), "known: unlink"),
];

/// What a worker does with each file.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Phase {
    Create,
    Stat,
    Read,
    Rename,
    Unlink,
}

/// A program that does one operation on all files of a directory, and prints microseconds of processor and wall time
/// for each.
#[derive(Clone, Debug, clap::Args)]
pub struct Worker {
    dir: PathBuf,
    phase: Phase,
    files: usize,
}

pub fn work(worker: &Worker) -> Result<(), Error> {
    let dir = worker.dir.display();
    let names: Vec<_> = (0..worker.files).map(|n| ["f", "g"].map(|kind| format!("{dir}/{kind}{n}"))).collect();
    // The first call attaches, which `start` measures.
    fs::metadata(&worker.dir).map_err(Error::file(&worker.dir))?;
    let mut buf = [0; CONTENT.len() + 1];
    let whole =
        |bytes: usize| if bytes == CONTENT.len() { Ok(()) } else { Err(std::io::ErrorKind::InvalidData.into()) };
    let (start, cpu) = (now(), process_time());
    for [name, by] in &names {
        let done = match worker.phase {
            Phase::Create => File::create(name).and_then(|mut file| file.write_all(&CONTENT)),
            Phase::Stat => fs::metadata(name).and_then(|found| whole(found.len() as usize)),
            Phase::Read => File::open(name).and_then(|mut file| file.read(&mut buf)).and_then(whole),
            Phase::Rename => fs::rename(name, by),
            Phase::Unlink => fs::remove_file(by),
        };
        done.map_err(Error::file(name))?;
    }
    let cpu = (process_time() - cpu) as f64 / 1e3 / worker.files as f64;
    println!("{cpu} {}", us_per_op(start, worker.files));
    Ok(())
}

pub fn run(context: &Context, args: &Options) -> Result<Outcome, Error> {
    let files = context.size(args.files, 1_000);
    let title = format!("{files} files of {} B in one directory", CONTENT.len());
    let ids = ["direct-files", "direct-files-wall", "direct-files-server"];
    let known = "known: the mount's kernel knows all files of the directory";
    let mut sections = sections(ids, &title, "us/op").map(|section| section.noting(known));
    let mut subjects = subjects(context, &mut sections);
    context.rounds("files", ROUNDS, &mut subjects, &mut sections, |subject, round, sections| {
        round_in(subject, sections, &format!("d{round}"), files, false)?;
        if subject.is_direct() {
            round_in(subject, sections, &format!("k{round}"), files, true)?;
        }
        subject.settle()
    });
    let mut rows: Vec<_> = MODES.iter().flat_map(|(_, goals, _)| findings(&sections[0], *goals)).collect();
    for (who, (_, (operation, _), known)) in DIRECTS.iter().flat_map(|who| MODES.iter().map(move |mode| (who, mode))) {
        let what = format!("direct: {operation}, processor time where the mount knows the directory, of where not");
        let row = sections[0].row(who.medium(), what, Goal::at_most(1.5, 1.1));
        rows.push(row.between((who.name, known), (who.name, operation)));
    }
    Ok(Outcome { findings: rows, sections: sections.into() })
}

/// All operations in a new directory, which only programs make and remove: the mount does not know it.
fn round_in(subject: &Subject, sections: &mut [Section], dir: &str, files: usize, known: bool) -> Result<(), Error> {
    let this = std::env::current_exe().map_err(Error::io("the path of this program"))?;
    command::run(subject.command("mkdir", "").arg(dir))?;
    for (phase, (operation, _), when_known) in MODES {
        if known {
            look(&subject.dir.join(dir))?;
        }
        let name = phase.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        let mut worker = subject.command(&this, "");
        let serving = subject.serving()?;
        let text = output(worker.args(["file-worker", dir, &name, &files.to_string()]))?;
        let server = (subject.serving()? - serving) * 1e6 / files as f64;
        let figures = text.split_whitespace().filter_map(|figure| figure.parse().ok()).chain([server]);
        let measure = if known { when_known } else { operation };
        sections.iter_mut().zip(figures).for_each(|(section, figure)| section.add(subject.name(), measure, figure));
    }
    command::run(subject.command("rmdir", "").arg(dir))
}

/// Lists the directory, and looks at each file, through the mount.
fn look(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(Error::file(dir))? {
        entry.and_then(|entry| entry.path().metadata()).map_err(Error::file(dir))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_goes_through_all_operations_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let worker = |phase| work(&Worker { dir: dir.path().into(), phase, files: 3 });
        assert!(worker(Phase::Stat).is_err(), "there is nothing yet");
        MODES.iter().for_each(|(phase, ..)| worker(*phase).expect("each"));
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 0);
    }
}

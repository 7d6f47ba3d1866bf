//! Two threads, and two processes, against one: each in directories of its own, on one pool, each pinned to
//! a processor of its own. What they share is the pool's heap, tables and locks.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::args::{Kind, Scale, Worker};
use crate::clock::{now, spin_until};
use crate::conquest;
use crate::context::Context;
use crate::cpu;
use crate::error::Error;
use crate::goals::{Finding, Goal};
use crate::place::{InProcess, Place};
use crate::report::{Outcome, Section};
use crate::rng::Rng;
use crate::subject::Skipped;
use crate::workload::tree::Tree;

const ROUNDS: usize = 9;
const FILE_SIZE: usize = 1024;
/// From the order to the common start: enough for a thread to be created, or a process to be woken.
const LEAD_NS: u64 = 3_000_000;

const ONE: &str = "one thread";
const THREADS: &str = "two threads";
const PROCESSES: &str = "two processes";
const PHASES: [&str; 4] = ["create+write", "stat", "open+read", "unlink"];
const ALL: &str = "all four";

pub fn run(context: &Context, args: &Scale) -> Result<Outcome, Error> {
    let files = context.size(args.files, 2_000);
    let title = format!("Scaling: {files} files of {FILE_SIZE} B per worker, in process, different directories");
    let mut section = Section::rates("scale", title, "1000 files/s");
    section.baseline = Some(ONE);
    let cpus = cpu::allowed()?;
    match cpus[..] {
        [first, second, ..] => rounds(context, files, args.dirs, [first, second], &mut section)?,
        _ => section.skipped.extend(
            [ONE, THREADS, PROCESSES].map(|subject| Skipped { subject, reason: "needs two processors".into() }),
        ),
    }
    let findings = [THREADS, PROCESSES].map(|workers| {
        let measured = [workers, ONE].map(|w| section.text(w, ALL)).join(" / ") + " k/s";
        let what = format!("{workers} in different directories, against one");
        Finding::judge(what, Goal::factor(1.7, 1.95), measured, section.ratio(ALL, workers, ONE))
    });
    Ok(Outcome { sections: vec![section], findings: findings.into() })
}

fn rounds(context: &Context, files: usize, dirs: usize, cpus: [usize; 2], section: &mut Section) -> Result<(), Error> {
    let pool = context.base.join("scale.pool");
    conquest::format(&pool, context.bytes())?;
    let place = InProcess::open(&pool)?;
    let loads = [0, 1].map(|id| Load::new(id, files, dirs));
    for load in &loads {
        load.tree.make_dirs(&place)?;
    }
    let mut processes = Vec::new();
    for id in [0, 1] {
        let worker = Worker { pool: pool.clone(), id, cpu: cpus[id], files, dirs };
        processes.push(Process::start(&context.program, &worker)?);
    }
    for round in 0..context.rounds(ROUNDS) {
        context.progress.say(format!("scaling: round {}", round + 1));
        record(section, ONE, files, |phase| in_threads(&place, &loads[..1], &cpus, phase))?;
        record(section, THREADS, 2 * files, |phase| in_threads(&place, &loads, &cpus, phase))?;
        record(section, PROCESSES, 2 * files, |phase| in_processes(&mut processes, phase))?;
    }
    drop(processes);
    drop(place);
    std::fs::remove_dir_all(&pool).map_err(Error::file(&pool))
}

/// Runs all phases and adds thousands of files per second for each, and for all together.
fn record(
    section: &mut Section,
    workers: &str,
    files: usize,
    mut run: impl FnMut(usize) -> Result<u64, Error>,
) -> Result<(), Error> {
    let mut total = 0;
    for (phase, name) in PHASES.iter().enumerate() {
        let ns = run(phase).map_err(|e| e.at(format!("{workers}, {name}")))?;
        total += ns;
        section.add(workers, name, files as f64 * 1e6 / ns as f64);
    }
    section.add(workers, ALL, (files * PHASES.len()) as f64 * 1e6 / total as f64);
    Ok(())
}

/// From the first start to the last end.
fn span(times: &[(u64, u64)]) -> u64 {
    let start = times.iter().map(|t| t.0).min().unwrap_or(0);
    let end = times.iter().map(|t| t.1).max().unwrap_or(0);
    end.saturating_sub(start).max(1)
}

fn in_threads(place: &InProcess, loads: &[Load], cpus: &[usize], phase: usize) -> Result<u64, Error> {
    let when = now() + LEAD_NS;
    let results: Vec<Result<(u64, u64), Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = loads
            .iter()
            .zip(cpus)
            .map(|(load, &cpu)| scope.spawn(move || cpu::pin(cpu).and_then(|()| load.run(place, phase, when))))
            .collect();
        let panicked = |_| Err(Error::Wrong("a worker thread panicked".into()));
        threads.into_iter().map(|t| t.join().unwrap_or_else(panicked)).collect()
    });
    Ok(span(&results.into_iter().collect::<Result<Vec<_>, _>>()?))
}

fn in_processes(processes: &mut [Process], phase: usize) -> Result<u64, Error> {
    let when = now() + LEAD_NS;
    for process in processes.iter_mut() {
        process.order(phase, when)?;
    }
    let times: Result<Vec<_>, Error> = processes.iter_mut().map(Process::answer).collect();
    Ok(span(&times?))
}

/// What one worker does.
struct Load {
    tree: Tree,
    data: Vec<u8>,
}

impl Load {
    fn new(id: usize, files: usize, dirs: usize) -> Load {
        Load { tree: Tree::new(&format!("w{id}-"), dirs, files), data: Rng::new(id as u64).bytes(FILE_SIZE) }
    }

    /// Does a phase at the instant `when`; returns when it began and ended.
    fn run(&self, place: &impl Place, phase: usize, when: u64) -> Result<(u64, u64), Error> {
        let mut buf = vec![0; FILE_SIZE + 1];
        spin_until(when);
        let start = now();
        for file in &self.tree.files {
            match phase {
                0 => place.write(&place.create(file)?, 0, &self.data)?,
                1 => self.check(place.stat(file)?)?,
                2 => self.check(place.read(&place.open_read(file)?, 0, &mut buf)? as u64)?,
                _ => place.unlink(file)?,
            }
        }
        Ok((start, now()))
    }

    #[inline]
    fn check(&self, size: u64) -> Result<(), Error> {
        if size == FILE_SIZE as u64 {
            Ok(())
        } else {
            Err(Error::Wrong(format!("a file of {FILE_SIZE} bytes has {size}")))
        }
    }
}

/// A worker process. It is told `PHASE WHEN` a line and answers `START END`; the end of its input ends it.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(program: &Path, worker: &Worker) -> Result<Process, Error> {
        let numbers = [worker.id, worker.cpu, worker.files, worker.dirs].map(|n| n.to_string());
        let mut command = Command::new(program);
        command.args(["bench", "worker"]).arg(&worker.pool).args(numbers);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(Error::io("a worker process"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Wrong("a worker process without pipes".into()));
        };
        let mut process = Process { child, input: Some(input), output: BufReader::new(output) };
        // It says a first line when it has opened the pool.
        process.line()?;
        Ok(process)
    }

    fn order(&mut self, phase: usize, when: u64) -> Result<(), Error> {
        match &mut self.input {
            Some(input) => writeln!(input, "{phase} {when}").map_err(Error::io("a worker process")),
            None => Err(died()),
        }
    }

    fn answer(&mut self) -> Result<(u64, u64), Error> {
        pair(&self.line()?).ok_or_else(died)
    }

    fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        match self.output.read_line(&mut line).map_err(Error::io("a worker process"))? {
            0 => Err(died()),
            _ => Ok(line),
        }
    }
}

fn died() -> Error {
    Error::Program { program: "a worker process".into(), said: "ended early; its message is above".into() }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.input.take());
        // It ends at the end of its input.
        let _ = self.child.wait();
    }
}

fn pair(line: &str) -> Option<(u64, u64)> {
    let (a, b) = line.trim().split_once(' ')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

/// The worker process itself.
pub fn work(worker: &Worker) -> Result<(), Error> {
    cpu::pin(worker.cpu)?;
    let pool: &PathBuf = &worker.pool;
    let place = InProcess::open(pool)?;
    let load = Load::new(worker.id, worker.files, worker.dirs);
    println!("ready on {}", Kind::Inproc.name());
    for line in std::io::stdin().lines() {
        let line = line.map_err(Error::io("the worker's orders"))?;
        let (phase, when) = pair(&line).ok_or_else(|| Error::Usage(format!("not an order: {line}")))?;
        let (start, end) = load.run(&place, phase as usize, when)?;
        println!("{start} {end}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Mounted;

    #[test]
    fn the_span_is_from_first_start_to_last_end() {
        assert_eq!(span(&[(10, 20), (12, 35)]), 25);
    }

    #[test]
    fn orders_are_pairs() {
        assert_eq!(pair("2 77\n"), Some((2, 77)));
        assert_eq!(pair("2"), None);
    }

    #[test]
    fn a_load_runs_all_phases_and_leaves_no_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let load = Load::new(0, 16, 2);
        load.tree.make_dirs(&place).expect("mkdir");
        for phase in 0..PHASES.len() {
            let (start, end) = load.run(&place, phase, 0).expect("a phase");
            assert!(end >= start);
        }
        load.tree.remove_dirs(&place).expect("empty directories");
    }
}

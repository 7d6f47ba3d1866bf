//! Two threads, and two processes, against one: each in directories of its own, on one pool, each pinned to a processor
//! of its own. They share the pool's heap, tables and locks.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use conquest::FormatOptions;

use super::tree::{Content, Tree};
use crate::clock::{spin_until, thread_time};
use crate::cpu;
use crate::prelude::*;
use crate::program::Own;

const ROUNDS: usize = 9;
const FILE_SIZE: usize = 1024;
/// The time from the order to the common start: enough to create a thread, or to wake a process.
const LEAD_NS: u64 = 3_000_000;

const ONE: &str = "one thread";
const THREADS: &str = "two threads";
const PROCESS: &str = "one process";
const PROCESSES: &str = "two processes";
const PHASES: [&str; 4] = ["create+write", "stat", "open+read", "unlink"];
const ALL_FOUR: &str = "all four";
const ALL_BY_CPU: &str = "by processor time";

options! { Options {
    files: count "N" = 20_000, "Files per worker and round";
    dirs: count "N" = 100, "Directories per worker";
} }

/// One process of `scale`, which gets its orders on stdin.
#[derive(Clone, Debug, clap::Args)]
pub struct Worker {
    pub pool: PathBuf,
    pub id: usize,
    pub cpu: usize,
    pub files: usize,
    pub dirs: usize,
}

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let files = context.size(self.files, 2_000);
        let title = format!("Scaling: {files} files of {FILE_SIZE} B per worker, in process, different directories");
        let mut section = Section::rates("scale", title, "1000 files/s").against(ONE);
        section.notes.push("by processor time: as if other programs had taken none, waiting not counted".into());
        match cpu::allowed()?[..] {
            [first, second, ..] => rounds(context, files, self.dirs, [first, second], &mut section)?,
            _ => {
                for subject in [ONE, THREADS, PROCESS, PROCESSES] {
                    section.skip(subject, "needs two processors");
                }
            }
        }
        let findings = [(THREADS, ONE), (PROCESSES, PROCESS)].map(|(workers, one)| {
            let what = format!("{workers} in different directories, against one");
            section.row(MediumKind::Battery, what, Goal::factor(1.7, 1.95)).ratio(ALL_FOUR, workers, one)
        });
        Ok(Outcome { sections: vec![section], findings: findings.into() })
    }
}

fn rounds(context: &Context, files: usize, dirs: usize, cpus: [usize; 2], section: &mut Section) -> Result<(), Error> {
    let how = FormatOptions::on(MediumKind::Battery, context.bytes());
    let pool = Own::make(context.base.join("scale.pool"), how)?;
    let place = InProcess::open(&pool.dir)?;
    let loads = [0, 1].map(|id| Load::new(id, files, dirs));
    loads.iter().try_for_each(|load| load.tree.make_dirs(&place))?;
    let worker = |id| Process::start(&Worker { pool: pool.dir.clone(), id, cpu: cpus[id], files, dirs });
    let mut processes = [worker(0)?, worker(1)?];
    for round in 0..context.count(ROUNDS) {
        context.say_round("scaling", round, ROUNDS, "");
        record(section, ONE, files, |phase| in_threads(&place, &loads[..1], &cpus, phase))?;
        record(section, THREADS, 2 * files, |phase| in_threads(&place, &loads, &cpus, phase))?;
        record(section, PROCESS, files, |phase| in_processes(&mut processes[..1], phase))?;
        record(section, PROCESSES, 2 * files, |phase| in_processes(&mut processes, phase))?;
    }
    Ok(())
}

/// The begin and end of a worker's phase, and its processor time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    start: u64,
    end: u64,
    cpu: u64,
}

/// Runs all phases and adds thousands of files per second for each, and for all together.
fn record(
    section: &mut Section,
    workers: &str,
    files: usize,
    mut run: impl FnMut(usize) -> Result<Vec<Times>, Error>,
) -> Result<(), Error> {
    let (mut total, mut cpu) = (0, 0);
    let mut count = 1;
    for (phase, name) in PHASES.iter().enumerate() {
        let times = run(phase).map_err(|e| e.at(format!("{workers}, {name}")))?;
        let ns = span(&times);
        total += ns;
        cpu += times.iter().map(|t| t.cpu).sum::<u64>().max(1);
        count = times.len();
        section.add(workers, name, rate(files, ns));
    }
    section.add(workers, ALL_FOUR, rate(files * PHASES.len(), total));
    // The average processor time of a worker is the span that processors of their own would need.
    section.add(workers, ALL_BY_CPU, rate(files * PHASES.len() * count, cpu));
    Ok(())
}

/// Thousands of files per second.
fn rate(files: usize, ns: u64) -> f64 {
    files as f64 * 1e6 / ns as f64
}

/// The time from the first start to the last end.
fn span(times: &[Times]) -> u64 {
    let start = times.iter().map(|t| t.start).min().unwrap_or(0);
    let end = times.iter().map(|t| t.end).max().unwrap_or(0);
    end.saturating_sub(start).max(1)
}

fn in_threads(place: &InProcess, loads: &[Load], cpus: &[usize], phase: usize) -> Result<Vec<Times>, Error> {
    let when = now() + LEAD_NS;
    let work = |load: &Load, cpu: usize| cpu::pin(cpu).and_then(|()| load.run(place, phase, when));
    std::thread::scope(|scope| {
        let start = |(load, &cpu)| scope.spawn(move || work(load, cpu));
        let threads: Vec<_> = loads.iter().zip(cpus).map(start).collect();
        threads.into_iter().map(joined).collect()
    })
}

fn in_processes(processes: &mut [Process], phase: usize) -> Result<Vec<Times>, Error> {
    let when = now() + LEAD_NS;
    for process in processes.iter_mut() {
        process.order(phase, when)?;
    }
    processes.iter_mut().map(Process::answer).collect()
}

/// The work of one worker.
struct Load {
    tree: Tree,
    content: Content,
}

impl Load {
    fn new(id: usize, files: usize, dirs: usize) -> Load {
        Load { tree: Tree::new(&format!("w{id}-"), dirs, files), content: Content::drawn(id as u64, FILE_SIZE) }
    }

    /// Does a phase, starting at `when`.
    fn run(&self, place: &impl Place, phase: usize, when: u64) -> Result<Times, Error> {
        let (content, mut buf) = (&self.content, self.content.buffer());
        spin_until(when);
        let (start, cpu) = (now(), thread_time());
        for file in &self.tree.files {
            match phase {
                0 => content.create(place, file)?,
                1 => content.stat(place, file)?,
                2 => content.read(place, file, &mut buf)?,
                _ => place.unlink(file)?,
            }
        }
        Ok(Times { start, end: now(), cpu: thread_time() - cpu })
    }
}

/// A worker process. It gets lines `PHASE WHEN` and answers `START END CPU`; the end of its input ends it.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(worker: &Worker) -> Result<Process, Error> {
        let program = std::env::current_exe().map_err(Error::io("the path of this program"))?;
        let numbers = [worker.id, worker.cpu, worker.files, worker.dirs].map(|n| n.to_string());
        let mut command = Command::new(program);
        command.arg("worker").arg(&worker.pool).args(numbers);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(Error::io("a worker process"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Wrong("a worker process without pipes".into()));
        };
        let mut process = Process { child, input: Some(input), output: BufReader::new(output) };
        // It writes a first line when it has opened the pool.
        process.line()?;
        Ok(process)
    }

    fn order(&mut self, phase: usize, when: u64) -> Result<(), Error> {
        match &mut self.input {
            Some(input) => writeln!(input, "{phase} {when}").map_err(Error::io("a worker process")),
            None => Err(died()),
        }
    }

    fn answer(&mut self) -> Result<Times, Error> {
        let [start, end, cpu] = numbers(&self.line()?).ok_or_else(died)?;
        Ok(Times { start, end, cpu })
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

fn numbers<const N: usize>(line: &str) -> Option<[u64; N]> {
    let numbers: Vec<u64> = line.split_whitespace().map(|n| n.parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

/// The worker process itself.
pub fn work(worker: &Worker) -> Result<(), Error> {
    cpu::pin(worker.cpu)?;
    let place = InProcess::open(&worker.pool)?;
    let load = Load::new(worker.id, worker.files, worker.dirs);
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.map_err(Error::io("the worker's orders"))?;
        let [phase, when] = numbers(&line).ok_or_else(|| Error::Usage(format!("not an order: {line}")))?;
        let t = load.run(&place, phase as usize, when)?;
        println!("{} {} {}", t.start, t.end, t.cpu);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_span_is_from_first_start_to_last_end() {
        let times = [(10, 20), (12, 35)].map(|(start, end)| Times { start, end, cpu: 1 });
        assert_eq!(span(&times), 25);
    }

    #[test]
    fn two_workers_at_the_same_cost_are_twice_as_fast() {
        let mut section = Section::rates("s", "s", "1000 files/s");
        let t = Times { start: 0, end: 1000, cpu: 1000 };
        record(&mut section, ONE, 1, |_| Ok(vec![t])).expect("record");
        record(&mut section, THREADS, 2, |_| Ok(vec![t, t])).expect("record");
        assert_eq!(section.ratio(ALL_FOUR, THREADS, ONE), Ok(2.0));
        assert_eq!(section.ratio(ALL_BY_CPU, THREADS, ONE), Ok(2.0));
    }

    #[test]
    fn orders_and_answers_are_numbers() {
        assert_eq!(numbers("2 77\n"), Some([2, 77]));
        assert_eq!(numbers::<2>("2"), None);
        assert_eq!(numbers::<1>("x"), None);
    }

    #[test]
    fn a_load_runs_all_phases_and_leaves_no_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let load = Load::new(0, 16, 2);
        load.tree.make_dirs(&place).expect("mkdir");
        for phase in 0..PHASES.len() {
            let times = load.run(&place, phase, 0).expect("a phase");
            assert!(times.end >= times.start && times.cpu > 0);
        }
        load.tree.remove_dirs(&place).expect("empty directories");
    }
}

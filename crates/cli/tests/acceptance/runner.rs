//! Runs tests, several at a time: each in a process and a mount namespace of its own.
//!
//! Most of a test's time is spent waiting for disks, clocks and other programs, so more tests than processors run at a
//! time. The tests of [`ALONE`] measure times, have a late disk, or look at memory that the next process to open any
//! pool would release. They run at the end, one after another.

use std::collections::VecDeque;
use std::io::{Read, Seek};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::{settings, watchdog, Skip, Test};

/// With this argument a process runs one test.
pub const ONE: &str = "--one";
/// The exit status if the test cannot run here; the last line of output tells why.
const IGNORED: u8 = 77;
/// Modules whose tests run alone.
const ALONE: [&str; 10] =
    ["beside", "details", "fault_disk", "frozen", "hanging", "hung_disk", "memory", "parked", "slow_disk", "stopped"];

/// The result of a test.
enum Outcome {
    Passed,
    Failed,
    Ignored,
}

/// The results of tests.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: Vec<&'static str>,
    ignored: u32,
}

/// Runs all of them; the last lines of output show the counts.
pub fn run(tests: &[Test], missing: Option<String>) -> ExitCode {
    println!("\nrunning {} tests, CONQUEST_SEED={}", tests.len(), settings::seed());
    let (start, tally) = (Instant::now(), Mutex::new(Tally::default()));
    let is_alone = |(name, _): &&Test| name.split_once("::").is_some_and(|(module, _)| ALONE.contains(&module));
    let (alone, together): (Vec<&Test>, Vec<&Test>) = tests.iter().partition(is_alone);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for (tests, most) in [(together, processors + 1), (alone, 1)] {
        let most = settings::number("CONQUEST_JOBS", most as u64) as usize;
        let queue: Mutex<VecDeque<&'static str>> = Mutex::new(tests.iter().map(|(name, _)| *name).collect());
        std::thread::scope(|scope| {
            for _ in 0..most.min(tests.len()) {
                scope.spawn(|| {
                    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    while let Some(name) = next() {
                        let outcome = missing.as_deref().map_or_else(|| in_process(name), |why| ignore(name, why));
                        tally.lock().unwrap_or_else(PoisonError::into_inner).add(name, outcome);
                    }
                });
            }
        });
    }
    let Tally { passed, failed, ignored } = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    failed.iter().for_each(|name| println!("failed: {name}"));
    println!(
        "\ntest result: {verdict}. {passed} passed; {} failed; {ignored} ignored; 0 measured; 0 filtered out; \
         finished in {:.2}s\n",
        failed.len(),
        start.elapsed().as_secs_f64()
    );
    ExitCode::from(if failed.is_empty() { 0 } else { 101 })
}

impl Tally {
    fn add(&mut self, name: &'static str, outcome: Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Failed => self.failed.push(name),
            Outcome::Ignored => self.ignored += 1,
        }
    }
}

fn ignore(name: &str, why: &str) -> Outcome {
    println!("test {name} ... ignored, {why}");
    Outcome::Ignored
}

/// Runs one test, in a process of its own; prints its output, and its result.
fn in_process(name: &'static str) -> Outcome {
    let begun = Instant::now();
    // Not a pipe: a server that the test leaves behind would hold it open.
    let mut said = tempfile::tempfile().expect("a temporary file");
    let share = || Stdio::from(said.try_clone().expect("the same file"));
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(std::env::current_exe().expect("the path of this program"))
        .args([ONE, name])
        .env("CONQUEST_SEED", settings::seed().to_string())
        .stdin(Stdio::null())
        .stdout(share())
        .stderr(share())
        .status()
        .expect("unshare of util-linux");
    let mut text = Vec::new();
    said.rewind().and_then(|()| said.read_to_end(&mut text)).expect("what the test has printed");
    let text = String::from_utf8_lossy(&text);
    let seconds = begun.elapsed().as_secs_f64();
    let (outcome, how) = match status.code() {
        Some(0) => (Outcome::Passed, format!("ok ({seconds:.1} s)")),
        Some(code) if code == i32::from(IGNORED) => {
            let why = text.lines().last().unwrap_or_default();
            (Outcome::Ignored, format!("ignored, {why}"))
        }
        _ => (Outcome::Failed, format!("FAILED ({seconds:.1} s)")),
    };
    println!("{text}test {name} ... {how}");
    outcome
}

/// Runs the test itself, in the process for it.
pub fn one(tests: &[Test], name: &str) -> ExitCode {
    let Some((name, test)) = tests.iter().find(|(known, _)| *known == name) else {
        println!("there is no test {name}");
        return ExitCode::FAILURE;
    };
    let _watch = watchdog::over(name);
    match catch_unwind(AssertUnwindSafe(test)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(Skip(why))) => {
            println!("{why}");
            ExitCode::from(IGNORED)
        }
        Err(_) => ExitCode::from(101),
    }
}

//! A child that is this test binary again, with its part in an environment variable; each test function plays both parts.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const PART: &str = "CONQUEST_TEST_PART";
const REGION: &str = "CONQUEST_TEST_REGION";

/// The part this process plays in `test`: `None` for the parent.
pub fn part() -> Option<(String, PathBuf)> {
    Some((std::env::var(PART).ok()?, std::env::var_os(REGION)?.into()))
}

/// A child that plays a part; killed when dropped.
pub struct Player {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
}

impl Player {
    /// `test`: its name, in the module `processes` or in the one that it begins with.
    pub fn start(test: &str, part: &str, memory: &Path) -> Player {
        let test = if test.contains("::") { test.into() } else { format!("processes::{test}") };
        let mut child = Command::new(std::env::args_os().next().unwrap())
            .args([&test, "--exact", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .env(REGION, memory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        Player { child, out }
    }

    /// Waits for a line that begins with `word`; the rest of it.
    pub fn hear(&mut self, word: &str) -> String {
        loop {
            let line = self.out.next().expect("the child ended early").unwrap();
            // The test harness may have written its own words on the same line.
            if let Some(at) = line.find(word) {
                return line[at + word.len()..].to_string();
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal: `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Kills it; what it had said before.
    pub fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.out.by_ref().map_while(Result::ok).collect()
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says a word to the parent.
pub fn say(words: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{words}").and_then(|()| out.flush()).expect("the parent listens");
}

pub fn sleep_until_killed() -> ! {
    std::thread::sleep(Duration::from_secs(60));
    panic!("never killed");
}

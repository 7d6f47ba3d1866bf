//! Programs that the benchmark runs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, Write};
use std::process::{Child, Command, Output, Stdio};

use crate::error::Error;

/// The Debian packages of programs that not every machine has.
const PACKAGES: [(&str, &str); 6] = [
    ("fio", "fio"),
    ("git", "git"),
    ("postmark", "postmark"),
    ("redis-server", "redis-server"),
    ("redis-benchmark", "redis-tools"),
    ("sqlite3", "sqlite3"),
];

/// A running program.
pub struct Running {
    program: String,
    child: Child,
    /// Its output on stderr: a file, not a pipe, which the server of a mount would hold open in the background.
    said: File,
}

impl Running {
    pub fn start(command: &mut Command) -> Result<Running, Error> {
        let said = tempfile::tempfile().map_err(Error::io("a temporary file"))?;
        let stderr = said.try_clone().map_err(Error::io("a temporary file"))?;
        let child = spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr))?;
        Ok(Running { program: name_of(command), child, said })
    }

    pub fn goes_on(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn kill(mut self) {
        // Fails if it has ended by itself, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end. Its output is the error.
    pub fn end(mut self) -> Result<(), Error> {
        let status = self.child.wait().map_err(Error::io(&self.program))?;
        if status.success() {
            return Ok(());
        }
        let mut said = Vec::new();
        // Unreadable output is left out.
        let _ = self.said.rewind().and_then(|()| self.said.read_to_end(&mut said));
        Err(failed(self.program, &said, status.to_string()))
    }
}

/// Runs a program to its end.
pub fn run(command: &mut Command) -> Result<(), Error> {
    Running::start(command)?.end()
}

/// Runs a program to its end; returns its output.
pub fn output(command: &mut Command) -> Result<String, Error> {
    fed(command, String::new())
}

/// As `output`, with `input` as its input.
pub fn fed(command: &mut Command, input: String) -> Result<String, Error> {
    let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let stdin = child.stdin.take();
    // It may end before it has read everything; then its output is the error.
    let feed = std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
    let Output { status, stdout, stderr } = child.wait_with_output().map_err(Error::io(name_of(command)))?;
    let _ = feed.join();
    match status.success() {
        true => Ok(String::from_utf8_lossy(&stdout).into_owned()),
        false => Err(failed(name_of(command), &stderr, status.to_string())),
    }
}

/// Fails if there is no program of this name or path.
pub fn require(program: impl AsRef<OsStr>) -> Result<(), Error> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    spawn(&mut command)?.wait().map(drop).map_err(Error::io(name_of(&command)))
}

pub fn spawn(command: &mut Command) -> Result<Child, Error> {
    command.spawn().map_err(|e| {
        let program = name_of(command);
        let package = PACKAGES.iter().find(|(name, _)| *name == program).map(|(_, package)| package);
        let said = match (e.kind(), package) {
            (ErrorKind::NotFound, Some(package)) => format!("not installed (Debian package: {package})"),
            (ErrorKind::NotFound, None) => "not installed".into(),
            _ => e.to_string(),
        };
        Error::Program { program, said }
    })
}

fn name_of(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn failed(program: String, said: &[u8], status: String) -> Error {
    let said = String::from_utf8_lossy(said).trim().replace('\n', "; ");
    Error::Program { program, said: if said.is_empty() { status } else { said } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_or_fails_says_so() {
        let missing = run(&mut Command::new("conquest-no-such-program")).expect_err("missing");
        assert!(missing.to_string().contains("not installed") && missing.is_lacking(), "{missing}");
        let failing = run(Command::new("sh").args(["-c", "echo no room >&2; exit 3"])).expect_err("fails");
        assert_eq!(failing.to_string(), "sh: no room");
        assert!(require("sh").is_ok() && require("conquest-no-such-program").is_err());
    }

    #[test]
    fn one_that_goes_on_can_be_ended() {
        let mut running = Running::start(Command::new("sleep").arg("1000")).expect("it starts");
        assert!(running.goes_on());
        running.kill();
    }

    #[test]
    fn output_of_programs_is_reported() {
        assert_eq!(fed(&mut Command::new("cat"), "a\n".into()).expect("it ends well"), "a\n");
        let e = output(Command::new("sh").args(["-c", "echo b >&2; exit 1"])).expect_err("it does not");
        assert_eq!(e.to_string(), "sh: b");
    }
}

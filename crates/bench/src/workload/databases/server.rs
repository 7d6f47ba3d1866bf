//! A server that runs for a round, and programs that talk to it.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};

use crate::prelude::*;

/// How long a server may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// A running server; dropping it ends it.
pub struct Server {
    child: Child,
    /// The signal for an orderly, durable end.
    signal: Signal,
}

impl Server {
    /// Starts it, and waits until `answers`. Its output goes to the file `said`, and into an error.
    pub fn start(
        command: &mut Command,
        said: &Path,
        signal: Signal,
        answers: impl Fn() -> bool,
    ) -> Result<Server, Error> {
        let program = command.get_program().to_string_lossy().into_owned();
        let log = File::create(said).map_err(Error::file(said))?;
        let also = log.try_clone().map_err(Error::file(said))?;
        // In a process group of its own: a signal from the terminal that ends the run must not end it first.
        let child = command.stdin(Stdio::null()).stdout(log).stderr(also).process_group(0).spawn();
        let child = child.map_err(Error::io(&program))?;
        let mut server = Server { child, signal };
        let begun = Instant::now();
        while !answers() {
            let ended = server.child.try_wait().map_err(Error::io(&program))?;
            if ended.is_some() || begun.elapsed() > PATIENCE {
                let text = std::fs::read_to_string(said).unwrap_or_default();
                let last: Vec<&str> = text.trim().lines().rev().take(3).collect();
                let said = format!("does not answer: {}", last.into_iter().rev().collect::<Vec<_>>().join("; "));
                return Err(Error::Program { program, said });
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }

    fn ended(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            // A process that cannot be waited for has ended.
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(PAUSE);
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has not been waited for yet: the number is its own.
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, self.signal);
        }
        if !self.ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_waited_for_and_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        let (sign, said) = (dir.path().join("sign"), dir.path().join("said"));
        let script = format!("echo ready; touch {}; exec sleep 1000", sign.display());
        let mut command = Command::new("sh");
        let begun = Instant::now();
        let server = Server::start(command.args(["-c", &script]), &said, Signal::TERM, || sign.exists());
        drop(server.expect("it answers"));
        assert!(begun.elapsed() < PATIENCE);
        let mut command = Command::new("sh");
        let ended = Server::start(command.args(["-c", "echo no room >&2"]), &said, Signal::TERM, || false);
        let e = ended.err().expect("it has ended");
        assert!(e.to_string().contains("no room"), "{e}");
    }
}

//! Passes the reason why a server failed to the command that unmounts: the server is nobody's child by then, and the
//! failed thing may be its disk.
//!
//! The server has a file in memory, without a name, where it stores the reason. The command finds the file among the
//! open files of the server, opens it too, and reads it when the server has ended.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use rustix::fs::{memfd_create, MemfdFlags};

use crate::failure::Failure;
use crate::proc::numbered;

const NAME: &str = "conquest-outcome";

/// The outcome of this process; empty at first.
pub struct Outcome(Option<File>);

impl Outcome {
    pub fn begin() -> Outcome {
        let file = memfd_create(NAME, MemfdFlags::CLOEXEC);
        Outcome(
            file.inspect_err(|e| tracing::warn!("the command that unmounts will not learn how it ends: {e}"))
                .ok()
                .map(File::from),
        )
    }

    pub fn tell(&self, failure: &Failure) {
        if let Some(mut file) = self.0.as_ref() {
            // The failure is in the log too.
            let _ = write!(file, "{failure}");
        }
    }
}

/// The outcome of another process.
pub struct Awaited(File);

impl Awaited {
    /// `None` if the process has none, or if we may not look.
    pub fn of(pid: u32) -> Option<Awaited> {
        let is_it = |fd: &Path| std::fs::read_link(fd).is_ok_and(|file| file == Path::new(&shown()));
        let fd = numbered(&format!("/proc/{pid}/fd")).find(|fd| is_it(fd))?;
        File::open(fd).ok().map(Awaited)
    }

    /// The reason for the failure, when the process has ended.
    pub fn failure(mut self) -> Option<Failure> {
        let mut text = String::new();
        self.0.read_to_string(&mut text).ok().filter(|len| *len > 0)?;
        Some(Failure::new(text))
    }
}

/// The kernel's name of such a file.
fn shown() -> String {
    format!("/memfd:{NAME} (deleted)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_gets_a_later_notification() {
        let outcome = Outcome::begin();
        let find = || Awaited::of(std::process::id()).expect("it is there");
        assert!(find().failure().is_none());
        let before = find();
        outcome.tell(&Failure::new("no room"));
        drop(outcome);
        assert_eq!(before.failure().expect("it failed").to_string(), "no room");
        assert!(Awaited::of(std::process::id()).is_none());
    }
}

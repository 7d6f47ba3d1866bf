//! How a server ended, for who unmounts: it is nobody's child by then, and its disk may be what failed.
//!
//! The server has a file in memory, without a name, where it leaves why it failed. Who unmounts finds it among the open
//! files of that process, opens it too, and reads it when the process has ended.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use rustix::fs::{memfd_create, MemfdFlags};

use crate::failure::Failure;
use crate::proc::numbered;

const NAME: &str = "conquest-outcome";

/// That of this process; nothing is in it yet.
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
            // It is in the log too.
            let _ = write!(file, "{failure}");
        }
    }
}

/// That of another process.
pub struct Awaited(File);

impl Awaited {
    /// `None` if the process has none, or is not ours to look at.
    pub fn of(pid: u32) -> Option<Awaited> {
        let is_it = |fd: &Path| std::fs::read_link(fd).is_ok_and(|file| file == Path::new(&shown()));
        let fd = numbered(&format!("/proc/{pid}/fd")).find(|fd| is_it(fd))?;
        File::open(fd).ok().map(Awaited)
    }

    /// Why it failed, when it has ended.
    pub fn failure(mut self) -> Option<Failure> {
        let mut text = String::new();
        self.0.read_to_string(&mut text).ok().filter(|len| *len > 0)?;
        Some(Failure::new(text))
    }
}

/// What the kernel calls such a file.
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

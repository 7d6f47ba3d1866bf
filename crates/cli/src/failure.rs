//! One error type for all commands: a text that names the thing and what to do next, and the exit status.

use std::fmt;
use std::process::ExitCode;

pub type Result<T, E = Failure> = std::result::Result<T, E>;

#[derive(Debug)]
pub struct Failure {
    text: String,
    status: u8,
}

impl Failure {
    /// A command that failed: exit status 1.
    pub fn new(text: impl Into<String>) -> Self {
        Failure { text: text.into(), status: 1 }
    }

    /// The same text with another exit status.
    pub fn with_status(self, status: u8) -> Self {
        Failure { status, ..self }
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.status)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Adds to an error a description of the attempted action.
pub trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Failure::new(format!("{}: {e}", what())))
    }
}

//! The failures of a run.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// The reason why a benchmark did not run, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on Conquest in this process failed.
    #[error("{0}")]
    Fs(#[from] conquest_fs::Error),
    /// A system call of a workload failed.
    #[error("{0}")]
    System(#[from] Errno),
    /// Something around the workloads failed.
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// A program that the benchmark runs failed; the text is its output.
    #[error("{program}: {said}")]
    Program { program: String, said: String },
    /// A file system gave a wrong answer under load.
    #[error("wrong answer: {0}")]
    Wrong(String),
    /// The place in a workload where it happened.
    #[error("{place}: {source}")]
    At { place: String, source: Box<Error> },
    /// The command line asks for something impossible.
    #[error("{0}")]
    Usage(String),
    /// Some file systems failed; the report has the rows of the others.
    #[error("{} of the file systems failed:\n{}", .0.len(), .0.join("\n"))]
    Failed(Vec<String>),
    /// The supervised run ended with this status; it has reported the reason.
    #[error("the benchmark ended with status {0}")]
    Ended(i32),
}

impl Error {
    /// Does this machine lack something, or does the command line leave it out? That is no failure.
    pub fn is_lacking(&self) -> bool {
        match self {
            Error::Usage(_) => true,
            Error::Program { said, .. } => said.starts_with("not installed"),
            _ => false,
        }
    }

    /// Adds the place where it happened.
    pub fn at(self, place: impl Into<String>) -> Error {
        Error::At { place: place.into(), source: Box::new(self) }
    }

    /// An error of the operating system outside the workloads.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }

    /// An error of a file or directory.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        Error::io(path.into().display().to_string())
    }
}

/// The result of a thread.
pub fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T, Error>>) -> Result<T, Error> {
    thread.join().unwrap_or_else(|_| Err(Error::Wrong("a worker thread panicked".into())))
}

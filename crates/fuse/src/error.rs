//! Failures of a mount as a whole. Single operations fail with an errno instead.

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An unknown mount option, or a value that the option does not take.
    #[error("{0}")]
    Option(String),
    /// The directory cannot be mounted on, or unmounted; the text says what to do.
    #[error("{0}")]
    Target(String),
    /// The machine lacks something; the text says what to do.
    #[error("{0}")]
    Unavailable(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System { what: String, source: std::io::Error },
    #[error(transparent)]
    Pool(#[from] conquest_fs::Error),
}

/// Adds to a failed system call a description of the attempted action.
pub(crate) trait Context<T> {
    fn context(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|e| Error::System { what: what.into(), source: e.into() })
    }
}

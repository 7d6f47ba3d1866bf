//! Errors of a volume as a whole. Each tells what to do.

use std::path::{Path, PathBuf};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{0}")]
    Volume(String),
    #[error("{path}: {what}: {source}")]
    Host { path: PathBuf, what: &'static str, source: std::io::Error },
    #[error(transparent)]
    Disk(#[from] exraid::OpenError),
    #[error(transparent)]
    Transfer(#[from] exraid::Error),
}

impl Error {
    pub(crate) fn host(path: &Path, what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Host { path, what, source }
    }
}

//! The request for a mount.

use std::path::PathBuf;

use crate::failure::Result;
use crate::options::Options;

/// The pool to mount, the directory, and the options.
pub struct Request {
    /// Absolute.
    pub pool: PathBuf,
    /// Absolute.
    pub dir: PathBuf,
    pub options: Options,
}

impl Request {
    pub fn new(pool: PathBuf, dir: PathBuf, options: &str) -> Result<Self> {
        Ok(Request { pool, dir, options: Options::parse(options)? })
    }
}

//! What is asked of a mount.

use std::path::PathBuf;

use crate::failure::Result;
use crate::options::Options;

/// What is to be mounted where, and how.
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

//! A file or block device reserved for becoming a disk later.

use std::fs::File;
use std::path::Path;

use super::{host, signatures, Options};
use crate::error::OpenError;

/// Keeps others from making a disk of it, mounting it or using it, until it is dropped. It changes nothing.
pub struct Claim {
    file: File,
    /// Its present size in bytes.
    pub size: u64,
    pub is_block: bool,
}

impl Claim {
    /// Takes a device or file; refuses one with content, unless `force` is set.
    ///
    /// # Errors
    /// [`OpenError::Busy`] where it is mounted or another pool has it; [`OpenError::Foreign`] where it has content;
    /// others where it cannot be a disk.
    pub fn take(path: &Path, force: bool) -> Result<Claim, OpenError> {
        let file = host::open_alone(path, &Options::default())?;
        host::lock(path, &file, true)?;
        if !force {
            if let Some(what) = signatures::what_is_on(path, &file)? {
                return Err(OpenError::Foreign { path: path.into(), what });
            }
        }
        let (properties, kind) = host::properties(path, &file, &Options::default())?;
        Ok(Claim { file, size: properties.size, is_block: kind.is_block })
    }

    /// Allocates the space of the labels in a file of `size` bytes, so that it is there even when the host is full.
    ///
    /// # Errors
    /// [`OpenError::Host`] where there is no space. Hosts without that operation are skipped.
    pub fn reserve_ends(&self, path: &Path, size: u64) -> Result<(), OpenError> {
        if self.is_block {
            return Ok(());
        }
        let end = crate::label::END;
        for at in [0, size.saturating_sub(end)] {
            match rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::KEEP_SIZE, at, end) {
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(OpenError::Host { path: path.into(), what: "taking room for labels", errno }),
            }
        }
        Ok(())
    }
}

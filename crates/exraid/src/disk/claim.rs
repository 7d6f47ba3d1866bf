//! A file or block device that is to become a disk later, kept from all others until then.

use std::fs::File;
use std::path::Path;

use super::{host, signatures, Options};
use crate::error::OpenError;

/// Nobody else makes a disk of it, mounts it or uses it as a disk, as long as this is kept. Nothing of it is changed.
pub struct Claim {
    file: File,
    /// Bytes that it has now.
    pub size: u64,
    pub is_block: bool,
}

impl Claim {
    /// Takes what is there; refuses it where something is on it, unless `force` allows to lose that.
    ///
    /// # Errors
    /// [`OpenError::Busy`] where somebody has it, a mount or another pool; [`OpenError::Foreign`] where something is on
    /// it; others where it cannot be a disk.
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

    /// Backs the room of labels in a file of `size` bytes, whatever its host has left later.
    ///
    /// # Errors
    /// [`OpenError::Host`] where there is no room. A host that cannot do that is not asked for it.
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

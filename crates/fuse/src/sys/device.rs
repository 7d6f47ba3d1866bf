//! /dev/fuse and its clones.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

pub const DEVICE: &str = "/dev/fuse";

/// `_IOR(229, 0, uint32_t)`.
const FUSE_DEV_IOC_CLONE: libc::c_ulong = 0x8004_e500;

/// A connection to the kernel.
pub struct Device(File);

impl Device {
    pub fn open() -> io::Result<Device> {
        Ok(Device(OpenOptions::new().read(true).write(true).open(DEVICE)?))
    }

    /// A further descriptor of the same connection, with a request queue of its own.
    pub fn clone_queue(&self) -> io::Result<Device> {
        let clone = Device::open()?;
        let source = self.0.as_raw_fd() as u32;
        // SAFETY: the request reads one u32 through the pointer, which lives across the call; both
        // descriptors are open.
        let done = unsafe { libc::ioctl(clone.0.as_raw_fd(), FUSE_DEV_IOC_CLONE as _, &source) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(clone)
    }
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Device {
        Device(fd.into())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

//! A block device that only needs to exist: a loop device over a page of memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{ftruncate, makedev, memfd_create, mknodat, FileType, MemfdFlags, Mode, CWD};
use rustix::thread::{unshare_unsafe, UnshareFlags};
use zerocopy::{FromZeros, Immutable, IntoBytes};

const CONTROL: &str = "/dev/loop-control";
/// Name of the memory, which `losetup` shows.
const NAME: &str = "conquest";
const MAJOR: u32 = 7;
const SIZE: u64 = 4096;
/// Frees the device once no process has it open.
const AUTOCLEAR: u32 = 4;
/// How many free devices other processes may take first before the search ends.
const ATTEMPTS: u32 = 16;

/// Numbers that the caller chooses: the kernel hands out those below, in order.
const CHOSEN: std::ops::Range<u32> = 1 << 12..1 << 20;

const LOOP_CTL_ADD: libc::c_ulong = 0x4c80;
const LOOP_CTL_REMOVE: libc::c_ulong = 0x4c81;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;

/// `struct loop_config` of linux/loop.h, with the `struct loop_info64` inside it.
#[derive(FromZeros, Immutable, IntoBytes)]
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    places: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    file_name: [u8; 64],
    rest: [u8; 176],
}

const _: () = assert!(size_of::<Config>() == 304 && std::mem::offset_of!(Config, flags) == 60);

/// The control device of loop devices.
pub struct LoopControl(File);

impl LoopControl {
    pub fn open() -> io::Result<LoopControl> {
        Ok(LoopControl(OpenOptions::new().read(true).write(true).open(CONTROL)?))
    }

    /// Makes a device node at `node`. The device exists as long as the returned descriptor or a file system has it
    /// open. It has the same number each time for the same `name`, unless another process has taken that number.
    pub fn make(&self, node: &Path, name: u128) -> io::Result<File> {
        let memory = memfd_create(NAME, MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, SIZE)?;
        for attempt in 0..2 * ATTEMPTS {
            let number = match attempt < ATTEMPTS {
                true => self.add(number_for(name, attempt)),
                false => self.free_number(),
            };
            let Ok(number) = number else { continue };
            mknodat(CWD, node, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, makedev(MAJOR, number))?;
            let device = OpenOptions::new().read(true).write(true).open(node);
            // Opened for reading from then on: some systems refuse to mount a device that others may write to.
            let reader = |device: File| {
                configure(&device, &memory)?;
                File::open(node)
            };
            match device.and_then(reader) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::fs::remove_file(node)?,
                made => return made,
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Adds a device of this number. It may have existed before, and be in use.
    fn add(&self, number: u32) -> io::Result<u32> {
        // SAFETY: the request takes a number; the descriptor is open.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), LOOP_CTL_ADD as _, libc::c_ulong::from(number)) } {
            0.. => Ok(number),
            _ => match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(libc::EEXIST) => Ok(number),
                e => Err(e),
            },
        }
    }

    /// Removes the unused devices that were made for `name`.
    pub fn remove_all(&self, name: u128) {
        // It fails for devices that do not exist or are in use.
        (0..ATTEMPTS).for_each(|attempt| _ = self.remove(number_for(name, attempt)));
    }

    /// Removes a device of a chosen number, unless it is in use.
    pub fn remove(&self, minor: u32) -> io::Result<()> {
        if !CHOSEN.contains(&minor) {
            return Ok(());
        }
        // SAFETY: the request takes a number; the descriptor is open.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), LOOP_CTL_REMOVE as _, libc::c_ulong::from(minor)) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn free_number(&self) -> io::Result<u32> {
        // SAFETY: the request takes no argument; the descriptor is open.
        let number = unsafe { libc::ioctl(self.0.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        u32::try_from(number).map_err(|_| io::Error::last_os_error())
    }
}

/// The number to try for `name` after `attempt` numbers that others have taken.
fn number_for(name: u128, attempt: u32) -> u32 {
    let (many, first) = (u128::from(CHOSEN.end - CHOSEN.start), u128::from(CHOSEN.start));
    // Less than 2^20.
    (first + (name % many + u128::from(attempt)) % many) as u32
}

fn configure(device: &File, memory: &OwnedFd) -> io::Result<()> {
    let mut config = Config::new_zeroed();
    (config.fd, config.flags) = (memory.as_raw_fd() as u32, AUTOCLEAR);
    config.file_name[..NAME.len()].copy_from_slice(NAME.as_bytes());
    // SAFETY: the request reads a `struct loop_config` through the pointer, which lives across the call; `Config` has
    // its size and layout (asserted above). Both descriptors are open.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, config.as_bytes().as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the calling thread a root and a current directory of its own.
pub fn unshare_root() -> io::Result<()> {
    // SAFETY: only `FS` is unshared, and no memory or descriptor with it.
    Ok(unsafe { unshare_unsafe(UnshareFlags::FS) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_its_number() {
        for name in [0, 7, u128::MAX] {
            let numbers: Vec<u32> = (0..ATTEMPTS).map(|attempt| number_for(name, attempt)).collect();
            assert_eq!(numbers[0], number_for(name, 0));
            assert!(numbers.iter().all(|number| CHOSEN.contains(number)) && numbers[0] != numbers[1], "{numbers:?}");
        }
        assert_ne!(number_for(1, 0), number_for(2, 0));
    }
}

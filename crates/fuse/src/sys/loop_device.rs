//! A block device of no use but to be there: a loop device over a page of memory.

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
/// The device is free again once nobody has it open.
const AUTOCLEAR: u32 = 4;
/// Free devices that somebody else took first.
const ATTEMPTS: u32 = 16;

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;

/// `struct loop_config` of linux/loop.h, with the `struct loop_info64` that is in it.
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

/// Where loop devices are asked for.
pub struct LoopControl(File);

impl LoopControl {
    pub fn open() -> io::Result<LoopControl> {
        Ok(LoopControl(OpenOptions::new().read(true).write(true).open(CONTROL)?))
    }

    /// Makes a device node at `node`. The device is there as long as somebody has it open: the descriptor returned, or
    /// a file system.
    pub fn make(&self, node: &Path) -> io::Result<File> {
        let memory = memfd_create(NAME, MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, SIZE)?;
        for _ in 0..ATTEMPTS {
            let number = self.free_number()?;
            mknodat(CWD, node, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, makedev(MAJOR, number))?;
            let device = OpenOptions::new().read(true).write(true).open(node);
            // To be read from then on: some systems refuse to mount what somebody else may write to.
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

    fn free_number(&self) -> io::Result<u32> {
        // SAFETY: the request takes no argument; the descriptor is open.
        let number = unsafe { libc::ioctl(self.0.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        u32::try_from(number).map_err(|_| io::Error::last_os_error())
    }
}

fn configure(device: &File, memory: &OwnedFd) -> io::Result<()> {
    let mut config = Config::new_zeroed();
    (config.fd, config.flags) = (memory.as_raw_fd() as u32, AUTOCLEAR);
    config.file_name[..NAME.len()].copy_from_slice(NAME.as_bytes());
    // SAFETY: the request reads a `struct loop_config` through the pointer, of which `Config` has size and layout
    // (asserted above), and which lives across the call; both descriptors are open.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, config.as_bytes().as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// From now on the calling thread has a root and a current directory of its own.
pub fn unshare_root() -> io::Result<()> {
    // SAFETY: only `FS` is unshared, and no memory or descriptor with it.
    Ok(unsafe { unshare_unsafe(UnshareFlags::FS) }?)
}

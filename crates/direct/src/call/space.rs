//! fallocate, statfs, advice.

use conquest_fs::node::Fallocate;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::place::At;
use super::{Outcome, Stop};
use crate::raw;
use crate::state::State;

/// `FUSE_SUPER_MAGIC`: programs see a mount of FUSE.
const FUSE: u64 = 0x6573_5546;
/// The last advice that there is: POSIX_FADV_NOREUSE.
const LAST_ADVICE: u32 = 5;
/// All flags of `sync_file_range`.
const SYNC_FLAGS: u32 = 7;

/// `struct statfs` of x86-64.
#[repr(C)]
#[derive(Default, IntoBytes, Immutable)]
struct StatFs {
    kind: u64,
    block_size: u64,
    blocks: u64,
    free: u64,
    available: u64,
    files: u64,
    free_files: u64,
    id: u64,
    name_max: u64,
    fragment_size: u64,
    flags: u64,
    spare: [u64; 4],
}

const _: () = assert!(size_of::<StatFs>() == size_of::<libc::statfs>());

impl State {
    pub fn fallocate(&self, fd: usize, mode: u32, offset: i64, len: i64) -> Outcome {
        let file = self.file(fd)?;
        let (Ok(offset), Ok(len @ 1..)) = (u64::try_from(offset), u64::try_from(len)) else {
            return Err(Errno::INVAL.into());
        };
        let how = Fallocate::of_flags(FallocateFlags::from_bits_retain(mode)).ok_or(Stop::Kernel)?;
        if matches!(how, Fallocate::CollapseRange | Fallocate::InsertRange) {
            // The mount does not have them.
            return Err(Stop::Kernel);
        }
        if !file.writes() {
            return Err(Errno::BADF.into());
        }
        let end = i64::try_from(offset + len).map_err(|_| Errno::FBIG)? as u64;
        if matches!(how, Fallocate::Allocate { keep_size: false } | Fallocate::ZeroRange { keep_size: false }) {
            self.may_grow_to(end, || Ok(self.fs().size(file.ino)?))?;
        }
        if self.identity()?.uid != 0 {
            self.clear_setid(&file)?;
        }
        self.fs().fallocate(file.ino, how, offset, len)?;
        Ok(0)
    }

    pub fn statfs(&self, at: At, buf: usize) -> Outcome {
        let _there = self.hold(at, 0)?;
        self.tell_sizes(buf)
    }

    pub fn fstatfs(&self, fd: usize, buf: usize) -> Outcome {
        let _there = self.file(fd)?;
        self.tell_sizes(buf)
    }

    fn tell_sizes(&self, buf: usize) -> Outcome {
        let sizes = self.fs().statfs();
        let sizes = StatFs {
            kind: FUSE,
            block_size: sizes.block_size.into(),
            blocks: sizes.blocks,
            free: sizes.free_blocks,
            available: sizes.available_blocks,
            files: sizes.inodes,
            free_files: sizes.free_inodes,
            name_max: sizes.name_max.into(),
            fragment_size: sizes.block_size.into(),
            flags: self.mounted.flags,
            ..StatFs::default()
        };
        raw::put(buf, &sizes)?;
        Ok(0)
    }

    /// Nothing here is better for advice.
    pub fn fadvise(&self, fd: usize, len: i64, advice: u32) -> Outcome {
        let _file = self.file(fd)?;
        match len < 0 || advice > LAST_ADVICE {
            true => Err(Errno::INVAL.into()),
            false => Ok(0),
        }
    }

    pub fn readahead(&self, fd: usize) -> Outcome {
        let file = self.file(fd)?;
        match (file.reads(), file.is_dir()) {
            (false, _) => Err(Errno::BADF.into()),
            (true, true) => Err(Errno::INVAL.into()),
            (true, false) => Ok(0),
        }
    }

    /// Starts what is under way in any case, and promises nothing.
    pub fn sync_file_range(&self, fd: usize, (offset, len): (i64, i64), flags: u32) -> Outcome {
        let _file = self.file(fd)?;
        let ends = offset >= 0 && len >= 0 && offset.checked_add(len).is_some();
        match flags & !SYNC_FLAGS != 0 || !ends {
            true => Err(Errno::INVAL.into()),
            false => Ok(0),
        }
    }

    pub fn syncfs(&self, fd: usize) -> Outcome {
        let _file = self.file(fd)?;
        self.fs().sync()?;
        Ok(0)
    }
}

//! The system calls that are served, by groups.
//!
//! | module | calls |
//! | --- | --- |
//! | this | which call is in which group |
//! | `place` | where a path or a descriptor leads |
//! | `opening` | open, creat |
//! | `content` | read, write, seek, truncate, sync |
//! | `attributes` | stat, access |
//! | `names` | make, link, rename, remove, readlink |
//! | `owners` | chmod, chown, times |
//! | `space` | fallocate, statfs, advice |
//! | `copying` | copy_file_range, sendfile |
//! | `xattrs` | extended attributes |
//! | `listing` | getdents |
//! | `duplicating` | close, dup, fcntl, ioctl |
//! | `locks` | locks of open files |
//! | `mapping` | mmap |

mod attributes;
mod content;
mod copying;
mod duplicating;
mod listing;
mod locks;
mod mapping;
mod names;
mod opening;
mod owners;
mod place;
mod space;
mod xattrs;

use libc::*;
use rustix::io::Errno;

use crate::state::State;

/// Why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Errno(Errno),
    /// It is the kernel's.
    Kernel,
}

pub type Outcome<T = usize> = std::result::Result<T, Stop>;

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Errno(errno)
    }
}

impl From<conquest::Error> for Stop {
    #[inline(always)]
    fn from(error: conquest::Error) -> Stop {
        match error {
            // Nothing has been done. Content that lies on a disk alone is read and changed through the mount.
            conquest::Error::Outside | conquest::Error::OnDisk | conquest::Error::Forked => Stop::Kernel,
            error => match error.errno() {
                // The program has closed a descriptor of the pool's memory.
                Errno::BADF => Stop::Kernel,
                errno => Stop::Errno(errno),
            },
        }
    }
}

/// `*at` calls without `at`.
const CWD: usize = AT_FDCWD as isize as usize;

impl State {
    /// The result of system call `nr`.
    #[inline(always)]
    pub fn serve(&self, nr: u32, args: &[usize; 6]) -> Outcome {
        let &[a, b, c, d, ..] = args;
        #[allow(non_upper_case_globals)]
        match c_long::from(nr) {
            SYS_stat => self.stat((CWD, a), b, 0),
            SYS_lstat => self.stat((CWD, a), b, AT_SYMLINK_NOFOLLOW as u32),
            SYS_newfstatat => self.stat((a, b), c, d as u32),
            SYS_fstat => self.fstat(a, b),
            SYS_read => self.read(a, b, c),
            SYS_write => self.write(a, b, c),
            SYS_close => self.close(a),
            SYS_open => self.open((CWD, a), b as u32, c as u32),
            SYS_openat => self.open((a, b), c as u32, d as u32),
            SYS_unlink => self.unlink((CWD, a), 0),
            SYS_rename => self.rename((CWD, a), (CWD, b), 0),
            _ => self.serve_more(nr, args),
        }
    }

    /// Calls that are made less often.
    #[inline(never)]
    fn serve_more(&self, nr: u32, args: &[usize; 6]) -> Outcome {
        let &[a, b, c, d, e, f] = args;
        #[allow(non_upper_case_globals)]
        match c_long::from(nr) {
            SYS_creat => self.open((CWD, a), (O_CREAT | O_WRONLY | O_TRUNC) as u32, b as u32),
            SYS_openat2 => self.openat2((a, b), c, d),
            SYS_pread64 => self.pread(a, b, c, d),
            SYS_pwrite64 => self.pwrite(a, b, c, d),
            SYS_readv => self.readv(a, (b, c), None, 0),
            SYS_writev => self.writev(a, (b, c), None, 0),
            SYS_preadv => self.readv(a, (b, c), Some(d), 0),
            SYS_pwritev => self.writev(a, (b, c), Some(d), 0),
            SYS_preadv2 => self.readv(a, (b, c), Some(d).filter(|at| *at != usize::MAX), f as u32),
            SYS_pwritev2 => self.writev(a, (b, c), Some(d).filter(|at| *at != usize::MAX), f as u32),
            SYS_lseek => self.lseek(a, b as i64, c as u32),
            SYS_statx => self.statx((a, b), c as u32, d as u32, e),
            SYS_access => self.access((CWD, a), b as u32, 0),
            SYS_faccessat => self.access((a, b), c as u32, 0),
            SYS_faccessat2 => self.access((a, b), c as u32, d as u32),
            SYS_getdents64 => self.getdents64(a, b, c as u32 as usize),
            SYS_dup => self.duplicate(a, 0, false),
            SYS_dup2 => self.dup2(a, b),
            SYS_dup3 => self.dup3(a, b, c as u32),
            SYS_fcntl => self.fcntl(a, b as u32, c),
            SYS_close_range => self.close_range(a as u32, b as u32, c as u32),
            SYS_ftruncate => self.ftruncate(a, b as i64),
            SYS_truncate => self.truncate((CWD, a), b as i64),
            SYS_fsync => self.fsync(a, false),
            SYS_fdatasync => self.fsync(a, true),
            SYS_mkdir => self.mkdir((CWD, a), b as u32),
            SYS_mkdirat => self.mkdir((a, b), c as u32),
            SYS_rmdir => self.unlink((CWD, a), AT_REMOVEDIR as u32),
            SYS_unlinkat => self.unlink((a, b), c as u32),
            SYS_renameat => self.rename((a, b), (c, d), 0),
            SYS_renameat2 => self.rename((a, b), (c, d), e as u32),
            SYS_readlink => self.readlink((CWD, a), b, c as i32),
            SYS_readlinkat => self.readlink((a, b), c, d as i32),
            SYS_umask => Ok(self.umask(a as u32)),
            SYS_ioctl => self.ioctl(a, b as u32, c),
            _ => self.serve_rest(nr, args),
        }
    }

    #[inline(never)]
    fn serve_rest(&self, nr: u32, args: &[usize; 6]) -> Outcome {
        let &[a, b, c, d, e, f] = args;
        let empty = c"".as_ptr() as usize;
        #[allow(non_upper_case_globals)]
        match c_long::from(nr) {
            SYS_link => self.link((CWD, a), (CWD, b), 0),
            SYS_linkat => self.link((a, b), (c, d), e as u32),
            SYS_symlink => self.symlink(a, (CWD, b)),
            SYS_symlinkat => self.symlink(a, (b, c)),
            SYS_mknod => self.mknod((CWD, a), b as u32),
            SYS_mknodat => self.mknod((a, b), c as u32),
            SYS_chmod => self.chmod((CWD, a), b as u32, 0),
            SYS_fchmod => self.fchmod(a, b as u32),
            SYS_fchmodat => self.chmod((a, b), c as u32, 0),
            SYS_fchmodat2 => self.chmod((a, b), c as u32, d as u32),
            SYS_chown => self.chown((CWD, a), (b as u32, c as u32), 0),
            SYS_lchown => self.chown((CWD, a), (b as u32, c as u32), AT_SYMLINK_NOFOLLOW as u32),
            SYS_fchown => self.fchown(a, (b as u32, c as u32)),
            SYS_fchownat => self.chown((a, b), (c as u32, d as u32), e as u32),
            SYS_utime => self.utime(a, b),
            SYS_utimes => self.utimes((CWD, a), b),
            SYS_futimesat => self.utimes((a, b), c),
            SYS_utimensat => self.utimensat((a, b), c, d as u32),
            SYS_fallocate => self.fallocate(a, b as u32, c as i64, d as i64),
            SYS_statfs => self.statfs((CWD, a), b),
            SYS_fstatfs => self.fstatfs(a, b),
            SYS_fadvise64 => self.fadvise(a, c as i64, d as u32),
            SYS_readahead => self.readahead(a),
            SYS_sync_file_range => self.sync_file_range(a, (b as i64, c as i64), d as u32),
            SYS_syncfs => self.syncfs(a),
            SYS_flock => self.flock(a, b as u32),
            SYS_mmap => self.map(d, e),
            SYS_copy_file_range => self.copy_file_range((a, b), (c, d), e, f as u32),
            SYS_sendfile => self.sendfile(a, b, c, d),
            SYS_setxattr => self.setxattr((CWD, a), 0, b, (c, d), e as u32),
            SYS_lsetxattr => self.setxattr((CWD, a), AT_SYMLINK_NOFOLLOW as u32, b, (c, d), e as u32),
            SYS_fsetxattr => self.setxattr((a, empty), AT_EMPTY_PATH as u32, b, (c, d), e as u32),
            SYS_getxattr => self.getxattr((CWD, a), 0, b, (c, d)),
            SYS_lgetxattr => self.getxattr((CWD, a), AT_SYMLINK_NOFOLLOW as u32, b, (c, d)),
            SYS_fgetxattr => self.getxattr((a, empty), AT_EMPTY_PATH as u32, b, (c, d)),
            SYS_listxattr => self.listxattr((CWD, a), 0, (b, c)),
            SYS_llistxattr => self.listxattr((CWD, a), AT_SYMLINK_NOFOLLOW as u32, (b, c)),
            SYS_flistxattr => self.listxattr((a, empty), AT_EMPTY_PATH as u32, (b, c)),
            SYS_removexattr => self.removexattr((CWD, a), 0, b),
            SYS_lremovexattr => self.removexattr((CWD, a), AT_SYMLINK_NOFOLLOW as u32, b),
            SYS_fremovexattr => self.removexattr((a, empty), AT_EMPTY_PATH as u32, b),
            _ => Err(Stop::Kernel),
        }
    }

    /// The kernel's umask, and the one that counts here.
    fn umask(&self, mask: u32) -> usize {
        self.identities.set_umask(mask);
        rustix::process::umask(rustix::fs::Mode::from_bits_truncate(mask & 0o777)).bits() as usize
    }
}

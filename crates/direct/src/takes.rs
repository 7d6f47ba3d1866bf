//! Which arguments of a system call are descriptors: before the kernel is asked, they are made real.

use libc::*;

/// The descriptors that a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    None,
    /// These arguments.
    Args(&'static [usize]),
    /// An array of `struct pollfd`: address and length.
    Poll,
    /// Numbers below the first argument.
    Below,
    /// Those that a message of the second argument holds.
    Message,
    /// All that the process has.
    All,
    /// All that a new program gets.
    Inherited,
    /// The first argument, which a new program need not get, and all that it gets.
    FirstAndInherited,
    /// All, unless the flags say that the table of descriptors is shared: those of the argument, or in memory there.
    Clone {
        in_memory: bool,
    },
}

const FIRST: Takes = Takes::Args(&[0]);
const SECOND: Takes = Takes::Args(&[1]);
const FIRST_AND_SECOND: Takes = Takes::Args(&[0, 1]);
const FIRST_AND_THIRD: Takes = Takes::Args(&[0, 2]);

/// From Linux 6.13 on, beyond those that `libc` knows.
const SYS_SETXATTRAT: c_long = 463;
const SYS_REMOVEXATTRAT: c_long = 466;
const SYS_FILE_GETATTR: c_long = 468;
const SYS_FILE_SETATTR: c_long = 469;

/// The descriptors that system call `nr` takes; all, where that is not known.
pub fn of(nr: u32) -> Takes {
    #[allow(non_upper_case_globals)]
    match c_long::from(nr) {
        SYS_read | SYS_write | SYS_close | SYS_fstat | SYS_lseek | SYS_ioctl | SYS_pread64 | SYS_pwrite64 => FIRST,
        SYS_readv | SYS_writev | SYS_preadv | SYS_pwritev | SYS_preadv2 | SYS_pwritev2 | SYS_dup | SYS_dup2 => FIRST,
        SYS_dup3 | SYS_fcntl | SYS_flock | SYS_fsync | SYS_fdatasync | SYS_ftruncate | SYS_getdents => FIRST,
        SYS_getdents64 | SYS_fchdir | SYS_fchmod | SYS_fchown | SYS_fstatfs | SYS_readahead | SYS_fadvise64 => FIRST,
        SYS_fsetxattr | SYS_fgetxattr | SYS_flistxattr | SYS_fremovexattr | SYS_sync_file_range => FIRST,
        SYS_fallocate | SYS_syncfs | SYS_vmsplice | SYS_name_to_handle_at | SYS_open_by_handle_at => FIRST,
        SYS_openat | SYS_openat2 | SYS_mkdirat | SYS_mknodat | SYS_fchownat | SYS_futimesat | SYS_newfstatat => FIRST,
        SYS_unlinkat | SYS_readlinkat | SYS_fchmodat | SYS_fchmodat2 | SYS_faccessat | SYS_faccessat2 => FIRST,
        SYS_utimensat | SYS_statx | SYS_inotify_add_watch | SYS_epoll_wait | SYS_epoll_pwait => FIRST,
        SYS_open_tree | SYS_fspick | SYS_mount_setattr | SYS_setns | SYS_finit_module => FIRST,
        SYS_SETXATTRAT..=SYS_REMOVEXATTRAT | SYS_FILE_GETATTR | SYS_FILE_SETATTR => FIRST,
        SYS_connect | SYS_accept | SYS_accept4 | SYS_bind | SYS_listen | SYS_shutdown | SYS_getsockname => FIRST,
        SYS_getpeername | SYS_setsockopt | SYS_getsockopt | SYS_sendto | SYS_recvfrom | SYS_recvmsg => FIRST,
        SYS_symlinkat => SECOND,
        SYS_sendfile => FIRST_AND_SECOND,
        SYS_renameat | SYS_renameat2 | SYS_linkat | SYS_copy_file_range | SYS_splice | SYS_epoll_ctl => FIRST_AND_THIRD,
        SYS_move_mount => FIRST_AND_THIRD,
        SYS_tee => FIRST_AND_SECOND,
        SYS_mmap => Takes::Args(&[4]),
        SYS_fanotify_mark => Takes::Args(&[0, 3]),
        SYS_poll | SYS_ppoll => Takes::Poll,
        SYS_select | SYS_pselect6 => Takes::Below,
        SYS_sendmsg => Takes::Message,
        SYS_execve => Takes::Inherited,
        SYS_execveat => Takes::FirstAndInherited,
        SYS_clone => Takes::Clone { in_memory: false },
        SYS_clone3 => Takes::Clone { in_memory: true },
        SYS_open | SYS_creat | SYS_stat | SYS_lstat | SYS_access | SYS_truncate | SYS_chdir | SYS_rename
        | SYS_mkdir => Takes::None,
        SYS_rmdir | SYS_link | SYS_unlink | SYS_symlink | SYS_readlink | SYS_chmod | SYS_chown | SYS_lchown => {
            Takes::None
        }
        SYS_utime | SYS_utimes | SYS_mknod | SYS_statfs | SYS_chroot | SYS_mount | SYS_umount2 | SYS_swapon => {
            Takes::None
        }
        SYS_swapoff | SYS_setxattr | SYS_lsetxattr | SYS_getxattr | SYS_lgetxattr | SYS_listxattr | SYS_llistxattr => {
            Takes::None
        }
        SYS_removexattr | SYS_lremovexattr | SYS_pivot_root | SYS_acct | SYS_umask | SYS_getcwd | SYS_sync => {
            Takes::None
        }
        // These close or replace descriptors, and are wholly served.
        SYS_close_range => Takes::None,
        // Credentials and limits.
        SYS_setuid | SYS_setgid | SYS_setreuid | SYS_setregid | SYS_setgroups | SYS_setresuid | SYS_setresgid => {
            Takes::None
        }
        SYS_setfsuid | SYS_setfsgid | SYS_capset | SYS_setrlimit | SYS_prlimit64 | SYS_getrlimit | SYS_prctl => {
            Takes::None
        }
        SYS_socket | SYS_socketpair | SYS_pipe | SYS_pipe2 | SYS_eventfd2 | SYS_memfd_create | SYS_epoll_create1 => {
            Takes::None
        }
        _ => Takes::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_may_take_any() {
        assert_eq!((of(9999), of(SYS_io_uring_setup as u32)), (Takes::All, Takes::All));
        assert_eq!(of(SYS_mmap as u32), Takes::Args(&[4]));
        assert_eq!(of(SYS_open as u32), Takes::None);
    }
}

//! The system calls that name files, and how.

/// How the arguments of a call name files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// By none that a pool could have.
    Other,
    /// By a path in this argument.
    Path(u8),
    /// By paths in these two.
    Paths(u8, u8),
    /// By a path in the second of these, from the directory that the first is a descriptor of.
    At(u8, u8),
    /// By two of these.
    TwoAt([u8; 2], [u8; 2]),
    /// By the descriptor in this argument.
    Descriptor(u8),
    /// By the descriptors in these two.
    Descriptors(u8, u8),
    /// It maps the descriptor in the fifth argument, if that is one.
    Map,
    /// Perhaps by descriptors in memory that it points to.
    Somehow,
    Clone,
    Exec,
    /// It sets the working directory.
    Enter,
    /// It changes which mounts the process sees.
    Mounts,
    /// It changes the credentials or the umask.
    Credentials,
    /// It may change the limit of file sizes, or of memory.
    Limits,
    /// It sets what a signal does.
    Signal,
    /// It waits for a child, which may have mounted something.
    Wait,
}

const CALLS: usize = 512;

/// A class, and the calls of it.
type Row = (Class, &'static [(&'static str, libc::c_long)]);

macro_rules! table {
    ($($class:expr => $($call:ident)*;)*) => {
        const TABLE: &[Row] = &[$(($class, &[$((stringify!($call), libc::$call)),*])),*];
    };
}

table! {
    Class::Path(0) =>
        SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_truncate SYS_mkdir SYS_rmdir SYS_unlink SYS_readlink
        SYS_chmod SYS_chown SYS_lchown SYS_utime SYS_utimes SYS_statfs SYS_mknod SYS_setxattr SYS_lsetxattr
        SYS_getxattr SYS_lgetxattr SYS_listxattr SYS_llistxattr SYS_removexattr SYS_lremovexattr;
    Class::Path(1) => SYS_symlink;
    Class::Paths(0, 1) => SYS_rename SYS_link;
    Class::At(0, 1) =>
        SYS_openat SYS_openat2 SYS_newfstatat SYS_statx SYS_faccessat SYS_faccessat2 SYS_mkdirat SYS_unlinkat
        SYS_readlinkat SYS_fchmodat SYS_fchmodat2 SYS_fchownat SYS_utimensat SYS_futimesat SYS_mknodat SYS_name_to_handle_at;
    Class::At(1, 2) => SYS_symlinkat;
    Class::TwoAt([0, 1], [2, 3]) => SYS_renameat SYS_renameat2 SYS_linkat;
    Class::Descriptor(0) =>
        SYS_read SYS_write SYS_close SYS_fstat SYS_lseek SYS_ioctl SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev
        SYS_dup SYS_fcntl SYS_flock SYS_fsync SYS_fdatasync SYS_ftruncate SYS_getdents SYS_getdents64
        SYS_fchmod SYS_fchown SYS_fstatfs SYS_readahead SYS_fsetxattr SYS_fgetxattr SYS_flistxattr
        SYS_fremovexattr SYS_fadvise64 SYS_sync_file_range SYS_vmsplice SYS_fallocate SYS_preadv SYS_pwritev
        SYS_preadv2 SYS_pwritev2 SYS_syncfs
        // A file is no socket, queue, timer, or set of signals or events: the kernel says so of a real descriptor.
        SYS_bind SYS_connect SYS_listen SYS_accept SYS_accept4 SYS_getsockname SYS_getpeername SYS_getsockopt SYS_setsockopt
        SYS_sendto SYS_recvfrom SYS_recvmsg SYS_recvmmsg SYS_shutdown SYS_signalfd SYS_signalfd4 SYS_timerfd_settime
        SYS_timerfd_gettime SYS_inotify_add_watch SYS_inotify_rm_watch SYS_epoll_wait SYS_epoll_pwait SYS_epoll_pwait2;
    Class::Descriptors(0, 1) => SYS_sendfile SYS_tee SYS_dup2 SYS_dup3;
    Class::Descriptors(0, 2) => SYS_splice SYS_copy_file_range SYS_epoll_ctl;
    Class::Map => SYS_mmap;
    Class::Somehow =>
        SYS_close_range SYS_poll SYS_ppoll SYS_select SYS_pselect6 SYS_sendmsg SYS_sendmmsg SYS_io_submit
        SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register SYS_pidfd_getfd SYS_fanotify_mark SYS_kcmp;
    Class::Clone => SYS_clone SYS_clone3 SYS_fork SYS_vfork;
    Class::Exec => SYS_execve SYS_execveat;
    Class::Enter => SYS_chdir SYS_fchdir;
    Class::Mounts => SYS_chroot SYS_pivot_root SYS_unshare SYS_setns SYS_mount SYS_umount2 SYS_move_mount;
    Class::Credentials =>
        SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setfsuid SYS_setfsgid
        SYS_setgroups SYS_capset SYS_umask;
    Class::Limits => SYS_setrlimit SYS_prlimit64;
    Class::Signal => SYS_rt_sigaction;
    Class::Wait => SYS_wait4 SYS_waitid;
}

static CLASSES: [Class; CALLS] = classes();

const fn classes() -> [Class; CALLS] {
    let mut of = [Class::Other; CALLS];
    let mut row = 0;
    while row < TABLE.len() {
        let (class, calls) = TABLE[row];
        let mut n = 0;
        while n < calls.len() {
            of[calls[n].1 as usize] = class;
            n += 1;
        }
        row += 1;
    }
    of
}

/// The name of a call that is in the table.
pub fn name(nr: u32) -> &'static str {
    let all = TABLE.iter().flat_map(|(_, calls)| *calls);
    all.into_iter().find(|call| call.1 == i64::from(nr)).map_or("another", |call| call.0.trim_start_matches("SYS_"))
}

impl Class {
    #[inline]
    pub fn of(nr: u32) -> Class {
        CLASSES.get(nr as usize).copied().unwrap_or(Class::Other)
    }
}

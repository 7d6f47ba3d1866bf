//! Calls one by one.

use std::ffi::CString;

use libc::*;

use super::both::{Both, Side};
use crate::Answer;

#[test]
fn a_file_is_made_written_read_and_closed() {
    let mut both = Both::new();
    let path = both.path("f");
    let path = path.as_ptr() as usize;
    let flags = (O_CREAT | O_RDWR | O_EXCL | O_CLOEXEC) as usize;
    both.opens("open", SYS_open, &|_: &Side| [path, flags, 0o644, 0, 0, 0]);
    assert!(both.engine.is_direct(both.direct.fds[0]) && !both.engine.is_direct(both.kernel.fds[0]));
    assert_eq!(both.same("again", SYS_open, &|_| [path, flags, 0o644, 0, 0, 0]), -(EEXIST as isize));
    let text = b"hello";
    both.same("write", SYS_write, &|side| [side.fd(0), text.as_ptr() as usize, text.len(), 0, 0, 0]);
    both.same("lseek", SYS_lseek, &|side| [side.fd(0), 1, 0, 0, 0, 0]);
    assert_eq!(both.same("read", SYS_read, &|side| [side.fd(0), side.buf(), 100, 0, 0, 0]), 4);
    assert_eq!((&both.direct.buf[..4], &both.kernel.buf[..4]), (&b"ello"[..], &b"ello"[..]));
    both.same("close", SYS_close, &|side| [side.fd(0), 0, 0, 0, 0, 0]);
    assert!(!both.engine.is_direct(both.direct.fds[0]));
    both.same("unlink", SYS_unlink, &|_| [path, 0, 0, 0, 0, 0]);
    assert_eq!(both.same("stat", SYS_stat, &|side| [path, side.buf(), 0, 0, 0, 0]), -(ENOENT as isize));
    (both.direct.fds, both.kernel.fds) = (Vec::new(), Vec::new());
    assert_eq!(both.left, 0);
}

#[test]
fn paths_begin_at_a_directory_that_was_opened_for_nothing_else() {
    let mut both = Both::new();
    let (dir, name) = (both.path("d"), c"sub".as_ptr() as usize);
    let dir = dir.as_ptr() as usize;
    both.same("mkdir", SYS_mkdir, &|_| [dir, 0o755, 0, 0, 0, 0]);
    both.opens("open", SYS_open, &|_| [dir, (O_PATH | O_CLOEXEC | O_CREAT) as usize, 0, 0, 0, 0]);
    both.opens("dup", SYS_dup, &|side| [side.fd(0), 0, 0, 0, 0, 0]);
    assert!(both.direct.fds.iter().all(|fd| both.engine.is_direct(*fd)));
    assert_eq!(both.same("mkdirat", SYS_mkdirat, &|side| [side.fd(1), name, 0o755, 0, 0, 0]), 0);
    both.same_stat("fstat", SYS_fstat, &|side| [side.fd(0), side.out(), 0, 0, 0, 0], false);
    let (empty, flags) = (c"".as_ptr() as usize, AT_EMPTY_PATH as usize);
    both.same_stat("newfstatat", SYS_newfstatat, &|side| [side.fd(0), empty, side.out(), flags, 0, 0], false);
    for nr in [SYS_read, SYS_getdents64, SYS_fchmod, SYS_fsync, SYS_ftruncate, SYS_sendfile] {
        let failed = both.same("no file", nr, &|side| [side.fd(0), side.buf(), 0, 10, 0, 0]);
        assert_eq!(failed, -(EBADF as isize), "call {nr}");
    }
    both.same("unlinkat", SYS_unlinkat, &|side| [side.fd(1), name, AT_REMOVEDIR as usize, 0, 0, 0]);
    // A file, and a symbolic link itself: the kernel opens them.
    let file = both.path("f");
    both.opens("creat", SYS_creat, &|_| [file.as_ptr() as usize, 0o600, 0, 0, 0, 0]);
    let left = both.left;
    both.opens_or_leaves("a file", SYS_open, &|_| [file.as_ptr() as usize, O_PATH as usize, 0, 0, 0, 0], true);
    assert_eq!(both.left, left + 1);
}

#[test]
fn paths_name_descriptors() {
    let mut both = Both::new();
    let (dir, file) = (both.path("d"), both.path("f"));
    both.same("mkdir", SYS_mkdir, &|_| [dir.as_ptr() as usize, 0o755, 0, 0, 0, 0]);
    both.opens("the directory", SYS_open, &|_| [dir.as_ptr() as usize, (O_PATH | O_DIRECTORY) as usize, 0, 0, 0, 0]);
    both.opens("creat", SYS_creat, &|_| [file.as_ptr() as usize, 0o600, 0, 0, 0, 0]);
    for n in 0..2 {
        let named = |side: &Side| CString::new(format!("/proc/self/fd/{}", side.fd(n))).unwrap();
        let (direct, kernel) = (named(&both.direct), named(&both.kernel));
        let is_direct = both.direct.fd(n);
        let path = |side: &Side| if side.fd(n) == is_direct { direct.as_ptr() } else { kernel.as_ptr() } as usize;
        assert_eq!(both.same("chmod", SYS_chmod, &|side| [path(side), 0o711, 0, 0, 0, 0]), 0);
        both.same("utimes", SYS_utimes, &|side| [path(side), 0, 0, 0, 0, 0]);
        both.same_stat("stat", SYS_stat, &|side| [path(side), side.out(), 0, 0, 0, 0], false);
        both.same("chown", SYS_chown, &|side| [path(side), 1, 2, 0, 0, 0]);
        assert!(both.engine.is_direct(both.direct.fds[n]));
    }
    for name in ["/proc/self/fd/+", "/proc/self/fd/0"] {
        // There is no such entry. The engine has nothing to say of it, and no mount here to make the descriptor real on.
        let path = CString::new(format!("{name}{}", both.direct.fds[1])).unwrap();
        let answer = both.engine.call(SYS_chmod as u32, &[path.as_ptr() as usize, 0o700, 0, 0, 0, 0]);
        assert_ne!(answer, Answer::Done(0), "{name}");
    }
    // Of the link itself the kernel tells, and the descriptor is to be real: there is no mount here that it could be opened on.
    let named = CString::new(format!("/proc/self/fd/{}", both.direct.fds[1])).unwrap();
    let args = [named.as_ptr() as usize, both.direct.out(), 0, 0, 0, 0];
    assert_eq!(both.engine.call(SYS_lstat as u32, &args), Answer::Done(-(EBADF as isize)));
}

#[test]
fn content_of_another_file_system_is_copied() {
    let mut both = Both::new();
    let path = both.path("f");
    let text: Vec<u8> = (0..200_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let mut source = tempfile::tempfile_in("/dev/shm").unwrap();
    std::io::Write::write_all(&mut source, &text).unwrap();
    let from = std::os::fd::AsRawFd::as_raw_fd(&source) as usize;
    both.opens("open", SYS_open, &|_| [path.as_ptr() as usize, (O_CREAT | O_RDWR) as usize, 0o600, 0, 0, 0]);
    for (start, len) in [(0, 150_000), (150_000, 1 << 30), (200_000, 10), (5, 70_000)] {
        let offset = std::cell::Cell::new(0u64);
        let args = |side: &Side| {
            offset.set(start);
            [from, offset.as_ptr() as usize, side.fd(0), 0, len, 0]
        };
        let copied = both.same("copy_file_range", SYS_copy_file_range, &args);
        assert_eq!(offset.get(), start + copied as u64);
    }
    for at in (0..280_000).step_by(1 << 16) {
        both.same("pread", SYS_pread64, &|side| [side.fd(0), side.buf(), 1 << 16, at, 0, 0]);
        assert!(both.direct.buf == both.kernel.buf, "from {at} on");
    }
    let none = std::fs::File::open("/proc/self/status").unwrap();
    let none = std::os::fd::AsRawFd::as_raw_fd(&none) as usize;
    let args = |side: &Side| [none, 0, side.fd(0), 0, 100, 0];
    assert_eq!(both.results(SYS_copy_file_range, &args).0, Some(-(EXDEV as isize)), "its size is not known");
}

//! Calls one by one.

use libc::*;

use super::both::{Both, Side};

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

//! Calls of a user who may not do everything.

use std::ffi::CString;

use libc::*;

use super::both::{Both, Side};
use super::world;
use crate::raw;

const USER: usize = 1000;
const GROUP: usize = 5;

/// Paths, their modes and owners; a directory ends with a slash.
const TREE: &[(&str, usize, usize, usize)] = &[
    ("mine/", 0o755, USER, USER),
    ("mine/f", 0o644, USER, USER),
    ("mine/unreadable", 0o200, USER, USER),
    ("mine/suid", 0o6755, USER, USER),
    ("mine/roots", 0o644, 0, 0),
    ("closed/", 0o700, 0, 0),
    ("closed/f", 0o666, 0, 0),
    ("listed/", 0o744, 0, 0),
    ("listed/f", 0o666, 0, 0),
    ("searched/", 0o711, 0, 0),
    ("searched/f", 0o640, 0, GROUP),
    ("searched/suid", 0o6777, 0, 0),
    ("searched/sgid", 0o2767, 0, GROUP),
    ("sticky/", 0o1777, 0, 0),
    ("sticky/mine", 0o600, USER, USER),
    ("sticky/roots", 0o666, 0, 0),
    ("grouped/", 0o2775, 0, GROUP),
    ("grouped/f", 0o660, 0, GROUP),
];

fn as_root(both: &mut Both) {
    for nr in [SYS_setresuid, SYS_setresgid] {
        assert_eq!(raw::kernel(nr, &[0; 6]), 0);
    }
    both.engine.refresh_thread();
}

fn as_user(both: &mut Both) {
    let groups = [GROUP as u32];
    assert_eq!(raw::kernel(SYS_setgroups, &[1, groups.as_ptr() as usize, 0, 0, 0, 0]), 0);
    assert_eq!(raw::kernel(SYS_setresgid, &[USER, USER, 0, 0, 0, 0]), 0);
    // The saved one leads back.
    assert_eq!(raw::kernel(SYS_setresuid, &[USER, USER, 0, 0, 0, 0]), 0);
    both.engine.refresh_thread();
}

fn make(both: &mut Both, tree: &str) {
    let root = both.path(tree);
    both.same("mkdir", SYS_mkdir, &|_| [root.as_ptr() as usize, 0o755, 0, 0, 0, 0]);
    for (path, mode, uid, gid) in TREE {
        let full = both.path(&format!("{tree}/{path}"));
        let full = full.as_ptr() as usize;
        match path.ends_with('/') {
            true => both.same(path, SYS_mkdir, &|_| [full, 0o755, 0, 0, 0, 0]),
            false => both.same(path, SYS_mknod, &|_| [full, 0o644, 0, 0, 0, 0]),
        };
        both.same(path, SYS_chown, &|_| [full, *uid, *gid, 0, 0, 0]);
        both.same(path, SYS_chmod, &|_| [full, *mode, 0, 0, 0, 0]);
    }
}

/// What the user tries with a path: 0 stands for it.
fn tries(other: usize, times: usize) -> Vec<(&'static str, c_long, [usize; 5])> {
    let open = |flags: i32| ("open", SYS_open, [flags as usize, 0o666, 0, 0, 0]);
    let mut all = vec![
        open(O_RDONLY),
        open(O_WRONLY),
        open(O_RDWR),
        open(O_WRONLY | O_TRUNC),
        open(O_WRONLY | O_CREAT),
        open(O_WRONLY | O_CREAT | O_EXCL),
        open(O_RDONLY | O_DIRECTORY),
        ("mkdir", SYS_mkdir, [0o777, 0, 0, 0, 0]),
        ("mknod", SYS_mknod, [0o6666, 0, 0, 0, 0]),
        ("rmdir", SYS_rmdir, [0; 5]),
        ("unlink", SYS_unlink, [0; 5]),
        ("rename", SYS_rename, [other, 0, 0, 0, 0]),
        ("truncate", SYS_truncate, [3, 0, 0, 0, 0]),
        ("utime", SYS_utime, [0; 5]),
        ("utime", SYS_utime, [times, 0, 0, 0, 0]),
    ];
    all.extend((0..8).map(|mode| ("access", SYS_access, [mode, 0, 0, 0, 0])));
    all.extend([0o600, 0o2755, 0o4711].map(|mode| ("chmod", SYS_chmod, [mode, 0, 0, 0, 0])));
    let owners =
        [(USER, USER), (0, 0), (USER, GROUP), (u32::MAX as usize, GROUP), (u32::MAX as usize, u32::MAX as usize)];
    all.extend(owners.map(|(uid, gid)| ("chown", SYS_chown, [uid, gid, 0, 0, 0])));
    all
}

fn try_one(both: &mut Both, path: &str, n: usize, (what, nr, rest): (&str, c_long, [usize; 5])) {
    let tree = format!("u{n}");
    make(both, &tree);
    let full: CString = both.path(&format!("{tree}/{path}"));
    // In the tree of its own.
    let other = both.path(&format!("{tree}/mine/renamed"));
    let what = format!("{what} {path} {rest:?}");
    let left = both.left;
    as_user(both);
    let args = |_: &Side| {
        let first = if nr == SYS_rename { other.as_ptr() as usize } else { rest[0] };
        [full.as_ptr() as usize, first, rest[1], rest[2], rest[3], rest[4]]
    };
    match nr {
        open if open == SYS_open => both.opens_or_leaves(&what, nr, &args, true),
        nr => _ = both.same_or_left(&what, nr, &args, true),
    }
    as_root(both);
    match both.left == left {
        true => world::compare_and_remove(both, &tree, &what),
        // What the kernel alone may reserve to owners.
        false => assert!(path.starts_with("sticky"), "{what} was left to the kernel"),
    }
}

#[test]
fn a_user_may_do_what_a_user_may_on_tmpfs() {
    // The credentials are those of a thread, which ends with it.
    let done = std::thread::spawn(|| {
        let mut both = Both::new();
        let (mut n, times) = (0, [5i64, 6]);
        let paths = TREE.iter().map(|(path, ..)| path.trim_end_matches('/').to_string());
        let new = ["mine/new", "closed/new", "listed/new", "searched/new", "sticky/new", "grouped/new", "new"];
        for path in paths.chain(new.map(String::from)) {
            for call in tries(0, times.as_ptr() as usize) {
                n += 1;
                try_one(&mut both, &path, n, call);
            }
        }
    });
    done.join().unwrap();
}

#[test]
fn a_users_write_takes_set_id_bits() {
    let done = std::thread::spawn(|| {
        let mut both = Both::new();
        make(&mut both, "u");
        as_user(&mut both);
        for (n, path) in ["mine/suid", "searched/suid", "searched/sgid"].into_iter().enumerate() {
            let full = both.path(&format!("u/{path}"));
            both.opens(path, SYS_open, &|_| [full.as_ptr() as usize, O_WRONLY as usize, 0, 0, 0, 0]);
            both.same_stat(path, SYS_fstat, &|side| [side.fd(n), side.out(), 0, 0, 0, 0], false);
            both.same(path, SYS_write, &|side| [side.fd(n), c"text".as_ptr() as usize, 4, 0, 0, 0]);
            both.same_stat(path, SYS_fstat, &|side| [side.fd(n), side.out(), 0, 0, 0, 0], false);
        }
        as_root(&mut both);
        world::compare_and_remove(&both, "u", "writes");
    });
    done.join().unwrap();
}

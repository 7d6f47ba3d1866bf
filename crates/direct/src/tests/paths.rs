//! All calls that take a path, on all kinds of paths.

use std::ffi::CString;

use libc::*;

use super::both::{Both, Side};
use super::world;

/// Names in a tree, and what may be behind one.
const NAMES: &[&str] = &[
    "f",
    "d",
    "e",
    "x",
    "d/f",
    "d/sub",
    "d/full",
    "missing",
    "missing/x",
    "l_rel",
    "l_dir",
    "l_slash",
    "l_file_slash",
    "l_abs",
    "l_abs_dir",
    "l_dangling",
    "l_dangling_dir",
    "l_loop",
    "l_two",
    "d/l_up",
    "l_outside",
    "l_outside_up",
    "pipe",
];
const BEHIND: &[&str] = &["", "/", "/.", "/..", "/f", "/new"];
const LONGER: &[&str] = &["", "/", ".", "..", "./f", "d/../f", "d/..", "d/./f", "d//f"];

const OPEN: &[i32] = &[
    O_RDONLY,
    O_RDONLY | O_DIRECTORY,
    O_RDONLY | O_NOFOLLOW,
    O_RDONLY | O_NOFOLLOW | O_DIRECTORY,
    O_WRONLY,
    O_WRONLY | O_TRUNC,
    O_RDWR | O_APPEND,
    O_RDONLY | O_TRUNC,
    O_WRONLY | O_CREAT,
    O_WRONLY | O_CREAT | O_TRUNC,
    O_RDONLY | O_CREAT,
    O_RDWR | O_CREAT | O_EXCL,
    O_RDWR | O_CREAT | O_NOFOLLOW,
    O_WRONLY | O_DIRECTORY,
    O_RDONLY | O_EXCL,
];

fn is_outside(path: &str) -> bool {
    // The pipe is opened by the kernel only.
    path.contains("outside") || path.contains("pipe")
}

fn all_paths() -> Vec<String> {
    let names = NAMES.iter().flat_map(|name| BEHIND.iter().map(move |behind| format!("{name}{behind}")));
    let mut all: Vec<String> = names.chain(LONGER.iter().map(|path| path.to_string())).collect();
    all.extend([
        "a".repeat(255),
        "a".repeat(256),
        format!("{}f", "./".repeat(2000)),
        format!("f/{}", "a".repeat(4100)),
    ]);
    all
}

/// A call, in a tree of its own.
fn call(both: &mut Both, n: &mut usize, what: &str, path: &str, f: &dyn Fn(&mut Both, &CString)) {
    *n += 1;
    let tree = format!("t{n}");
    world::make(both, &tree);
    let full = both.path(&format!("{tree}/in/{path}"));
    let left = both.left;
    f(both, &full);
    assert!(both.left == left || is_outside(path), "{what} {path:?} was left to the kernel");
    world::compare_and_remove(both, &tree, &format!("{what} {path:?}"));
}

#[test]
fn opening_is_as_on_tmpfs() {
    let (mut both, mut n) = (Both::new(), 0);
    for path in all_paths() {
        let outside = is_outside(&path);
        let open = |both: &mut Both, full: &CString, flags: i32| {
            // A pipe would wait.
            let args = |_: &Side| [full.as_ptr() as usize, (flags | O_NONBLOCK) as usize, 0o640, 0, 0, 0];
            both.opens_or_leaves(&format!("open {path:?} {flags:o}"), SYS_open, &args, outside);
        };
        let (changing, others): (Vec<i32>, Vec<i32>) = OPEN.iter().partition(|flags| *flags & (O_CREAT | O_TRUNC) != 0);
        call(&mut both, &mut n, "open", &path, &|both, full| others.iter().for_each(|flags| open(both, full, *flags)));
        for flags in changing {
            call(&mut both, &mut n, &format!("open {flags:o}"), &path, &|both, full| open(both, full, flags));
        }
    }
}

#[test]
fn looking_is_as_on_tmpfs() {
    let (mut both, mut n) = (Both::new(), 0);
    for path in all_paths() {
        call(&mut both, &mut n, "look", &path, &|both, full| {
            let full = full.as_ptr() as usize;
            let outside = is_outside(&path);
            both.same_stat(&format!("stat {path:?}"), SYS_stat, &|side| [full, side.out(), 0, 0, 0, 0], outside);
            both.same_stat(&format!("lstat {path:?}"), SYS_lstat, &|side| [full, side.out(), 0, 0, 0, 0], outside);
            for mode in 0..9 {
                let what = format!("access {path:?} {mode}");
                both.same_or_left(&what, SYS_access, &|_| [full, mode, 0, 0, 0, 0], outside);
            }
            for len in [100, 3, 0] {
                let args = |side: &Side| [full, side.buf(), len, 0, 0, 0];
                let result = both.same_or_left(&format!("readlink {path:?}"), SYS_readlink, &args, outside);
                if let Ok(len) = usize::try_from(result) {
                    assert!(outside || both.direct.buf[..len] == both.kernel.buf[..len], "{path:?}");
                }
            }
        });
    }
}

#[test]
fn changing_is_as_on_tmpfs() {
    let (mut both, mut n) = (Both::new(), 0);
    type Call = (&'static str, c_long, [usize; 5]);
    let calls: &[Call] = &[
        ("mkdir", SYS_mkdir, [0o7755, 0, 0, 0, 0]),
        ("rmdir", SYS_rmdir, [0; 5]),
        ("unlink", SYS_unlink, [0; 5]),
        ("truncate", SYS_truncate, [3, 0, 0, 0, 0]),
        ("truncate", SYS_truncate, [usize::MAX, 0, 0, 0, 0]),
        ("creat", SYS_creat, [0o600, 0, 0, 0, 0]),
        ("mknod", SYS_mknod, [S_IFREG as usize | 0o4640, 0, 0, 0, 0]),
        ("mknod", SYS_mknod, [S_IFSOCK as usize | 0o600, 0, 0, 0, 0]),
        ("mknod", SYS_mknod, [S_IFDIR as usize | 0o600, 0, 0, 0, 0]),
        ("mknod", SYS_mknod, [S_IFLNK as usize | 0o600, 0, 0, 0, 0]),
        ("chmod", SYS_chmod, [0o6711, 0, 0, 0, 0]),
        ("chown", SYS_chown, [7, 8, 0, 0, 0]),
        ("chown", SYS_chown, [u32::MAX as usize, u32::MAX as usize, 0, 0, 0]),
        ("lchown", SYS_lchown, [7, u32::MAX as usize, 0, 0, 0]),
        ("utime", SYS_utime, [0, 0, 0, 0, 0]),
        ("statfs", SYS_statfs, [0, 0, 0, 0, 0]),
    ];
    for path in all_paths() {
        for (what, nr, rest) in calls {
            call(&mut both, &mut n, what, &path, &|both, full| {
                let args = |_: &Side| [full.as_ptr() as usize, rest[0], rest[1], rest[2], rest[3], rest[4]];
                let what = format!("{what} {path:?}");
                if *nr != SYS_creat {
                    both.same_or_left(&what, *nr, &args, is_outside(&path));
                } else if !path.contains("pipe") {
                    both.opens_or_leaves(&what, *nr, &args, is_outside(&path));
                }
            });
        }
    }
}

#[test]
fn linking_is_as_on_tmpfs() {
    let (mut both, mut n) = (Both::new(), 0);
    let olds = ["f", "f/", "d", "l_rel", "l_dir", "l_dangling", "l_loop", "missing", "", "missing/x", "pipe"];
    let news = [
        "new",
        "new/",
        "f",
        "f/",
        "d",
        "d/",
        "d/new",
        "l_dir/new",
        "l_dangling",
        "l_dangling/",
        "",
        ".",
        "..",
        "missing/x",
    ];
    for old in olds {
        for new in news {
            for flags in [0, AT_SYMLINK_FOLLOW, 0x8000] {
                call(&mut both, &mut n, "link", new, &|both, to| {
                    let tree = to.to_str().unwrap().split('/').nth(4).unwrap().to_string();
                    let from = both.path(&format!("{tree}/in/{old}"));
                    let args = |_: &Side| [CWD, from.as_ptr() as usize, CWD, to.as_ptr() as usize, flags as usize, 0];
                    both.same(&format!("link {old:?} to {new:?}, {flags}"), SYS_linkat, &args);
                });
            }
        }
    }
    for new in news {
        for target in ["t".to_string(), String::new(), "t".repeat(4095), "t".repeat(4096)] {
            call(&mut both, &mut n, "symlink", new, &|both, to| {
                let target = CString::new(target.as_str()).unwrap();
                let args = |_: &Side| [target.as_ptr() as usize, CWD, to.as_ptr() as usize, 0, 0, 0];
                both.same(&format!("symlink {:?} {new:?}", target.count_bytes()), SYS_symlinkat, &args);
            });
        }
    }
}

#[test]
fn attributes_are_as_on_tmpfs() {
    let (mut both, mut n) = (Both::new(), 0);
    let names = [c"user.a", c"user.", c"", c"other.a", c"security.capability", c"system.posix_acl_access"]
        .map(|name| (name, name.as_ptr() as usize));
    for path in all_paths() {
        let outside = is_outside(&path);
        call(&mut both, &mut n, "attributes", &path, &|both, full| {
            let full = full.as_ptr() as usize;
            let value = b"value";
            let mut same = |what: &str, nr, args: [usize; 4]| {
                let args = |side: &Side| {
                    let args = args.map(|arg| if arg == OUT { side.out() } else { arg });
                    [full, args[0], args[1], args[2], args[3], 0]
                };
                both.same_or_left(&format!("{what} {path:?}"), nr, &args, outside)
            };
            for (name, at) in names {
                same(&format!("getxattr {name:?}"), SYS_getxattr, [at, OUT, 100, 0]);
                same(&format!("lgetxattr {name:?}"), SYS_lgetxattr, [at, OUT, 100, 0]);
            }
            let at = names[0].1;
            for (len, flags) in [(5, XATTR_REPLACE), (5, XATTR_CREATE), (5, XATTR_CREATE), (4, 0), (1 << 20, 0), (5, 9)]
            {
                same("setxattr", SYS_setxattr, [at, value.as_ptr() as usize, len, flags as usize]);
            }
            for len in [0, 3, 4, 100] {
                same("getxattr", SYS_getxattr, [at, OUT, len, 0]);
                same("listxattr", SYS_listxattr, [OUT, len, 0, 0]);
            }
            same("removexattr", SYS_removexattr, [at, 0, 0, 0]);
            same("removexattr", SYS_lremovexattr, [at, 0, 0, 0]);
        });
    }
}

/// Stands for memory for results.
const OUT: usize = usize::MAX;

#[test]
fn renaming_is_as_on_tmpfs() {
    let (mut both, mut n) = (Both::new(), 0);
    let names = [
        "f",
        "f/",
        "d",
        "d/",
        "d/sub",
        "e",
        "e/",
        "d/full",
        "d/full/below",
        "missing",
        "missing/",
        "l_dir",
        "l_dir/",
        "x/y",
        "",
        ".",
        "..",
        "d/.",
        "e/..",
        "l_dangling",
        "missing/x",
    ];
    for old in names {
        for new in names {
            for flags in [0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_NOREPLACE | RENAME_EXCHANGE, 16] {
                call(&mut both, &mut n, "rename", old, &|both, from| {
                    let tree = from.to_str().unwrap().split('/').nth(4).unwrap().to_string();
                    let to = both.path(&format!("{tree}/in/{new}"));
                    let args = |_: &Side| [CWD, from.as_ptr() as usize, CWD, to.as_ptr() as usize, flags as usize, 0];
                    both.same(&format!("rename {old:?} to {new:?}, {flags}"), SYS_renameat2, &args);
                });
            }
        }
    }
}

const CWD: usize = AT_FDCWD as isize as usize;

/// The library has little stack. The path leads over forty links to a file that is made.
#[test]
fn many_links_take_no_more_stack_than_one() {
    let both = Both::new();
    world::make(&both, "t");
    for n in 0..40 {
        let (link, target) = (both.path(&format!("t/in/n{n}")), CString::new(format!("n{}", n + 1)).unwrap());
        assert_eq!(raw(&both, SYS_symlink, [target.as_ptr() as usize, link.as_ptr() as usize, 0]), 0);
    }
    let open = |name: &str| {
        let path = both.path(name);
        raw(&both, SYS_open, [path.as_ptr() as usize, (O_CREAT | O_WRONLY) as usize, 0o600])
    };
    let (loops, made) = std::thread::scope(|scope| {
        let small = std::thread::Builder::new().stack_size(256 << 10);
        small.spawn_scoped(scope, || (open("t/in/l_loop"), open("t/in/n0"))).unwrap().join().unwrap()
    });
    assert_eq!((loops, made > 0), (-ELOOP as isize, true));
    raw(&both, SYS_close, [made as usize, 0, 0]);
}

fn raw(both: &Both, nr: c_long, [a, b, c]: [usize; 3]) -> isize {
    match both.engine.call(nr as u32, &[a, b, c, 0, 0, 0]) {
        crate::Answer::Done(result) => result,
        crate::Answer::Kernel => panic!("{nr} was left to the kernel"),
    }
}

//! Times of changes: looks before and after a change find different times.

use conquest::{Caller, OpenOptions, Pool, SetAttr, Time};
use conquest_fs::node::SetXattr;
use conquest_fs::path::View;

use crate::rig::*;

fn ctime(view: &View, path: &str) -> Time {
    view.stat(path.as_bytes()).unwrap().ctime
}

/// Two changes within a tick of the clock had one time.
#[test]
fn a_change_after_a_look_has_another_time() {
    let (dir, pool) = pool(8 * MIB);
    let v = root(&pool);
    let beside = Pool::open(dir.path(), &OpenOptions::default()).unwrap();
    let other = View::new(&beside, Caller::root());
    v.mkdir(b"d", 0o755).unwrap();
    let file = v.create(b"d/f", 0o644).unwrap();
    let ino = file.ino();
    let changes: [(&str, &dyn Fn(usize)); 9] = [
        ("write", &|i| file.write_all_at(b"x", i as u64).unwrap()),
        ("truncate", &|i| file.set_len(i as u64).unwrap()),
        ("chmod", &|i| _ = v.setattr(b"d/f", &SetAttr { mode: Some(i as u32), ..SetAttr::default() }).unwrap()),
        ("setxattr", &|_| pool.setxattr(ino, b"user.a", b"1", SetXattr::Any, &Caller::root()).unwrap()),
        ("fallocate", &|_| {
            pool.fallocate(ino, conquest_fs::node::Fallocate::Allocate { keep_size: false }, 0, 100).unwrap()
        }),
        ("link", &|_| _ = v.link(b"d/f", b"d/l").unwrap()),
        ("rename", &|_| v.rename(b"d/l", b"d/k", conquest_fs::node::Rename::Replace).unwrap()),
        ("unlink", &|_| v.unlink(b"d/k").unwrap()),
        ("write by the other", &|i| other.open(b"d/f", WRITE).unwrap().write_all_at(b"y", i as u64).unwrap()),
    ];
    for i in 0..30 {
        for (name, change) in changes {
            let is_of_directory = ["link", "rename", "unlink"].contains(&name);
            let path = if is_of_directory { "d" } else { "d/f" };
            let before = (ctime(&v, path), ctime(&other, "d/f"));
            change(i);
            let after = (ctime(&other, path), pool.getattr(ino).unwrap().ctime);
            assert!(after.0 > before.0 && after.1 > before.1, "{name}: {before:?}, {after:?}");
        }
    }
    assert_tidy(&pool);
}

const WRITE: conquest_fs::path::Open = conquest_fs::path::Open::new().write(true);

/// `make` depends on this.
#[test]
fn what_was_changed_later_is_never_older() {
    let (_dir, pool) = pool(8 * MIB);
    let v = root(&pool);
    let mut last = Time(0);
    for i in 0..300 {
        let name = format!("f{}", i % 7);
        match i % 3 {
            0 => put(&v, &name, b"text").unwrap(),
            1 => _ = v.mkdir(format!("d{i}").as_bytes(), 0o755).unwrap(),
            _ => _ = v.setattr(b"f0", &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap(),
        }
        let path = [name, format!("d{i}"), "f0".into()][i % 3].clone();
        let now = ctime(&v, &path);
        assert!(now >= last, "{path}: {now:?} after {last:?}");
        last = now;
    }
}

//! The content of the golden images: a little of everything. Images of released versions are compared with this:
//! add to it, but do not change it.

use conquest::{Caller, FormatOptions, Kind, Pool, SetAttr, SetTime, Time};
use conquest_fs::node::{Fallocate, SetXattr};
use conquest_fs::path::{Open, View};

pub const SIZE: u64 = 2 << 20;
pub const LONG_LINK: &str = "this/target/is/longer/than/the/smallest/objects/and/leads/nowhere";
/// `u::rw-,u:1000:r--,g::r--,m::r--,o::---` as setfacl(1) writes it.
pub const ACL: &[u8] = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
/// Sockets, devices and the like: name, kind, device number.
pub const SPECIAL: [(&str, Kind, u64); 4] = [
    ("special/fifo", Kind::Fifo, 0),
    ("special/socket", Kind::Socket, 0),
    ("special/null", Kind::CharDevice, 0x103),
    ("special/disk", Kind::BlockDevice, 0x800),
];
/// Names in `many`, all of one file; each tenth is removed again.
pub const MANY: usize = 200;

pub fn options() -> FormatOptions {
    FormatOptions { root_owner: (0, 0), ..FormatOptions::on(conquest::MediumKind::Battery, SIZE) }
}

/// Bytes that depend on their seed and position.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Files with content: name, stretches (offset, seed, length), size.
pub type Stretch = (u64, u64, usize);
pub const FILES: [(&str, &[Stretch], u64); 6] = [
    ("empty", &[], 0),
    ("hello", &[(0, 1, 10)], 10),
    ("block", &[(0, 2, 3000)], 3000),
    ("tail", &[(0, 3, 100)], 5000),
    ("pages", &[(0, 4, 5000), (40_000, 5, 100)], 40_100),
    ("sparse", &[(1 << 30, 6, 30)], (1 << 30) + 30),
];

pub fn many(i: usize) -> String {
    format!("many/name-{i:03}{}", "-".repeat(i % 7))
}

pub fn fill(pool: &Pool) -> conquest_fs::Result<()> {
    let root = View::new(pool, Caller { umask: 0, ..Caller::root() });
    for (name, stretches, size) in FILES {
        let file = root.open(name.as_bytes(), Open::new().write(true).create(true).mode(0o640))?;
        for (offset, seed, len) in stretches {
            file.write_all_at(&pattern(*seed, *len), *offset)?;
        }
        file.set_len(size)?;
    }
    let tail = root.stat(b"tail")?.ino;
    pool.fallocate(tail, Fallocate::Allocate { keep_size: true }, 0, 9000)?;
    for dir in ["void", "many", "special", "special/below"] {
        root.mkdir(dir.as_bytes(), 0o755)?;
    }
    for i in 0..MANY {
        root.link(b"hello", many(i).as_bytes())?;
    }
    for i in (0..MANY).step_by(10) {
        root.unlink(many(i).as_bytes())?;
    }
    for (name, kind, rdev) in SPECIAL {
        root.mknod(name.as_bytes(), kind, 0o600, rdev)?;
    }
    root.symlink(b"hello", b"short")?;
    root.symlink(LONG_LINK.as_bytes(), b"long")?;
    attributes(pool, &root)
}

fn attributes(pool: &Pool, root: &View) -> conquest_fs::Result<()> {
    let times = SetAttr {
        mode: Some(0o4711),
        uid: Some(1000),
        gid: Some(100),
        atime: Some(SetTime::At(Time(-1_500_000_000))),
        mtime: Some(SetTime::At(Time(1_234_567_890_123_456_789))),
        ..SetAttr::default()
    };
    root.setattr(b"block", &times)?;
    let block = root.stat(b"block")?.ino;
    pool.setxattr(block, b"user.colour", b"blue", SetXattr::Any, &root.caller)?;
    pool.setxattr(block, b"user.nothing", b"", SetXattr::Any, &root.caller)?;
    pool.setxattr(block, b"user.long", &pattern(7, 1500), SetXattr::Any, &root.caller)?;
    pool.setxattr(root.stat(b"tail")?.ino, b"system.posix_acl_access", ACL, SetXattr::Any, &root.caller)?;
    pool.setxattr(root.stat(b"void")?.ino, b"system.posix_acl_default", ACL, SetXattr::Any, &root.caller)
}

/// Settings of layout version 2.
pub fn fill_settings(pool: &Pool) -> conquest_fs::Result<()> {
    let root = View::new(pool, Caller::root());
    for (name, value) in SETTINGS {
        let ino = root.stat(name.as_bytes())?.ino;
        pool.setxattr(ino, b"user.conquest.durability", value.as_bytes(), SetXattr::Any, &root.caller)?;
    }
    root.mkdir(b"special/inherits", 0o755).map(|_| ())
}

/// Settings: name, durability.
pub const SETTINGS: [(&str, &str); 3] = [("special", "strict"), ("empty", "fsync"), ("tail", "strict")];

#[allow(dead_code)]
pub fn compare_settings(pool: &Pool) {
    let root = View::new(pool, Caller::root());
    for (name, value) in SETTINGS.into_iter().chain([("special/inherits", "strict")]) {
        let ino = root.stat(name.as_bytes()).unwrap().ino;
        assert_eq!(pool.getxattr(ino, b"user.conquest.durability").unwrap(), value.as_bytes(), "{name}");
    }
}

/// Thresholds: name, value.
#[allow(dead_code)]
pub const THRESHOLDS: [(&str, &str); 3] = [("hello", "none"), ("tail", "64K"), ("void", "1T")];

/// The same for redundancy and priority; an empty value is not set.
#[allow(dead_code)]
pub const REDUNDANCIES: [(&str, &str, &str); 7] = [
    ("hello", "none", "low"),
    ("tail", "mirror:3", "high"),
    ("void", "lazy:7s", ""),
    ("special", "lazy:60", "normal"),
    ("empty", "lazy:17m", ""),
    ("block", "lazy:24h", ""),
    ("special/inherits", "whole", "high"),
];

/// The same for compression.
#[allow(dead_code)]
pub const COMPRESSIONS: [(&str, &str); 5] =
    [("hello", "never"), ("tail", "always"), ("void", "cold"), ("special", "warm"), ("empty", "auto")];

/// The same for times.
#[allow(dead_code)]
pub const TIMES: [(&str, &str); 3] = [("hello", "seconds"), ("special", "seconds"), ("empty", "exact")];

/// Content that golden images do not have.
#[allow(dead_code)]
pub fn fill_thresholds(pool: &Pool) -> conquest_fs::Result<()> {
    let root = View::new(pool, Caller::root());
    for (name, redundancy, priority) in REDUNDANCIES {
        let ino = root.stat(name.as_bytes())?.ino;
        for (setting, value) in
            [("redundancy", redundancy), ("priority", priority)].into_iter().filter(|s| !s.1.is_empty())
        {
            let attribute = format!("user.conquest.{setting}");
            pool.setxattr(ino, attribute.as_bytes(), value.as_bytes(), SetXattr::Any, &root.caller)?;
        }
    }
    for (name, value) in COMPRESSIONS {
        let ino = root.stat(name.as_bytes())?.ino;
        pool.setxattr(ino, b"user.conquest.compression", value.as_bytes(), SetXattr::Any, &root.caller)?;
    }
    for (name, value) in TIMES {
        let ino = root.stat(name.as_bytes())?.ino;
        pool.setxattr(ino, b"user.conquest.times", value.as_bytes(), SetXattr::Any, &root.caller)?;
    }
    for (name, value) in THRESHOLDS {
        let ino = root.stat(name.as_bytes())?.ino;
        pool.setxattr(ino, b"user.conquest.threshold", value.as_bytes(), SetXattr::Any, &root.caller)?;
    }
    Ok(())
}

/// Compares a pool with the content that [`fill`] makes.
#[allow(dead_code)] // The example that writes images only fills.
pub fn compare(pool: &Pool) {
    let root = View::new(pool, Caller::root());
    for (name, stretches, size) in FILES {
        let file = root.open(name.as_bytes(), Open::new().read(true)).unwrap();
        assert_eq!(file.attr().unwrap().size, size, "{name}");
        let mut at = 0;
        for (offset, seed, len) in stretches {
            let mut bytes = vec![1; (*offset - at).min(10_000) as usize + len];
            let start = offset + *len as u64 - bytes.len() as u64;
            assert_eq!(file.read_at(&mut bytes, start).unwrap(), bytes.len(), "{name}");
            let (hole, found) = bytes.split_at(bytes.len() - len);
            assert!(hole.iter().all(|b| *b == 0) && found == pattern(*seed, *len), "{name} at {offset}");
            at = offset + *len as u64;
        }
    }
    let kept: Vec<usize> = (0..MANY).filter(|i| i % 10 != 0).collect();
    let hello = root.stat(b"hello").unwrap();
    assert_eq!(hello.nlink as usize, 1 + kept.len());
    assert!(kept.iter().all(|i| root.stat(many(*i).as_bytes()).unwrap().ino == hello.ino));
    assert_eq!(root.read_dir(b"many").unwrap().count(), kept.len());
    assert!(root.read_dir(b"void").unwrap().next().is_none());
    for (name, kind, rdev) in SPECIAL {
        let attr = root.lstat(name.as_bytes()).unwrap();
        assert_eq!((attr.kind, attr.rdev, attr.perm), (kind, rdev, 0o600), "{name}");
    }
    assert_eq!(root.readlink(b"short").unwrap(), b"hello");
    assert_eq!(root.readlink(b"long").unwrap(), LONG_LINK.as_bytes());
    let block = root.stat(b"block").unwrap();
    assert_eq!((block.perm, block.uid, block.gid), (0o4711, 1000, 100));
    assert_eq!((block.atime, block.mtime), (Time(-1_500_000_000), Time(1_234_567_890_123_456_789)));
    let value =
        |name: &str, attr: &str| pool.getxattr(root.stat(name.as_bytes()).unwrap().ino, attr.as_bytes()).unwrap();
    assert_eq!(value("block", "user.colour"), b"blue");
    assert_eq!(value("block", "user.nothing"), b"");
    assert_eq!(value("block", "user.long"), pattern(7, 1500));
    assert_eq!(value("tail", "system.posix_acl_access"), ACL);
    assert_eq!(value("void", "system.posix_acl_default"), ACL);
}

/// Works on the pool some more.
#[allow(dead_code)]
pub fn fill_more(pool: &Pool) {
    let root = View::new(pool, Caller::root());
    for i in 0..50 {
        let name = format!("many/new-{i}");
        root.create(name.as_bytes(), 0o600).unwrap().write_all_at(name.as_bytes(), 0).unwrap();
    }
    root.unlink(b"pages").unwrap();
    root.unlink(b"block").unwrap();
}

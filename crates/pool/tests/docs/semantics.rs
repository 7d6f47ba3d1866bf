//! SEMANTICS.md: its limits, each tried from both sides where that is possible.

use conquest::{attr, path, Caller, FormatOptions, OpenOptions, Pool};
use conquest_fs::node::SetXattr;
use conquest_fs::path::View;
use rustix::io::Errno;

use crate::tables::Page;

fn pool(size: u64) -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    Pool::format(dir.path(), &FormatOptions::on(conquest::MediumKind::Battery, size)).unwrap();
    let pool = Pool::open(dir.path(), &OpenOptions::default()).unwrap();
    (dir, pool)
}

fn errno<T>(result: conquest_fs::Result<T>) -> Option<Errno> {
    result.err().map(|e| e.errno())
}

#[test]
fn limits_are_those_of_the_code_and_of_the_format() {
    let (page, format) = (Page::open("SEMANTICS.md"), Page::open("FORMAT.md"));
    let code = [
        ("NAME_MAX", attr::NAME_MAX as u64),
        ("PATH_MAX", path::PATH_MAX as u64),
        ("SYMLINK_MAX", attr::SYMLINK_MAX as u64),
        ("LINK_MAX", attr::LINK_MAX.into()),
        ("MAX_PERMS", conquest_fs::layout::PERM_CHUNK * conquest_fs::layout::PERM_CHUNKS),
        ("SESSIONS", pram::runtime::SESSIONS.into()),
        ("MIN_SIZE", pram::memory::MIN_SIZE),
        ("MAX_SIZE", pram::memory::MAX_SIZE),
    ];
    for (name, value) in code {
        assert_eq!(page.constant(name), value, "{name}");
    }
    let shared = ["MAX_FILE", "MAX_INODES", "XATTR_NAME_MAX", "XATTR_VALUE_MAX", "XATTR_TOTAL_MAX", "NAME_MAX"];
    for name in shared {
        assert_eq!(page.constant(name), format.constant(name), "{name}");
    }
    for name in page.constant_names() {
        let tried = ["SYMLINKS", "ATOMIC"].contains(&name);
        let known = tried || shared.contains(&name) || code.iter().any(|(n, _)| *n == name);
        assert!(known, "`{name}` in SEMANTICS.md is compared with nothing");
    }
}

#[test]
fn names_links_and_files_end_where_documented() {
    let page = Page::open("SEMANTICS.md");
    let (_dir, pool) = pool(16 << 20);
    let v = View::new(&pool, Caller::root());
    let name = |n: &str| vec![b'n'; page.constant(n) as usize];
    let longer = |mut name: Vec<u8>| {
        name.push(b'n');
        name
    };
    v.mkdir(name("NAME_MAX"), 0o700).unwrap();
    assert_eq!(errno(v.mkdir(longer(name("NAME_MAX")), 0o700)), Some(Errno::NAMETOOLONG));
    assert_eq!(errno(v.stat(longer(name("PATH_MAX")))), Some(Errno::NAMETOOLONG));
    v.symlink(name("SYMLINK_MAX"), b"long").unwrap();
    assert_eq!(v.readlink(b"long").unwrap(), name("SYMLINK_MAX"));
    assert_eq!(errno(v.symlink(longer(name("SYMLINK_MAX")), b"longer")), Some(Errno::NAMETOOLONG));

    let file = v.create(b"link0", 0o600).unwrap();
    let links = page.constant("SYMLINKS");
    for i in 0..=links {
        v.symlink(format!("link{i}").as_bytes(), format!("link{}", i + 1).as_bytes()).unwrap();
    }
    assert_eq!(v.stat(format!("link{links}").as_bytes()).unwrap().ino, file.ino());
    assert_eq!(errno(v.stat(format!("link{}", links + 1).as_bytes())), Some(Errno::LOOP));

    let last = page.constant("MAX_FILE") - 1;
    file.write_all_at(b"x", last).unwrap();
    assert_eq!(file.attr().unwrap().size, page.constant("MAX_FILE"));
    assert_eq!(errno(file.write_all_at(b"x", last + 1)), Some(Errno::FBIG));
}

#[test]
fn extended_attributes_end_where_documented() {
    let page = Page::open("SEMANTICS.md");
    let (_dir, pool) = pool(16 << 20);
    let root = Caller::root();
    let set =
        |name: &[u8], len: u64| pool.setxattr(conquest_fs::ROOT, name, &vec![1; len as usize], SetXattr::Any, &root);
    let name = |len: u64| [b"user.".as_slice(), &vec![b'n'; len as usize - 5]].concat();
    set(&name(page.constant("XATTR_NAME_MAX")), 1).unwrap();
    assert_eq!(errno(set(&name(page.constant("XATTR_NAME_MAX") + 1), 1)), Some(Errno::RANGE));
    assert_eq!(errno(set(b"user.a", page.constant("XATTR_VALUE_MAX") + 1)), Some(Errno::TOOBIG));
    set(b"user.a", page.constant("XATTR_VALUE_MAX")).unwrap();
    pool.removexattr(conquest_fs::ROOT, &name(page.constant("XATTR_NAME_MAX")), &root).unwrap();
    // Two records of 4 bytes, name and value, padded to 4, and the head of 8.
    let left = page.constant("XATTR_TOTAL_MAX") - 8 - (4 + 8 + page.constant("XATTR_VALUE_MAX")) - 4 - 8;
    assert_eq!(errno(set(b"user.b", left + 4)), Some(Errno::NOSPC));
    set(b"user.b", left + 2).unwrap();
    assert!(pool.fsck(false, &mut |_, _| {}).unwrap().problems.is_empty());
}

#[test]
fn a_write_that_finds_no_memory_leaves_whole_pieces() {
    let atomic = Page::open("SEMANTICS.md").constant("ATOMIC");
    let (_dir, pool) = pool(8 << 20);
    let v = View::new(&pool, Caller::root());
    let file = v.create(b"f", 0o600).unwrap();
    assert_eq!(errno(file.write_all_at(&vec![1; 20 << 20], 0)), Some(Errno::NOSPC));
    let size = file.attr().unwrap().size;
    assert!(size > 0 && size % atomic == 0, "{size}");
    file.set_len(0).unwrap();
    v.create(b"g", 0o600).unwrap().write_all_at(&vec![1; size as usize], 0).unwrap();
    let left = pool.fsck(false, &mut |_, _| {}).unwrap();
    assert_eq!((left.problems.len(), left.leaked_objects), (0, 0));
    let more = v.open(b"h", path::Open::new().write(true).create(true).mode(0o600)).unwrap();
    while more.append(&vec![2; 50_000]).is_ok() {}
    let size = more.attr().unwrap().size;
    assert_eq!(errno(more.append(&vec![3; atomic as usize])), Some(Errno::NOSPC));
    assert_eq!(more.attr().unwrap().size, size, "one piece: nothing is left of it");
}

/// A closed pool with `/d/f`, changed by `f`, which gets the memory's bytes, the position of the word that
/// refers to the first block of inodes, and that of the block; opened again, checked and repaired.
fn repaired(f: impl FnOnce(&mut [u8], usize, usize)) -> (tempfile::TempDir, Pool) {
    repaired_of("root directory", f)
}

/// The same for a pool whose check reports `problem`.
fn repaired_of(problem: &str, f: impl FnOnce(&mut [u8], usize, usize)) -> (tempfile::TempDir, Pool) {
    let (dir, made) = pool(4 << 20);
    let v = View::new(&made, Caller::root());
    v.mkdir(b"d", 0o755).unwrap();
    v.create(b"d/f", 0o600).unwrap().write_all_at(b"kept", 0).unwrap();
    drop(made);
    let memory_path = dir.path().join("nvram");
    let mut bytes = std::fs::read(&memory_path).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let at = word(word(word(8192) + 8));
    let block = word(at);
    f(&mut bytes, at, block);
    std::fs::write(&memory_path, bytes).unwrap();
    let pool = Pool::open(dir.path(), &OpenOptions::default()).unwrap();
    let found = pool.fsck(true, &mut |_, _| {}).unwrap();
    assert!(found.problems.iter().any(|p| p.contains(problem)), "{:?}", found.problems);
    let after = pool.fsck(false, &mut |_, _| {}).unwrap();
    assert!(after.problems.is_empty(), "{:?}", after.problems);
    (dir, pool)
}

/// The range of the root's inode in the first block of inodes.
fn root_inode(block: usize) -> std::ops::Range<usize> {
    let at = block + conquest_fs::layout::PER_BLOCK as usize + conquest_fs::layout::INODE as usize;
    at..at + conquest_fs::layout::INODE as usize
}

/// The content of the root is still there, and it takes more.
fn assert_kept(pool: &Pool) {
    let v = View::new(pool, Caller::root());
    assert_eq!(v.stat(b"d/f").unwrap().size, 4);
    assert_eq!(v.stat(b"/").unwrap().nlink, 3);
    v.mkdir(b"more", 0o755).unwrap();
}

#[test]
fn a_root_directory_whose_length_is_lost_keeps_what_is_in_it() {
    assert_kept(&repaired(|bytes, _, block| bytes[block + 1] = 0).1);
}

#[test]
fn a_root_directory_without_links_keeps_what_is_in_it() {
    let (_dir, pool) = repaired_of("inode 1 has 0 links", |bytes, _, block| {
        let nlink = root_inode(block).start + std::mem::offset_of!(conquest_fs::layout::RawInode, nlink);
        bytes[nlink..nlink + 4].fill(0);
    });
    assert_kept(&pool);
}

#[test]
fn a_root_directory_of_zeros_is_made_a_directory_again() {
    let (_dir, pool) = repaired(|bytes, _, block| bytes[root_inode(block)].fill(0));
    let v = View::new(&pool, Caller::root());
    let root = v.stat(b"/").unwrap();
    assert_eq!((root.nlink, root.perm & 0o700), (3, 0o700));
    assert_eq!(v.read_dir("lost+found").unwrap().count(), 1);
    v.mkdir(b"more", 0o755).unwrap();
}

#[test]
fn a_lost_root_directory_is_found_and_made_anew() {
    let (_dir, pool) = repaired(|bytes, _, block| {
        assert_eq!(bytes[block + 1], 80, "the root is in use");
        bytes[block + 1] = 0;
        bytes[root_inode(block)].fill(0);
    });
    let v = View::new(&pool, Caller::root());
    let lost: Vec<_> = v.read_dir("lost+found").unwrap().map(Result::unwrap).collect();
    assert_eq!(lost.len(), 1);
    let file = [b"lost+found/", lost[0].name.as_slice(), b"/f"].concat();
    assert_eq!(v.stat(&file).unwrap().size, 4);
}

#[test]
fn a_root_directory_without_a_place_is_made_anew() {
    let (_dir, pool) = repaired(|bytes, at, _| bytes[at..at + 8].copy_from_slice(&24u64.to_le_bytes()));
    let v = View::new(&pool, Caller::root());
    v.create(b"again", 0o600).unwrap().write_all_at(b"works", 0).unwrap();
    assert!(pool.fsck(false, &mut |_, _| {}).unwrap().problems.is_empty());
}

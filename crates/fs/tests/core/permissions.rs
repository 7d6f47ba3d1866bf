//! Callers that are not the superuser.

use conquest_fs::path::{Open, View};
use conquest_fs::{Caller, Kind, SetAttr, SetTime, Time};
use rustix::io::Errno;

use crate::rig::*;

fn user(uid: u32) -> Caller<'static> {
    Caller { uid, gid: uid, groups: &[], umask: 0o022, checked: false, owns: &[] }
}

const READ: Open = Open::new().read(true);

/// `mkdir -p` and opening an existing file for writing both failed in directories that one may not write to.
#[test]
fn who_may_search_learns_that_a_name_exists() {
    let (_dir, pool) = pool(8 * MIB);
    let (v, u) = (root(&pool), View::new(&pool, user(1000)));
    v.mkdir(b"home", 0o755).unwrap();
    v.mkdir(b"home/u", 0o755).unwrap();
    put(&v, "home/log", b"").unwrap();
    v.setattr(b"home/log", &SetAttr { mode: Some(0o666), ..Default::default() }).unwrap();
    assert_errno(u.mkdir(b"home/u", 0o755), Errno::EXIST);
    assert_errno(u.mkdir(b"home/v", 0o755), Errno::ACCESS);
    assert_errno(u.link(b"home/log", b"home/u"), Errno::EXIST);
    u.create(b"home/log", 0o644).unwrap().write_all_at(b"x", 0).unwrap();
    assert_errno(u.create(b"home/new", 0o644), Errno::ACCESS);
    assert_errno(u.create(b"home/u", 0o644), Errno::ISDIR);
}

#[test]
fn who_may_not_search_learns_nothing() {
    let (_dir, pool) = pool(8 * MIB);
    let (v, u) = (root(&pool), View::new(&pool, user(1000)));
    v.mkdir(b"secret", 0o700).unwrap();
    put(&v, "secret/there", b"").unwrap();
    for name in [&b"secret/there"[..], b"secret/not"] {
        assert_errno(u.stat(name), Errno::ACCESS);
        assert_errno(u.open(name, READ), Errno::ACCESS);
        assert_errno(u.unlink(name), Errno::ACCESS);
        assert_errno(u.rename(name, b"mine", conquest_fs::node::Rename::Replace), Errno::ACCESS);
        assert_errno(u.mkdir(name, 0o755), Errno::ACCESS);
    }
    assert_errno(u.read_dir(b"secret"), Errno::ACCESS);
    assert_errno(u.unlink(b"nothing"), Errno::NOENT);
}

#[test]
fn the_sticky_bit_reserves_removal_to_owners() {
    let (_dir, pool) = pool(8 * MIB);
    let v = root(&pool);
    let (a, b) = (View::new(&pool, user(1)), View::new(&pool, user(2)));
    v.mkdir(b"tmp", 0o777).unwrap();
    v.setattr(b"tmp", &SetAttr { mode: Some(0o1777), ..Default::default() }).unwrap();
    a.create(b"tmp/a", 0o666).unwrap();
    b.create(b"tmp/b", 0o666).unwrap();
    assert_errno(b.unlink(b"tmp/a"), Errno::PERM);
    assert_errno(b.rename(b"tmp/a", b"tmp/c", conquest_fs::node::Rename::Replace), Errno::PERM);
    assert_errno(b.rename(b"tmp/b", b"tmp/a", conquest_fs::node::Rename::Replace), Errno::PERM);
    assert_errno(b.rename(b"tmp/b", b"tmp/a", conquest_fs::node::Rename::Exchange), Errno::PERM);
    a.unlink(b"tmp/a").unwrap();
    v.unlink(b"tmp/b").unwrap();
}

#[test]
fn attributes_are_their_owners() {
    let (_dir, pool) = pool(8 * MIB);
    let (a, b) = (View::new(&pool, user(1)), View::new(&pool, user(2)));
    let set = |set: SetAttr| set;
    a.create(b"f", 0o666).unwrap();
    let mode = set(SetAttr { mode: Some(0o600), ..Default::default() });
    assert_errno(b.setattr(b"f", &mode), Errno::PERM);
    let give = SetAttr { uid: Some(2), ..Default::default() };
    assert_errno(a.setattr(b"f", &give), Errno::PERM);
    assert_errno(a.setattr(b"f", &SetAttr { gid: Some(2), ..Default::default() }), Errno::PERM);
    let exact = SetAttr { mtime: Some(SetTime::At(Time(5))), ..Default::default() };
    assert_errno(b.setattr(b"f", &exact), Errno::PERM);
    let now = SetAttr { mtime: Some(SetTime::Now), ..Default::default() };
    assert_errno(b.setattr(b"f", &now), Errno::ACCESS);
    a.setattr(b"f", &exact).unwrap();
    assert_errno(a.mknod(b"dev", Kind::BlockDevice, 0o600, 1), Errno::PERM);
    let retained = pool.create_retain(conquest_fs::ROOT, b"dev", Kind::CharDevice, 0o600, 1, &user(1));
    assert_errno(retained, Errno::PERM);
}

#[test]
fn set_id_bits_go_where_they_must() {
    let (_dir, pool) = pool(8 * MIB);
    let v = root(&pool);
    let a = View::new(&pool, user(1));
    let mode = |path: &str| v.stat(path.as_bytes()).unwrap().perm;
    let chmod = |path: &str, mode| v.setattr(path.as_bytes(), &SetAttr { mode: Some(mode), ..Default::default() });
    v.create(b"f", 0o666).unwrap();
    chmod("f", 0o6777).unwrap();
    v.open(b"f", Open::new().write(true)).unwrap().write_all_at(b"x", 0).unwrap();
    assert_eq!(mode("f"), 0o6777, "the superuser's write leaves them");
    a.open(b"f", Open::new().write(true)).unwrap().write_all_at(b"x", 0).unwrap();
    assert_eq!(mode("f"), 0o777);
    chmod("f", 0o6777).unwrap();
    a.open(b"f", Open::new().write(true).truncate(true)).unwrap();
    assert_eq!(mode("f"), 0o777, "truncating is writing");
    chmod("f", 0o6777).unwrap();
    v.setattr(b"f", &SetAttr { uid: Some(7), ..Default::default() }).unwrap();
    assert_eq!(mode("f"), 0o777, "a new owner");
    v.mkdir(b"d", 0o777).unwrap();
    v.setattr(b"d", &SetAttr { gid: Some(50), mode: Some(0o2777), ..Default::default() }).unwrap();
    assert_eq!(a.mkdir(b"d/sub", 0o755).unwrap().perm, 0o2755, "handed down");
    let all = SetAttr { uid: Some(7), gid: Some(50), kill_suidgid: true, ..Default::default() };
    v.setattr(b"d", &all).unwrap();
    assert_eq!(mode("d"), 0o2777, "a directory's stay, whoever owns it");
    assert_eq!(v.stat(b"d/sub").unwrap().gid, 50);
    let file = a.create(b"d/x", 0o2755).unwrap().attr().unwrap();
    assert_eq!((file.gid, file.perm), (50, 0o755), "not to who is not of the group");
}

/// Any user could take them from any file: for some changes the kernel only says that they must be cleared.
#[test]
fn set_id_bits_are_taken_by_who_may_write() {
    let (_dir, pool) = pool(8 * MIB);
    let v = root(&pool);
    let ino = v.create(b"f", 0o755).unwrap().ino();
    let set = |set: SetAttr| v.setattr(b"f", &set).map(|_| ()).unwrap();
    let kill = SetAttr { kill_suidgid: true, ..Default::default() };
    let take = |mode, caller: &Caller| {
        set(SetAttr { uid: Some(1), gid: Some(50), ..Default::default() });
        set(SetAttr { mode: Some(mode), ..Default::default() });
        pool.setattr(ino, &kill, caller).map(|attr| attr.perm)
    };
    assert_errno(take(0o6755, &user(2)), Errno::PERM);
    assert_eq!(v.stat(b"f").unwrap().perm, 0o6755);
    assert_errno(take(0o2775, &user(2)), Errno::PERM);
    assert_eq!(take(0o755, &user(2)).unwrap(), 0o755, "there are none");
    assert_eq!(take(0o6757, &user(2)).unwrap(), 0o757, "who may write");
    assert_eq!(take(0o6775, &Caller { groups: &[50], ..user(2) }).unwrap(), 0o775, "a group that may write");
    assert_eq!(take(0o6555, &user(1)).unwrap(), 0o555, "the owner");
    assert_eq!(take(0o6555, &Caller::root()).unwrap(), 0o555, "the superuser");
}

/// Truncation at opening was left out for files opened to append.
#[test]
fn opening_truncates_for_append_too() {
    let (_dir, pool) = pool(8 * MIB);
    let v = root(&pool);
    put(&v, "f", b"old").unwrap();
    let file = v.open(b"f", Open::new().append(true).truncate(true)).unwrap();
    file.append(b"new").unwrap();
    drop(file);
    assert_eq!(get(&v, "f").unwrap(), b"new");
}

/// The age of an access time was computed without regard to the ends of time.
#[test]
fn any_time_can_be_set_and_read_beside() {
    let (_dir, pool) = pool(8 * MIB);
    let v = root(&pool);
    put(&v, "f", b"x").unwrap();
    for t in [i64::MIN, -1, 0, i64::MAX] {
        let at = Some(SetTime::At(Time(t)));
        let ctime = Some(Time(i64::MIN));
        v.setattr(b"f", &SetAttr { atime: at, mtime: Some(SetTime::At(Time(i64::MIN))), ctime, ..Default::default() })
            .unwrap();
        assert_eq!(get(&v, "f").unwrap(), b"x");
    }
}

//! Names and attributes.

use conquest_fs::node::{Atime, Rename};
use conquest_fs::Kind;

use super::{file, scenario, small_tree, Scenario};
use crate::op::*;

/// Every operation that makes or removes names.
pub(super) fn names() -> Vec<Scenario> {
    use Rename::{Exchange, NoReplace, Replace, Whiteout};
    let tree = small_tree(700, 40_000, 50);
    let t = || tree.clone();
    let with = |more: &[Op]| [&tree[..], more].concat();
    vec![
        scenario("create-first", [], create("/a")),
        scenario("create", t(), create("/n")),
        scenario("create-mode", t(), Op::Create("/n".into(), 0o600)),
        scenario("create-exists", t(), create("/a")),
        scenario("create-fifo", t(), Op::Mknod("/n".into(), Kind::Fifo, 0)),
        scenario("create-device", t(), Op::Mknod("/n".into(), Kind::CharDevice, 0x0103)),
        scenario("mkdir", t(), mkdir("/n")),
        scenario("mkdir-below", t(), mkdir("/d/n")),
        scenario("symlink", t(), symlink(3, "/n")),
        scenario("symlink-long", t(), symlink(4000, "/n")),
        scenario("link", t(), link("/a", "/d/n")),
        scenario("link-symlink", t(), link("/s", "/n")),
        scenario("unlink", t(), unlink("/a")),
        scenario("unlink-large", t(), unlink("/d/x")),
        scenario("unlink-symlink", t(), unlink("/s")),
        scenario("unlink-one-of-two", with(&[link("/a", "/n")]), unlink("/a")),
        scenario("unlink-open", with(&[open("/a")]), unlink("/a")),
        scenario("close-unlinked", with(&[open("/d/x"), unlink("/d/x")]), close()),
        scenario("write-unlinked", with(&[open("/a"), unlink("/a")]), append("@h", 3000, 9)),
        scenario("rmdir", t(), rmdir("/e")),
        scenario("rmdir-not-empty", t(), rmdir("/d")),
        scenario("rmdir-once-full", with(&[unlink("/d/x")]), rmdir("/d")),
        scenario("tmpfile", t(), Op::Tmpfile("/d".into(), "@h".into())),
        scenario("tmpfile-close", [Op::Tmpfile("/".into(), "@h".into()), append("@h", 5000, 1)], close()),
        scenario("tmpfile-link", [Op::Tmpfile("/".into(), "@h".into()), append("@h", 500, 1)], link("@h", "/n")),
        scenario("rename-in-place", t(), rename("/a", "/n", Replace)),
        scenario("rename-away", t(), rename("/a", "/d/n", NoReplace)),
        scenario("rename-over", t(), rename("/a", "/d/x", Replace)),
        scenario("rename-over-large", t(), rename("/d/x", "/a", Replace)),
        scenario("rename-over-open", with(&[open("/d/x")]), rename("/a", "/d/x", Replace)),
        scenario("rename-over-same-inode", with(&[link("/a", "/n")]), rename("/a", "/n", Replace)),
        scenario("rename-to-self", t(), rename("/a", "/a", Replace)),
        scenario("rename-longer", t(), rename("/a", &format!("/{}", "n".repeat(255)), Replace)),
        scenario("rename-dir", t(), rename("/d", "/n", Replace)),
        scenario("rename-dir-away", t(), rename("/d", "/e/n", Replace)),
        scenario("rename-dir-over-empty", t(), rename("/d", "/e", Replace)),
        scenario("rename-dir-into-itself", t(), rename("/d", "/d/n", Replace)),
        scenario("exchange-files", t(), rename("/a", "/d/x", Exchange)),
        scenario("exchange-kinds", t(), rename("/a", "/e", Exchange)),
        scenario("exchange-dirs", with(&[mkdir("/d/i"), create("/d/i/y")]), rename("/d/i", "/e", Exchange)),
        scenario("exchange-missing", t(), rename("/a", "/n", Exchange)),
        scenario("whiteout", t(), rename("/a", "/n", Whiteout { replace: false })),
        scenario("whiteout-over", t(), rename("/a", "/d/x", Whiteout { replace: true })),
        scenario("whiteout-exists", t(), rename("/a", "/d/x", Whiteout { replace: false })),
        scenario("whiteout-dir", t(), rename("/d", "/e/n", Whiteout { replace: true })),
        scenario("whiteout-same-inode", with(&[link("/a", "/n")]), rename("/a", "/n", Whiteout { replace: true })),
    ]
}

/// Attributes, extended attributes, ACLs.
pub(super) fn attributes() -> Vec<Scenario> {
    // Version 2; owner rw-, user 1000 rwx, group r--, mask rwx, others r--.
    let acl: Vec<u8> = [(1u16, 6u16, u32::MAX), (2, 7, 1000), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 4, u32::MAX)]
        .iter()
        .flat_map(|(tag, perm, id)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat())
        .collect();
    let acl = [&2u32.to_le_bytes()[..], &acl].concat();
    let access = |path: &str| Op::SetXattr(path.into(), "system.posix_acl_access".into(), acl.clone());
    let default = |path: &str| Op::SetXattr(path.into(), "system.posix_acl_default".into(), acl.clone());
    let remove = |name: &str| Op::RemoveXattr("/f".into(), name.into());
    let f = file(100);
    let with = |more: &[Op]| [&f[..], more].concat();
    let many: Vec<Op> = (0..30).map(|i| setxattr("/f", &format!("user.attribute-{i}"), 40 + i)).collect();
    let mut all = vec![
        scenario("chmod", f.clone(), Op::Chmod("/f".into(), 0o4755)),
        scenario("chmod-again", with(&[Op::Chmod("/f".into(), 0o600)]), Op::Chmod("/f".into(), 0o644)),
        scenario("chown", f.clone(), Op::Chown("/f".into(), 1000, 1001)),
        scenario("set-times", f.clone(), Op::SetTimes("/f".into(), 1_234_567_890_123_456_789)),
        scenario("xattr-first", f.clone(), setxattr("/f", "user.a", 10)),
        scenario("xattr-replace", with(&[setxattr("/f", "user.a", 10)]), setxattr("/f", "user.a", 11)),
        scenario("xattr-grow", with(&[setxattr("/f", "user.a", 10)]), setxattr("/f", "user.a", 900)),
        scenario("xattr-shrink", with(&[setxattr("/f", "user.a", 900)]), setxattr("/f", "user.a", 1)),
        scenario("xattr-large", with(&[setxattr("/f", "user.a", 10)]), setxattr("/f", "user.b", 20_000)),
        scenario("xattr-another", with(&many), setxattr("/f", "user.z", 77)),
        scenario("xattr-remove", with(&many), remove("user.attribute-7")),
        scenario("xattr-remove-last", with(&[setxattr("/f", "user.a", 10)]), remove("user.a")),
        scenario("xattr-remove-missing", f.clone(), remove("user.a")),
        scenario("xattr-directory", [mkdir("/d")], setxattr("/d", "user.a", 100)),
    ];
    let unmodelled = [
        scenario("acl-access", f.clone(), access("/f")),
        scenario("acl-remove", with(&[access("/f")]), remove("system.posix_acl_access")),
        scenario("acl-chmod", with(&[access("/f")]), Op::Chmod("/f".into(), 0o640)),
        scenario("acl-default", [mkdir("/d")], default("/d")),
        scenario("acl-inherit-file", [mkdir("/d"), default("/d")], create("/d/n")),
        scenario("acl-inherit-dir", [mkdir("/d"), default("/d")], mkdir("/d/n")),
        scenario("acl-unlink", with(&[access("/f")]), unlink("/f")),
    ];
    all.extend(unmodelled.map(|s| Scenario { modelled: false, ..s }));
    all.push(Scenario { atime: Atime::Always, ..scenario("read", f, Op::Read("/f".into())) });
    all
}

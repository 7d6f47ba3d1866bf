//! Equal trees in the pool and on tmpfs.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::path::Path;

use conquest::{Caller, Kind};
use conquest_fs::path::View;

use super::both::Both;

const DIRS: &[&str] = &["d", "d/sub", "d/full", "d/full/below", "e"];
const FILES: &[(&str, &str, u32)] = &[("f", "content", 0o644), ("d/f", "other", 0o600), ("x", "", 0o4755)];

/// A tree: of each path its type, permissions, links, and content or target.
pub type Tree = BTreeMap<String, (Kind, u32, u32, Vec<u8>)>;

/// Links by name and target; `{}` is the path of the tree.
const LINKS: &[(&str, &str)] = &[
    ("l_rel", "d/f"),
    ("l_dir", "d"),
    ("l_slash", "d/"),
    ("l_file_slash", "f/"),
    ("l_abs", "{}/d/f"),
    ("l_abs_dir", "{}/d"),
    ("l_dangling", "nowhere"),
    ("l_dangling_dir", "nowhere/x"),
    ("l_loop", "l_loop2"),
    ("l_loop2", "l_loop"),
    ("l_two", "l_rel"),
    ("d/l_up", "../f"),
    ("l_outside", "/dev/null/x"),
    ("l_outside_up", "../../../../dev/null"),
];

/// Makes the tree `above/in` in both.
pub fn make(both: &Both, above: &str) {
    let view = View::new(both.engine.fs(), Caller { umask: 0, ..Caller::root() });
    let name = &format!("{above}/in");
    fs::create_dir(both.dir.path().join(above)).unwrap();
    view.mkdir(above, 0o755).unwrap();
    let base = both.dir.path().join(name);
    fs::create_dir(&base).unwrap();
    fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).unwrap();
    view.mkdir(name, 0o755).unwrap();
    for dir in DIRS {
        fs::create_dir(base.join(dir)).unwrap();
        fs::set_permissions(base.join(dir), fs::Permissions::from_mode(0o755)).unwrap();
        view.mkdir(format!("{name}/{dir}"), 0o755).unwrap();
    }
    for (file, content, mode) in FILES {
        fs::write(base.join(file), content).unwrap();
        fs::set_permissions(base.join(file), fs::Permissions::from_mode(*mode)).unwrap();
        view.create(format!("{name}/{file}"), *mode).unwrap().write_all_at(content.as_bytes(), 0).unwrap();
    }
    for (link, target) in LINKS {
        let target = target.replace("{}", base.to_str().unwrap());
        symlink(&target, base.join(link)).unwrap();
        view.symlink(target, format!("{name}/{link}")).unwrap();
    }
    let pipe = CString::new(base.join("pipe").to_str().unwrap()).unwrap();
    crate::raw::kernel(libc::SYS_mknod, &[pipe.as_ptr() as usize, libc::S_IFIFO as usize | 0o600, 0, 0, 0, 0]);
    view.mknod(format!("{name}/pipe"), Kind::Fifo, 0o600, 0).unwrap();
}

/// Compares the trees below `name`, and removes them from both.
pub fn compare_and_remove(both: &Both, name: &str, what: &str) {
    let base = both.dir.path().join(name);
    let view = View::new(both.engine.fs(), Caller::root());
    let (mut kernel, mut direct) = (Tree::new(), Tree::new());
    of_kernel(&base, "", &mut kernel);
    of_pool(&view, name, "", &mut direct);
    assert_eq!(direct, kernel, "{what}: the pool, and tmpfs");
    for (path, (kind, ..)) in direct.iter().rev() {
        match kind {
            Kind::Directory => view.rmdir(format!("{name}/{path}")).unwrap(),
            _ => view.unlink(format!("{name}/{path}")).unwrap(),
        }
    }
    view.rmdir(name).unwrap();
    fs::remove_dir_all(&base).unwrap();
}

fn of_kernel(base: &Path, below: &str, tree: &mut Tree) {
    for entry in fs::read_dir(base.join(below)).unwrap() {
        let entry = entry.unwrap();
        let path = Path::new(below).join(entry.file_name()).to_str().unwrap().to_string();
        let meta = entry.path().symlink_metadata().unwrap();
        let kind = Kind::from_mode(meta.mode()).unwrap();
        let content = match kind {
            Kind::Regular => fs::read(entry.path()).unwrap(),
            Kind::Symlink => fs::read_link(entry.path()).unwrap().to_str().unwrap().into(),
            _ => Vec::new(),
        };
        tree.insert(path.clone(), (kind, meta.mode() & 0o7777, meta.nlink() as u32, content));
        if kind == Kind::Directory {
            of_kernel(base, &path, tree);
        }
    }
}

fn of_pool(view: &View, name: &str, below: &str, tree: &mut Tree) {
    for entry in view.read_dir(format!("{name}/{below}")).unwrap() {
        let entry = entry.unwrap();
        let path = Path::new(below).join(entry.file_name()).to_str().unwrap().to_string();
        let there = format!("{name}/{path}");
        let attr = view.lstat(&there).unwrap();
        let content = match attr.kind {
            Kind::Regular => view.read(&there).unwrap(),
            Kind::Symlink => view.readlink(&there).unwrap(),
            _ => Vec::new(),
        };
        tree.insert(path.clone(), (attr.kind, attr.perm, attr.nlink, content));
        if attr.kind == Kind::Directory {
            of_pool(view, name, &path, tree);
        }
    }
}

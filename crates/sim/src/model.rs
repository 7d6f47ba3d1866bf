//! The same operations on a plain model: the expected result of each.

use std::collections::BTreeMap;

use conquest_fs::node::{Fallocate, Rename};
use conquest_fs::Kind;
use rustix::io::Errno;

use crate::op::{split, text, Done, Op};
use crate::tree::{normalise, Seen, Tree};
use rng::Rng;

type Id = usize;

/// An inode.
#[derive(Clone)]
struct Node {
    kind: Kind,
    perm: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    rdev: u64,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of a directory.
    entries: BTreeMap<String, Id>,
}

/// A file system in plain memory, without persistence.
#[derive(Clone)]
pub struct Model {
    nodes: Vec<Node>,
    open: BTreeMap<String, Id>,
}

const ROOT: Id = 0;
/// Applied to new files.
const UMASK: u32 = 0o022;

impl Default for Model {
    fn default() -> Self {
        let mut model = Model { nodes: Vec::new(), open: BTreeMap::new() };
        model.new_node(Kind::Directory, 0o755);
        model
    }
}

impl Model {
    fn new_node(&mut self, kind: Kind, perm: u32) -> Id {
        let nlink = if kind == Kind::Directory { 2 } else { 1 };
        self.nodes.push(Node {
            kind,
            perm,
            uid: 0,
            gid: 0,
            nlink,
            rdev: 0,
            content: Vec::new(),
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
        });
        self.nodes.len() - 1
    }

    fn id(&self, path: &str) -> Result<Id, Errno> {
        if path.starts_with('@') {
            return self.open.get(path).copied().ok_or(Errno::BADF);
        }
        let mut id = ROOT;
        for name in path.split('/').filter(|n| !n.is_empty()) {
            id = *self.dir(id)?.get(name).ok_or(Errno::NOENT)?;
        }
        Ok(id)
    }

    fn dir(&self, id: Id) -> Result<&BTreeMap<String, Id>, Errno> {
        match self.nodes[id].kind {
            Kind::Directory => Ok(&self.nodes[id].entries),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn file(&mut self, path: &str) -> Result<&mut Node, Errno> {
        let id = self.id(path)?;
        match self.nodes[id].kind {
            Kind::Regular => Ok(&mut self.nodes[id]),
            Kind::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    fn place<'p>(&self, path: &'p str) -> Result<(Id, &'p str), Errno> {
        let (dir, name) = split(path);
        let id = self.id(dir)?;
        self.dir(id)?;
        Ok((id, name))
    }

    fn add(&mut self, path: &str, kind: Kind, perm: u32) -> Result<Id, Errno> {
        let (dir, name) = self.place(path)?;
        if self.nodes[dir].entries.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let id = self.new_node(kind, perm);
        self.nodes[dir].entries.insert(name.into(), id);
        if kind == Kind::Directory {
            self.nodes[dir].nlink += 1;
        }
        Ok(id)
    }

    fn is_dir(&self, id: Id) -> bool {
        self.nodes[id].kind == Kind::Directory
    }

    fn remove(&mut self, path: &str, want_dir: bool) -> Result<(), Errno> {
        let (dir, name) = self.place(path)?;
        let id = *self.nodes[dir].entries.get(name).ok_or(Errno::NOENT)?;
        match (want_dir, self.is_dir(id)) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) if !self.nodes[id].entries.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.nodes[dir].entries.remove(name);
        self.drop_name(dir, id);
        Ok(())
    }

    fn drop_name(&mut self, dir: Id, id: Id) {
        if self.is_dir(id) {
            self.nodes[dir].nlink -= 1;
            self.nodes[id].nlink = 0;
        } else {
            self.nodes[id].nlink -= 1;
        }
    }

    /// Is `id` at or below `top`?
    fn below(&self, top: Id, id: Id) -> bool {
        top == id || self.nodes[top].entries.values().any(|child| self.below(*child, id))
    }

    fn rename(&mut self, from: &str, to: &str, how: Rename) -> Result<(), Errno> {
        let ((a, from), (b, to)) = (self.place(from)?, self.place(to)?);
        let src = *self.nodes[a].entries.get(from).ok_or(Errno::NOENT)?;
        let dst = self.nodes[b].entries.get(to).copied();
        match (how, dst) {
            (Rename::NoReplace | Rename::Whiteout { replace: false }, Some(_)) => return Err(Errno::EXIST),
            (Rename::Exchange, None) => return Err(Errno::NOENT),
            _ => {}
        }
        // A directory cannot move below itself, nor replace a directory above itself.
        if self.is_dir(src) && self.below(src, b) {
            return Err(Errno::INVAL);
        }
        if dst.is_some_and(|dst| self.is_dir(dst) && self.below(dst, a)) {
            return Err(if how == Rename::Exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        match (how, dst) {
            (Rename::Exchange, Some(dst)) => {
                self.nodes[a].entries.insert(from.into(), dst);
                self.nodes[b].entries.insert(to.into(), src);
                self.move_parent(src, a, b);
                self.move_parent(dst, b, a);
                return Ok(());
            }
            (_, Some(dst)) if dst == src => return Ok(()),
            (_, Some(dst)) => match (self.is_dir(src), self.is_dir(dst)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !self.nodes[dst].entries.is_empty() => return Err(Errno::NOTEMPTY),
                _ => self.drop_name(b, dst),
            },
            (_, None) => {}
        }
        self.nodes[a].entries.remove(from);
        self.nodes[b].entries.insert(to.into(), src);
        self.move_parent(src, a, b);
        if let Rename::Whiteout { .. } = how {
            // The name of a device that cannot be opened.
            let id = self.new_node(Kind::CharDevice, 0);
            self.nodes[a].entries.insert(from.into(), id);
        }
        Ok(())
    }

    fn move_parent(&mut self, id: Id, from: Id, to: Id) {
        if self.is_dir(id) {
            self.nodes[from].nlink -= 1;
            self.nodes[to].nlink += 1;
        }
    }

    /// Applies an operation with the result `done` of the file system, with room for everything.
    pub fn apply(&mut self, op: &Op, done: &Done) -> Result<(), String> {
        self.apply_in(op, done, false)
    }

    /// The same where the memory may be `full`: the one failure that the model cannot foresee.
    pub fn apply_in(&mut self, op: &Op, done: &Done, full: bool) -> Result<(), String> {
        if full && matches!(done, Err(Errno::NOSPC)) {
            return Ok(());
        }
        let mut next = self.clone();
        match (next.call(op, done), done) {
            (Ok(()), Ok(_)) => *self = next,
            (Err(wanted), Err(found)) if wanted == *found => {}
            (Err(wanted), Err(found)) => {
                return Err(format!("{op:?} failed with {found:?} and should fail with {wanted:?}"))
            }
            (Ok(()), Err(e)) => return Err(format!("{op:?} failed with {e:?} and should not")),
            (Err(e), Ok(_)) => return Err(format!("{op:?} succeeded and should fail with {e:?}")),
        }
        Ok(())
    }

    fn call(&mut self, op: &Op, done: &Done) -> Result<(), Errno> {
        match op {
            Op::Create(path, mode) => self.add(path, Kind::Regular, mode & !UMASK).map(|_| ()),
            Op::Mknod(path, kind, rdev) => {
                let id = self.add(path, *kind, 0o644 & !UMASK)?;
                if matches!(kind, Kind::CharDevice | Kind::BlockDevice) {
                    self.nodes[id].rdev = *rdev;
                }
                Ok(())
            }
            Op::Mkdir(path, mode) => self.add(path, Kind::Directory, mode & !UMASK).map(|_| ()),
            Op::Symlink { target, path } => {
                let id = self.add(path, Kind::Symlink, 0o777)?;
                self.nodes[id].content = target.clone().into_bytes();
                Ok(())
            }
            Op::Link(old, new) => {
                let id = self.id(old)?;
                let (dir, name) = self.place(new)?;
                if self.nodes[dir].entries.contains_key(name) {
                    return Err(Errno::EXIST);
                }
                if self.is_dir(id) {
                    return Err(Errno::PERM);
                }
                self.nodes[dir].entries.insert(name.into(), id);
                self.nodes[id].nlink += 1;
                Ok(())
            }
            Op::Unlink(path) => self.remove(path, false),
            Op::Rmdir(path) => self.remove(path, true),
            Op::Rename(from, to, how) => self.rename(from, to, *how),
            Op::Write(path, off, len, seed) => {
                write(&mut self.file(path)?.content, *off as usize, &Rng::new(*seed).bytes(*len));
                Ok(())
            }
            Op::Append(path, len, seed) => {
                self.file(path)?.content.extend(Rng::new(*seed).bytes(*len));
                Ok(())
            }
            Op::Fill(path, _) => {
                let fitted = done.map_or(0, |n| n as usize);
                let content = &mut self.file(path)?.content;
                content.resize(content.len() + fitted, 0xf1);
                Ok(())
            }
            Op::Truncate(path, size) => {
                self.file(path)?.content.resize(*size as usize, 0);
                Ok(())
            }
            Op::Fallocate(path, how, off, len) => {
                // As fallocate(2) says.
                let file = self.file(path).map_err(|e| if e == Errno::INVAL { Errno::NODEV } else { e })?;
                fallocate(file, *how, *off as usize, *len as usize)
            }
            Op::Copy { from, to, len } => {
                let (source, target) = (self.id(&from.0)?, self.id(&to.0)?);
                if self.is_dir(source) || self.is_dir(target) {
                    return Err(Errno::ISDIR);
                }
                self.file(&to.0)?;
                let content = &self.file(&from.0)?.content;
                let start = content.len().min(from.1 as usize);
                let bytes = content[start..content.len().min(start + *len as usize)].to_vec();
                if source == target && from.1.abs_diff(to.1) < bytes.len() as u64 {
                    return Err(Errno::INVAL);
                }
                write(&mut self.nodes[target].content, to.1 as usize, &bytes);
                Ok(())
            }
            Op::SetXattr(path, name, value) => {
                let id = self.id(path)?;
                // As xattr(7) says.
                if name.starts_with("user.") && !matches!(self.nodes[id].kind, Kind::Regular | Kind::Directory) {
                    return Err(Errno::PERM);
                }
                self.nodes[id].xattrs.insert(name.clone().into_bytes(), value.clone());
                Ok(())
            }
            Op::RemoveXattr(path, name) => {
                let id = self.id(path)?;
                if name.starts_with("user.") && !matches!(self.nodes[id].kind, Kind::Regular | Kind::Directory) {
                    return Err(Errno::PERM);
                }
                self.nodes[id].xattrs.remove(name.as_bytes()).map(|_| ()).ok_or(Errno::NODATA)
            }
            Op::Chmod(path, mode) => {
                let id = self.id(path)?;
                self.nodes[id].perm = *mode;
                Ok(())
            }
            Op::Chown(path, uid, gid) => {
                let id = self.id(path)?;
                (self.nodes[id].uid, self.nodes[id].gid) = (*uid, *gid);
                Ok(())
            }
            Op::SetTimes(path, _) => self.id(path).map(|_| ()),
            Op::Read(path) => self.file(path).map(|_| ()),
            Op::Tmpfile(dir, handle) => {
                self.id(dir)?;
                let id = self.new_node(Kind::Regular, 0o600);
                self.nodes[id].nlink = 0;
                self.open.insert(handle.clone(), id);
                Ok(())
            }
            Op::Open(path, handle) => {
                let id = self.id(path)?;
                self.open.insert(handle.clone(), id);
                Ok(())
            }
            Op::Close(handle) => self.open.remove(handle).map(|_| ()).ok_or(Errno::BADF),
            Op::Text(path, len, seed) => {
                write(&mut self.file(path)?.content, 0, &text(*seed, *len));
                Ok(())
            }
            Op::Compress(path, _) | Op::Expand(path) => self.file(path).map(|_| ()),
            Op::FreeTriples | Op::PackInodes | Op::AddDictionary(_) | Op::DropDictionaries => Ok(()),
        }
    }

    /// The expected tree.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut first = BTreeMap::new();
        self.walk(&mut tree, &mut first, "", ROOT);
        normalise(&mut tree);
        tree
    }

    fn walk(&self, tree: &mut Tree, first: &mut BTreeMap<Id, Vec<u8>>, path: &str, id: Id) {
        let node = &self.nodes[id];
        let name = if path.is_empty() { "/" } else { path }.as_bytes().to_vec();
        let same_as = first.entry(id).or_insert_with(|| name.clone()).clone();
        let Node { kind, perm, uid, gid, nlink, rdev, content, xattrs, .. } = node.clone();
        tree.insert(name, Seen { kind, perm, uid, gid, nlink, rdev, content, xattrs, same_as });
        for (name, child) in &node.entries {
            self.walk(tree, first, &format!("{path}/{name}"), *child);
        }
    }
}

fn write(content: &mut Vec<u8>, off: usize, bytes: &[u8]) {
    // An empty write does not even grow the file.
    let end = if bytes.is_empty() { 0 } else { off + bytes.len() };
    content.resize(content.len().max(end), 0);
    content[end - bytes.len()..end].copy_from_slice(bytes);
}

fn fallocate(node: &mut Node, how: Fallocate, off: usize, len: usize) -> Result<(), Errno> {
    let content = &mut node.content;
    let end = off + len;
    match how {
        Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size } => {
            if !keep_size && content.len() < end {
                content.resize(end, 0);
            }
            if matches!(how, Fallocate::ZeroRange { .. }) {
                let size = content.len();
                content[off.min(size)..end.min(size)].fill(0);
            }
        }
        Fallocate::PunchHole => {
            let size = content.len();
            content[off.min(size)..end.min(size)].fill(0);
        }
        Fallocate::CollapseRange => {
            if end >= content.len() {
                return Err(Errno::INVAL);
            }
            content.drain(off..end);
        }
        Fallocate::InsertRange => {
            if off >= content.len() {
                return Err(Errno::INVAL);
            }
            content.splice(off..off, std::iter::repeat_n(0, len));
        }
    }
    Ok(())
}

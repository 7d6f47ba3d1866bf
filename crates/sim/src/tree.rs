//! Everything that is visible in a file system.

use std::collections::BTreeMap;

use conquest_fs::{Attr, Caller, Fs, Ino, Kind, ROOT};

/// The visible state of a path, as far as the model predicts it.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    pub kind: Kind,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u64,
    /// Content of a file, target of a symbolic link.
    pub content: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same inode.
    pub same_as: Vec<u8>,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let sum = self.content.iter().fold(0u32, |h, b| h.rotate_left(5) ^ u32::from(*b));
        write!(f, "{:?} {:o} {}:{} links {}", self.kind, self.perm, self.uid, self.gid, self.nlink)?;
        write!(f, " rdev {} content {} bytes ({sum:08x})", self.rdev, self.content.len())?;
        for (name, value) in &self.xattrs {
            write!(f, " {}={} bytes", String::from_utf8_lossy(name), value.len())?;
        }
        write!(f, " inode of {}", String::from_utf8_lossy(&self.same_as))
    }
}

/// A whole file system, by path; `/` is the root.
pub type Tree = BTreeMap<Vec<u8>, Seen>;

/// A tree with the attributes that the model does not predict: numbers, times, space.
#[derive(Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub tree: Tree,
    pub attrs: BTreeMap<Vec<u8>, Attr>,
}

/// More names than any scenario makes: damage can make a directory contain itself.
const MOST: usize = 3000;

/// Reads everything. Errors are findings: every named file must be readable.
pub fn snapshot(fs: &Fs) -> Result<Snapshot, String> {
    let mut snapshot = Snapshot { tree: Tree::new(), attrs: BTreeMap::new() };
    let mut first = BTreeMap::new();
    let mut dirs = vec![(b"/".to_vec(), ROOT)];
    let root = fs.getattr(ROOT).map_err(|e| format!("/: {e}"))?;
    add(fs, &mut snapshot, &mut first, b"/".to_vec(), root)?;
    while let Some((path, ino)) = dirs.pop() {
        for (name, child) in list(fs, ino).map_err(|e| at(&path, e))? {
            let path = join(&path, &name);
            let attr = fs.lookup(ino, &name, &Caller::root()).map_err(|e| at(&path, e))?;
            if attr.ino != child || fs.getattr(child).map_err(|e| at(&path, e))? != attr {
                return Err(at(&path, "listed and looked up differently"));
            }
            if attr.kind == Kind::Directory {
                dirs.push((path.clone(), child));
            }
            if snapshot.tree.len() > MOST || path.len() > MOST {
                return Err("the tree does not end".into());
            }
            add(fs, &mut snapshot, &mut first, path, attr)?;
        }
    }
    Ok(snapshot)
}

/// The same, comparable with others.
pub fn look(fs: &Fs) -> Result<Snapshot, String> {
    let mut found = snapshot(fs)?;
    normalise(&mut found.tree);
    Ok(found)
}

fn at(path: &[u8], e: impl std::fmt::Display) -> String {
    format!("{}: {e}", String::from_utf8_lossy(path))
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let dir = if dir == b"/" { b"" } else { dir };
    [dir, b"/", name].concat()
}

/// Names and numbers in a directory, sorted, each exactly once.
fn list(fs: &Fs, ino: Ino) -> Result<BTreeMap<Vec<u8>, Ino>, String> {
    let mut names = BTreeMap::new();
    let mut twice = false;
    let listed = fs.readdir(ino, 0, &mut |e| {
        if e.name != b"." && e.name != b".." {
            twice |= names.insert(e.name.to_vec(), e.ino).is_some();
        }
        true
    });
    listed.map_err(|e| e.to_string())?;
    match twice {
        true => Err("a name is listed twice".into()),
        false => Ok(names),
    }
}

/// Longer files are read at their two ends only: no scenario makes them, but damage does.
const WHOLE: u64 = 16 << 20;

fn read(fs: &Fs, ino: Ino, size: u64) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    let parts = if size <= WHOLE { vec![(0, size)] } else { vec![(0, 4096), (size - 4096, 4096)] };
    for (start, len) in parts {
        let mut buf = vec![0; len as usize];
        let n = fs.read(ino, start, &mut buf).map_err(|e| e.to_string())?;
        if n != buf.len() {
            return Err(format!("read {n} of {len} bytes"));
        }
        content.extend(buf);
    }
    Ok(content)
}

fn add(
    fs: &Fs,
    snapshot: &mut Snapshot,
    first: &mut BTreeMap<Ino, Vec<u8>>,
    path: Vec<u8>,
    attr: Attr,
) -> Result<(), String> {
    let content = match attr.kind {
        Kind::Regular => read(fs, attr.ino, attr.size).map_err(|e| at(&path, e))?,
        Kind::Symlink => fs.readlink(attr.ino).map_err(|e| at(&path, e))?,
        _ => Vec::new(),
    };
    let names = fs.listxattr(attr.ino).map_err(|e| at(&path, e))?;
    let mut xattrs = BTreeMap::new();
    for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        xattrs.insert(name.to_vec(), fs.getxattr(attr.ino, name).map_err(|e| at(&path, e))?);
    }
    let Attr { kind, perm, uid, gid, nlink, rdev, .. } = attr;
    let same_as = first.entry(attr.ino).or_insert_with(|| path.clone()).clone();
    let seen = Seen { kind, perm, uid, gid, nlink, rdev, content, xattrs, same_as };
    snapshot.tree.insert(path.clone(), seen);
    snapshot.attrs.insert(path, attr);
    Ok(())
}

/// Makes `same_as` independent of the order in which the names were found.
pub fn normalise(tree: &mut Tree) {
    let mut least: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (path, seen) in tree.iter() {
        least.entry(seen.same_as.clone()).or_insert_with(|| path.clone());
    }
    for seen in tree.values_mut() {
        seen.same_as = least[&seen.same_as].clone();
    }
}

/// The first difference between two trees, in words.
pub fn difference(found: &Tree, wanted: &Tree) -> Option<String> {
    for (path, seen) in wanted {
        match found.get(path) {
            None => return Some(at(path, format!("missing; should be {seen:?}"))),
            Some(f) if f != seen => return Some(at(path, format!("is {f:?}; should be {seen:?}"))),
            Some(_) => {}
        }
    }
    found.keys().find(|p| !wanted.contains_key(*p)).map(|p| at(p, "should not be there"))
}

impl Snapshot {
    pub fn difference(&self, wanted: &Snapshot) -> Option<String> {
        difference(&self.tree, &wanted.tree).or_else(|| {
            let differ = |p: &&Vec<u8>| self.attrs.get(*p) != wanted.attrs.get(*p);
            let path = wanted.attrs.keys().find(differ)?;
            Some(at(path, format!("attributes {:?}; should be {:?}", self.attrs.get(path), wanted.attrs.get(path))))
        })
    }
}

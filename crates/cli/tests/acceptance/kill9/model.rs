//! The expected state after a writer's operations, and the seeded choice of the next one.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rng::Rng;

use super::operation::{Data, Op, XATTR};
use crate::tree::{checksum, walk};

/// The directory that all writers of a round share; each uses its own names there.
pub const SHARED: &str = "shared";

const FILE_NAMES: u64 = 40;
const DIR_NAMES: u64 = 8;
const LARGEST_FILE: u64 = 400_000;

/// The files of one writer, by path relative to the round's directory.
#[derive(Clone)]
pub struct Model {
    own: String,
    names: BTreeMap<String, Node>,
    files: BTreeMap<u64, Content>,
    next_file: u64,
}

#[derive(Clone)]
enum Node {
    Dir,
    File(u64),
    Symlink(String),
}

#[derive(Clone, Default)]
struct Content {
    bytes: Vec<u8>,
    xattr: Option<Vec<u8>>,
}

/// The observable facts of a name.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    Dir,
    File { size: u64, checksum: u64, links: u64, xattr: Option<u64> },
    Symlink(String),
}

impl Model {
    pub fn new(index: u64) -> Self {
        Model { own: format!("w{index}"), names: BTreeMap::new(), files: BTreeMap::new(), next_file: 0 }
    }

    /// The next operation; it follows from the generator and from the operations so far.
    pub fn next(&self, rng: &mut Rng) -> Op {
        if self.names.is_empty() {
            return Op::Mkdir(self.own.clone());
        }
        loop {
            if let Some(op) = self.propose(rng) {
                return op;
            }
        }
    }

    /// An operation that must succeed, or `None` if the dice named an impossible one.
    fn propose(&self, rng: &mut Rng) -> Option<Op> {
        match rng.below(100) {
            0..=21 => self.free(rng).map(Op::Create),
            22..=41 => self.write(rng),
            42..=51 => self.append(rng),
            52..=57 => self.file(rng).map(|path| Op::Truncate { path, size: rng.below(LARGEST_FILE / 4) }),
            58..=68 => self.rename(rng),
            69..=79 => self.leaf(rng).map(Op::Unlink),
            80..=84 => Some(self.dir_name(rng)).filter(|d| !self.names.contains_key(d)).map(Op::Mkdir),
            85..=87 => Some(self.dir_name(rng)).filter(|d| self.is_empty_dir(d)).map(Op::Rmdir),
            88..=90 => Some(Op::Link { old: self.file(rng)?, new: self.free(rng)? }),
            91..=93 => self.free(rng).map(|path| Op::Symlink { target: format!("to/{}", rng.below(1000)), path }),
            94..=95 => self.exchange(rng),
            96..=97 => self.rename_dir(rng),
            _ => self.file(rng).map(|path| Op::Setxattr { path, value: data(rng, 200) }),
        }
    }

    fn write(&self, rng: &mut Rng) -> Option<Op> {
        let path = self.file(rng)?;
        let offset = rng.below(self.content(&path).bytes.len() as u64 + 5000).min(LARGEST_FILE);
        Some(Op::Write { path, offset, data: data(rng, 60_000) })
    }

    fn append(&self, rng: &mut Rng) -> Option<Op> {
        let path = self.file(rng).filter(|p| (self.content(p).bytes.len() as u64) < LARGEST_FILE)?;
        Some(Op::Append { path, data: data(rng, 3000) })
    }

    fn rename(&self, rng: &mut Rng) -> Option<Op> {
        let (from, to) = (self.leaf(rng)?, self.name(rng)?);
        (!self.same_inode(&from, &to)).then_some(Op::Rename { from, to })
    }

    fn exchange(&self, rng: &mut Rng) -> Option<Op> {
        let (a, b) = (self.leaf(rng)?, self.leaf(rng)?);
        (!self.same_inode(&a, &b)).then_some(Op::Exchange { a, b })
    }

    /// Moves a directory with its entries to a free name, or over an empty directory.
    fn rename_dir(&self, rng: &mut Rng) -> Option<Op> {
        let (from, to) = (self.dir_name(rng), self.dir_name(rng));
        let fits =
            from != to && self.names.contains_key(&from) && (!self.names.contains_key(&to) || self.is_empty_dir(&to));
        fits.then_some(Op::Rename { from, to })
    }

    /// rename(2) and its kin do nothing if both names are one file.
    fn same_inode(&self, a: &str, b: &str) -> bool {
        match (self.names.get(a), self.names.get(b)) {
            (Some(Node::File(x)), Some(Node::File(y))) => x == y,
            _ => a == b,
        }
    }

    fn dir_name(&self, rng: &mut Rng) -> String {
        format!("{}/d{}", self.own, rng.below(DIR_NAMES))
    }

    /// A name that may exist or not, in an existing directory.
    fn name(&self, rng: &mut Rng) -> Option<String> {
        let file = rng.below(FILE_NAMES);
        match rng.below(4) {
            0 => Some(format!("{SHARED}/{}-f{file}", self.own)),
            1 => Some(format!("{}/f{file}", self.own)),
            _ => Some(self.dir_name(rng)).filter(|d| self.names.contains_key(d)).map(|d| format!("{d}/f{file}")),
        }
    }

    fn free(&self, rng: &mut Rng) -> Option<String> {
        self.name(rng).filter(|name| !self.names.contains_key(name))
    }

    fn leaf(&self, rng: &mut Rng) -> Option<String> {
        self.pick(rng, |node| !matches!(node, Node::Dir))
    }

    fn file(&self, rng: &mut Rng) -> Option<String> {
        self.pick(rng, |node| matches!(node, Node::File(_)))
    }

    fn pick(&self, rng: &mut Rng, fits: impl Fn(&Node) -> bool) -> Option<String> {
        let fitting: Vec<&String> = self.names.iter().filter(|(_, node)| fits(node)).map(|(name, _)| name).collect();
        (!fitting.is_empty()).then(|| fitting[rng.below(fitting.len() as u64) as usize].clone())
    }

    fn is_empty_dir(&self, dir: &str) -> bool {
        let inside = format!("{dir}/");
        self.names.contains_key(dir) && !self.names.keys().any(|name| name.starts_with(&inside))
    }

    fn content(&self, path: &str) -> &Content {
        match &self.names[path] {
            Node::File(id) => &self.files[id],
            _ => unreachable!("{path} was chosen as a file"),
        }
    }

    fn content_mut(&mut self, path: &str) -> &mut Content {
        match &self.names[path] {
            Node::File(id) => self.files.get_mut(id).expect("a file that has a name"),
            _ => unreachable!("{path} was chosen as a file"),
        }
    }

    /// Bytes in the file `path`.
    pub fn size(&self, path: &str) -> u64 {
        self.content(path).bytes.len() as u64
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create(path) => {
                self.files.insert(self.next_file, Content::default());
                self.names.insert(path.clone(), Node::File(self.next_file));
                self.next_file += 1;
            }
            Op::Mkdir(path) => drop(self.names.insert(path.clone(), Node::Dir)),
            Op::Symlink { target, path } => drop(self.names.insert(path.clone(), Node::Symlink(target.clone()))),
            Op::Link { old, new } => drop(self.names.insert(new.clone(), self.names[old].clone())),
            Op::Unlink(path) | Op::Rmdir(path) => drop(self.names.remove(path)),
            Op::Rename { from, to } => self.move_name(from, to),
            Op::Exchange { a, b } => {
                let (x, y) = (self.names[a].clone(), self.names[b].clone());
                self.names.insert(a.clone(), y);
                self.names.insert(b.clone(), x);
            }
            Op::Write { path, offset, data } => self.content_mut(path).write(*offset as usize, &data.bytes()),
            Op::Append { path, data } => self.content_mut(path).bytes.extend(data.bytes()),
            Op::Truncate { path, size } => self.content_mut(path).bytes.resize(*size as usize, 0),
            Op::Setxattr { path, value } => self.content_mut(path).xattr = Some(value.bytes()),
        }
    }

    fn move_name(&mut self, from: &str, to: &str) {
        let inside = format!("{from}/");
        let children: Vec<String> = self.names.keys().filter(|name| name.starts_with(&inside)).cloned().collect();
        for child in children {
            if let Some(node) = self.names.remove(&child) {
                self.names.insert(format!("{to}/{}", &child[inside.len()..]), node);
            }
        }
        if let Some(node) = self.names.remove(from) {
            self.names.insert(to.to_string(), node);
        }
    }

    /// The state of this writer's files.
    pub fn observe(&self, dir: &Path) -> BTreeMap<String, Seen> {
        let mut seen = BTreeMap::new();
        let in_shared = format!("{SHARED}/{}-", self.own);
        let in_own = format!("{}/", self.own);
        walk(dir, &mut |path, meta| {
            let name = path.strip_prefix(dir).expect("below").to_string_lossy().into_owned();
            if name == self.own || name.starts_with(&in_own) || name.starts_with(&in_shared) {
                seen.insert(name, look(path, meta));
            }
        });
        seen
    }

    /// The differences between the observed and the expected state.
    pub fn differences(&self, seen: &BTreeMap<String, Seen>) -> Vec<String> {
        let mut out = Vec::new();
        for (name, node) in &self.names {
            let expected = self.expect(node);
            if seen.get(name) != Some(&expected) {
                out.push(format!("{name}: {:?} instead of {expected:?}", seen.get(name)));
            }
        }
        let extra = seen.keys().filter(|name| !self.names.contains_key(*name));
        out.extend(extra.map(|name| format!("{name}: should not be there")));
        out
    }

    fn expect(&self, node: &Node) -> Seen {
        match node {
            Node::Dir => Seen::Dir,
            Node::Symlink(target) => Seen::Symlink(target.clone()),
            Node::File(id) => {
                let content = &self.files[id];
                Seen::File {
                    size: content.bytes.len() as u64,
                    checksum: checksum(&content.bytes),
                    links: self.names.values().filter(|n| matches!(n, Node::File(other) if other == id)).count() as u64,
                    xattr: content.xattr.as_deref().map(checksum),
                }
            }
        }
    }
}

impl Content {
    fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(data);
    }
}

fn look(path: &Path, meta: &std::fs::Metadata) -> Seen {
    let failed = |e: std::io::Error| panic!("{}: {e}", path.display());
    if meta.is_dir() {
        return Seen::Dir;
    }
    if meta.is_symlink() {
        return Seen::Symlink(std::fs::read_link(path).unwrap_or_else(failed).to_string_lossy().into_owned());
    }
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut value = [0u8; 4096];
    let xattr = match rustix::fs::getxattr(path, XATTR, &mut value[..]) {
        Ok(len) => Some(checksum(&value[..len])),
        Err(rustix::io::Errno::NODATA) => None,
        Err(e) => panic!("{}: {e}", path.display()),
    };
    Seen::File { size: meta.len(), checksum: checksum(&bytes), links: meta.nlink(), xattr }
}

/// Mostly short data of at least one byte.
fn data(rng: &mut Rng, longest: u64) -> Data {
    let limit = if rng.below(4) == 0 { longest } else { longest.min(1500) };
    Data { seed: rng.next(), len: 1 + rng.below(limit) as usize }
}

//! `lost+found`: inodes that have no name any more get one there.

use pram::Op;
use rustix::io::Errno;

use crate::attr::Kind;
use crate::dir::{self, Entry};
use crate::error::Result;
use crate::node::{Fs, Node};
use crate::ROOT;

const LOST_FOUND: &str = "lost+found";

/// Gives an inode without name the name `#number` in `lost+found`. A directory has so many `subdirs`.
pub(super) fn to_lost_found(fs: &Fs, op: &mut Op, mut node: Node, subdirs: u32) -> Result<String> {
    let (mut home, home_name) = lost_found(fs, op)?;
    let (name, _) = first_name(fs, &home, format!("#{}", node.ino), |found| found.is_none())?;
    op.lock(&[home.ino, node.ino])?;
    let mut tx = op.tx()?;
    let mut d = home.dir();
    let entry = Entry { ino: node.ino, kind: node.raw.kind };
    dir::insert(&mut tx, &fs.names(), &mut d, name.as_bytes(), entry)?;
    home.set_dir(&d);
    if node.is_dir() {
        node.raw.extra = home.ino;
        node.raw.nlink = 2 + subdirs;
        home.raw.nlink = home.raw.nlink.saturating_add(1);
    } else {
        node.raw.nlink = 1;
    }
    home.save(&mut tx)?;
    node.save(&mut tx)?;
    tx.commit()?;
    Ok(format!("inode {}: named /{home_name}/{name}", node.ino))
}

fn lost_found(fs: &Fs, op: &mut Op) -> Result<(Node, String)> {
    let is_dir = |e: &Entry| e.kind == Kind::Directory as u8;
    let (name, found) = first_name(fs, &fs.node(ROOT)?, LOST_FOUND.into(), |e| e.as_ref().is_none_or(is_dir))?;
    let ino = match found {
        Some(e) => e.ino,
        None => fs.mkdir_in(op, ROOT, name.as_bytes(), 0o700)?,
    };
    Ok((fs.node(ino)?, name))
}

/// The first of `name`, `name.1`, `name.2` and so on whose entry, or lack of one, will do.
fn first_name(
    fs: &Fs,
    home: &Node,
    name: String,
    will_do: impl Fn(&Option<Entry>) -> bool,
) -> Result<(String, Option<Entry>)> {
    let mut tried = name.clone();
    for n in 1u64.. {
        let found = dir::lookup(fs.memory(), &fs.names(), &home.dir(), tried.as_bytes())?;
        if will_do(&found) {
            return Ok((tried, found));
        }
        tried = format!("{name}.{n}");
    }
    Err(Errno::NOSPC.into())
}

//! The inodes that blocks belong to, which the cache gets from the file system above it.

use std::sync::Arc;

use pram::{Memory, Session, Tx};

use super::Union;
use crate::attr::{Ino, Kind};
use crate::error::Result;
use crate::file::Edit;
use crate::inode::Node;
use crate::layout::RawInode;

/// A file system whose large files lie in the cache.
pub trait Inodes: Send + Sync {
    fn session(&self) -> &Session;

    fn union(&self) -> Option<&Arc<Union>>;

    /// The inode, for a caller that holds its lock or reads optimistically. ESTALE if there is none.
    fn node(&self, ino: Ino) -> Result<Node>;

    /// A change of content by this transaction, by which no file becomes large.
    fn edit<'a, 'o>(&'a self, tx: &'a mut Tx<'o>) -> Edit<'a, 'o>;

    /// Fails where nothing may change.
    fn writable(&self) -> Result<()>;

    fn memory(&self) -> &Memory {
        self.session().memory()
    }

    fn raw(&self, ino: Ino) -> Result<RawInode> {
        Ok(self.node(ino)?.raw)
    }
}

/// The file with this number, if there is one, for a caller that holds its lock.
pub(crate) fn regular(fs: &dyn Inodes, ino: Ino) -> Result<Option<Node>> {
    match fs.node(ino) {
        Ok(node) if node.raw.kind == Kind::Regular as u8 => Ok(Some(node)),
        Ok(_) => Ok(None),
        Err(e) if matches!(e.errno(), rustix::io::Errno::STALE | rustix::io::Errno::NOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

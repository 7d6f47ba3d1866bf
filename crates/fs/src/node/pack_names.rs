//! Packing the names of quiet directories: bucket by bucket, in transactions under the directory's lock, as any change of
//! it. No caller sees a difference: the inode of each name and the place of each entry in a listing stay. A new entry in a packed
//! bucket makes it plain first, in the same transaction.

use std::ops::Range;

use pram::Op;
use serde::Serialize;

use super::Fs;
use crate::attr::{Ino, Time};
use crate::dir::{self, Dir};
use crate::error::{Error, Result};
use crate::inode::packing::Purpose;
use crate::inode::profiles;
use crate::layout::{RawInode, PER_BLOCK};

/// Buckets that are packed before others may change the directory.
const BUCKETS: usize = 16;

/// Names that were packed, or are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PackedNames {
    pub buckets: u64,
    /// Bytes of these buckets in plain form.
    pub plain_bytes: u64,
    /// And in packed form.
    pub packed_bytes: u64,
}

impl std::ops::AddAssign for PackedNames {
    fn add_assign(&mut self, other: PackedNames) {
        self.buckets += other.buckets;
        self.plain_bytes += other.plain_bytes;
        self.packed_bytes += other.packed_bytes;
    }
}

impl Fs {
    /// Packs the names in those directories among the inodes of these blocks that have not changed since `quiet_since`, until `go_on`
    /// says no. Blocks that are packed are passed over: their directories were packed before.
    pub fn pack_names(&self, blocks: Range<u64>, quiet_since: Time, go_on: &dyn Fn() -> bool) -> Result<PackedNames> {
        self.writable()?;
        let (mut packed, mut from) = (PackedNames::default(), blocks.start);
        while let Some(block) = self.table().next_block(from)?.filter(|block| *block < blocks.end && go_on()) {
            from = block + 1;
            if self.table().block(block)?.plain().is_none() {
                continue;
            }
            for ino in block * PER_BLOCK..from * PER_BLOCK {
                match self.pack_names_in(ino, quiet_since) {
                    Ok(done) => packed += done,
                    Err(e) if e.is_full() => return Ok(packed),
                    // Damage is for fsck to report.
                    Err(Error::Corrupt(_)) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(packed)
    }

    /// Packs the names in `ino`, if that is a directory and has not changed since `quiet_since`.
    pub fn pack_names_in(&self, ino: Ino, quiet_since: Time) -> Result<PackedNames> {
        let mut packed = PackedNames::default();
        let is_quiet = |raw: &RawInode| raw.is_dir() && raw.content != 0 && raw.ctime < quiet_since.0;
        let seen = self.session().read(ino, || self.table().get(ino))?;
        let mut next = seen.filter(is_quiet).map(|_| 0);
        if next.is_some() {
            profiles::make_first(self.session(), self.table())?;
        }
        while let Some(index) = next {
            next = self.beside(Purpose::Change, |op| self.pack_some(op, ino, index, &is_quiet, &mut packed))?;
        }
        Ok(packed)
    }

    /// Packs some buckets from `index` on; where to go on.
    fn pack_some(
        &self,
        op: &mut Op,
        ino: Ino,
        index: u64,
        is_quiet: &dyn Fn(&RawInode) -> bool,
        packed: &mut PackedNames,
    ) -> Result<Option<u64>> {
        op.lock(&[ino])?;
        let mut next = Some(index);
        for _ in 0..BUCKETS {
            let Some(index) = next else { break };
            let mut node = self.node(ino)?;
            if !is_quiet(&node.raw) || node.raw.nlink == 0 || op.is_long_locked(ino) {
                return Ok(None);
            }
            let mut d = node.dir();
            let mut tx = op.tx()?;
            let step = dir::pack_next(&mut tx, &self.names(), &mut d, index)?;
            if d != node.dir() {
                node.set_dir(&d);
                node.save(&mut tx)?;
            }
            tx.commit()?;
            if step.before > 0 {
                *packed += PackedNames { buckets: 1, plain_bytes: step.before, packed_bytes: step.after };
            }
            next = step.next;
        }
        Ok(next)
    }

    /// The names that are packed now.
    pub fn packed_names(&self) -> Result<PackedNames> {
        let (mut packed, mut from) = (PackedNames::default(), 0);
        while let Some(ino) = self.table().next_used(from)? {
            from = ino + 1;
            let found = self.session().read(ino, || {
                let mut found = PackedNames::default();
                if let Some(raw) = self.table().get(ino)?.filter(RawInode::is_dir) {
                    dir::each_packed(
                        self.memory(),
                        &self.names(),
                        &Dir::of(&raw),
                        &mut |plain_bytes, packed_bytes| {
                            found += PackedNames { buckets: 1, plain_bytes, packed_bytes };
                        },
                    )?;
                }
                Ok::<_, Error>(found)
            });
            // Damage is for fsck to report.
            packed += found.unwrap_or_default();
        }
        Ok(packed)
    }
}

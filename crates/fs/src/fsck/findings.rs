//! The findings of one look at an inode.

use ilfs::table::Needs;

use super::Damage;
use crate::attr::{Ino, Kind, SYMLINK_MAX};
use crate::dir::{self, Dir};
use crate::error::Result;
use crate::file;
use crate::layout::RawInode;
use crate::node::{content_of, Fs};
use crate::xattr;

/// The findings of one look at an inode; thrown away if the look was torn.
#[derive(Default)]
pub(super) struct Findings {
    /// Offset, type, and bytes or the fault.
    pub(super) objects: Vec<(u64, pram::Tag, Result<u64, String>)>,
    pub(super) entries: Vec<(Ino, u8)>,
    pub(super) problems: Vec<(Damage, String)>,
    pub(super) needs: Needs,
}

impl Findings {
    pub(super) fn clear(&mut self) {
        self.objects.clear();
        self.entries.clear();
        self.problems.clear();
        self.needs = Needs::default();
    }

    pub(super) fn check_objects(&mut self, check: impl Fn(u64, pram::Tag) -> Result<u64, String>) {
        for (off, tag, cap) in &mut self.objects {
            *cap = check(*off, *tag);
        }
    }

    pub(super) fn look(&mut self, fs: &Fs, ino: Ino, raw: &RawInode, names: bool) {
        let memory = fs.memory();
        let objects = &mut self.objects;
        let problems = &mut self.problems;
        if !raw.settings_are_known() {
            problems.push((Damage::Settings, "it has settings that do not exist".into()));
        }
        let mut visit = |off, tag| objects.push((off, tag, Ok(0)));
        let done = match raw.file_kind() {
            Ok(kind @ (Kind::Regular | Kind::Symlink)) => {
                if kind == Kind::Symlink && raw.size > SYMLINK_MAX as u64 {
                    problems.push((Damage::Content, format!("its target has {} bytes", raw.size)));
                }
                let c = content_of(ino, raw);
                if names {
                    file::check(memory, &c, &mut |p| problems.push((Damage::Content, p)));
                    if c.is_large() {
                        // Unreadable content has been reported.
                        let _ = file::places(memory, &c, &mut |_, place| self.needs.add(place));
                    }
                }
                file::visit(memory, &c, &mut visit)
            }
            Ok(Kind::Directory) => {
                let d = Dir::of(raw);
                let entries = &mut self.entries;
                if names {
                    dir::check(memory, &fs.names(), &d, &mut |p| problems.push((Damage::Content, p)), &mut |_, e| {
                        entries.push((e.ino, e.kind))
                    });
                }
                dir::visit(memory, &d, &mut visit)
            }
            Ok(kind) => {
                if raw.content != 0 || raw.size != 0 || !kind.is_device() && raw.extra != 0 {
                    problems.push((Damage::Content, "it has content, which its type does not".into()));
                }
                Ok(())
            }
            Err(e) => {
                problems.push((Damage::Inode, e.to_string()));
                return;
            }
        };
        if let Err(e) = done {
            problems.push((Damage::Content, e.to_string()));
        }
        if raw.xattr != 0 {
            if names {
                xattr::check(memory, raw.xattr, &mut |p| problems.push((Damage::Xattr, p)));
            }
            if let Err(e) = xattr::visit(memory, raw.xattr, &mut |off, tag| objects.push((off, tag, Ok(0)))) {
                problems.push((Damage::Xattr, e.to_string()));
            }
        }
        match fs.perms().get(fs.session(), raw.perm) {
            Err(e) => problems.push((Damage::Permissions, e.to_string())),
            Ok(perm) if !perm.has_owner() => problems.push((Damage::Permissions, "it has no owner".into())),
            Ok(perm) if perm.mode >> 12 != u32::from(raw.kind) => {
                problems.push((Damage::Inode, "its type and its mode disagree".into()));
            }
            Ok(_) => {}
        }
    }
}

//! The model agrees with Linux: the operations that [`random`](sim::scenario::random) draws, on the model and on a
//! directory of this host, have the same errors and the same files.

use std::fs::File;
use std::path::{Path, PathBuf};

use conquest_fs::node::{Fallocate, Rename};
use conquest_fs::Kind;
use rng::Rng;
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use sim::model::Model;
use sim::op::{Done, Op};

/// Operations on a directory of the host.
struct Host(PathBuf);

impl Host {
    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// Opens a file for writing its content, a directory for reading.
    fn open(&self, path: &str) -> rustix::io::Result<File> {
        let path = self.at(path);
        open(&path, !path.is_dir())
    }

    fn run(&self, op: &Op) -> Done {
        use std::os::unix::fs::FileExt;
        match op {
            Op::Create(path, mode) => {
                let mut options = std::fs::OpenOptions::new();
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, *mode);
                io(options.write(true).create_new(true).open(self.at(path)))?;
            }
            Op::Mkdir(path, mode) => rustix::fs::mkdir(self.at(path), (*mode).into())?,
            Op::Link(old, new) => rustix::fs::link(self.at(old), self.at(new))?,
            Op::Unlink(path) => rustix::fs::unlink(self.at(path))?,
            Op::Rmdir(path) => rustix::fs::rmdir(self.at(path))?,
            Op::Rename(from, to, how) => {
                let flags = match how {
                    Rename::NoReplace => RenameFlags::NOREPLACE,
                    Rename::Exchange => RenameFlags::EXCHANGE,
                    _ => RenameFlags::empty(),
                };
                rustix::fs::renameat_with(rustix::fs::CWD, self.at(from), rustix::fs::CWD, self.at(to), flags)?;
            }
            Op::Write(path, off, len, seed) => {
                io(open(&self.at(path), true)?.write_all_at(&Rng::new(*seed).bytes(*len), *off))?;
            }
            Op::Append(path, len, seed) => {
                let file = open(&self.at(path), true)?;
                let end = io(file.metadata())?.len();
                io(file.write_all_at(&Rng::new(*seed).bytes(*len), end))?;
            }
            Op::Truncate(path, size) => rustix::fs::ftruncate(open(&self.at(path), true)?, *size)?,
            Op::Fallocate(path, how, off, len) => {
                rustix::fs::fallocate(open(&self.at(path), true)?, flags(*how), *off, *len)?;
            }
            Op::Copy { from, to, len } => {
                let (source, target) = (self.open(&from.0)?, self.open(&to.0)?);
                let (mut at, mut into) = (from.1, to.1);
                return Ok(
                    rustix::fs::copy_file_range(source, Some(&mut at), target, Some(&mut into), *len as usize)? as u64
                );
            }
            Op::SetXattr(path, name, value) => {
                rustix::fs::lsetxattr(self.at(path), name.as_str(), value, XattrFlags::empty())?;
            }
            Op::RemoveXattr(path, name) => rustix::fs::lremovexattr(self.at(path), name.as_str())?,
            op => panic!("{op:?} is not one that is drawn"),
        }
        Ok(0)
    }
}

fn open(path: &Path, write: bool) -> rustix::io::Result<File> {
    io(File::options().read(true).write(write).open(path))
}

fn io<T>(done: std::io::Result<T>) -> rustix::io::Result<T> {
    done.map_err(|e| Errno::from_io_error(&e).expect("an error of the system"))
}

fn flags(how: Fallocate) -> FallocateFlags {
    let keep = |keep: bool| if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
    match how {
        Fallocate::Allocate { keep_size } => keep(keep_size),
        Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Fallocate::ZeroRange { keep_size } => FallocateFlags::ZERO_RANGE | keep(keep_size),
        Fallocate::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
        Fallocate::InsertRange => FallocateFlags::INSERT_RANGE,
    }
}

/// Excludes operations that paths alone cannot do on a host, or only the superuser can.
fn is_comparable(op: &Op) -> bool {
    !matches!(op, Op::Symlink { .. } | Op::Chown(..))
}

#[test]
fn the_model_fails_as_linux_does() {
    let mut errors = std::collections::BTreeMap::<String, usize>::new();
    let seeds = if sim::verdict::full() { 5000 } else { 200 };
    for s in sim::scenario::random(0..seeds) {
        let dir = tempfile::tempdir().expect("a directory");
        let (host, mut model) = (Host(dir.path().into()), Model::default());
        for op in s.setup.iter().chain([&s.op]).filter(|op| is_comparable(op)) {
            let done = host.run(op);
            // Not each file system of Linux can do everything.
            if done == Err(Errno::OPNOTSUPP) {
                continue;
            }
            model.apply(op, &done).unwrap_or_else(|difference| panic!("{}: {difference}", s.name));
            if let Err(e) = done {
                *errors.entry(format!("{e:?}")).or_default() += 1;
            }
        }
        assert_same_files(&model, dir.path(), &s.name);
    }
    assert!(errors.len() >= 8, "{errors:?}");
}

fn assert_same_files(model: &Model, top: &Path, name: &str) {
    for (path, wanted) in model.tree() {
        let at = top.join(String::from_utf8(path).expect("drawn").trim_start_matches('/'));
        match wanted.kind {
            Kind::Directory => assert!(at.is_dir(), "{name}: {at:?}"),
            _ => assert!(std::fs::read(&at).ok() == Some(wanted.content), "{name}: {at:?}"),
        }
    }
}

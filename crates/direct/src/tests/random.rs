//! Sequences of calls, by a seed.

use libc::*;
use rng::Rng;

use super::both::{Both, Side, BUFFER};
use super::world;

/// Names that calls use, in a tree.
const NAMES: &[&str] =
    &["f", "x", "d", "d/f", "e", "e/a", "e/b", "l_rel", "l_dir/f", "l_dangling", "d/sub/deep", "e/sub"];
const OPEN: &[i32] = &[
    O_RDONLY,
    O_RDWR | O_CREAT,
    O_RDWR | O_CREAT | O_EXCL,
    O_WRONLY | O_CREAT | O_TRUNC,
    O_RDWR | O_CREAT | O_APPEND,
    O_RDWR | O_CLOEXEC | O_NONBLOCK,
    O_RDONLY | O_DIRECTORY,
    O_WRONLY | O_DSYNC,
];
const MODES: &[usize] = &[0, FALLOC_FL_KEEP_SIZE as usize, (FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE) as usize];
const CWD: usize = AT_FDCWD as isize as usize;
/// Descriptors at a time.
const MOST: usize = 12;

struct Run<'a> {
    both: &'a mut Both,
    rng: Rng,
    tree: &'a str,
}

impl Run<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A length or offset: near pages and the small.
    fn size(&mut self) -> usize {
        let near = self.pick(&[0, 1, 100, 4095, 4096, 4097, 8192, 20_000, 40_000]);
        near + self.below(3)
    }

    fn path(&mut self) -> std::ffi::CString {
        let name = self.pick(NAMES);
        self.both.path(&format!("{}/in/{name}", self.tree))
    }

    /// A call on an open file that tells a number.
    fn on_file(&mut self, n: usize) {
        let (len, at, fd) = (self.size(), self.size(), self.below(self.both.direct.fds.len()));
        let calls: [(&str, c_long, [usize; 4]); 13] = [
            ("lseek", SYS_lseek, [at, 0, 0, 0]),
            ("lseek", SYS_lseek, [at.wrapping_sub(5000), 1, 0, 0]),
            ("lseek", SYS_lseek, [0, 9, 0, 0]),
            ("ftruncate", SYS_ftruncate, [len, 0, 0, 0]),
            ("fsync", SYS_fsync, [0; 4]),
            ("fallocate", SYS_fallocate, [self.pick(MODES), at, len, 0]),
            ("fchmod", SYS_fchmod, [self.pick(&[0o600, 0o4755, 0o2711]), 0, 0, 0]),
            ("fcntl", SYS_fcntl, [F_GETFL as usize, 0, 0, 0]),
            ("fcntl", SYS_fcntl, [F_SETFL as usize, self.pick(&[O_APPEND, O_NONBLOCK, 0]) as usize, 0, 0]),
            ("fcntl", SYS_fcntl, [F_GETFD as usize, 0, 0, 0]),
            ("fcntl", SYS_fcntl, [F_SETFD as usize, self.below(2), 0, 0]),
            ("futimens", SYS_utimensat, [0, 0, 0, 0]),
            ("fadvise", SYS_fadvise64, [0, len, self.below(8), 0]),
        ];
        let (what, nr, rest) = self.pick(&calls);
        let args = |side: &Side| [side.fd(fd), rest[0], rest[1], rest[2], rest[3], 0];
        self.both.same(&format!("{n}: {what} {rest:?}"), nr, &args);
        self.both.same_stat(&format!("{n}: fstat"), SYS_fstat, &|side| [side.fd(fd), side.out(), 0, 0, 0, 0], false);
    }

    /// A call that moves content from or to memory.
    fn content(&mut self, n: usize) {
        let (len, at, fd) = (self.size(), self.size(), self.below(self.both.direct.fds.len()));
        let calls = [SYS_read, SYS_write, SYS_pread64, SYS_pwrite64, SYS_readv, SYS_writev, SYS_preadv, SYS_pwritev];
        let nr = self.pick(&calls);
        let bytes: Vec<u8> = (0..64).map(|_| self.rng.below(256) as u8).collect();
        for side in [&mut self.both.direct, &mut self.both.kernel] {
            side.buf.chunks_mut(64).for_each(|part| part.copy_from_slice(&bytes));
        }
        let of_vectors = [SYS_readv, SYS_writev, SYS_preadv, SYS_pwritev].contains(&nr);
        let args = |side: &Side| match of_vectors {
            true => [side.fd(fd), side.vectors(), 3, at, 0, 0],
            false => [side.fd(fd), side.buf(), len.min(BUFFER), at, 0, 0],
        };
        self.both.same(&format!("{n}: content {nr} {len} at {at}"), nr, &args);
        assert!(self.both.direct.buf == self.both.kernel.buf, "{n}: content {nr} {len} at {at}");
    }

    fn inode(&self, fd: usize) -> u64 {
        let fd = crate::raw::borrow(self.both.kernel.fds[fd]).unwrap();
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    fn between_files(&mut self, n: usize) {
        let count = self.both.direct.fds.len();
        let (from, to, len) = (self.below(count), self.below(count), self.size());
        match self.below(2) {
            0 => {
                let args = |side: &Side| [side.fd(from), 0, side.fd(to), 0, len, 0];
                self.both.same(&format!("{n}: copy_file_range {len}"), SYS_copy_file_range, &args);
            }
            // In one file the kernel sends what it has just stored.
            _ if self.inode(from) != self.inode(to) => {
                let args = |side: &Side| [side.fd(to), side.fd(from), 0, len, 0, 0];
                self.both.same(&format!("{n}: sendfile {len}"), SYS_sendfile, &args);
            }
            _ => {}
        }
    }

    fn descriptors(&mut self, n: usize) {
        let count = self.both.direct.fds.len();
        let fd = self.below(count);
        match self.below(4) {
            0 if count < MOST => {
                self.both.opens(&format!("{n}: dup"), SYS_dup, &|side| [side.fd(fd), 0, 0, 0, 0, 0]);
            }
            1 if count < MOST => {
                let args = |side: &Side| [side.fd(fd), F_DUPFD_CLOEXEC as usize, 300, 0, 0, 0];
                self.both.opens(&format!("{n}: dupfd"), SYS_fcntl, &args);
            }
            2 => {
                let to = self.below(count);
                let (direct, kernel) = self.both.results(SYS_dup3, &|side| [side.fd(fd), side.fd(to), 0, 0, 0, 0]);
                assert_eq!(direct.map(|fd| fd < 0), Some(kernel < 0), "{n}: dup3");
            }
            _ => {
                self.both.same(&format!("{n}: close"), SYS_close, &|side| [side.fd(fd), 0, 0, 0, 0, 0]);
                self.both.direct.fds.remove(fd);
                self.both.kernel.fds.remove(fd);
            }
        }
    }

    fn names(&mut self, n: usize) {
        let (path, other, len) = (self.path(), self.path(), self.size());
        let (path, other) = (path.as_ptr() as usize, other.as_ptr() as usize);
        let calls: [(&str, c_long, [usize; 6]); 12] = [
            ("unlink", SYS_unlink, [path, 0, 0, 0, 0, 0]),
            ("mkdir", SYS_mkdir, [path, 0o755, 0, 0, 0, 0]),
            ("rmdir", SYS_rmdir, [path, 0, 0, 0, 0, 0]),
            ("rename", SYS_rename, [path, other, 0, 0, 0, 0]),
            ("exchange", SYS_renameat2, [CWD, path, CWD, other, RENAME_EXCHANGE as usize, 0]),
            ("link", SYS_link, [path, other, 0, 0, 0, 0]),
            ("symlink", SYS_symlink, [c"../f".as_ptr() as usize, path, 0, 0, 0, 0]),
            ("truncate", SYS_truncate, [path, len, 0, 0, 0, 0]),
            ("chmod", SYS_chmod, [path, 0o640, 0, 0, 0, 0]),
            ("access", SYS_access, [path, 1, 0, 0, 0, 0]),
            ("utimes", SYS_utimes, [path, 0, 0, 0, 0, 0]),
            ("lchown", SYS_lchown, [path, 5, 6, 0, 0, 0]),
        ];
        let (what, nr, args) = self.pick(&calls);
        self.both.same(&format!("{n}: {what}"), nr, &|_| args);
    }

    fn open(&mut self, n: usize) {
        let (path, flags) = (self.path(), self.pick(OPEN) as usize);
        let args = |_: &Side| [path.as_ptr() as usize, flags, 0o644, 0, 0, 0];
        self.both.opens(&format!("{n}: open {flags:o}"), SYS_open, &args);
    }

    fn step(&mut self, n: usize) {
        match (self.both.direct.fds.len(), self.below(10)) {
            (0..MOST, 0 | 1) | (0, _) => self.open(n),
            (_, 2) => self.descriptors(n),
            (_, 3) => self.between_files(n),
            (_, 4) => self.names(n),
            (_, 5 | 6) => self.on_file(n),
            _ => self.content(n),
        }
    }
}

#[test]
fn sequences_are_as_on_tmpfs() {
    for seed in 0..20 {
        let mut both = Both::new();
        world::make(&both, "t");
        let mut run = Run { both: &mut both, rng: Rng::new(seed), tree: "t" };
        println!("seed {seed}");
        for n in 0..600 {
            run.step(n);
        }
        assert_eq!(both.left, 0, "seed {seed}");
        world::compare_and_remove(&both, "t", &format!("seed {seed}"));
    }
}

//! One call in the engine and in the kernel.
//!
//! The pool is as if it were mounted at the directory of tmpfs that the kernel works in: paths are the same for both.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

use conquest::{FormatOptions, MediumKind, OpenOptions, Pool};
use libc::c_long;
use pram::mem::descriptor::Kept;
use rustix::fs::{open, stat, Mode, OFlags};

use crate::{raw, Answer, Engine, Mounted};

const SIZE: u64 = 64 << 20;
/// Bytes of each side's buffer.
pub const BUFFER: usize = 1 << 16;

/// One of the two: its descriptors, in the order that they were opened in, and memory for results.
pub struct Side {
    pub fds: Vec<i32>,
    pub buf: Box<[u8; BUFFER]>,
    /// Memory for attributes, which differ.
    out: Box<[u8; 4096]>,
    /// Three buffers, for `readv`.
    vectors: [[u64; 2]; 3],
}

impl Side {
    fn new() -> Side {
        let buf = Box::new([0; BUFFER]);
        let at = buf.as_ptr() as u64;
        let vectors = [[at, 100], [at + 5000, 0], [at + 1000, 3000]];
        Side { fds: Vec::new(), buf, out: Box::new([0; 4096]), vectors }
    }

    pub fn fd(&self, n: usize) -> usize {
        self.fds[n] as usize
    }

    pub fn buf(&self) -> usize {
        self.buf.as_ptr() as usize
    }

    pub fn out(&self) -> usize {
        self.out.as_ptr() as usize
    }

    pub fn vectors(&self) -> usize {
        self.vectors.as_ptr() as usize
    }
}

pub struct Both {
    pub engine: Engine,
    pub direct: Side,
    pub kernel: Side,
    /// Calls that the engine left to the kernel.
    pub left: usize,
    /// The mount point, and tmpfs.
    pub dir: tempfile::TempDir,
    /// In the place of the mount's server: an engine is a guest of it.
    _attended: Pool,
    _pool: tempfile::TempDir,
}

impl Both {
    pub fn new() -> Both {
        let (pool, dir) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let how = FormatOptions { root_owner: (0, 0), ..FormatOptions::on(MediumKind::Battery, SIZE) };
        Pool::format(pool.path(), &how).unwrap();
        let root = open(dir.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        // Another number than that of tmpfs: nothing is taken for a real descriptor.
        let dev = stat(dir.path()).unwrap().st_dev + 1;
        let root = Kept::new(root).unwrap();
        let flags = rustix::fs::fstatfs(root.lend().unwrap()).unwrap().f_flags as u64;
        let mounted = Mounted { dir: dir.path().as_os_str().as_bytes().to_vec(), dev, root, flags };
        let attended = Pool::open(pool.path(), &OpenOptions::default()).unwrap();
        let engine = Engine::attach(pool.path(), mounted).unwrap();
        Both { engine, direct: Side::new(), kernel: Side::new(), left: 0, dir, _attended: attended, _pool: pool }
    }

    /// The absolute path of `name` in both.
    pub fn path(&self, name: &str) -> CString {
        CString::new([self.dir.path().as_os_str().as_bytes(), b"/", name.as_bytes()].concat()).unwrap()
    }

    /// The results of a call, as raw system calls return them. `None`: the engine leaves it to the kernel.
    pub fn results(&mut self, nr: c_long, args: &dyn Fn(&Side) -> [usize; 6]) -> (Option<isize>, isize) {
        let direct = match self.engine.call(nr as u32, &args(&self.direct)) {
            Answer::Done(result) => Some(result),
            Answer::Kernel => None,
        };
        self.left += usize::from(direct.is_none());
        (direct, raw::kernel(nr, &args(&self.kernel)))
    }

    /// The result of a call, which is the same in both.
    pub fn same(&mut self, what: &str, nr: c_long, args: &dyn Fn(&Side) -> [usize; 6]) -> isize {
        let (direct, kernel) = self.results(nr, args);
        assert_eq!(direct, Some(kernel), "{what}: the engine, and the kernel");
        kernel
    }

    /// The result of the kernel, which is the engine's too unless the call may be left to the kernel.
    pub fn same_or_left(&mut self, what: &str, nr: c_long, args: &dyn Fn(&Side) -> [usize; 6], may: bool) -> isize {
        let (direct, kernel) = self.results(nr, args);
        assert!(
            direct == Some(kernel) || may && direct.is_none(),
            "{what}: {direct:?} by the engine, {kernel} by the kernel"
        );
        kernel
    }

    /// The same of a call that tells the attributes of a file.
    pub fn same_stat(&mut self, what: &str, nr: c_long, args: &dyn Fn(&Side) -> [usize; 6], may: bool) {
        let left = self.left;
        if self.same_or_left(what, nr, args, may) == 0 && self.left == left {
            let of = |side: &Side| {
                let words: [u64; 18] = zerocopy::FromBytes::read_from_bytes(&side.out[..144]).unwrap();
                let (links, mode, uid_gid, is_dir) = (words[2], words[3], words[4], words[3] as u32 >> 12 == 4);
                (links, mode, uid_gid, words[5], if is_dir { 0 } else { words[6] })
            };
            assert_eq!(of(&self.direct), of(&self.kernel), "{what}: the engine, and the kernel");
        }
    }

    /// Opens and closes.
    pub fn opens_or_leaves(&mut self, what: &str, nr: c_long, args: &dyn Fn(&Side) -> [usize; 6], may: bool) {
        let (direct, kernel) = self.results(nr, args);
        let is_open = |result: isize| if result >= 0 { Ok(()) } else { Err(result) };
        match direct {
            Some(direct) => assert_eq!(is_open(direct), is_open(kernel), "{what}: the engine, and the kernel"),
            None => assert!(may, "{what} was left to the kernel"),
        }
        for fd in direct.into_iter().chain([kernel]).filter(|fd| *fd >= 0) {
            let args = [fd as usize, 0, 0, 0, 0, 0];
            if self.engine.call(libc::SYS_close as u32, &args) == Answer::Kernel {
                raw::kernel(libc::SYS_close, &args);
            }
        }
    }

    /// The same of a call that makes a descriptor, which both then have as their last.
    pub fn opens(&mut self, what: &str, nr: c_long, args: &dyn Fn(&Side) -> [usize; 6]) -> isize {
        let (direct, kernel) = self.results(nr, args);
        let direct = direct.unwrap_or_else(|| panic!("{what}: it was left to the kernel"));
        if direct < 0 || kernel < 0 {
            assert_eq!(direct, kernel, "{what}: the engine, and the kernel");
            return kernel;
        }
        self.direct.fds.push(direct as i32);
        self.kernel.fds.push(kernel as i32);
        0
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        for fd in std::mem::take(&mut self.direct.fds) {
            self.engine.call(libc::SYS_close as u32, &[fd as usize, 0, 0, 0, 0, 0]);
        }
        for fd in std::mem::take(&mut self.kernel.fds) {
            raw::kernel(libc::SYS_close, &[fd as usize, 0, 0, 0, 0, 0]);
        }
    }
}

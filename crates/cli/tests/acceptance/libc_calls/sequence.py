# A sequence of system calls by a seed, with arguments near the edges: prints what each call says.
#   sequence.py SEED THREADS STEPS
# Each thread works in a directory of its own, and what it prints does not depend on the others. One thread alone also uses the working
# directory, the umask, signals, and numbers of descriptors that it has no right to expect anything at.
import ctypes, errno, fcntl, hashlib, mmap, os, random, resource, select, signal, socket, stat, struct, sys, threading

libc = ctypes.CDLL(None, use_errno=True)
NAMES = ("f", "g", "d", "d/f", "d/x", "e", "e/a", "e/b", "e/d/deep", "l", "ld/f", "ld", "loop", "dangling", "d/", "f/", "d/../f", "./f", "none/x", "", "n" * 255, "n" * 256)
EDGES = (0, 1, 2, 511, 512, 4095, 4096, 4097, 8191, 8192, 10000, 65535, 65536, 131073, 1 << 20)
STRANGE = (-1, -4096, 1 << 31, 1 << 32, (1 << 63) - 1, -1 << 63)
MODES = (0, 0o600, 0o644, 0o755, 0o4755, 0o2711, 0o1777, 0o7777)
AT_FDCWD, EMPTY_PATH, NOFOLLOW = -100, 0x1000, 0x100
MOST = 14

def raw(name, *args):
    """What a function of the C library returns, and the errno."""
    f = libc[name]; f.restype = ctypes.c_long; ctypes.set_errno(0)
    r = f(*[ctypes.c_long(a) if type(a) is int else a for a in args])
    r = -1 if r in (-1, 0xffffffff) else r
    return errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno()) if r == -1 else r
def tried(f, *a, **k):
    try: return f(*a, **k)
    except OSError as e: return errno.errorcode.get(e.errno)
def digest(b): return hashlib.sha1(bytes(b)).hexdigest()[:8]
def attributes(r, b):
    if r != 0: return r
    n, mode, uid, gid, _, rdev, size = struct.unpack_from("QIIIIQQ", b, 16)
    return oct(mode), n, uid, gid, size if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else ""

class Run:
    def __init__(self, seed, dir, alone):
        self.rng, self.dir, self.alone, self.fds, self.lines, self.n, self.locks = random.Random(seed), dir, alone, [], [], 0, False
        for d in ("", "/d", "/e", "/e/d"): os.mkdir(dir + d)
        for name, target in (("l", "d/f"), ("ld", "d"), ("loop", "loop"), ("dangling", "none")): os.symlink(target, f"{dir}/{name}")
        self.ops = [getattr(self, name) for name in sorted(dir_of(Run)) if name.startswith("do_") and (alone or not name.startswith("do_alone"))]

    # Arguments.
    def one(self, *all): return self.rng.choice(all)
    def size(self): return self.one(*EDGES, *EDGES, *EDGES, *STRANGE)
    def short(self): return self.one(*EDGES[:-1])
    def path(self):
        name = self.one(*NAMES, *NAMES[:8])
        return (name if self.alone and self.rng.random() < .5 else f"{self.dir}/{name}").encode()
    def fd(self): return self.one(*self.fds) if self.fds and self.rng.random() < .97 else self.one(-1, 700)
    def at(self): return (self.fd(), self.one(*NAMES[:-1]).encode()) if self.rng.random() < .6 else (AT_FDCWD, self.path())
    def data(self, n): return (self.rng.randbytes(64) * (n // 64 + 1))[:n]
    def keep(self, r):
        """A descriptor that a call has made, or its error. Others have other numbers."""
        if type(r) is str or r < 0: return r
        if len(self.fds) >= MOST: os.close(r); return "one too many"
        self.fds.append(r)
        return "open"

    # Opening and descriptors.
    FLAGS = (0, 2, 1, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_RDWR | os.O_APPEND | os.O_CREAT, os.O_RDONLY | os.O_DIRECTORY, os.O_RDONLY | os.O_DIRECTORY,
             os.O_PATH, os.O_PATH | os.O_NOFOLLOW, os.O_PATH | os.O_DIRECTORY, os.O_RDWR | os.O_SYNC, os.O_RDWR | os.O_DSYNC | os.O_CREAT, os.O_NOATIME, os.O_RDONLY | os.O_NOFOLLOW, os.O_RDONLY | os.O_TRUNC, 3, os.O_CREAT | os.O_DIRECTORY, os.O_RDWR | os.O_CLOEXEC)
    def do_open(self): return self.keep(raw("open", self.path(), self.one(*self.FLAGS) | os.O_NONBLOCK, self.one(*MODES)))
    do_open2 = do_open3 = do_open4 = do_open
    def do_openat(self): return self.keep(raw("openat", *self.at(), self.one(*self.FLAGS) | os.O_NONBLOCK, self.one(*MODES)))
    def do_tmpfile(self): return self.keep(raw("open", self.path(), os.O_TMPFILE | os.O_RDWR, 0o600))
    def do_creat(self): return self.keep(raw("creat", f"{self.dir}/{self.one('f', 'g', 'd/f', 'e/a')}".encode(), self.one(*MODES)))
    def do_close(self):
        if not self.fds: return raw("close", -1)
        return raw("close", self.fds.pop(self.rng.randrange(len(self.fds))))
    def do_dup(self): return self.keep(raw("dup", self.fd()))
    def do_dupfd(self): return self.keep(raw("fcntl", self.fd(), self.one(0, 1030), self.one(0, 100, 400, -1)))
    def do_dup_over(self):
        if not self.fds: return
        to = self.one(*self.fds); r = raw(self.one("dup2", "dup3"), self.fd(), to, self.one(0, os.O_CLOEXEC))
        return "there" if r == to else r
    def do_flags(self):
        fd = self.fd(); how = self.one((1, 0), (2, 0), (2, 1), (3, 0), (4, os.O_APPEND), (4, os.O_NONBLOCK), (4, 0), (4, os.O_DIRECT), (8, 0), (9, 0), (1032, 0), (5555, 0))
        return how, raw("fcntl", fd, *how)

    # Content.
    def do_read(self): n = self.short(); b = ctypes.create_string_buffer(n + 1); r = raw("read", self.fd(), b, n); return r, digest(b.raw)
    do_read2 = do_read
    def do_write(self): n = self.short(); return raw("write", self.fd(), self.data(n), n)
    do_write2 = do_write3 = do_write
    def do_pread(self): n = self.short(); b = ctypes.create_string_buffer(n + 1); r = raw("pread", self.fd(), b, n, self.size()); return r, digest(b.raw)
    def do_pwrite(self): n = self.short(); return raw("pwrite", self.fd(), self.data(n), n, self.one(*EDGES, -1))
    def vectors(self, buffers): return (ctypes.c_uint64 * (2 * len(buffers)))(*[x for b in buffers for x in (ctypes.addressof(b), len(b) - 1)])
    def do_readv(self):
        bs = [ctypes.create_string_buffer(self.one(1, 2, 100, 5000)) for _ in range(self.one(0, 1, 3))]; how = self.one("readv", "preadv", "preadv2")
        r = raw(how, self.fd(), self.vectors(bs), len(bs), self.one(*EDGES, -1), self.one(0, 0, 1, 16)); return how, r, [digest(b.raw) for b in bs]
    def do_writev(self):
        bs = [ctypes.create_string_buffer(self.data(n), n + 1) for n in [self.one(0, 1, 100, 5000) for _ in range(self.one(0, 1, 3))]]; how = self.one("writev", "pwritev", "pwritev2")
        return how, raw(how, self.fd(), self.vectors(bs), len(bs), self.one(*EDGES, -1), self.one(0, 2, 4, 16))
    def do_lseek(self):
        fd, at, how = self.fd(), self.size(), self.one(0, 1, 2, 3, 4, 5, 0)
        # The positions and the end of a directory are the file system's, and so are holes.
        if tried(lambda: stat.S_ISREG(os.fstat(fd).st_mode)) is not True: return raw("lseek", fd, 0, 0)
        return raw("lseek", fd, at, how) if how not in (3, 4) else type(raw("lseek", fd, at, 3)) and raw("lseek", fd, 7, 0)
    def do_ftruncate(self): return raw("ftruncate", self.fd(), self.one(*EDGES, -1, 5000, 70000))
    def do_truncate(self): return raw("truncate", self.path(), self.one(*EDGES, -1))
    def do_fallocate(self): return raw("fallocate", self.fd(), self.one(0, 1, 3, 2, 8, 32, 64 | 128), self.short(), self.one(*EDGES, -1))
    def do_sync(self): return raw(self.one("fsync", "fdatasync"), self.fd())
    def do_advise(self): return raw("posix_fadvise", self.fd(), self.short(), self.short(), self.one(0, 1, 2, 3, 4, 5, 6))
    def do_range(self): return raw("sync_file_range", self.fd(), self.size(), self.short(), self.one(0, 7, 8))
    def inode(self, fd): return tried(lambda: os.fstat(fd).st_ino)
    def do_copy(self):
        a, b = self.fd(), self.fd()
        return raw("copy_file_range", a, None, b, None, self.short(), self.one(0, 0, 0, 1)) if self.inode(a) != self.inode(b) else "itself"
    def do_send(self):
        a, b = self.fd(), self.fd(); at = self.one(None, struct.pack("q", self.short()), struct.pack("q", -1))
        return raw("sendfile", a, b, at, self.short()) if self.inode(a) != self.inode(b) else "itself"
    def do_splice(self):
        r, w = os.pipe2(os.O_NONBLOCK); n = self.one(1, 100, 4096); a, b = self.fd(), self.fd()
        try: return raw("splice", a, None, w, None, n, 2), raw("splice", r, None, b, None, n, 2)
        finally: os.close(r); os.close(w)
    def do_map(self):
        fd, n = self.fd(), self.one(100, 4096, 9000)
        try: m = mmap.mmap(fd, n, self.one(mmap.MAP_SHARED, mmap.MAP_PRIVATE), prot=self.one(1, 3))
        except (OSError, ValueError) as e: return errno.errorcode.get(getattr(e, "errno", None))
        with m:
            seen = digest(m[:n])
            if self.rng.random() < .5: tried_type(lambda: m.__setitem__(slice(5, 8), b"map"))
            m.flush() if self.rng.random() < .5 else None
            return seen, tried(lambda: digest(os.pread(fd, 100, 0)))

    # Names.
    def do_mkdir(self): return raw("mkdir", self.path(), self.one(*MODES[1:]))
    def do_mkdirat(self): return raw("mkdirat", *self.at(), 0o755)
    def do_rmdir(self): return raw(self.one("rmdir", "remove"), self.path())
    def do_unlink(self): return raw("unlink", self.path())
    def do_unlinkat(self): return raw("unlinkat", *self.at(), self.one(0, 0, 0x200, 1))
    def do_rename(self): return raw("rename", self.path(), self.path())
    def do_renameat2(self): return raw("renameat2", *self.at(), *self.at(), self.one(0, 0, 1, 2, 3, 8))
    def do_link(self): return raw("link", self.path(), self.path())
    def do_linkat(self): return raw("linkat", *self.at(), *self.at(), self.one(0, 0x400, EMPTY_PATH, 1))
    def do_symlink(self): return raw("symlink", self.one(b"d/f", b"e", b"f", b"", self.dir.encode() + b"/d", b"n" * 4095), self.path())
    def do_symlinkat(self): return raw("symlinkat", b"f", *self.at())
    def do_mknod(self): return raw("mknod", self.path(), self.one(0o100600, 0o140600, 0o040700, 0), 0)
    def do_readlink(self): b = ctypes.create_string_buffer(5000); r = raw("readlink", self.path(), b, self.one(0, 1, 4, 4096)); return r, b.raw.rstrip(b"\\0").replace(self.dir.encode(), b"DIR").rstrip(b"\0")
    def do_stat(self): b = ctypes.create_string_buffer(144); return attributes(raw(self.one("stat", "lstat"), self.path(), b), b)
    def do_fstat(self): b = ctypes.create_string_buffer(144); return attributes(raw("fstat", self.fd(), b), b)
    def do_fstatat(self): b = ctypes.create_string_buffer(144); return attributes(raw("fstatat", *self.at(), b, self.one(0, NOFOLLOW, EMPTY_PATH, 1)), b)
    def do_access(self): return raw("access", self.path(), self.one(0, 1, 2, 4, 7, 8)), raw("faccessat", *self.at(), 4, self.one(0, NOFOLLOW, EMPTY_PATH))
    def do_chmod(self): return raw("chmod", self.path(), self.one(*MODES)), raw("fchmod", self.fd(), self.one(*MODES)), raw("fchmodat", *self.at(), self.one(*MODES), 0)
    def do_chown(self): return raw("lchown", self.path(), self.one(-1, 0, 7), self.one(-1, 0, 8)), raw("fchown", self.fd(), self.one(-1, 5), -1), raw("fchownat", *self.at(), 0, 0, self.one(0, NOFOLLOW, EMPTY_PATH))
    def do_times(self): t = struct.pack("4q", 500, self.one(0, (1 << 30) - 2, 1 << 31), 600, 5); return raw("utimensat", *self.at(), t, self.one(0, NOFOLLOW)), raw("futimens", self.fd(), t), tried(lambda: int(os.lstat(self.dir + "/f").st_mtime) if os.lstat(self.dir + "/f").st_mtime < 1e9 else "now")
    def do_xattr(self):
        a, v = self.one(b"user.a", b"user.b", b"trusted.c", b"user.", b"nothing", b"n" * 256), self.data(64)
        b = ctypes.create_string_buffer(200); p, fd = self.path(), self.fd()
        return raw("setxattr", p, a, v, self.one(0, 5, 64), self.one(0, 1, 2)), raw("fgetxattr", fd, a, b, self.one(0, 5, 100)), digest(b.raw), raw("lremovexattr", p, self.one(a, b"user.b")), sorted(tried(os.listxattr, self.dir + "/f") or ())
    def do_list(self): return tried(lambda: sorted((e.name, e.is_dir(follow_symlinks=False)) for e in os.scandir(self.path()))) if self.rng.random() < .5 else self.listed(self.fd())
    def listed(self, fd): return tried(lambda: stat.S_ISDIR(os.fstat(fd).st_mode)) is True and (raw("lseek", fd, 0, 0), tried(lambda: sorted(os.listdir(fd))))
    def do_list_on(self):
        d = self.fd(); b = ctypes.create_string_buffer(200); r = raw("getdents64", d, b, 200)
        return r if type(r) is str else r > 0
    def do_statfs(self): b = ctypes.create_string_buffer(200); return raw("statfs", self.path(), b), raw("fstatfs", self.fd(), b), raw("pathconf", self.dir.encode(), 3)
    def do_realpath(self): p = self.path(); return tried(lambda: os.path.realpath(p, strict=True).replace(self.dir.encode(), b"DIR"))

    # Locks, waiting, others.
    def do_flock(self): self.locks = True; return raw("flock", self.fd(), self.one(1, 2, 8, 2, 3) | 4)
    def do_lock(self):
        self.locks = True; fd = self.fd(); here, end = (1, 2) if tried(lambda: stat.S_ISREG(os.fstat(fd).st_mode)) is True else (0, 0)
        return raw("fcntl", fd, self.one(6, 37, 37), struct.pack("hhiqqii", self.one(0, 1, 2), self.one(0, here, end), 0, self.one(0, 5, 100, -3), self.one(0, 1, 50), 0, 0))
    def do_lock_of(self): b = ctypes.create_string_buffer(struct.pack("hhiqqii", 1, 0, 0, self.one(0, 5, 100), 9, 0, 0), 32); return raw("fcntl", self.fd(), self.one(5, 36), b), struct.unpack_from("hhiqq", b.raw)
    def do_poll(self): b = ctypes.create_string_buffer(struct.pack("ihh", self.fd(), 5, 0), 8); return raw("poll", b, 1, 0), b.raw[6:8]
    def do_ioctl(self):
        fd = self.fd(); b = ctypes.create_string_buffer(64); what = self.one(0x541b, 0x5401, 0x5450, 0x5451, 0x1234)
        return what, raw("ioctl", fd, what, b), b.raw[:4] if what == 0x541b and tried(lambda: stat.S_ISREG(os.fstat(fd).st_mode)) is True else ""
    def do_socket(self): return raw("getsockname", self.fd(), ctypes.create_string_buffer(64), struct.pack("i", 64)), raw("send", self.fd(), b"x", 1, 0)
    def do_pass(self):
        s, t = socket.socketpair()
        with s, t:
            sent = tried(socket.send_fds, s, [b"x"], [self.fd()])
            return (sent, self.keep(socket.recv_fds(t, 1, 1)[1][0])) if sent == 1 else sent
    def do_stream(self):
        p = self.path(); b = ctypes.create_string_buffer(300); f = libc["fopen"]; f.restype = ctypes.c_void_p; s = f(p, self.one(b"r", b"r+", b"w", b"a+", b"re", b"rm"))
        if not s: return "null"
        s = ctypes.c_void_p(s); return raw("fgets", b, 50, s) != 0, digest(b.raw), raw("fseek", s, self.one(0, 10, 5000), 0), raw("fputs", b"text", s), raw("fclose", s)

    # Processes: a child has the open files, at the same offsets.
    def do_fork(self):
        fd, n = self.fd(), self.short(); bits = self.data(n)
        r, w = os.pipe(); pid = os.fork()
        if pid == 0:
            told = repr((raw("read", fd, ctypes.create_string_buffer(n + 1), n), raw("write", fd, bits, n), tried(os.close, os.open(self.dir + "/made", os.O_CREAT | os.O_WRONLY)), tried(os.rename, self.dir + "/made", self.dir + "/e/made")))
            os.write(w, told.encode())
            os.kill(os.getpid(), signal.SIGKILL) if n % 2 else os._exit(n & 127)
        os.close(w)
        with open(r, "rb") as f: return f.read(), os.waitpid(pid, 0)[1], tried(os.unlink, self.dir + "/e/made")
    def do_exec(self):
        fd = self.fd(); r, w = os.pipe(); pid = os.fork()
        if pid == 0:
            if tried(os.dup2, fd, 0) == "EBADF" or tried(os.dup2, w, 1) == "EBADF": os._exit(3)
            os.execvp("sh", ["sh", "-c", f"exec 2>&1; head -c 9; echo more >>'{self.dir}/g'; test -e '{self.dir}/f'"])
        os.close(w)
        with open(r, "rb") as f: return f.read().replace(self.dir.encode(), b"DIR"), os.waitpid(pid, 0)[1]

    # One thread alone.
    def do_alone_chdir(self):
        r = tried(os.chdir, self.one(self.dir, self.dir + "/d", self.dir + "/e", "..", "d", "/", "ld/../e"))
        here = os.getcwd(); listed = tried(lambda: len(os.listdir("d")))
        self.come_back(); return r, here.replace(self.dir, "DIR") if here.startswith(self.dir) else "outside", listed if here.startswith(self.dir) else ""
    def come_back(self):
        """Relative paths begin in the directory of this run, or below: nothing else may be changed."""
        if not tried(os.getcwd).startswith(self.dir): os.chdir(self.dir)
    def do_alone_fchdir(self): return raw("fchdir", self.fd()), tried(lambda: sorted(os.listdir("."))), tried(os.chdir, self.dir) or ""
    def do_alone_umask(self): return os.umask(self.one(0, 0o22, 0o77, 0o777))
    def do_alone_limit(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE); resource.setrlimit(resource.RLIMIT_FSIZE, (self.one(5000, 70000), hard))
        try: return self.do_write(), self.do_ftruncate(), self.do_pwrite()
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    def do_alone_number(self):
        # The library does not move what holds locks.
        fd, to = self.fd(), self.one(500, 1000, 1001, 1002, 1003, 1005, 1010) if not self.locks else 500
        b = ctypes.create_string_buffer(10); r = raw("dup2", fd, to); told = r if type(r) is str else "there", raw("pread", to, b, 9, 0), b.raw, raw("close", to), raw("read", to, b, 1)
        return told
    def do_alone_lowest(self):
        r = [os.open(self.dir, os.O_RDONLY) for _ in range(3)]; os.close(r[1]); again = os.open(self.dir, os.O_TMPFILE | os.O_RDWR); told = r[1] == again, r[2] - r[0]; [os.close(x) for x in (r[0], again, r[2])]; return told
    def do_alone_range(self):
        if not self.fds: return
        last = max(self.fds); told = raw("close_range", last, (1 << 32) - 1 if last > 1 << 30 else last, self.one(0, 0, 4)), raw("fcntl", last, 1)
        self.fds = [f for f in self.fds if tried(fcntl.fcntl, f, 1) != "EBADF"]; return told
    def do_alone_user(self):
        pid = os.fork(); p, q, fd = self.path(), self.path(), self.fd()
        if pid == 0:
            os.setgid(7); os.setuid(7); told = raw("open", p, os.O_RDWR), raw("unlink", q), raw("fchmod", fd, 0o777), raw("chown", p, 7, 7), raw("access", q, 2); os._exit(int(digest(repr([t if type(t) is str else t > 0 for t in told]).encode())[:2], 16))
        return os.waitpid(pid, 0)[1]

    def step(self):
        op = self.rng.choice(self.ops)
        told = op()
        if self.alone: self.come_back()
        sizes = [os.fstat(fd).st_size if tried(lambda: stat.S_ISREG(os.fstat(fd).st_mode)) is True else "" for fd in self.fds]
        self.lines.append(f"{self.n} {op.__func__.__name__} {told} {[tried(os.lseek, fd, 0, 1) if tried(lambda: stat.S_ISREG(os.fstat(fd).st_mode)) is True else '' for fd in self.fds]} {sizes}")
        self.n += 1
    def finish(self):
        for fd in self.fds: os.close(fd)
        os.umask(0o22)
        for d, dirs, files in os.walk(self.dir):
            dirs.sort()
            for name in sorted(dirs + files):
                p = os.path.join(d, name); s = os.lstat(p); body = os.readlink(p).replace(self.dir, "DIR") if stat.S_ISLNK(s.st_mode) else ""
                if stat.S_ISREG(s.st_mode):
                    with open(p, "rb") as f: body = digest(f.read())
                self.lines.append(f"{p[len(self.dir):]} {oct(s.st_mode)} {s.st_nlink} {s.st_uid} {s.st_gid} {s.st_size if stat.S_ISREG(s.st_mode) else ''} {body}")

def tried_type(f):
    try: f()
    except TypeError: pass
def dir_of(c): return [n for n in vars(c)]

def main():
    seed, threads, steps = map(int, sys.argv[1:])
    os.umask(0o22); libc.prctl(1, 15); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    here = os.getcwd()
    runs = [Run(f"{seed} {t}", f"{here}/s{seed}.{threads}.{t}", threads == 1) for t in range(threads)]
    if threads == 1:
        os.chdir(runs[0].dir)
        signal.signal(signal.SIGALRM, lambda *a: None); signal.siginterrupt(signal.SIGALRM, False); signal.setitimer(signal.ITIMER_REAL, .003, .003)
    def work(run):
        try:
            for _ in range(steps): run.step()
        except BaseException as e: run.lines.append(f"{run.n} {e!r}"); raise
    if threads == 1: work(runs[0])
    else:
        all = [threading.Thread(target=work, args=[run]) for run in runs]
        for t in all: t.start()
        for t in all: t.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
    for t, run in enumerate(runs):
        run.finish()
        for line in run.lines: print(t, line)

main()

# Every exported function of the C library: how it is called on files (a line each, in CALLS), or that it takes no path and no descriptor of a
# file (WITHOUT). A letter stands for all kinds of its sort (run.py): F, G descriptors (all, few), D, A directories and paths from there, M new ones,
# P paths, Q the same for functions that look at them themselves, N, O new ones, S streams, B memory for a result.
import ctypes, errno, os, re, signal, struct, sys
from ctypes import c_int, c_long, c_void_p, create_string_buffer
from run import *

CALLS = {}
def c(name, *args, tell=number, body=None): CALLS.setdefault(name, []).append((args, tell, body))
def body(name, *args):
    def known(f): c(name, *args, body=f); return f
    return known
def skip(names, why): CALLS.update({n: [] for n in names.split()})

def vectors(*parts):
    at = [x for p in parts for x in (ctypes.addressof(p), len(p))]
    made = (ctypes.c_uint64 * len(at))(*at); made.parts = parts
    return made
ONE, TWO = create_string_buffer(b"abcdefghij", 10), create_string_buffer(b"KLMNO", 5)
def into(n): return [create_string_buffer(k) for k in (n, 3)]
def times(*t): return (c_long * len(t))(*t)
def word(n): return struct.pack("q", n)
SET = times(500, 0, 600, 0)
OMIT, NOW = times(0, (1 << 30) - 2, 700, 5), times(0, (1 << 30) - 1, 0, (1 << 30) - 1)
WRONG = times(0, 1 << 31, 0, 0)
SET.name, OMIT.name, NOW.name, WRONG.name = "times", "one", "now", "wrong"
EMPTY, NOFOLLOW, FOLLOW, REMOVEDIR = 0x1000, 0x100, 0x400, 0x200
HIGH = 1 << 62

# Opening.
for f in (0, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, os.O_PATH, os.O_PATH | os.O_NOFOLLOW, os.O_RDONLY | os.O_NOFOLLOW, os.O_RDONLY | os.O_DIRECTORY):
    c("open", P.without("pipe"), f, tell=descriptor)
for f in (os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, os.O_CREAT | os.O_DIRECTORY, os.O_CREAT | os.O_NOFOLLOW, os.O_CREAT | os.O_TRUNC | os.O_RDWR):
    c("open", N, f, 0o4665, tell=descriptor)
c("open", Kind({"dot": b".", "d": b"d", "f": b"f", "none": b"none"}), os.O_TMPFILE | os.O_RDWR, 0o600, tell=descriptor)
for f in (3, os.O_SYNC, os.O_DSYNC | os.O_RDWR, os.O_NOATIME, os.O_ASYNC, 0o10, os.O_NONBLOCK | os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_EXCL, os.O_DIRECT, os.O_RDONLY | os.O_NOFOLLOW): c("open", P.only("f", "d", "l", "none"), f, tell=descriptor)
c("creat", N, 0o640, tell=descriptor)
c("openat", D, A, os.O_RDONLY, tell=descriptor); c("openat", D, M, os.O_RDWR | os.O_CREAT, 0o600, tell=descriptor); c("openat", D, A, os.O_PATH, tell=descriptor)
c("__open_2", Q.without("pipe"), os.O_RDWR, tell=descriptor); c("__open64_2", Q.only("f", "d"), 0, tell=descriptor)
c("__openat_2", D, A, os.O_RDONLY, tell=descriptor); c("__openat64_2", D, A.only("g"), 0, tell=descriptor)
c("open_by_handle_at", G, B, 0)
c("name_to_handle_at", D, A, B, B, 0); c("name_to_handle_at", F, b"", B, B, EMPTY)

# Attributes.
for f in ("stat", "lstat"): c(f, P, B, tell=attributes); c(f, P.only("f", "none"), 0); c(f, P.only("f", "none"), BAD)
for f in ("__xstat", "__lxstat"): c(f, 1, P, B, tell=attributes); c(f, 9, P.only("f", "none"), B)
c("fstat", F, B, tell=attributes); c("__fxstat", 1, F, B, tell=attributes)
for f in (0, NOFOLLOW, EMPTY, EMPTY | NOFOLLOW, 0x800, 1): c("fstatat", D, A, B, f, tell=attributes)
c("fstatat", F, b"", B, EMPTY, tell=attributes); c("__fxstatat", 1, D, A, B, NOFOLLOW, tell=attributes)
for f in (0, NOFOLLOW, EMPTY, 0x2000, 0x4000, 0x6000): c("statx", D, A, f, 0x7ff, B, tell=extended)
c("statx", F, 0, EMPTY, 0x7ff, B, tell=extended); c("statx", CWD, P.only("f"), 0, 1 << 31, B, tell=extended)
for m in (0, 1, 2, 4, 7, 8): c("access", P, m)
c("eaccess", P, 2)
for f in (0, NOFOLLOW, 0x200, 1, EMPTY): c("faccessat", D, A, 4, f)
c("readlink", P, B, 4096, tell=bytes_read); c("readlink", P.only("f", "l", "none"), B, 2, tell=bytes_read); c("readlink", P.only("f", "l", "none"), B, 0); c("readlink", P.only("l"), BAD, 9)
c("readlinkat", D, A, B, 4096, tell=bytes_read); c("__readlink_chk", Q, B, 100, 4096, tell=bytes_read); c("__readlinkat_chk", D, A, B, 100, 4096, tell=bytes_read)
for n in range(-1, 22): c("pathconf", Q.only("f", "d", "none", "empty-string"), n); c("fpathconf", G, n)
# Sizes and names differ between file systems.
for f in ("statfs", "statvfs"): c(f, P, B); c("f" + f, F, B)

# Names.
for f in ("mkdir", "mkfifo"): c(f, N, 0o3775); c(f + "at", D, M, 0o755)
for m in (0, 0o100644, 0o020600, 0o140600, 0o040700, 0o170000): c("mknod", N.only("n", "f"), m, 0x103)
c("mknod", N, 0o010644, 0); c("mknodat", D, M, 0o100600, 0)
c("__xmknod", 0, N.only("n", "f", "none/n"), 0o100644, word(0)); c("__xmknodat", 0, D, M, 0o100644, word(0))
for f in ("unlink", "rmdir", "remove"): c(f, P); c(f, N.only("empty", ".", "d/.", ".."))
for f in (0, REMOVEDIR, 1): c("unlinkat", D, A, f)
c("rename", P.only("f", "d", "l", "ld", "none", "f/", "d/", "hard", "dangling", "pipe", "elsewhere", "empty-string", "bad-pointer"), N)
c("rename", b".", b"n"); c("rename", b"d", b"d/sub/n"); c("rename", b"d/sub", b"."); c("rename", b"f", b"hard"); c("rename", b"empty", b"d"); c("rename", b"d", b"empty")
c("renameat", D, A, CWD, b"n"); c("renameat", CWD, b"f", D, M)
for f in (1, 2, 3, 4, 8): c("renameat2", CWD, P.only("f", "d", "none", "l"), CWD, N.only("n", "f", "d", "none/n", "empty"), f)
c("link", P.without("elsewhere"), b"n"); c("link", b"f", N)
for f in (0, FOLLOW, EMPTY, 1): c("linkat", D, A, CWD, b"n", f); c("linkat", CWD, b"l", D, M, f)
c("linkat", F, b"", CWD, b"n", EMPTY)
c("symlink", b"f", N); c("symlink", P.only("none", "empty-string", "long", "longest", "null-pointer", "bad-pointer"), b"n"); c("symlinkat", b"target", D, M)

# Owners, times, sizes.
for f in ("chmod", "lchmod"): c(f, P, 0o4711)
c("chmod", P.only("f", "d"), 0o177777); c("fchmod", F, 0o2640)
for f in (0, NOFOLLOW, 1): c("fchmodat", D, A, 0o600, f)
for f in ("chown", "lchown"): c(f, P, 5, 6); c(f, P.only("f", "d"), -1, 7); c(f, P.only("f", "none"), -1, -1)
c("fchown", F, 5, 6)
for f in (0, NOFOLLOW, EMPTY, 1): c("fchownat", D, A, 5, 6, f)
for t in (SET, OMIT, NOW, WRONG, 0, BAD):
    c("utimensat", CWD, P if t is SET else P.only("f", "none", "l"), t, 0); c("futimens", F if t is SET else G, t)
c("utimensat", CWD, P.only("f", "l", "none"), SET, NOFOLLOW); c("utimensat", D, A, SET, 0); c("utimensat", CWD, P.only("f"), SET, 1)
c("utime", P, times(500, 600))
for f in ("utimes", "lutimes"): c(f, P, SET); c(f, P.only("f", "none"), times(1, 1 << 30, 2, 0))
c("futimes", F, SET); c("futimesat", D, A, SET)
for n in (0, 5000, 9000, -1): c("truncate", P if n == 9000 else P.only("f", "d", "none", "l", "pipe"), n); c("ftruncate", F if n == 9000 else G, n)
for m in (0, 1, 3, 8, 16, 17, 32, 64, 128):
    for at, n in ((100, 5000), (6000, 100), (0, 0), (-1, 10), (HIGH, HIGH)): c("fallocate", F if (m, at) == (1, 100) else F.only("direct", "read-only", "dir", "closed"), m, at, n)
for f in ("posix_fallocate", "posix_fallocate64"): c(f, F, 4000, 9000); c(f, G, 0, 0)

# Extended attributes.
V = create_string_buffer(b"val", 3)
for a in (b"user.a", b"user.none", b"", b"nothing", b"user.", b"n" * 300, b"trusted.t", b"security.s", b"system.none"):
    p, f = (P, F) if a == b"user.a" else (P.only("f", "d", "none", "l", "pipe"), G)
    for pre, k in (("", p), ("l", p), ("f", f.without("null"))):
        c(pre + "setxattr", k, a, V, 3, 0); c(pre + "setxattr", k, a, V, 3, 1); c(pre + "setxattr", k, a, V, 0, 2); c(pre + "removexattr", k, a)
        c(pre + "getxattr", k, a, B, 100, tell=bytes_read); c(pre + "getxattr", k, a, B, 2); c(pre + "getxattr", k, a, 0, 0)
for pre, k in (("", P), ("l", P), ("f", F)): c(pre + "listxattr", k, B, 100, tell=bytes_read); c(pre + "listxattr", k, B, 2); c(pre + "listxattr", k, 0, 0)
c("setxattr", b"f", b"user.b", V, 3, 8); c("setxattr", b"f", b"user.b", V, 1 << 20, 0); c("setxattr", b"f", BAD, V, 3, 0); c("setxattr", b"f", b"user.b", BAD, 3, 0); c("getxattr", b"f", b"user.a", BAD, 9)

# Content.
c("read", F, B, 7, tell=bytes_read); c("read", G, B, 0); c("read", G, BAD, 5); c("write", F, ONE, 10); c("write", G, ONE, 0); c("write", G, BAD, 5)
c("__read_chk", G, B, 9, 4096, tell=bytes_read); c("__pread_chk", G, B, 9, 2, 4096, tell=bytes_read); c("__pread64_chk", G, B, 9, 2, 4096, tell=bytes_read)
for at in (0, 4, 5499, 9000, -1, HIGH, (1 << 63) - 1 - (1 << 64)): c("pread", F if at == 4 else G, B, 9, at, tell=bytes_read); c("pwrite", (F if at == 4 else G) if at != HIGH else F.only("read-only", "closed", "dir"), ONE, 10, at)
for n in (2, 0, -1, 1025):
    c("readv", F if n == 2 else G, vectors(*into(5)), n); c("writev", F if n == 2 else G, vectors(ONE, TWO), n)
    for at in (1, -1): c("preadv", F if n == 2 else G, vectors(*into(5)), n, at); c("pwritev", F if n == 2 else G, vectors(ONE, TWO), n, at)
for f in (0, 1, 2, 4, 8, 16, 32, 64, 1 << 20):
    for at in (1, -1): c("preadv2", F if not f else G, vectors(*into(5)), 2, at, f); c("pwritev2", F if not f else G, vectors(ONE, TWO), 2, at, f)
for w in (0, 1, 2, 3, 4, 5, -1):
    for at in (0, 5, -2, 6000): c("lseek", F if at == 5 else F.only("direct", "real", "dup", "dir"), at, w)
for f in ("fsync", "fdatasync", "syncfs"): c(f, F)
c("sync_file_range", F, 0, 100, 7); c("sync_file_range", G, -1, 100, 7); c("sync_file_range", G, 0, 0, 8)
for n in range(7): c("posix_fadvise", F if n == 1 else G, 0, 10, n); c("posix_fadvise64", F.only("direct"), 0, -1, n)
c("readahead", F, 0, 100)
c("copy_file_range", G, 0, G, 0, 1000, 0); c("copy_file_range", F.only("direct", "real", "read-only", "dir", "append", "pipe", "path"), word(4), F.only("direct", "real", "append", "pipe", "place"), word(5000), 2000, 0); c("copy_file_range", G, 0, G.only("direct"), 0, 10, 1); c("copy_file_range", G, word(-1), G.only("direct", "elsewhere"), 0, 10, 0)
c("sendfile", G, G, 0, 100); c("sendfile", F, F.only("direct", "pipe", "dir"), word(5), 100); c("sendfile", G, G.only("direct"), word(-1), 10); c("sendfile", G.only("direct"), G, BAD, 10)
PIPE = Kind({"in": lambda: fresh_pipe()[0], "out": lambda: fresh_pipe()[1]})
c("splice", F, 0, PIPE, 0, 50, 2); c("splice", PIPE, 0, F, 0, 50, 2); c("splice", G, word(4), PIPE, 0, 50, 2); c("splice", PIPE, 0, G, word(4), 5, 2); c("splice", G, 0, G, 0, 5, 2)
c("tee", F, PIPE, 5, 2); c("tee", PIPE, G, 5, 2); c("vmsplice", F, vectors(ONE), 1, 2)

# Descriptors.
c("dup", F, tell=descriptor); c("dup2", F, 305, tell=descriptor); c("dup2", F.only("direct", "closed"), -1); c("dup2", F.only("direct", "closed"), 1 << 20); c("dup2", G, G, tell=number)
for f in (0, os.O_CLOEXEC, 1): c("dup3", F, 305, f, tell=descriptor)
@body("dup2", F)
def same_number(fd): return call("dup2", [fd, fd], number), call("dup3", [fd, fd, 0], number)
for n in range(-1, 18):
    if n not in (0, 1030): c("fcntl", F if n in (1, 3) else G, n, 0)
c("fcntl", F, 0, 310, tell=descriptor); c("fcntl", G, 1030, 310, tell=descriptor); c("fcntl", G, 0, -1); c("fcntl", G, 2, 1); c("fcntl", G, 4, os.O_APPEND | os.O_NONBLOCK); c("fcntl", G, 4, os.O_DIRECT)
def lock(kind, whence, start, n): return struct.pack("hhiqqii", kind, whence, 0, start, n, 0, 0)
for n in (5, 6, 7, 36, 37, 38):
    for l in (lock(0, 0, 0, 0), lock(1, 1, 2, 5), lock(2, 2, -5, 3), lock(1, 0, -1, 1), lock(7, 0, 0, 0), lock(1, 9, 0, 0), lock(1, 0, HIGH, HIGH * 2 - 1), lock(1, 0, 10, -5)): c("fcntl", G, n, l)
for n in (8, 9, 10, 11, 15, 16, 1024, 1025, 1026, 1031, 1032, 1033, 1034, 1035, 1036, 1037, 1038, 9999): c("fcntl", F.without("closed", "negative") if n == 9 else G, n, B)
for o in (1, 2, 4, 5, 6, 8, 0, 32): c("flock", F if o == 2 else G, o | (4 if o in (1, 2) else 0))
for o in (0, 1, 2, 3, 9): c("lockf", F if o == 2 else G, o, 10)
# FIONREAD, FIGETBSZ (differs), FIONBIO, FIOASYNC, TCGETS, FIOCLEX, FIONCLEX, FS_IOC_GETFLAGS, FICLONE, FIDEDUPERANGE, FS_IOC_FIEMAP, an unknown one
for n in (0x541b, 0x5421, 0x5452, 0x5401, 0x5451, 0x5450, 0x5413, 0x9999): c("ioctl", F if n in (0x541b, 0x5451) else G, n, B, tell=number)
c("ioctl", G, 2, B, tell=nothing); c("ioctl", G, 0x541b, BAD); c("ioctl", G, 0x40049409, G)
c("close", F); c("closefrom", 400)
@body("close", F)
def twice(fd): return call("close", [fd], number), call("close", [fd], number), call("read", [fd, B, 1], number)
@body("closefrom", F)
def all_above(fd): return in_child(lambda: (call("closefrom", [3], number), call("read", [fd, B, 3], number), call("open", [b"f", 0], number)))
for f in (0, 2, 4, 8):
    @body("close_range", F.only("direct", "real", "dir"))
    def a_range(fd, f=f): return in_child(lambda: (call("close_range", [fd, fd + 3, f], number), call("read", [fd, B, 3], number), tried(fcntl.fcntl, fd, 1)))
c("close_range", 9, 3, 0)
c("isatty", F); c("isfdtype", F, 0o100000); c("ttyname", F, tell=text); c("ttyname_r", F, B, 9); c("__ttyname_r_chk", G, B, 9, 4096); c("isastream", G); c("ptsname", G, tell=text); c("ptsname_r", G, B, 9); c("__ptsname_r_chk", G, B, 9, 4096)
for f in ("grantpt", "unlockpt", "tcgetpgrp", "tcgetsid", "tcdrain", "fchflags", "gtty", "stty"): c(f, G, 0)
c("tcgetattr", F, B); c("tcsetattr", G, 0, B); c("tcsendbreak", G, 0); c("tcflow", G, 0); c("tcflush", G, 0); c("tcsetpgrp", G, 1)
c("getdtablesize"); c("eventfd_read", G, B); c("eventfd_write", G, 1)
c("signalfd", G, B, 0); c("timerfd_gettime", G, B); c("timerfd_settime", G, 0, B, 0)
# Sockets, queues and processes: an open file is none.
A_SOCKET = struct.pack("H14x", 1)
for f in ("bind", "connect"): c(f, G, A_SOCKET, 16)
for f in ("accept", "getsockname", "getpeername"): c(f, G, B, word(100))
c("accept4", G, 0, 0, 0); c("listen", G, 5); c("shutdown", G, 2); c("sockatmark", G); c("getsockopt", G, 1, 3, B, word(4)); c("setsockopt", G, 1, 2, word(1), 4)
for f in ("send", "recv"): c(f, G, B, 9, 0x40)
c("__recv_chk", G, B, 9, 4096, 0x40); c("__recvfrom_chk", G, B, 9, 4096, 0x40, 0, 0); c("sendto", G, B, 9, 0x40, 0, 0); c("recvfrom", G, B, 9, 0x40, 0, 0)
for f in ("sendmsg", "recvmsg"): c(f, G, create_string_buffer(56), 0x40)
c("sendmmsg", G, create_string_buffer(64), 1, 0x40); c("recvmmsg", G, create_string_buffer(64), 1, 0x40, 0)
c("bindresvport", G, 0); c("pidfd_getfd", G, 0, 0); c("pidfd_send_signal", G, 0, 0, 0); c("process_mrelease", G, 0); c("process_madvise", G, vectors(ONE), 1, 4, 0); c("setns", G.only("elsewhere", "closed"), 0)
for f in ("mq_getattr",): c(f, G, B)
c("mq_close", G); c("mq_setattr", G, create_string_buffer(64), 0); c("mq_notify", G, 0); c("mq_send", G, ONE, 1, 0); c("mq_receive", G, B, 4096, 0); c("mq_timedsend", G, ONE, 1, 0, 0); c("mq_timedreceive", G, B, 4096, 0, 0)
@body("socketpair", F)
def passed(fd):
    import socket
    s, t = socket.socketpair()
    with s, t:
        sent = tried(socket.send_fds, s, [b"x"], [fd]); got = tried(socket.recv_fds, t, 1, 1) if sent == 1 else sent
        return sent, *[of_fd(f) or os.close(f) for f in (got[1] if type(got) is tuple else ())]
# Waiting.
@body("poll", F)
def polled(fd): p = struct.pack("ihh", fd, 7, 0); m = create_string_buffer(p, 8); return call("poll", [ctypes.addressof(m), 1, 0], number), m.raw[6:]
@body("ppoll", F)
def ppolled(fd): p = create_string_buffer(struct.pack("ihh", fd, 7, 0), 8); return call("ppoll", [ctypes.addressof(p), 1, ctypes.addressof(times(0, 0)), 0], number), p.raw[6:]
c("__poll_chk", 0, 0, 0, 0); c("__ppoll_chk", 0, 0, times(0, 0), 0, 0)
for f in ("select", "pselect"):
    @body(f, F.without("closed", "negative"))
    def selected(fd, f=f): s = [create_string_buffer(struct.pack("128s", bytes(fd // 8) + bytes([1 << fd % 8])), 128) for _ in "rwx"]; return call(f, [fd + 1, *[ctypes.addressof(x) for x in s], ctypes.addressof(times(0, 0)), 0], number), *[x.raw.rstrip(b"\0") != b"" for x in s]
EPOLL = Kind({"epoll": lambda: sink.append(e := call("epoll_create1", [0], number)) or e, "direct": FD["direct"], "closed": FD["closed"]})
for o in (1, 2, 3, 9): c("epoll_ctl", EPOLL, o, F, struct.pack("Iq", 1, 5))
for f in ("epoll_wait", "epoll_pwait"): c(f, EPOLL, B, 5, 0, 0, 0)
c("epoll_pwait2", EPOLL, B, 5, times(0, 0), 0)
for f in ("inotify_add_watch",): c(f, G, P.only("f"), 2); c(f, Kind({"new": lambda: sink.append(n := call("inotify_init1", [0], number)) or n}), P, 2)
c("inotify_rm_watch", G, 1); c("fanotify_mark", G, 1, 2, D, A.only("f", "null-pointer"))
# Asynchronous.
def control(fd, op, n=5, at=2): m = create_string_buffer(168); m.data = create_string_buffer(b"ASYNC", 5); struct.pack_into("iiiiQQ", m, 0, fd, op, 0, 0, ctypes.addressof(m.data), n); struct.pack_into("q", m, 128, at); struct.pack_into("i", m, 44, 1); return m
def finished(m):
    while (e := call("aio_error", [ctypes.addressof(m)], number)) == errno.EINPROGRESS: call("aio_suspend", [ctypes.addressof(c_void_p(ctypes.addressof(m))), 1, 0], number)
    return e, call("aio_return", [ctypes.addressof(m)], number), m.data.raw
for f, o in (("aio_read", 0), ("aio_write", 1)):
    @body(f, F)
    def asynchronous(fd, f=f, o=o): m = control(fd, o); return call(f, [ctypes.addressof(m)], number), *finished(m)
@body("aio_fsync", F)
def asynchronous_sync(fd): m = control(fd, 0); return call("aio_fsync", [os.O_SYNC, ctypes.addressof(m)], number), *finished(m)
@body("lio_listio", F)
def list_of(fd): ms = [control(fd, 1), control(fd, 0, 4, 9)]; return call("lio_listio", [0, ctypes.addressof((c_void_p * 2)(*map(ctypes.addressof, ms))), 2, 0], number), *map(finished, ms)
c("aio_cancel", G, 0); skip("aio_error aio_return aio_suspend", "above")
# Memory.
for prot, flags in ((1, 1), (3, 1), (1, 2), (3, 2), (5, 2), (1, 3), (1, 0)): 
    @body("mmap", F, )
    def mapped(fd, prot=prot, flags=flags):
        f = function("mmap"); f.restype = c_void_p; ctypes.set_errno(0); at = f(None, c_long(4096), prot, flags, fd, c_long(0))
        if at == 2**64 - 1: return name_of(ctypes.get_errno())
        seen = ctypes.string_at(at, 12)
        if prot & 2: ctypes.memmove(at, b"MAPPED", 6)
        libc.munmap(c_void_p(at), c_long(4096)); return seen, tried(os.pread, fd, 8, 0)
c("mmap", 0, 4096, 1, 2, F.only("direct", "real"), 77); c("msync", 0, 0, 4); skip("remap_file_pages mremap munmap", "of memory")

# Directories.
def listed(d, f="readdir"):
    names, f = [], function(f); f.restype = c_void_p
    while e := f(c_void_p(d)): s = ctypes.string_at(e + 16, 3); n = struct.unpack("H", s[:2])[0]; names.append((ctypes.string_at(e + 19).decode(), s[2]))
    return sorted(names)
def of_dir(r, b):
    if not r: return "null"
    d, told = c_void_p(r), []
    fd = libc.dirfd(d); told += [of_fd(fd)[:2], listed(r)]
    libc.rewinddir(d); told.append(len(listed(r, "readdir64"))); libc.rewinddir(d); libc.readdir.restype = libc.telldir.restype = c_long
    libc.readdir(d); at = libc.telldir(d); first = listed(r); libc.seekdir(d, c_long(at)); told += [first == listed(r), libc.closedir(d)]
    return told
def pointer(f): f = function(f); f.restype = c_void_p; return f
def dir_at(f, *a): ctypes.set_errno(0); r = pointer(f)(*a); e = ctypes.get_errno(); return of_dir(r, None) if r else name_of(e)
@body("opendir", Q)
def by_path(p): return dir_at("opendir", p)
@body("fdopendir", F.without("direct", "dup"))
def by_fd(fd): return dir_at("fdopendir", os.dup(fd) if fd in sink else fd)
@body("fdopendir", F.only("direct", "dup"))
def by_file(fd): return dir_at("fdopendir", fd)
skip("dirfd readdir rewinddir telldir seekdir closedir", "with opendir")
@body("readdir_r", Q.only("d", "empty-string"))
def one_by_one(p):
    d, e, r, n = pointer("opendir")(p), create_string_buffer(300), c_void_p(), 0
    if not d: return "none"
    while function("readdir_r")(c_void_p(d), e, ctypes.byref(r)) == 0 and r.value: n += 1
    return n, libc.closedir(c_void_p(d))
def entries(fd, f="getdents64", *more):
    m, names, how = create_string_buffer(512), [], []
    while True:
        ctypes.set_errno(0); n = function(f)(fd, m, c_long(512), *more)
        if n <= 0: return n, name_of(ctypes.get_errno()), sorted(names)
        at = 0
        while at < n: size, kind = struct.unpack_from("HB", m, at + 16); names.append((m.raw[at + 19:at + size].split(b"\0")[0].decode(), kind)); at += size
@body("getdents64", F)
def raw_entries(fd): return entries(fd), tried(os.lseek, fd, 0, 0), entries(fd)
@body("getdirentries", F)
def old_entries(fd): return entries(fd, "getdirentries", ctypes.byref(c_long(0)))
c("getdents64", F.only("dir", "real-dir"), B, 10); c("getdents64", F.only("dir", "real-dir"), BAD, 500)
FILTER, ALL = ctypes.CFUNCTYPE(c_int, c_void_p)(lambda e: ctypes.string_at(e + 19)[:1] != b"."), 0
def names_of(n, p): return n if n < 0 else (n, [ctypes.string_at(p[i] + 19).decode() for i in range(n)])
for f in ("scandir", "scandir64"):
    @body(f, Q)
    def scanned(p, f=f): r = ctypes.POINTER(c_void_p)(); ctypes.set_errno(0); n = function(f)(p, ctypes.byref(r), FILTER, libc.alphasort); return names_of(n, r), name_of(ctypes.get_errno()) if n < 0 else ""
@body("scandirat", D, A.only("sub", ".", "g", "none"))
def scanned_at(d, p): r = ctypes.POINTER(c_void_p)(); ctypes.set_errno(0); n = function("scandirat")(d, p, ctypes.byref(r), FILTER, libc.alphasort); return names_of(n, r), name_of(ctypes.get_errno()) if n < 0 else ""
def walker(seen, stop=None): return lambda path, s, flag, *_: seen.append((hidden(path).decode(), flag, *([oct(struct.unpack_from("I", ctypes.string_at(s, 32), 24)[0])] if flag != 3 else []))) or 0
for f in ("ftw", "ftw64"):
    @body(f, Q)
    def walked(p, f=f): seen = []; w = ctypes.CFUNCTYPE(c_int, ctypes.c_char_p, c_void_p, c_int)(walker(seen)); r = function(f)(p, w, 3); return r, name_of(ctypes.get_errno()) if r < 0 else "", sorted(seen)
for f in ("nftw", "nftw64"):
    for how in (0, 1, 2, 4, 8, 9, 13):
        @body(f, Q if how in (0, 4) else Q.only("d", "ld", "f", "none"))
        def walked_too(p, f=f, how=how): seen = []; w = ctypes.CFUNCTYPE(c_int, ctypes.c_char_p, c_void_p, c_int, c_void_p)(walker(seen)); r = function(f)(p, w, 2, how); return r, name_of(ctypes.get_errno()) if r < 0 else "", sorted(seen)
@body("fts_open", Q.without("empty-string"), Kind({"logical": 2, "physical": 16, "in-place": 16 | 4, "stat-less": 16 | 8, "following": 16 | 1, "seedot": 16 | 32}))
def traversed(p, how):
    seen, t = [], pointer("fts_open")((ctypes.c_char_p * 2)(p, None), how, None)
    if not t: return name_of(ctypes.get_errno())
    while e := pointer("fts_read")(c_void_p(t)): seen.append((hidden(ctypes.string_at(c_void_p.from_address(e + 48).value)), *struct.unpack("H", ctypes.string_at(e + 98, 2))))
    return sorted(seen), libc.fts_close(c_void_p(t)), os.getcwd().endswith("/w")
skip("fts_read fts_close fts_children fts_set fts64_open fts64_read fts64_close fts64_children fts64_set alphasort versionsort", "with fts_open, or of entries that are read")
for f in ("glob", "glob64"):
    for pattern in (b"*", b"d/*", b"*/f", b"[f-l]*", b"none*", BASE + b"/w/?", b"*/", b"loop/*", b"{f,d}", b"d/up"):
        @body(f, Kind({hidden(pattern).decode(): pattern}), Kind({"plain": 0, "marked": 2, "err": 1, "brace": 1 << 10, "dirs": 1 << 13}))
        def globbed(p, flags, f=f): g = (c_void_p * 9)(); r = function(f)(p, flags, None, g); return r, [hidden(s) for s in ctypes.cast(g[1], ctypes.POINTER(ctypes.c_char_p))[:g[0] or 0]]
@body("wordexp", Kind({"star": b"d/* l*", "none": b"none*"}))
def expanded(p): g = (c_void_p * 4)(); return libc.wordexp(p, g, 0), ctypes.cast(g[1], ctypes.POINTER(ctypes.c_char_p))[:g[0] or 0]
skip("globfree globfree64 wordfree glob_pattern_p", "of memory")
# The working directory.
@body("chdir", Q)
def gone_to(p): r = call("chdir", [p], number); return r, hidden(os.getcwdb()), tried(os.stat, "g") != "ENOENT"
@body("chdir", P.only("null-pointer", "bad-pointer"))
def gone_nowhere(p): return call("chdir", [p], number)
@body("fchdir", F)
def gone_by(fd): r = call("fchdir", [fd], number); return r, hidden(os.getcwdb()), tried(os.stat, "g") != "ENOENT"
for f in ("getcwd", "__getcwd_chk"): c(f, B, 4096, 4096, tell=text); c(f, B, 3, 4096, tell=text)
c("getcwd", 0, 0, tell=text); c("getwd", B, tell=text); c("__getwd_chk", B, 4096, tell=text); c("get_current_dir_name", tell=text)
@body("getcwd")
def removed_below(): os.mkdir("n"); os.chdir("n"); os.rmdir("../n"); r = call("getcwd", [B, 4096], text), call("open", [b".", 0], descriptor), call("open", [b"x", 65, 0o600], descriptor), call("stat", [b"..", B], number), call("mkdir", [b"y", 0o700], number); os.chdir(BASE + b"/w"); return r
@body("realpath", P.without("bad-pointer"))
def real_path(p): return call("realpath", [p, B], text)
for f in ("canonicalize_file_name",): c(f, Q, tell=text)
c("__realpath_chk", Q, B, 4096, tell=text); c("ftok", Q, 1, tell=whether)
@body("chroot", P.only("d", "f", "none", "absolute-dir"))
def rooted(p): return in_child(lambda: (call("chroot", [p], number), os.chdir("/"), tried(lambda: sorted(os.listdir("."))[:2]), tried(lambda: open("/f").read(3))))

# Names that the C library chooses.
TEMPLATES = Kind({k: k.encode() for k in ("tXXXXXX", "d/tXXXXXX", "none/tXXXXXX", "tXXX", "XXXXXXend")} | {"absolute": BASE + b"/w/tXXXXXX"})
def chosen(name, p, *more):
    m = create_string_buffer(p); f = function(name); f.restype = c_void_p if name in ("mkdtemp", "mktemp") else c_int; ctypes.set_errno(0); r = f(m, *more); e = name_of(ctypes.get_errno())
    made = m.value; told = ("null", e) if r is None else (r, e) if r == -1 and "temp" in name and name not in ("mkdtemp", "mktemp") else (len(hidden(made)), made[:3] == p[:3], of_fd(r) if name not in ("mkdtemp", "mktemp") else "", oct(os.lstat(made).st_mode) if name != "mktemp" and made else "")
    if name not in ("mkdtemp", "mktemp") and r is not None and r >= 0: os.close(r)
    if made and os.path.lexists(made): (os.rmdir if os.path.isdir(made) else os.unlink)(made)
    return told
for f, more in (("mkstemp", ()), ("mkstemp64", ()), ("mkostemp", (os.O_APPEND,)), ("mkostemp64", (os.O_CLOEXEC,)), ("mkstemps", (3,)), ("mkstemps64", (3,)), ("mkostemps", (3, os.O_CLOEXEC)), ("mkostemps64", (3, os.O_CLOEXEC)), ("mkdtemp", ()), ("mktemp", ())):
    @body(f, TEMPLATES)
    def made_up(p, f=f, more=more): return chosen(f, p, *more)
c("tempnam", Q.only("d", "none"), b"pre", tell=whether); c("tmpnam", B, tell=whether); c("tmpnam_r", B, tell=whether)
for f in ("tmpfile", "tmpfile64"):
    @body(f)
    def temporary(f=f): s = c_void_p(pointer(f)()); return libc.fputs(b"text", s), libc.fflush(s), of_fd(libc.fileno(s)), libc.fclose(s)
@body("sem_open", Kind({"new": os.O_CREAT, "old": 0}))
def semaphore(how): n = b"/conquest-%d" % os.getpid(); s = pointer("sem_open")(n, how, 0o600, 1); return bool(s), s and (libc.sem_close(c_void_p(s)), libc.sem_unlink(n))
@body("shm_open", Kind({"new": os.O_CREAT | os.O_RDWR, "old": os.O_RDWR}))
def shared(how): n = b"/conquest-%d" % os.getpid(); s = libc.shm_open(n, how, 0o600); return of_fd(s), s >= 0 and (os.close(s), libc.shm_unlink(n))
@body("mq_open", Kind({"new": os.O_CREAT | os.O_RDWR, "old": os.O_RDWR}))
def queue(how): n = b"/conquest-%d" % os.getpid(); s = libc.mq_open(n, how, 0o600, None); return s >= 0, s >= 0 and (libc.mq_close(s), libc.mq_unlink(n))
skip("__mq_open_2 mq_unlink sem_close sem_unlink shm_unlink", "as those that open")
@body("memfd_create")
def in_memory_alone(): r = libc.memfd_create(b"m", 0); return os.write(r, b"memory"), os.pread(r, 9, 0), os.close(r)

# Streams.
def used(s):
    """What reading, writing and seeking say of a stream."""
    if not s: return "null", name_of(ctypes.get_errno())
    s, m = c_void_p(s), create_string_buffer(64)
    libc.ftell.restype = libc.fread.restype = libc.fwrite.restype = c_long
    told = [of_fd(libc.fileno(s)), libc.fread(m, 1, 5, s), m.value, libc.ftell(s), libc.fseek(s, c_long(100), 0), libc.fwrite(b"WROTE", 1, 5, s), libc.fflush(s), libc.ftell(s), libc.fseek(s, c_long(-3), 2), libc.fgetc(s), libc.ferror(s)]
    return *told, libc.fclose(s)
SETS = Kind({m: m.encode() for m in MODES})
for f in ("fopen", "fopen64"):
    @body(f, Q.without("pipe"), SETS if f == "fopen" else SETS.only("r+"))
    def opened_stream(p, mode, f=f): ctypes.set_errno(0); return used(pointer(f)(p, mode))
@body("fopen", O, SETS.only("w", "a+", "wx"))
def made_stream(p, mode): ctypes.set_errno(0); return used(pointer("fopen")(p, mode))
@body("fdopen", F, SETS)
def stream_of(fd, mode): ctypes.set_errno(0); n = os.dup(fd) if fd in sink else fd; s = pointer("fdopen")(n, mode); r = used(s); None if s or n < 0 or n == CLOSED else os.close(n); return r
for f in ("freopen", "freopen64"):
    @body(f, Q.only("d/f", "none", "d", "absolute", "elsewhere"), SETS.only("r", "r+", "w", "a+"), S)
    def reopened(p, mode, s, f=f): ctypes.set_errno(0); return used(pointer(f)(p, mode, c_void_p(s)))
@body("freopen", SETS.only("r", "r+", "w", "a+"), S.only("direct r+", "real r+", "read-only r"))
def reopened_as(mode, s): ctypes.set_errno(0); return used(pointer("freopen")(None, mode, c_void_p(s)))
def on(names, *args, then="fflush"):
    for f in names.split():
        @body(f, S)
        def streamed(s, f=f):
            m = create_string_buffer(b"0123456789", 64); x = function(f); x.restype = c_int; ctypes.set_errno(0)
            r = x(*[c_void_p(s) if a is S else m if a is B else a for a in args]); e = name_of(ctypes.get_errno()) if r == -1 else ""
            r = r if f not in ("fgets", "fgets_unlocked", "__fgets_chk", "__fgets_unlocked_chk", "fgetws", "fgetws_unlocked", "__fgetws_chk", "__fgetws_unlocked_chk") else r != 0
            told = r, e, m.value, libc.ftell(c_void_p(s)), libc.feof(c_void_p(s)), libc.ferror(c_void_p(s)), libc.fflush(c_void_p(s))
            return *told, libc.fclose(c_void_p(s))
on("fread fread_unlocked", B, c_long(1), c_long(7), S); on("__fread_chk __fread_unlocked_chk", B, c_long(64), c_long(1), c_long(7), S); on("fwrite fwrite_unlocked", B, c_long(1), c_long(7), S)
on("fgets fgets_unlocked", B, 9, S); on("__fgets_chk __fgets_unlocked_chk", B, c_long(64), 9, S); on("fputs fputs_unlocked", B, S)
on("fgetc fgetc_unlocked _IO_getc _IO_peekc_locked __uflow __underflow getw fgetwc fgetwc_unlocked", S); on("fputc fputc_unlocked putc_unlocked _IO_putc putw", 88, S); on("fputwc fputwc_unlocked putwc putwc_unlocked", 88, S)
on("fgetws fgetws_unlocked", B, 9, S); on("__fgetws_chk __fgetws_unlocked_chk", B, c_long(16), 9, S); on("fputws fputws_unlocked", ctypes.c_wchar_p("wide"), S)
on("ungetc ungetwc", 89, S); on("fseek fseeko", S, c_long(7), 1); on("rewind ftell ftello fflush fflush_unlocked clearerr clearerr_unlocked feof feof_unlocked ferror ferror_unlocked", S)
on("fgetpos fgetpos64", S, B); on("setbuf", S, None); on("setvbuf", S, None, 2, c_long(0)); on("setbuffer", S, None, c_long(0)); on("setlinebuf __fpurge __freading __fwriting __freadable __fwritable __flbf __fpending", S); on("fwide", S, 1)
on("fprintf", S, b"%s %d", b"text", 5); on("__fprintf_chk", S, 1, b"%d", 5); on("fwprintf", S, ctypes.c_wchar_p("%d"), 5); on("__fwprintf_chk", S, 1, ctypes.c_wchar_p("%d"), 5)
on("fscanf __isoc99_fscanf", S, b"%3s", B); on("fwscanf __isoc99_fwscanf", S, ctypes.c_wchar_p("%3s"), B); 
skip("vfprintf __vfprintf_chk vfwprintf __vfwprintf_chk vfscanf __isoc99_vfscanf vfwscanf __isoc99_vfwscanf vdprintf __vdprintf_chk", "as those without a v")
skip("fclose fileno fsetpos fsetpos64 getline getdelim _IO_getline __fbufsize __fsetlocking _flushlbf flockfile ftrylockfile funlockfile __overflow __woverflow __wuflow __wunderflow malloc_info", "called with others, or on memory of streams alone")
@body("getline", S)
def lines(s):
    p, n, told = c_void_p(), c_long(), []; libc.getline.restype = c_long
    for _ in range(2): r = libc.getline(ctypes.byref(p), ctypes.byref(n), c_void_p(s)); told.append((r, ctypes.string_at(p.value) if r > 0 else ""))
    return *told, libc.fclose(c_void_p(s))
@body("fcloseall")
def all_streams(): return in_child(lambda: (libc.fputs(b"kept", c_void_p(pointer("fopen")(b"n", b"w"))), libc.fcloseall(), os.path.getsize("n")))
c("dprintf", F, b"%s", b"text"); c("__dprintf_chk", F, 1, b"%d", 5); c("backtrace_symbols_fd", 0, 0, F)
for f in ("fgetpwent", "fgetgrent", "fgetspent", "fgetsgent"): body(f, S)(lambda s, f=f: (pointer(f)(c_void_p(s)) is not None, libc.fclose(c_void_p(s))))
skip("fgetpwent_r fgetgrent_r fgetspent_r fgetsgent_r", "as those without _r")
ENTRY = (ctypes.c_char_p * 9)(b"name", b"word", None, None, None, None, None, None, None)
on("putgrent", ENTRY, S); skip("putpwent putspent putsgent", "as putgrent")
@body("setmntent", Q.only("f", "none", "absolute"))
def table_of_mounts(p):
    s = pointer("setmntent")(p, b"r+")
    return "null" if not s else (function("addmntent")(c_void_p(s), (ctypes.c_char_p * 5)(b"what", b"/where", b"how", b"rw", None)), libc.rewind(c_void_p(s)) and 0, bool(pointer("getmntent")(c_void_p(s))), libc.endmntent(c_void_p(s)))
skip("getmntent getmntent_r endmntent addmntent", "with setmntent")
@body("updwtmp", Q.only("f", "none", "d"))
def log_of_users(p): return function("updwtmp")(p, create_string_buffer(384)), os.path.exists(p)
@body("utmpname", Q.only("f", "none"))
def users(p): return libc.utmpname(p), libc.setutent() and 0, bool(pointer("getutent")()), libc.endutent() and 0, libc.utmpname(b"/var/run/utmp")
c("catopen", Q.only("f", "none", "absolute"), 0, tell=nothing); skip("updwtmpx utmpxname", "the same as without x")
skip("login logout logwtmp pututline pututxline", "they change the machine's records"); skip("login_tty", "it wants a terminal")
@body("dlopen", Kind({"relative": b"./lib.so", "absolute": BASE + b"/w/lib.so", "text": BASE + b"/w/f", "none": b"./none.so"}))
def loaded(p):
    import shutil
    shutil.copy(re.sub(r"libc\.so\.6", "libm.so.6", LIBC), "lib.so")
    def look(): d = pointer("dlopen"); h = d(p, 2); return bool(h), bool(h and pointer("dlsym")(c_void_p(h), b"cos")), h and libc.dlclose(c_void_p(h))
    r = in_child(look); os.unlink("lib.so"); return r
skip("dlmopen", "as dlopen")

# Processes.
OPENED = F.only("direct", "real", "read-only", "dup", "append", "elsewhere")
ARGS, ENV = (ctypes.c_char_p * 3)(b"x", b"this", None), (ctypes.c_char_p * 3)(*[f"{k}={v}".encode() for k, v in os.environ.items() if k == "PATH"], None)
def inherit(fd): os.dup2(fd, 9, True) if fd in sink else None
for f, args in (("execv", (ARGS,)), ("execve", (ARGS, ENV)), ("execvp", (ARGS,)), ("execvpe", (ARGS, ENV)), ("execl", (b"x", b"this", None)), ("execlp", (b"x", b"this", None)), ("execle", (b"x", b"this", None, ENV))):
    @body(f, Q.only("f", "d", "none", "empty-string") if f != "execve" else Q.without("pipe"))
    def replaced(p, f=f, args=args): return in_child(lambda: (function(f)(p, *args), name_of(ctypes.get_errno())))
    @body(f, Kind({"x": b"./x", "absolute": BASE + b"/w/x", "program": b"/bin/echo"}), OPENED)
    def replaced_with(p, fd, f=f, args=args): return in_child(lambda: (inherit(fd), sys.stdout.flush(), function(f)(p, *args), name_of(ctypes.get_errno())))
@body("fexecve", F)
def by_descriptor(fd): return in_child(lambda: (libc.fexecve(fd, ARGS, ENV), name_of(ctypes.get_errno())))
@body("fexecve", Kind({"program": lambda: opened(b"/bin/echo", os.O_RDONLY), "here": lambda: (__import__("shutil").copy("/bin/echo", "here"), opened(b"here", os.O_RDONLY | os.O_CLOEXEC, at=0))[1]}))
def program_by_descriptor(fd): r = in_child(lambda: (libc.fexecve(fd, ARGS, ENV), name_of(ctypes.get_errno()))); os.path.exists("here") and os.unlink("here"); return r
@body("execveat", D, Kind({"x": b"../x", "none": b"none", "absolute": BASE + b"/w/x"}))
def placed(d, p): return in_child(lambda: (libc.execveat(d, p, ARGS, ENV, 0), name_of(ctypes.get_errno())))
def actions(*a):
    m = create_string_buffer(80); libc.posix_spawn_file_actions_init(m)
    return m, [function("posix_spawn_file_actions_" + f)(m, *more) for f, *more in a]
def spawned(f, p, *a):
    (m, told), pid = actions(*a), c_int(); r, w = os.pipe(); os.set_inheritable(w, True); libc.posix_spawn_file_actions_adddup2(m, w, 1)
    e = function(f)(ctypes.byref(pid), p, m, None, (ctypes.c_char_p * 4)(b"sh", b"-c", b"cat; cat <&9 | head -c 4; pwd -P | sed 's/.*w/w/'", None) if p.endswith(b"sh") else ARGS, ENV); os.close(w)
    with open(r, "rb") as file: said = file.read()
    return told, name_of(e), said, e == 0 and os.waitpid(pid.value, 0)[1]
for f in ("posix_spawn", "posix_spawnp"):
    @body(f, OPENED)
    def with_descriptors(fd, f=f): return spawned(f, b"/bin/sh", ("addopen", 0, b"f", 0, 0), ("adddup2", fd, 9), ("addchdir_np", b"d"))
    @body(f, Kind({"dir": FD["dir"], "direct": FD["direct"], "closed": lambda: CLOSED}))
    def in_directory(fd, f=f): return spawned(f, b"/bin/sh", ("addfchdir_np", fd), ("addopen", 9, b"g", 0, 0), ("addclose", 0), ("addopen", 0, b"/dev/null", 0, 0))
    @body(f, Kind({"none": b"./none", "x": b"./x", "f": b"./f", "absolute": BASE + b"/w/x"}))
    def programs(p, f=f): return spawned(f, p, ("addopen", 2, b"n", os.O_CREAT | os.O_WRONLY, 0o640), ("addclosefrom_np", 10))
skip(" ".join("posix_spawn_file_actions_" + w for w in "init destroy addopen addclose adddup2 addchdir_np addfchdir_np addclosefrom_np addtcsetpgrp_np".split()), "with posix_spawn")
for f in ("fork", "_Fork"):
    @body(f, F.without("null", "pipe", "negative"))
    def forked(fd, f=f):
        pid = function(f)()
        if pid == 0: tried(os.read, fd, 3); tried(os.write, fd, b"CHILD"); os._exit(0)
        return os.waitpid(pid, 0)[1], tried(os.lseek, fd, 0, 1), tried(os.read, fd, 3)
skip("vfork clone", "with system and posix_spawn")
@body("system", OPENED)
def commanded(fd): return in_child(lambda: (inherit(fd), libc.system(b"cat <&9 | head -c 6; echo more >>n; cat n; exit 3")) [1])
@body("popen", OPENED, Kind({"r": b"r", "w": b"w", "re": b"re"}))
def piped(fd, mode): inherit(fd); s = pointer("popen")(b"cat <f | head -c 5; cat <&9 | head -c 3 >n; cat >m", mode) if mode == b"w" else pointer("popen")(b"head -c 5 f; head -c 3 <&9", mode); m = create_string_buffer(20); r = libc.fread(m, 1, 9, c_void_p(s)) if mode != b"w" else libc.fputs(b"to the child", c_void_p(s)); tried(os.close, 9); return r, m.value, libc.pclose(c_void_p(s))
skip("pclose", "with popen")
@body("daemon", Kind({"stay": (1, 1), "go": (0, 0)}))
def background(how):
    def go():
        r, w = os.pipe()
        if os.fork() == 0: told = libc.daemon(*how), hidden(os.getcwdb()), tried(os.stat, "f") != "ENOENT"; os.write(w, repr(told).encode()); os._exit(0)
        os.close(w); return os.read(r, 200)
    return in_child(go)
for f in ("openpty", "forkpty"): skip(f, "a terminal")
@body("syscall", D, A)
def by_number(d, p): return call("syscall", [257, d, p, 0], descriptor), call("syscall", [262, d, p, B, 0], number), call("syscall", [332, d, p, 0, 0x7ff, B], extended)
@body("syscall", F)
def numbers(fd): return call("syscall", [0, fd, B, 3], bytes_read), call("syscall", [17, fd, B, 3, 7], bytes_read), call("syscall", [5, fd, B], attributes), call("syscall", [78, fd, B, 5], number), call("syscall", [452, fd, b"", 0o640, EMPTY], number), call("syscall", [3, fd], number)
@body("umask", N.only("n", "d/n"))
def masked(p): old = call("umask", [0o077], number); return old, call("open", [p, os.O_CREAT, 0o666], descriptor), call("umask", [0o022], number)
for f in ("quotactl",): c(f, 0x80000700, Q.only("f"), 0, B)
for f in ("revoke", "chflags"): c(f, Q.only("f"), 0)
c("open_tree", D, A.only("none"), 1 << 20, tell=number); c("fspick", D, A.only("none"), 0); c("move_mount", G.only("closed"), b"", CWD, b"f", 0)
skip("mount umount umount2 pivot_root open_tree move_mount fsmount fsopen fsconfig mount_setattr unshare", "they change mounts")
skip("acct swapon swapoff reboot vhangup sync", "they change the machine")
skip("ustat uselib fattach fdetach getmsg getpmsg putmsg putpmsg nfsservctl query_module create_module get_kernel_syms init_module delete_module bdflush sysctl", "for programs of old, without a system call")
skip("svcfd_create svcunixfd_create svctcp_create svcudp_create svcudp_bufcreate svcunix_create clnttcp_create clntudp_create clntudp_bufcreate clntunix_create xdrstdio_create", "sockets, for programs of old")
skip("iconv_open setlocale newlocale bindtextdomain textdomain gettext dcgettext dcngettext dgettext dngettext ngettext", "files of the C library's own, by open")
skip("ruserok iruserok ruserpass getpass getusershell setusershell getttyent getttynam setttyent getfsent setfsent getfsfile getfsspec getlogin getlogin_r ttyslot", "files of /etc alone")

# Where a pool differs: the calls, what direct access says then, and why.
OF_A_DIRECTORY = r"\('fd', '0o40755'.*; 100; 0; -1; 1; 0.*"
DIFFERENCES = [
    (r"epoll_ctl .*", r".*(0 |EINVAL|ENOENT).*", "the kernel lets programs wait for files of FUSE"),
    (r"fallocate direct (16|17) .*", r"0 .*", "pools have FALLOC_FL_ZERO_RANGE"),
    (r"fcntl .* 1034 memory", r"-1; EINVAL .*", "seals are tmpfs's"),
    (r"lseek (dir|real-dir) .* [234]", r"[0-9]+ .*", "a directory has an end"),
    (r"f(d|re)?open(64)? .*", OF_A_DIRECTORY, "the same"),
    (r"mmap by mapped .*", r".*'now'.*", "a page that the kernel writes sets the time"),
    (r"write (direct|real|write-only) 8 5", r"-1; EFAULT [^:]*", "a write that fails sets no time"),
    (r"copy_file_range elsewhere .* direct .*|copy_file_range elsewhere .* write-only .*", r"[0-9]+ .*", "it copies from other file systems"),
    (r"tcsetattr .*", r"-1; EBADF .*", "the C library's call is of no known form; a terminal is never direct"),
]

# These take no path and no descriptor of a file: families by their beginnings, then single functions. One of several names is enough.
FAMILIES = """pthread_ __pthread_ _pthread_ xdr_ xdrmem_ xdrrec_ wcs __wcs wmem __wmem str __str mem __mem svc clnt inet_ inet6_ argz_ __argz_ argp_ envz_ isw __isw tow
__tow mtx_ cnd_ tss_ thrd_ auth res_ __res_ ns_ obstack_ _obstack_ __obstack_ mb __mb sched_ __sched_ sig __sig sem_ posix_spawnattr_ ether_ key_ pmap_
arc4random _IO_ _dl_ __libc_ __cxa_ __ctype_ __rpc_ timer_ msg shm sem cfget cfset"""
SINGLE = """_Exit a64l abort abs addseverity adjtime adjtimex advance aio_init alarm arch_prctl asctime asctime_r asprintf __asprintf_chk __assert __assert_fail
__assert_perror_fail atof atoi atol atoll _authenticate backtrace backtrace_symbols basename bcopy bind_textdomain_codeset brk __bsd_getpgrp bsearch btowc
bzero c16rtomb c32rtomb c8rtomb call_once callrpc capget capset catclose catgets cbc_crypt cfmakeraw __chk_fail clearenv clock clock_adjtime
clock_getcpuclockid clock_getres clock_gettime clock_nanosleep clock_settime closelog __cmsg_nxthdr confstr __confstr_chk copysign copysignf copysignl ctermid
ctime ctime_r cuserid __cyg_profile_func_enter __default_morecore des_setparity difftime dirname div dl_iterate_phdr dladdr dladdr1 dlclose dlerror dlinfo
dlsym dlvsym dn_comp dn_expand dn_skipname drand48 drand48_r duplocale dysize ecb_crypt ecvt ecvt_r endaliasent endfsent endgrent endhostent endnetent
endnetgrent endprotoent endpwent endrpcent endservent endsgent endspent endttyent endusershell endutent endutxent epoll_create epoll_create1 erand48 erand48_r
err __errno_location error error_at_line errx eventfd exit explicit_bzero __explicit_bzero_chk fanotify_init fcvt fcvt_r __fdelt_chk __fentry__ ffs ffsl
finite finitef finitel fmemopen fmemopen fmtmsg fnmatch fopencookie freeaddrinfo freeifaddrs freelocale frexp frexpf frexpl ftime gai_cancel gai_error
gai_strerror gai_suspend gcvt get_avphys_pages get_myaddress get_nprocs get_nprocs_conf get_phys_pages getaddrinfo getaddrinfo_a getaliasbyname
getaliasbyname_r getaliasent getaliasent_r getauxval getchar getchar_unlocked getcontext getcpu getdate getdate_r getdomainname __getdomainname_chk getegid
getentropy getenv geteuid getgid getgrent getgrent_r getgrgid getgrgid_r getgrnam getgrnam_r getgrouplist getgroups __getgroups_chk gethostbyaddr
gethostbyaddr_r gethostbyname gethostbyname2 gethostbyname2_r gethostbyname_r gethostent gethostent_r gethostid gethostname __gethostname_chk getifaddrs
getipv4sourcefilter getitimer getloadavg __getlogin_r_chk getnameinfo getnetbyaddr getnetbyaddr_r getnetbyname getnetbyname_r getnetent getnetent_r
getnetgrent getnetgrent_r getnetname getopt getopt_long getopt_long_only getpagesize getpgid getpgrp getpid getppid getpriority getprotobyname
getprotobyname_r getprotobynumber getprotobynumber_r getprotoent getprotoent_r getpt getpublickey getpw getpwent getpwent_r getpwnam getpwnam_r getpwuid
getpwuid_r getrandom getresgid getresuid getrlimit getrpcbyname getrpcbyname_r getrpcbynumber getrpcbynumber_r getrpcent getrpcent_r getrpcport getrusage
__gets_chk getsecretkey getservbyname getservbyname_r getservbyport getservbyport_r getservent getservent_r getsgent getsgent_r getsgnam getsgnam_r getsid
getsourcefilter getspent getspent_r getspnam getspnam_r getsubopt gettid gettimeofday getuid getutent getutent_r getutid getutid_r getutline getutline_r
getutmp getutxent getutxid getutxline getwchar getwchar_unlocked gmtime gmtime_r gnu_dev_major gnu_dev_makedev gnu_dev_minor gnu_get_libc_release
gnu_get_libc_version group_member gsignal __h_errno_location hasmntopt hcreate hcreate_r hdestroy hdestroy_r herror host2netname hsearch hsearch_r hstrerror
htonl htons iconv iconv_close if_freenameindex if_indextoname if_nameindex if_nametoindex imaxabs imaxdiv initgroups initstate initstate_r innetgr
inotify_init inotify_init1 insque ioperm iopl iruserok_af isalnum isalnum_l isalpha isalpha_l isascii isblank isblank_l iscntrl iscntrl_l isctype isdigit
isdigit_l isgraph isgraph_l isinf isinff isinfl islower islower_l isnan isnanf __isnanf128 isnanl __isoc99_scanf __isoc99_sscanf __isoc99_swscanf
__isoc99_vscanf __isoc99_vsscanf __isoc99_vswscanf __isoc99_vwscanf __isoc99_wscanf isprint isprint_l ispunct ispunct_l isspace isspace_l isupper isupper_l
isxdigit isxdigit_l __ivaliduser jrand48 jrand48_r kill killpg klogctl l64a lckpwdf lcong48 lcong48_r ldexp ldexpf ldexpl lfind llabs lldiv localeconv
localtime localtime_r __longjmp_chk lrand48 lrand48_r lsearch madvise makecontext mallinfo2 malloc_stats malloc_trim malloc_usable_size mcheck
mcheck_check_all mcheck_pedantic _mcleanup mcount mincore mktime mlock mlock2 mlockall modf modff modfl modify_ldt moncontrol monstartup mprobe mprotect
mrand48 mrand48_r mtrace munlock munlockall muntrace nanosleep netname2host netname2user nice nl_langinfo nl_langinfo_l nrand48 nrand48_r
__nss_configure_lookup __nss_database_lookup __nss_group_lookup __nss_hostname_digits_dots __nss_next ntp_gettime ntp_gettimex on_exit open_memstream
open_wmemstream openlog parse_printf_format passwd2des pause perror personality pidfd_open pipe pipe2 pkey_alloc pkey_free pkey_get pkey_mprotect pkey_set
__posix_getopt posix_madvise posix_memalign posix_openpt prctl __printf_chk __printf_fp printf_size printf_size_info prlimit process_vm_readv
process_vm_writev profil __profile_frequency psiginfo psignal ptrace putchar putchar_unlocked putenv putwchar putwchar_unlocked qecvt qecvt_r
qfcvt qfcvt_r qgcvt qsort qsort_r quick_exit quick_exit rand rand_r random random_r rawmemchr rcmd rcmd_af re_comp re_compile_fastmap re_compile_pattern
re_exec re_match re_match_2 re_search re_search_2 re_set_registers re_set_syntax reallocarray regcomp regerror regexec regexec regfree __register_atfork
register_printf_function register_printf_modifier register_printf_specifier register_printf_type registerrpc remque rexec rexec_af _rpc_dtablesize rpmatch
rresvport rresvport_af rtime ruserok_af sbrk scanf secure_getenv seed48 seed48_r setaliasent setcontext setdomainname setegid setenv _seterr_reply seteuid
setfsgid setfsuid setgid setgrent setgroups sethostent sethostid sethostname setipv4sourcefilter setitimer _setjmp setjmp setlogin setlogmask setnetent
setnetgrent setpgid setpgrp setpriority setprotoent setpwent setregid setresgid setresuid setreuid setrlimit setrpcent setservent setsgent setsid
setsourcefilter setspent setstate setstate_r settimeofday setuid setutent setutxent sgetsgent sgetsgent_r sgetspent sgetspent_r sleep snprintf __snprintf_chk
socket __sprintf_chk sprofil srand srand48 srand48_r srandom_r sstk __stack_chk_fail step stime stpcpy __stpcpy_chk __stpcpy_small stpncpy __stpncpy_chk swab
swapcontext swprintf __swprintf_chk swscanf sysconf sysinfo syslog __syslog_chk sysv_signal tdelete tdestroy tfind tgkill time timegm timerfd_create times
timespec_get timespec_getres toascii _tolower tolower tolower_l _toupper toupper toupper_l tr_break tsearch twalk twalk_r tzset ualarm ulckpwdf ulimit uname
unsetenv uselocale user2netname usleep vasprintf __vasprintf_chk verr verrx vlimit vprintf __vprintf_chk vscanf vsnprintf __vsnprintf_chk __vsprintf_chk
vsscanf vswprintf __vswprintf_chk vswscanf vsyslog __vsyslog_chk vtimes vwarn vwarnx vwprintf __vwprintf_chk vwscanf wait wait3 wait4 waitid waitpid warn
warnx wcpcpy __wcpcpy_chk wcpncpy __wcpncpy_chk wcrtomb __wcrtomb_chk wctob wctomb __wctomb_chk wctrans wctrans_l wctype wctype_l wcwidth wprintf
__wprintf_chk wscanf __x86_get_cpuid_feature_leaf xdecrypt xencrypt __xpg_basename __xpg_sigpause __xpg_strerror_r xprt_register xprt_unregister"""
WITHOUT = re.compile("(" + "|".join(FAMILIES.split()) + ").*|" + "|".join(SINGLE.split()))

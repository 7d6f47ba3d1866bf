# Calls each function of table.py on each kind of path and descriptor, in a fresh directory, and prints the results and what has changed there.
#   run.py N [FUNCTION]...    makes each Nth choice of kinds
#   run.py unknown            prints the exported functions of the C library that the table does not know
#   run.py compare FILE FILE  prints lines that differ for no reason that the table gives
import ctypes, errno, fcntl, hashlib, itertools, os, re, select, stat, struct, subprocess, sys
from ctypes import c_long, c_void_p, create_string_buffer

LIBC = next(p for p in ("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6") if os.path.exists(p))
libc = ctypes.CDLL(None, use_errno=True)
libc.dlvsym.restype = c_void_p
CWD, CLOSED, BAD = -100, 800, 8
BASE = os.getcwd().encode()
# Paths that lead out lead there: each call is made on each path, and may remove what it finds.
OUTSIDE = b"/dev/shm/conquest-libc-calls-%d" % os.getpid()
ELSEWHERE, DEVICE = OUTSIDE + b"/f", OUTSIDE + b"/null"
CONTENT = b"0123456789\n" * 500
sink = []

def exported():
    """Name, version and address of each function, but those for the C library's own parts."""
    for line in subprocess.run(["readelf", "--dyn-syms", "-W", LIBC], capture_output=True, text=True, check=True).stdout.splitlines():
        words = line.split()
        if len(words) == 8 and words[3] in ("FUNC", "IFUNC") and words[6] != "UND" and "@GLIBC_PRIVATE" not in words[7]:
            name, _, version = words[7].partition("@")
            yield name, version.lstrip("@"), words[1]

VERSIONS = {}
def function(name):
    try: return getattr(libc, name)
    except AttributeError: pass
    if not VERSIONS: VERSIONS.update((n, v) for n, v, _ in exported())
    found = libc.dlvsym(None, name.encode(), VERSIONS.get(name, "").encode())
    return found and ctypes.CFUNCTYPE(c_long, use_errno=True)(found)

FRESH = {}
# The directory that each call finds.
def build():
    for d in ("d", "d/sub", "empty"): os.mkdir(d, 0o755)
    for f in ("f", "d/f", "d/g"):
        with open(f, "wb") as file: file.write(CONTENT)
    with open("x", "wb") as file: file.write(b"#!/bin/sh\necho ran $1; test ! -e /proc/self/fd/9 || cat <&9 | head -c 5\n")
    os.chmod("x", 0o755); os.setxattr("f", "user.a", b"value")
    for name, target in (("l", "f"), ("ld", "d"), ("dangling", "none"), ("loop", "loop"), ("out", ELSEWHERE), ("d/up", "../f")): os.symlink(target, name)
    os.link("f", "hard"); os.mkfifo("pipe")
    for e in [e.path for e in os.scandir(".")] + ["d/f", "d/g", "d/sub"]: os.utime(e, (1000, 1000), follow_symlinks=False)

def describe():
    seen = {}
    def walk(d):
        for name in sorted(os.listdir(d)):
            path = os.path.join(d, name); s = os.lstat(path); kind = stat.S_IFMT(s.st_mode)
            what, seen_before = b"", FRESH.get(path[2:], ())
            is_same = seen_before and path != "./f" and (oct(s.st_mode), s.st_nlink, s.st_size, s.st_mtime_ns) == (*seen_before[:2], seen_before[4], 1000 * 10**9)
            if is_same and kind == stat.S_IFREG:
                seen[path[2:]] = seen_before
                continue
            if kind == stat.S_IFREG:
                with open(path, "rb") as f: what = f.read(1 << 17)
            elif kind == stat.S_IFLNK: what = hidden(os.readlink(path).encode())
            attrs = os.listxattr(path, follow_symlinks=False)
            # Times count that a call has set: all others are those of the run.
            times = [t if t < 10**9 else "now" for t in (s.st_atime_ns // 10**9, s.st_mtime_ns // 10**9)]
            if kind == stat.S_IFLNK or kind == stat.S_IFDIR or kind == stat.S_IFREG: times[0] = times[0] if times[0] not in (1000, "now") else "-"
            seen[path[2:]] = (oct(s.st_mode), s.st_nlink, s.st_uid, s.st_gid, s.st_size if kind == stat.S_IFREG else len(what), hashlib.sha1(what).hexdigest()[:6], *sorted(attrs), *([] if kind == stat.S_IFIFO else times))
            if kind == stat.S_IFDIR: walk(path)
    walk(".")
    return seen

OUTSIDES = [b"f", b"null"]
def build_outside():
    os.makedirs(OUTSIDE, exist_ok=True)
    remove(OUTSIDE)
    with open(ELSEWHERE, "wb") as f: f.write(CONTENT)
    os.mknod(DEVICE, 0o020666, os.makedev(1, 3))

def remove(d):
    for e in os.scandir(d):
        if e.is_dir(follow_symlinks=False): remove(e.path); os.rmdir(e.path)
        else: os.unlink(e.path)

# Kinds: by a letter of the table, their names and how each is made. What is made is closed after the call.
def opened(path, flags=os.O_RDWR, real=False, at=3):
    fd = os.open(path, flags)
    if real: p = select.poll(); p.register(fd); p.poll(0)
    if at and not flags & os.O_PATH and path != b"pipe": os.lseek(fd, at, 0)
    sink.append(fd)
    return fd
def duplicate(fd): sink.append(n := fcntl.fcntl(fd, fcntl.F_DUPFD, 300)); return n
def fresh_pipe(): sink.extend(p := os.pipe2(os.O_NONBLOCK)); os.write(p[1], b"in a pipe"); return p
DIR = os.O_RDONLY | os.O_DIRECTORY
FD = {
    "direct": lambda: opened(b"f"), "real": lambda: opened(b"f", real=True), "dup": lambda: duplicate(opened(b"f")),
    "elsewhere": lambda: opened(ELSEWHERE), "read-only": lambda: opened(b"f", os.O_RDONLY), "write-only": lambda: opened(b"f", os.O_WRONLY),
    "append": lambda: opened(b"f", os.O_RDWR | os.O_APPEND), "dir": lambda: opened(b"d", DIR, at=0), "real-dir": lambda: opened(b"d", DIR, real=True, at=0),
    "place": lambda: opened(b"d", os.O_PATH), "path": lambda: opened(b"f", os.O_PATH), "pipe": lambda: opened(b"pipe", os.O_RDWR | os.O_NONBLOCK),
    "null": lambda: opened(DEVICE, at=0), "closed": lambda: CLOSED, "negative": lambda: -1,
}
FEW = ("direct", "real", "elsewhere", "read-only", "write-only", "dir", "closed")
PATH = {n: n.encode() for n in ("f", "d", "l", "ld", "d/f", "ld/f", "ld/../f", "./d//f", "none", "none/f", "f/f", "f/", "d/", "ld/", "dangling", "loop", "out", "pipe", "hard", "d/up")}
PATH |= {"absolute": BASE + b"/w/f", "absolute-dir": BASE + b"/w/d/.", "above": BASE + b"/w/../w/f", "elsewhere": ELSEWHERE, "leaving": b"../" * 40 + ELSEWHERE, "empty-string": b"", "long": b"n" * 256, "longest": b"./" * 2050 + b"f"}
BADLY = {"null-pointer": 0, "bad-pointer": BAD}
NEW = {n: n.encode() for n in ("n", "d/n", "ld/n", "n/", "f", "f/", "d", "l", "dangling", "loop", "none/n", "f/n", "empty", ".", "..", "d/.")}
NEW |= {"absolute": BASE + b"/w/n", "elsewhere": OUTSIDE + b"/n", "empty-string": b"", "long": b"n" * 256} | BADLY
AT = {k: PATH[k] for k in ("f", "g", "sub", "none", "f/", "up", "absolute", "empty-string") if k in PATH} | {n: n.encode() for n in ("g", "sub", "up", "../f", ".")} | BADLY
NEW_AT = {n: n.encode() for n in ("n", "f", "sub", "../n")} | {"absolute": NEW["absolute"], "empty-string": b""}
PLACES = {k: FD[k] for k in ("dir", "real-dir", "place", "direct", "real", "closed", "elsewhere")} | {"here": lambda: CWD}
MODES = ("r", "r+", "w", "a+", "rm", "re", "wx", "rb+", "q")

class Kind:
    def __init__(self, choices): self.choices = choices
    def without(self, *names): return Kind({k: v for k, v in self.choices.items() if k not in names})
    def only(self, *names): return Kind({k: self.choices[k] for k in names})
F, P, N, A, M, D = (Kind(c) for c in (FD, PATH | BADLY, NEW, AT, NEW_AT, PLACES))
# Where the C library itself looks at the path.
Q, O = Kind(PATH), N.without(*BADLY)
G = F.only(*FEW)
def stream(fd, mode):
    f = function("fdopen"); f.restype = c_void_p
    return f(fd, mode)
S = Kind({f"{k} {m.decode()}": (lambda k=k, m=m: stream(os.dup(FD[k]()), m)) for k, m in (("direct", b"r+"), ("real", b"r+"), ("append", b"a+"), ("read-only", b"r"), ("write-only", b"w"), ("dir", b"r"), ("elsewhere", b"r+"))})
B = object()  # memory for a result

def hidden(text): return text.replace(OUTSIDE, b"OUTSIDE").replace(BASE, b"BASE").replace(str(os.getpid()).encode(), b"PID")
def shown(value): return hidden(value).decode("latin1").replace("\n", "\\n") if type(value) is bytes else str(value)
def name_of(e): return errno.errorcode.get(e, e)
def tried(f, *a):
    try: return f(*a)
    except OSError as e: return name_of(e.errno)
def of_fd(fd):
    if fd < 0: return fd
    s = os.fstat(fd); at = tried(os.lseek, fd, 0, 1)
    return ("fd", oct(s.st_mode), s.st_size if stat.S_ISREG(s.st_mode) else "", oct(fcntl.fcntl(fd, fcntl.F_GETFL)), fcntl.fcntl(fd, fcntl.F_GETFD), at)
# What is told of a result: of (result, memory).
def number(r, b): return r
def bytes_read(r, b): return r, b[:r] if r > 0 else ""
def descriptor(r, b):
    if r >= 0: sink.append(r)
    return of_fd(r)
def attributes(r, b): n, mode, uid, gid, _, rdev, size = struct.unpack_from("QIIIIQQ", b, 16); return (r, oct(mode), n, uid, gid, rdev) + (() if stat.S_ISDIR(mode) else (size,)) if r == 0 else r
def extended(r, b):
    if r: return r
    mask, _, _, n, uid, gid, mode, _, _, size = struct.unpack_from("IIQIIIHHQQ", b, 0)
    return mask & 0xfff, oct(mode), n, uid, gid, 0 if stat.S_ISDIR(mode) else size
def text(r, b): return "null" if not r else hidden(ctypes.string_at(r))
def in_memory(r, b): return r, hidden(b.raw.rstrip(b"\0"))
def nothing(r, b): return ""
def whether(r, b): return r != 0

def call(name, args, tell, where=0):
    """Calls it; the result, and the memory that it was given."""
    f = function(name)
    if not f: return "no such function here"
    memory = create_string_buffer(4096)
    f.restype = c_void_p if tell in (text, whether) else c_long
    ctypes.set_errno(0)
    kept = [create_string_buffer(a) if type(a) is bytes else memory if a is B else a for a in args]
    r = f(*[c_long(a) if type(a) is int else a for a in kept]) or 0
    failure = name_of(ctypes.get_errno())
    r = -1 if r in (-1, 0xffffffff) else r
    told = tell(r, memory)
    return (told, failure) if r == -1 or told == "null" or tell is whether and not told else told

def make_fresh():
    """The directory, unless the last call has left it as it was."""
    if os.path.isdir("w"): return os.chdir("w")
    os.mkdir("w"); os.chdir("w"); build(); build_outside()
    FRESH.update(FRESH or describe())

def constant(a):
    if a is B: return "memory"
    if type(a) is int: return a if abs(a) < 1 << 20 else hex(a)
    return shown(a) if type(a) is bytes and len(a) < 30 and re.fullmatch(b"[ -~]*", a) else getattr(a, "name", "data")

def run(name, choice, args, tell, body):
    """Prints the line of one function and one choice of kinds."""
    make_fresh()
    values = [m() if callable(m) else m for _, m in choice]
    given, names = iter(values), iter(k for k, _ in choice)
    filled = [next(given) if isinstance(a, Kind) else a for a in args]
    words = [next(names) if isinstance(a, Kind) else constant(a) for a in args]
    fds = [v for v in values if type(v) is int and v in sink]
    told = body(*filled) if body else call(name, filled, tell)
    sys.stdout.flush()
    os.chdir(BASE + b"/w"); os.umask(0o022)
    opened = [of_fd(fd) if tried(os.fstat, fd) != "EBADF" else "closed" for fd in fds]
    after = describe()
    changed = [f"{k}: {after.get(k)}" for k in sorted(FRESH.keys() | after.keys()) if FRESH.get(k) != after.get(k)]
    line = " ".join([name, *(["by " + body.__name__] if body else ()), *map(str, words), "->", "; ".join(map(shown, told)) if isinstance(told, (tuple, list)) else shown(told)])
    at = lambda o: o[5] if type(o[5]) is str or o[5] < 1 << 24 else "a cookie"
    print(line, *[f"({o})" if o == "closed" else f"({o[3]} at {at(o)})" for o in opened], *changed)
    for fd in sink: tried(os.close, fd)
    sink.clear()
    # A call may have put something there.
    tried(os.close, CLOSED)
    os.chdir(BASE)
    if changed or sorted(os.listdir(OUTSIDE)) != OUTSIDES or open(ELSEWHERE, "rb").read() != CONTENT: remove("w"); os.rmdir("w")

def in_child(f, *args):
    """What a child prints that calls `f`, and how it ends."""
    r, w = os.pipe(); sys.stdout.flush(); pid = os.fork()
    if pid == 0:
        os.dup2(w, 1, True); os.close(w)
        try: told = f(*args)
        except BaseException as e: told = repr(e)
        if told is not None: tried(os.write, 1, repr(told).encode())
        os._exit(0)
    os.close(w)
    with open(r, "rb") as file: said = file.read()
    return said, os.waitpid(pid, 0)[1]

def unknown(table):
    known = lambda name: name in table.CALLS or table.WITHOUT.fullmatch(name)
    at = {}
    for name, _, address in exported(): at.setdefault(address, set()).add(name)
    for names in at.values():
        if not any(map(known, names)): print(*sorted(names))

def compare(table, here, there):
    (here, there) = ([line.rstrip("\n").partition(" -> ") for line in open(file, encoding="latin1")] for file in (here, there))
    for (call, _, got), (same, _, wanted) in itertools.zip_longest(here, there, fillvalue=("nothing", "", "")):
        explained = any(re.fullmatch(c, call) and re.fullmatch(r, got) for c, r, _ in table.DIFFERENCES)
        if (call, got) != (same, wanted) and not (call == same and explained):
            print(f"{call}\n    direct:    {got}\n    elsewhere: {wanted}")
            if call != same: return

def main():
    import table
    how, rest = sys.argv[1], sys.argv[2:]
    if how == "unknown": return unknown(table)
    if how == "compare": return compare(table, *rest)
    os.umask(0o022); libc.prctl(1, 15)
    for name, uses in table.CALLS.items():
        for args, tell, body in uses if not rest or name in rest else ():
            choices = itertools.product(*[a.choices.items() for a in args if isinstance(a, Kind)])
            for choice in itertools.islice(choices, None, None, int(how)): run(name, choice, args, tell, body)
    remove(OUTSIDE); os.rmdir(OUTSIDE)
    if os.path.isdir("w"): remove("w"); os.rmdir("w")

if __name__ == "__main__":
    sys.modules["run"] = sys.modules["__main__"]
    main()

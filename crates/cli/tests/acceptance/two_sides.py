# Two processes on the same files: one under direct access, one through the mount. `two_sides.py SEED SECONDS DIR PLAIN COMMAND...` runs both,
# and a third in PLAIN, on another file system, that does what either does: all results must be equal. COMMAND gives direct access.
import errno, fcntl, json, mmap, os, random, signal, subprocess, sys, time

class Side:
    """Does what it is told by lines on standard input."""

    def __init__(self, base):
        os.umask(0o022)
        os.chdir(base)
        self.base, self.files, self.maps = base, {}, {}

    def serve(self):
        for line in sys.stdin:
            what, args = json.loads(line)
            try:
                answer = getattr(self, what)(*args)
            except OSError as e:
                answer = errno.errorcode[e.errno]
            except KeyError:
                answer = "no such handle"
            print(json.dumps(answer), flush=True)

    def forget(self, side):
        for h in [h for h in self.maps if h.startswith(side)]:
            self.maps.pop(h).close()
        for h in [h for h in self.files if h.startswith(side)]:
            os.close(self.files.pop(h))

    def path(self, name):
        return self.base + name if name.startswith("/") else name

    def open(self, h, name, flags, mode):
        self.files[h] = os.open(self.path(name), flags, mode)

    def open_at(self, h, at, name, flags):
        self.files[h] = os.open(name, flags, 0o640, dir_fd=self.files[at])

    def dup(self, h, of):
        self.files[h] = os.dup(self.files[of])

    def close(self, h):
        if h in self.maps:
            self.maps.pop(h).close()
        os.close(self.files.pop(h))

    def read(self, h, n):
        return os.read(self.files[h], n).decode("latin1")

    def write(self, h, text):
        return os.write(self.files[h], text.encode("latin1"))

    def writev(self, h, text):
        data = text.encode("latin1")
        return os.writev(self.files[h], [data[:7], data[7:]])

    def pread(self, h, n, at):
        return os.pread(self.files[h], n, at).decode("latin1")

    def pwrite(self, h, text, at):
        return os.pwrite(self.files[h], text.encode("latin1"), at)

    def lseek(self, h, at, whence):
        # What positions a directory has is the file system's affair, as is its size.
        return None if self.is_dir(h) else os.lseek(self.files[h], at, whence)

    def is_dir(self, h):
        return os.fstat(self.files[h]).st_mode & 0o170000 == 0o040000

    def inode(self, h):
        return os.fstat(self.files[h]).st_ino

    def inode_of(self, name):
        return os.stat(self.path(name)).st_ino

    def links(self, h):
        return os.fstat(self.files[h]).st_nlink

    def is_removed_dir(self, h):
        return self.is_dir(h) and self.links(h) == 0

    def ftruncate(self, h, n):
        os.ftruncate(self.files[h], n)

    def fsync(self, h):
        os.fsync(self.files[h])

    def fallocate(self, h, at, n):
        os.posix_fallocate(self.files[h], at, n)

    def copy(self, a, b, n):
        done = 0
        while done < n and (more := os.copy_file_range(self.files[a], self.files[b], n - done)):
            done += more
        return done

    def fstat(self, h):
        return self.shown(os.fstat(self.files[h]))

    def stat(self, name):
        return self.shown(os.stat(self.path(name)))

    def lstat(self, name):
        return self.shown(os.lstat(self.path(name)))

    def shown(self, s):
        is_dir = s.st_mode & 0o170000 == 0o040000
        return [oct(s.st_mode), s.st_nlink, None if is_dir else s.st_size, s.st_uid]

    def whole(self, name):
        with open(self.path(name), "rb") as f:
            return f.read().decode("latin1")

    def list(self, name):
        return sorted(os.listdir(self.path(name)))

    def scan(self, name):
        return sorted((e.name, e.is_dir(follow_symlinks=False)) for e in os.scandir(self.path(name)))

    def list_open(self, h):
        return sorted(os.listdir(self.files[h]))

    def unlink_at(self, h, name):
        os.unlink(name, dir_fd=self.files[h])

    def mkdir(self, name):
        os.mkdir(self.path(name), 0o755)

    def rmdir(self, name):
        os.rmdir(self.path(name))

    def unlink(self, name):
        os.unlink(self.path(name))

    def rename(self, a, b):
        os.rename(self.path(a), self.path(b))

    def link(self, a, b):
        os.link(self.path(a), self.path(b))

    def symlink(self, to, name):
        os.symlink(to, self.path(name))

    def readlink(self, name):
        return os.readlink(self.path(name))

    def truncate(self, name, n):
        os.truncate(self.path(name), n)

    def chmod(self, name, mode):
        os.chmod(self.path(name), mode)

    def utime(self, name, ns):
        os.utime(self.path(name), ns=(ns, ns + 1))

    def times(self, name):
        return os.stat(self.path(name)).st_mtime_ns

    def access(self, name):
        return os.access(self.path(name), os.R_OK | os.X_OK)

    # A mapping stays until its handle is closed.
    def mapping(self, h):
        size = 0 if self.is_dir(h) else os.fstat(self.files[h]).st_size
        held = self.maps.get(h)
        if size and (held is None or len(held) < size):
            held = self.maps[h] = mmap.mmap(self.files[h], size)
        return held, size

    def load(self, h, at, n):
        held, size = self.mapping(h)
        return held[at:min(at + n, size)].decode("latin1") if at < size else ""

    def store(self, h, at, text):
        held, size = self.mapping(h)
        data = text.encode("latin1")[:max(size - at, 0)]
        if data:
            held[at:at + len(data)] = data
            held.flush()

    def tree(self):
        found = {}
        for above, dirs, files in os.walk("."):
            for name in dirs + files:
                path = os.path.join(above, name)
                s = os.lstat(path)
                is_link, is_dir = s.st_mode & 0o170000 == 0o120000, s.st_mode & 0o170000 == 0o040000
                text = os.readlink(path) if is_link else None if is_dir else self.whole(path)
                found[path] = self.shown(s) + [text]
        return found

    # What follows runs on two sides at once.
    def append_lines(self, name, who, n):
        fd = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for i in range(n):
            os.write(fd, f"{who} {i:04}".ljust(31, ".").encode() + b"\n")
        os.close(fd)

    def win(self, n):
        won = []
        for i in range(n):
            try:
                os.close(os.open(f"race/x{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
                won.append(i)
            except FileExistsError:
                pass
            try:
                os.mkdir(f"race/d{i}")
                won.append(-1 - i)
            except FileExistsError:
                pass
        return won

    def replace_often(self, name, who, n):
        for i in range(n):
            with open(f"{name}.{who}", "w") as f:
                f.write(f"{i:05} " * (1 + i % 700))
            os.rename(f"{name}.{who}", name)

    def read_often(self, name, n):
        last, seen = -1, 0
        for _ in range(n):
            with open(name) as f:
                words = f.read().split()
            now = int(words[0])
            if set(words) != {words[0]} or len(words) != 1 + now % 700 or now < last:
                return f"after {last}: {len(words)} words {set(words)}"
            last = now
        return "ok"

    def come_and_go(self, n):
        for i in range(n):
            open(f"names/t{i % 37}", "w").close()
            if i % 3:
                os.rename(f"names/t{i % 37}", f"names/u{i % 11}")
            else:
                os.unlink(f"names/t{i % 37}")
        for name in os.listdir("names"):
            if name[0] != "s":
                os.unlink("names/" + name)

    def list_often(self, stay, n):
        for _ in range(n):
            names = os.listdir("names")
            there = [name for name in names if name[0] == "s"]
            if len(set(names)) != len(names) or len(there) != stay:
                return f"{len(there)} of {stay} names, {len(names) - len(set(names))} twice"
        return "ok"

    def count(self, how, n):
        fd = os.open("counter", os.O_RDWR)
        for _ in range(n):
            lock = fcntl.lockf if how == "lockf" else fcntl.flock
            lock(fd, fcntl.LOCK_EX)
            now = int(os.pread(fd, 20, 0))
            os.pwrite(fd, str(now + 1).encode(), 0)
            lock(fd, fcntl.LOCK_UN)
        os.close(fd)


class Agent:
    def __init__(self, command, base):
        self.command = command + [sys.executable, __file__, "side", base]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what, *args):
        self.process.stdin.write(json.dumps([what, args]) + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.command}: ended with {self.process.wait()}")
        return json.loads(line)

    def __call__(self, what, *args):
        self.ask(what, *args)
        return self.hear()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.start()

    def end(self):
        self.process.stdin.close()
        self.process.wait()

DIRS = ["", "d/", "e/", "d/s/"]
OPEN = [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR | os.O_CREAT | os.O_TRUNC,
        os.O_RDWR | os.O_CREAT | os.O_APPEND, os.O_WRONLY | os.O_APPEND]

class Story:
    def __init__(self, seed, base, plain, command):
        self.rng = random.Random(seed)
        self.sides = {"D": Agent(command, base), "M": Agent([], base)}
        self.plain = Agent([], plain)
        self.log, self.handles, self.next, self.killed = [], {"D": [], "M": []}, 0, 0
        # Inodes elsewhere of files that D may have made shorter.
        self.cut = set()

    def name(self):
        r = self.rng
        slash = "/" if r.random() < 0.3 else ""
        return slash + r.choice(DIRS) + r.choice(["f", "g", "h", "s", "l"])

    def dir(self):
        r = self.rng
        return ("/" if r.random() < 0.3 else "") + r.choice([".", "d", "e", "d/s"])

    def size(self):
        r = self.rng
        return r.choice([0, 1, 50, 4095, 4096, 5000, 9000, 20000, 70000]) + r.randrange(3)

    def text(self):
        n = self.rng.choice([1, 10, 100, 4096, 5000, 20000])
        return chr(self.rng.randrange(97, 123)) * n

    def pick(self, side):
        """An operation."""
        r, handles = self.rng, self.handles[side]
        kind = r.random()
        if kind < 0.18 or not handles and kind < 0.6:
            self.next += 1
            h = f"{side}{self.next}"
            if r.random() < 0.1:
                return ["open", h, self.dir(), os.O_RDONLY | os.O_DIRECTORY, 0]
            if handles and r.random() < 0.15:
                return r.choice([["dup", h, r.choice(handles)], ["open_at", h, r.choice(handles), r.choice("fgh"), r.choice(OPEN)]])
            return ["open", h, self.name(), r.choice(OPEN), r.choice([0o644, 0o600])]
        if kind < 0.6:
            h, at = r.choice(handles), self.size()
            if len(handles) > 8 or r.random() < 0.08:
                handles.remove(h)
                return ["close", h]
            return r.choice([
                ["read", h, self.size()], ["write", h, self.text()], ["writev", h, self.text()], ["pread", h, self.size(), at],
                ["pread", h, 100000, 0], ["pwrite", h, self.text(), at], ["lseek", h, at, 0], ["lseek", h, 0, 2], ["lseek", h, 0, 1],
                ["ftruncate", h, at], ["fsync", h], ["fallocate", h, at, 1 + self.size()], ["copy", h, r.choice(handles), self.size()],
                ["fstat", h], ["fstat", h], ["load", h, at, self.size()], ["store", h, at, self.text()], ["list_open", h], ["unlink_at", h, r.choice("fgh")],
            ])
        a, b = self.name(), self.name()
        return r.choice([
            ["stat", a], ["stat", a], ["lstat", a], ["whole", a], ["whole", a], ["whole", a], ["list", self.dir()], ["list", self.dir()], ["scan", self.dir()],
            ["mkdir", a], ["mkdir", self.dir()], ["rmdir", a], ["unlink", a], ["rename", a, b], ["rename", a, b], ["link", a, b], ["symlink", "f", a],
            ["symlink", "d", a], ["readlink", a], ["truncate", a, self.size()], ["chmod", a, r.choice([0o600, 0o755])], ["access", a],
            ["utime", a, r.randrange(10 ** 18)],
        ])

    def step(self):
        side = self.rng.choice("DM")
        op = self.pick(side)
        # What is done to a removed file shows in no tree.
        if self.rng.random() < 1 / 150 and not any(self.plain("links", h) == 0 for h in op[1:3]):
            return self.kill(side, op)
        self.ask_for_size(side, op)
        # A directory that was moved on the other side: the kernel has its old name until it has looked it up again.
        here = self.sides[side](*op)
        for _ in range(3):
            if here == "ESTALE":
                self.log.append((side, "again", here))
                here = self.sides[side](*op)
        there = self.plain(*op)
        self.log.append((side, op, here))
        if (here, there) == ("EBADF", "EISDIR") and side == "D" and any(self.plain("is_removed_dir", h) is True for h in op[1:3]):
            # Removed on the other side, it cannot be made real: SEMANTICS.
            there = here
        if here != there:
            self.fail(op, f"{side} answers {self.short(here)}, another file system {self.short(there)}")
        if op[0] in ("open", "open_at", "dup") and here is None:
            self.handles[side].append(op[1])
        self.note_cut(side, op, here)
        if op[0] == "utime" and here is None:
            self.same_on_all("times", op[1])
        if op[0] in ("write", "writev", "pwrite", "store", "ftruncate", "copy", "fallocate") and self.rng.random() < 0.5:
            # Not by the same handle: by a name, if there is one.
            self.same_on_all("stat", self.name())

    def note_cut(self, side, op, here):
        """D may have made a file shorter."""
        flags = op[-1] if op[0] == "open_at" else op[3] if op[0] == "open" else 0
        if side != "D" or isinstance(here, str) and here.isupper():
            return
        if op[0] == "ftruncate" or flags & os.O_TRUNC:
            self.cut.add(self.plain("inode", op[1]))
        elif op[0] == "truncate":
            self.cut.add(self.plain("inode_of", op[1]))

    def ask_for_size(self, side, op):
        """The kernel places an append, and copies within a file, by the size that it knows. Nothing tells it of a smaller one, so it has to ask
        for it: SEMANTICS."""
        if side == "M" and op[0] in ("write", "writev", "copy"):
            for h in op[1:3]:
                if self.plain("inode", h) in self.cut:
                    self.same("M", "fstat", h)

    def same(self, side, *op):
        here, there = self.sides[side](*op), self.plain(*op)
        self.log.append((side, op, here))
        if here != there:
            self.fail(op, f"{side} answers {self.short(here)}, another file system {self.short(there)}")

    def same_on_all(self, *op):
        there = self.plain(*op)
        for side, agent in self.sides.items():
            here = agent(*op)
            if here != there:
                self.fail(op, f"{side} answers {self.short(here)}, another file system {self.short(there)}")

    def kill(self, side, op):
        """What is under way when a side dies has happened, or not."""
        agent, other = self.sides[side], self.sides["M" if side == "D" else "D"]
        before = self.plain("tree")
        agent.ask(*op)
        time.sleep(self.rng.choice([0, 0, 0.0001, 0.0003, 0.001]))
        agent.kill()
        self.killed += 1
        self.log.append((side, "killed in", op))
        now = other("tree")
        if now != before:
            self.note_cut(side, op, self.plain(*op))
            after = self.plain("tree")
            if now != after:
                self.differ(op, now, after, "killed")
        self.plain("forget", side)
        self.handles[side] = []
        # Removed files that it had open are gone now; all else is there.
        self.same_trees()

    def same_trees(self):
        there = self.plain("tree")
        for side, agent in self.sides.items():
            here = agent("tree")
            if here != there:
                self.differ(["tree"], here, there, side)

    def differ(self, op, here, there, what):
        names = [name for name in sorted(set(here) | set(there)) if here.get(name) != there.get(name)]
        self.fail(op, what + ": " + "; ".join(f"{name}: {self.short(here.get(name))}, elsewhere {self.short(there.get(name))}" for name in names))

    def short(self, value):
        text = json.dumps(value).replace("\\u0000", "0")
        for c in set(text):
            for n in (20000, 5000, 4096, 1000, 100, 50, 20):
                text = text.replace(c * n, f"<{c}*{n}>")
        return text[:600]

    def fail(self, op, why):
        for entry in self.log[-60:]:
            print(self.short(entry))
        raise SystemExit(f"{op[:2]}: {why}")

    def together(self, one, two):
        """Both sides at once; each does either."""
        d, m = self.sides["D"], self.sides["M"]
        for a, b in ((d, m), (m, d)):
            a.ask(*one)
            b.ask(*two)
            yield [a.hear(), b.hear()]

    def storm(self, n):
        d, m = self.sides["D"], self.sides["M"]
        for name in ("race", "names"):
            d("mkdir", name)
        for i in range(40):
            h = f"D-{i}"
            d("open", h, f"names/s{i}", os.O_CREAT | os.O_WRONLY, 0o644)
            d("close", h)
        for listed in self.together(("list_often", 40, n // 4), ("come_and_go", n)):
            self.expect("names", listed, ["ok", None])
        for round, _ in enumerate(self.together(("append_lines", "lines", "one", n), ("append_lines", "lines", "two", n))):
            lines = m("whole", "lines").splitlines()
            for who in ("one", "two"):
                found = [line for line in lines if line.startswith(who)]
                self.expect("lines", found, [f"{who} {i:04}".ljust(31, ".") for i in range(n)])
            self.expect("lines", d("whole", "lines").splitlines(), lines)
            self.expect("lines", len(lines), 2 * n)
            d("unlink", "lines")
        h = "D-c"
        for how in ("lockf", "flock"):
            d("open", h, "counter", os.O_CREAT | os.O_WRONLY, 0o644)
            d("write", h, "0")
            d("close", h)
            for _ in self.together(("count", how, n // 4), ("count", how, n // 4)):
                pass
            self.expect(how, [m("whole", "counter"), d("whole", "counter")], [str(n // 4 * 4)] * 2)
            m("unlink", "counter")
        d("replace_often", "whole", "first", 1)
        for read in self.together(("read_often", "whole", n // 4), ("replace_often", "whole", "w", n)):
            self.expect("replaced", read, ["ok", None])
            d("replace_often", "whole", "first", 1)
        for a, b in self.together(("win", n // 8), ("win", n // 8)):
            self.expect("won", sorted(a + b), list(range(-(n // 8), n // 8)))
            for i in range(n // 8):
                m("unlink", f"race/x{i}")
                d("rmdir", f"race/d{i}")
        for i in range(40):
            m("unlink", f"names/s{i}")
        m("unlink", "whole")
        for name in ("race", "names"):
            self.expect("rmdir", m("rmdir", name), None)

    def expect(self, what, here, there):
        if here != there:
            self.fail([what, ""], f"{self.short(here)}, not {self.short(there)}")

def main(seed, seconds, base, plain, *command):
    story, end, steps = Story(int(seed), base, plain, list(command)), time.monotonic() + float(seconds), 0
    while time.monotonic() < end or steps < 600:
        story.step()
        steps += 1
        if steps % 500 == 0:
            story.same_trees()
        if steps % 3000 == 600:
            story.storm(200)
    story.same_trees()
    for agent in [*story.sides.values(), story.plain]:
        agent.end()
    print(f"seed {seed}: {steps} operations, {story.killed} kills")

if sys.argv[1] == "side":
    Side(sys.argv[2]).serve()
else:
    main(*sys.argv[1:])

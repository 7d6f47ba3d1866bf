# What a process has open stays of use when it gives up its privileges: to itself, its children, what it executes, and where it is passed to.
import ctypes, errno, mmap, os, socket, subprocess, sys

libc = ctypes.CDLL(None, use_errno=True)

def show(what, f, *args):
    try:
        result = f(*args)
    except (OSError, ValueError) as e:
        result = errno.errorcode.get(getattr(e, "errno", None), str(e))
    print(what, result, flush=True)

def apart(f, *args):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        f(*args)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)

def leave(how):
    if how == "euid":
        os.seteuid(1001)
    elif how == "fsuid":
        libc.setfsuid(1001)
    else:
        os.setgroups([])
        os.setresgid(1001, 1001, 1001)
        os.setresuid(1001, 1001, 1001)

def use(how):
    for name in ("log", "gone"):
        with open("secret/" + name, "w") as f:
            f.write(name * 3)
    log, gone = (os.open("secret/" + name, os.O_RDWR | os.O_APPEND) for name in ("log", "gone"))
    d = os.open("secret/dir", os.O_RDONLY | os.O_DIRECTORY)
    os.unlink("secret/gone")
    os.read(log, 3)
    leave(how)
    for fd in (log, gone):
        os.set_inheritable(fd, True)
        show("read", os.read, fd, 2)
        show("write", os.write, fd, b"more")
        show("executed", lambda: subprocess.run(["sh", "-c", f"cat <&{fd}"], close_fds=False, stdin=(os.lseek(fd, 1, 0), None)[1], capture_output=True).stdout)
        apart(show, "forked", os.pread, fd, 99, 0)
        show("mapped", lambda: bytes(mmap.mmap(fd, 5)))
    ours, theirs = socket.socketpair()
    show("passed", lambda: (socket.send_fds(ours, [b"x"], [log, gone]), [os.pread(fd, 99, 0) for fd in socket.recv_fds(theirs, 9, 2)[1]])[1])
    show("list", os.listdir, d)
    show("enter", os.fchdir, d)
    show("inside", lambda: os.stat("x").st_size)

os.mkdir("secret", 0o700)
os.mkdir("secret/dir")
with open("secret/dir/x", "w") as f:
    f.write("x")
for how in ("euid", "fsuid", "resuid"):
    print(how)
    apart(use, how)

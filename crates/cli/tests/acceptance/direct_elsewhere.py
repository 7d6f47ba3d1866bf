# In a process that never looks at a pool: calls of all the classes that direct access distinguishes.
import os, resource, select, signal, socket, subprocess, sys, tempfile, threading

os.chdir("/")
caught = []
signal.signal(signal.SIGUSR1, lambda number, frame: caught.append(number))
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGUSR2)
print(caught, signal.getsignal(signal.SIGSEGV) == signal.SIG_DFL)

def child(does):
    pid = os.fork()
    if pid == 0:
        does()
        os._exit(7)
    return os.waitpid(pid, 0)[1]

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print([child(does) for does in (
    lambda: None,
    lambda: os.kill(os.getpid(), signal.SIGSEGV),
    lambda: signal.raise_signal(signal.SIGBUS),
    lambda: os.setuid(1),
    lambda: os.umask(0o77),
    lambda: os.fchdir(os.open("/usr", os.O_RDONLY)),
    lambda: os.execv("/bin/true", ["true"]),
    lambda: child(lambda: os._exit(child(os.abort))),
    lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    lambda: os.closerange(3, 1 << 20),
    lambda: os.chroot("/usr"),
)])
print(subprocess.run(["sh", "-c", "cd /usr && unshare -m true; echo $?; ls /nowhere"], capture_output=True))
print(os.posix_spawn("/bin/true", ["true"], {}) > 0, os.wait()[1])
with tempfile.TemporaryDirectory() as dir:
    path = os.path.join(dir, "file")
    with open(path, "w") as file:
        threads = [threading.Thread(target=file.write, args=("text\n",)) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    copy = os.open(path + "2", os.O_RDWR | os.O_CREAT)
    print(os.sendfile(copy, os.open(path, os.O_RDONLY), 0, 100), os.copy_file_range(copy, copy, 2, 0, 30))
    os.dup2(copy, 1000)
    print(os.fstat(1000).st_size, select.select([1000], [], [], 0)[0], sorted(os.listdir(dir)))
    ends = socket.socketpair()
    socket.send_fds(ends[0], [b"x"], [copy])
    print(socket.recv_fds(ends[1], 1, 1)[0], os.statvfs(dir).f_flag & os.ST_NOEXEC)

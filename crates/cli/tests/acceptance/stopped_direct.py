# Processes that are stopped at any moment. `stopped_direct.py STOPS SEED DIR COUNTERS COMMAND...` has two processes work on the same files in
# DIR, with direct access by COMMAND, and stops either in turn: the other goes on, and what is stopped stays so until it is sent SIGCONT.
# COUNTERS is a file elsewhere: for each how many operations it has done, and how long the longest took, microseconds.
import mmap, os, random, signal, struct, subprocess, sys, time

class Counters:
    def __init__(self, path):
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 4096)

    def get(self, n):
        return struct.unpack_from("q", self.map, n * 8)[0]

    def set(self, n, value):
        struct.pack_into("q", self.map, n * 8, value)

def work(counters, who):
    """Ends with its parent."""
    rng, parent = random.Random(who), os.getppid()
    while os.getppid() == parent:
        name = rng.choice("abc")
        start = time.monotonic()
        try:
            match rng.randrange(6):
                case 0: os.rename(name, rng.choice("abc"))
                case 1: os.unlink(name)
                case 2: os.mkdir("d"); os.rmdir("d")
                case _:
                    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
                    os.write(fd, b"x" * rng.choice([10, 5000, 70000]))
                    os.ftruncate(fd, rng.randrange(6000))
                    os.close(fd)
        except (FileNotFoundError, FileExistsError):
            pass
        took = int((time.monotonic() - start) * 1e6)
        counters.set(2 + who, max(took, counters.get(2 + who)))
        counters.set(who, counters.get(who) + 1)

def wait_until(what, done):
    end = time.monotonic() + 60
    while not done():
        if time.monotonic() > end:
            raise SystemExit(what)
        time.sleep(0.0005)

def state(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(") ", 1)[1][0]

def stop_often(stops, seed, counters, path, command):
    rng, longest = random.Random(seed), 0
    workers = [subprocess.Popen(command + [sys.executable, __file__, "work", path, str(who)]) for who in (0, 1)]
    def does_more(who):
        before = counters.get(who)
        wait_until(f"stop {n}: {who} does not go on", lambda: counters.get(who) >= before + 20)
    for n in range(stops):
        for who in (0, 1):
            does_more(who)
        one, other = n % 2, 1 - n % 2
        time.sleep(rng.random() * 0.002)
        workers[one].send_signal(signal.SIGSTOP)
        is_stopped = lambda: state(workers[one].pid) == "T"
        wait_until("it is stopped", is_stopped)
        counters.set(2 + other, 0)
        does_more(other)
        longest = max(longest, counters.get(2 + other))
        wait_until(f"stop {n}: it is stopped again", is_stopped)
        before = counters.get(one)
        does_more(other)
        # It may just end another call that the other waits for.
        wait_until(f"stop {n}: it is stopped still", is_stopped)
        if counters.get(one) != before:
            raise SystemExit(f"stop {n}: it goes on unasked")
        workers[one].send_signal(signal.SIGCONT)
    for worker in workers:
        worker.kill()
        worker.wait()
    print(f"{stops} stops; an operation of the other took {longest / 1000} ms at most")

if sys.argv[1] == "work":
    work(Counters(sys.argv[2]), int(sys.argv[3]))
else:
    stops, seed, base, path, *command = sys.argv[1:]
    os.chdir(base)
    stop_often(int(stops), int(seed), Counters(path), path, command)

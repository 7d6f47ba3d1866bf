# A process that may have no more memory: what it has is enough for its calls.
import mmap, os, resource
def limited(kind, is_attached, data=b'x' * 3000000):
    if is_attached:
        file = os.open('limited', os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(file, 4096)
        mapping = mmap.mmap(file, 4096)
    size = int(open('/proc/self/statm').read().split()[0]) * os.sysconf('SC_PAGE_SIZE')
    resource.setrlimit(kind, (size if kind == resource.RLIMIT_AS else 0, resource.RLIM_INFINITY))
    files = [os.open(f'limited{n}', os.O_RDWR | os.O_CREAT, 0o600) for n in range(200)]
    print(sum(os.pwrite(f, data, 0) for f in files[:9]), len(os.listdir('.')), flush=True)
    for n in range(200): os.unlink(f'limited{n}')
os.mkdir('limits'); os.chdir('limits')
for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
    for is_attached in (False, True):
        if not os.fork():
            try: limited(kind, is_attached)
            finally: os._exit(0)
        print(os.wait()[1], sorted(os.listdir('.')))
os.chdir('..'); os.system('rm -r limits')

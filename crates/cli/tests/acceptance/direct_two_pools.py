# Calls that name files or descriptors of two pools.
import os, sys, mmap, errno, select, socket, shutil
A, B = sys.argv[1:3]
def say(what, f):
    try: r = f()
    except OSError as e: r = errno.errorcode[e.errno]
    print(what, r)
a = os.open(A + '/a', os.O_RDWR | os.O_CREAT | os.O_TRUNC); os.write(a, b'of a')
b = os.open(B + '/b', os.O_RDWR | os.O_CREAT | os.O_TRUNC); os.write(b, b'in b, longer')
for fd in a, b: say('mmap', lambda: mmap.mmap(fd, 4, mmap.MAP_SHARED, mmap.PROT_READ)[:])
a = os.open(A + '/a', os.O_RDWR); b = os.open(B + '/b', os.O_RDWR)
# Through mounts copy_file_range fails with EXDEV between the two.
say('sendfile', lambda: os.sendfile(b, a, 0, 3)); say('sendfile', lambda: os.sendfile(a, b, 0, 3))
print(open(A + '/a').read(), open(B + '/b').read())
say('rename', lambda: os.rename(A + '/a', B + '/a')); say('link', lambda: os.link(A + '/a', B + '/a'))
c = os.open(A + '/c', os.O_RDWR | os.O_CREAT); d = os.open(B + '/d', os.O_RDWR | os.O_CREAT)
os.write(c, b'cc'); os.write(d, b'dddd')
say('dup2', lambda: os.fstat(os.dup2(c, d)).st_size); say('write', lambda: os.write(d, b'more')); say('close', lambda: os.close(d)); say('closed', lambda: os.write(d, b'x'))
print(os.path.getsize(A + '/c'), os.path.getsize(B + '/d'))
d = os.open(B + '/d', os.O_RDWR); say('pread', lambda: os.pread(d, 9, 0))
e = os.dup(c); say('dup3', lambda: os.dup2(d, e, False)); say('pread', lambda: (os.pread(e, 9, 0), os.pread(c, 9, 0)))
da = os.open(A, os.O_RDONLY); db = os.open(B, os.O_RDONLY)
say('renameat', lambda: os.rename('c', 'x', src_dir_fd=da, dst_dir_fd=db)); say('stat', lambda: os.stat('d', dir_fd=db).st_size)
say('absolute', lambda: os.stat(B + '/d', dir_fd=da).st_size); say('symlink', lambda: os.symlink(B + '/d', A + '/to')); say('through', lambda: open(A + '/to').read()); say('readlink', lambda: os.readlink(A + '/to') == B + '/d')
say('rename', lambda: os.rename('d', A + '/y', src_dir_fd=db))
os.chdir(A); say('relative', lambda: os.stat('c').st_size); os.chdir(B); say('relative', lambda: os.stat('d').st_size); say('rename', lambda: os.rename('d', A + '/d'))
say('poll', lambda: len(select.select([c, d], [], [], 0)[0])); say('after', lambda: (os.pread(c, 2, 0), os.pread(d, 2, 0)))
s, t = socket.socketpair(); c = os.open(A + '/c', os.O_RDONLY); d = os.open(B + '/d', os.O_RDONLY); socket.send_fds(s, [b'x'], [c, d]); got = socket.recv_fds(t, 1, 2)[1]; say('sent', lambda: [os.read(g, 2) for g in got])
r, w = os.pipe(); d = os.open(B + '/d', os.O_RDONLY); say('splice', lambda: os.splice(d, w, 3)); say('read', lambda: os.read(r, 9))
c = os.open(A + '/c', os.O_RDWR); d = os.open(B + '/d', os.O_RDWR); p = os.fork()
if p == 0: os.lseek(c, 1, 0); os.lseek(d, 2, 0); os._exit(0)
os.waitpid(p, 0); say('shared', lambda: (os.lseek(c, 0, 1), os.lseek(d, 0, 1)))
shutil.copytree(A, B + '/copy', symlinks=True); shutil.move(B + '/copy', A + '/moved'); print(sorted(os.listdir(A + '/moved')), os.path.exists(B + '/copy'))
os.closerange(3, 900); say('closed', lambda: os.fstat(c))
for pool in A, B:
    for name in os.listdir(pool):
        path = os.path.join(pool, name)
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

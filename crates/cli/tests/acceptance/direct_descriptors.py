# Programs that close, replace and use up all descriptors, those of the library too: printed results are compared.
import os, fcntl, ctypes, resource, signal, sys, time, mmap, errno
os.mkdir('descriptors'); os.chdir('descriptors')
libc=ctypes.CDLL(None,use_errno=True)
def show(*a): print(*a); sys.stdout.flush()
def err(f,*a):
    try: return f(*a)
    except OSError as e: return errno.errorcode.get(e.errno)
def in_child(f):
    pid=os.fork()
    if pid==0: f(); sys.stdout.flush(); os._exit(0)
    return os.waitpid(pid,0)[1]
def work(way):
    fd=os.open(way,os.O_RDWR|os.O_CREAT|os.O_TRUNC,0o600); show(way, fd, os.write(fd,b"0123456789"), os.pread(fd,4,3))
    show(os.pwrite(fd,b"x"*3000000,100), err(fcntl.lockf,fd,fcntl.LOCK_EX), err(os.mkdir,way+".dir"), sorted(os.listdir(".")))
    os.lseek(fd,2,0); show(in_child(lambda: show(os.read(fd,3), os.stat(way).st_size, in_child(lambda: show(os.read(fd,2)))))); show(os.read(fd,2)); os.close(fd)
work("first")
def close_each():
    for fd in range(3,3000): libc.close(fd)
def replace():
    f=os.open("first",os.O_RDONLY)
    for fd in range(1000,1030): os.dup2(f,fd,False)
    show([os.read(fd,2) for fd in (1000,1001,1029)]); os.close(f)
def close_many():
    f=[os.open("first",os.O_RDONLY) for _ in range(900)]; show(f[-1]); os.closerange(3,70000); show(err(os.read,f[5],1))
for way in (close_each, replace, lambda: libc.closefrom(3), lambda: os.closerange(3,1<<31-1), close_many, replace, close_each):
    in_child(lambda: (way(), work("again"), os.rmdir("again.dir"), close_each(), work("third"), os.rmdir("third.dir")))
show([err(fcntl.fcntl,fd,fcntl.F_GETFD) for fd in range(995,1040)]==["EBADF"]*45, [err(os.read,fd,1) for fd in range(1000,1020)]==["EBADF"]*20)
# as few as the program may have, and all of them in use
def few(soft,hard):
    resource.setrlimit(resource.RLIMIT_NOFILE,(soft,hard)); most=soft; fds=[]
    while type(fd:=err(os.open,"first",os.O_RDWR)) is int: fds.append(fd)
    show(fd, len(fds), fds[-1], err(os.dup2,fds[0],most-1), err(os.dup2,fds[0],most), err(fcntl.lockf,fds[1],fcntl.LOCK_EX), err(fcntl.flock,fds[2],fcntl.LOCK_EX))
    os.lseek(fds[3],4,0); show(in_child(lambda: show(os.read(fds[3],3), os.read(fds[2],3), err(os.open,"first",os.O_RDONLY)))); show(os.read(fds[3],3)); show(resource.getrlimit(resource.RLIMIT_NOFILE))
for soft, hard in ((300,4000), (64,4000), (20,4000), (64,64), (20,20)): in_child(lambda: few(soft,hard))
# by system calls that nobody sees
code=mmap.mmap(-1,4096,prot=mmap.PROT_READ|mmap.PROT_WRITE|mmap.PROT_EXEC); code.write(bytes.fromhex("89f84889f74889d64889ca0f05c3"))
raw=ctypes.CFUNCTYPE(ctypes.c_long,ctypes.c_long,ctypes.c_long,ctypes.c_long,ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
passwd=open("/etc/passwd","rb").read()
def unseen_close(): raw(436,3,0xffffffff,0)
def unseen_replace():
    f=os.open("/etc/passwd",os.O_RDONLY)
    for fd in range(1000,1030): raw(33,f,fd,0)
    os.close(f)
for way in (unseen_close, unseen_replace):
    # What was replaced the library sees within some milliseconds.
    def unseen(): f=os.open("first",os.O_RDWR); g=os.dup(f); way(); time.sleep(0.02); work("unseen"); os.rmdir("unseen.dir"); show(way is unseen_close or os.pread(g,3,3))
    in_child(unseen)

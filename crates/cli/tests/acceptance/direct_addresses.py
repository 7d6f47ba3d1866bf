# Addresses where no memory is, or less than a call says: printed results are compared.
import os, ctypes, errno, signal, sys, resource
os.mkdir('addresses'); os.chdir('addresses')
libc=ctypes.CDLL(None,use_errno=True); libc.mmap.restype=ctypes.c_void_p
def show(*a): print(*a); sys.stdout.flush()
def call(name,*args):
    f=getattr(libc,name); f.restype=ctypes.c_long; ctypes.set_errno(0)
    result=f(*[ctypes.c_long(a) if type(a) is int else a for a in args])
    return result if result not in (-1,0xffffffff) else errno.errorcode.get(ctypes.get_errno())
def pages(n,prot): return libc.mmap(ctypes.c_void_p(0),ctypes.c_long(n*4096),prot,0x22,-1,ctypes.c_long(0))
# below it is a page that is there; below the lowest address that a mapping may have there is none
near, none, const, sealed = pages(2,3), 0x8000, pages(1,1), pages(1,0)
libc.mprotect(ctypes.c_void_p(near+4096),ctypes.c_long(4096),0)
def text(at,s): ctypes.memmove(at,s,len(s)); return at
bad={"null":0,"low":8,"unmapped":none,"constant":const,"sealed":sealed,"kernel":-4096,"noncanonical":1<<60}
fd=os.open("f",os.O_RDWR|os.O_CREAT,0o600); os.write(fd,b"0123456789"*1500); os.symlink("f","l"); os.setxattr("f","user.a",b"value")
d=os.open(".",os.O_RDONLY|os.O_DIRECTORY)
for name,at in bad.items():
    readable = at==const
    show(name, [call(c,at,*more) for c,*more in (("access",0),("unlink",),("mkdir",0o700),("chdir",),("open",0),("rmdir",),("truncate",5))])
    show(name, call("read",fd,at,1), call("pread",fd,at,10000,0), call("pread",fd,at,10,20000), call("readlink",b"l",at,10), call("getxattr",b"f",b"user.a",at,10))
    show(name, call("write",fd,at,0), readable or call("write",fd,at,1), readable or call("pwrite",fd,at,10000,0), call("rename",b"f",at), call("symlink",at,b"s"), call("link",at,b"f"))
    show(name, [call(c,*more,at) for c,*more in (("stat",b"f"),("lstat",b"f"),("fstat",fd),("statfs",b"f"))], call("getdents64",d,at,4096), call("syscall",262,-100,at,at,0))
    show(name, call("readv",fd,at,2), call("writev",fd,at,2), call("utimensat",-100,b"f",at,0) if at else 0, call("fcntl",fd,5,at), call("setxattr",b"f",b"user.b",at,3,0) if not readable else 0)
    show(name, call("poll",at,1,0), readable or call("sendfile",fd,fd,at,10), readable or call("copy_file_range",fd,at,fd,0,10,0), os.lseek(fd,0,1), os.fstat(fd).st_size)
# as much as there is
show([call("pread",fd,near+4096-n,5000,0) for n in (1,100,4000)], [call("pwrite",fd,near+4096-n,5000,0) for n in (1,100,4000)])
show(call("read",fd,near+4096,1), call("pread",fd,near+4000,5000,14950), call("pread",fd,near+4090,5000,14995), call("access",text(near+4094,b"f\0"),0), call("access",text(near+4093,b"abc"),0))
for many in ("readv","writev"):
    os.lseek(fd,0,0); parts=(ctypes.c_uint64*6)(near,10,near+4090,20,near,30); show(many, call(many,fd,parts,3), os.lseek(fd,0,1)); parts=(ctypes.c_uint64*4)(none,10,near,30); show(many, call(many,fd,parts,2), os.lseek(fd,0,1))
big=os.open("big",os.O_RDWR|os.O_CREAT,0o600); show(call("pwrite",big,text(near,b"x"*4096),9000,0), os.fstat(big).st_size)
for n in range(200): os.close(os.open("entry%d"%n,os.O_CREAT))
os.lseek(d,0,0); few=pages(3,3); libc.mprotect(ctypes.c_void_p(few+4096),ctypes.c_long(4096),0); show(0 < call("getdents64",d,few,12288) <= 4096)
# a mapping beyond the file's end
import mmap
with open("/tmp/addresses.%d"%os.getpid(),"w+b") as t:
    os.unlink(t.name); t.truncate(8192); m=mmap.mmap(t.fileno(),8192); at=ctypes.addressof(ctypes.c_char.from_buffer(m)); t.truncate(0); show(call("pread",fd,at,10,0), call("pwrite",fd,at,10,0), call("access",at,0))
# the signals themselves are the program's
def in_child(f):
    pid=os.fork()
    if pid==0: resource.setrlimit(resource.RLIMIT_CORE,(0,0)); f(); sys.stdout.flush(); os._exit(0)
    return os.waitpid(pid,0)[1]
show(signal.getsignal(signal.SIGSEGV)==signal.SIG_DFL, [in_child(lambda: (os.stat("f"), ctypes.memset(none,1,1))), in_child(lambda: (os.stat("f"), os.kill(os.getpid(),signal.SIGSEGV))), in_child(lambda: (os.stat("f"), os.kill(os.getpid(),signal.SIGBUS)))])
def handled():
    seen=[]; signal.signal(signal.SIGSEGV,lambda *a: seen.append(a[0])); show(call("access",none,0), seen); os.kill(os.getpid(),signal.SIGSEGV); show(seen, call("read",fd,none,1))
    show(signal.signal(signal.SIGSEGV,signal.SIG_DFL) is not signal.SIG_DFL, call("access",none,0)); os.kill(os.getpid(),signal.SIGSEGV)
show(in_child(handled))
def ignored(): signal.signal(signal.SIGSEGV,signal.SIG_IGN); os.stat("f"); os.kill(os.getpid(),signal.SIGSEGV); show("ignored"); os.execvp("sh",["sh","-c","kill -SEGV $$; echo still ignored"])
show(in_child(ignored))

# Calls that need descriptors of the kernel, or that the kernel checks: printed results are compared.
import os, fcntl, mmap, subprocess, socket, array, select, errno, sys, tempfile, stat, shutil, signal, hashlib, ctypes
os.mkdir('calls'); os.chdir('calls'); d=os.getcwd()
os.umask(0o022)
def show(*a): print(*a)
def err(f,*a):
    try: return f(*a)
    except OSError as e: return errno.errorcode.get(e.errno)
# unlinked file inherited by a child
fd=os.open("u",os.O_RDWR|os.O_CREAT,0o600); os.write(fd,b"hello unlinked"); os.unlink("u"); os.lseek(fd,6,0)
os.set_inheritable(fd,True)
show("child", subprocess.run(["cat",f"/proc/self/fd/{fd}"],close_fds=False,capture_output=True).stdout)
show("stdin", subprocess.run(["cat"],stdin=fd,capture_output=True).stdout)
show("pos", os.lseek(fd,0,1)); os.close(fd)
# mmap
with open("m","w+b") as f:
    f.truncate(8192); f.write(b"x"*100); f.flush()
    m=mmap.mmap(f.fileno(),8192); m[0:3]=b"abc"; m.flush(); show(os.pread(f.fileno(),5,0)); m.close()
# fork sharing an offset
fd=os.open("o",os.O_RDWR|os.O_CREAT|os.O_TRUNC,0o644); os.write(fd,b"1234567890"); os.lseek(fd,0,0)
pid=os.fork()
if pid==0: os.read(fd,4); os._exit(0)
os.waitpid(pid,0); show("shared", os.read(fd,3)); os.close(fd)
# dup2 onto stdout
pid=os.fork()
if pid==0:
    f=os.open("out",os.O_WRONLY|os.O_CREAT|os.O_TRUNC,0o644); os.dup2(f,1); os.execvp("echo",["echo","to file"])
os.waitpid(pid,0); show(open("out").read())
# locks
a=open("l","w+"); b=open("l","r+")
fcntl.lockf(a,fcntl.LOCK_EX); 
pid=os.fork()
if pid==0:
    c=open("l","r+"); os._exit(0 if err(fcntl.lockf,c,fcntl.LOCK_EX|fcntl.LOCK_NB) in ("EAGAIN","EACCES") else 1)
show("lock held", os.waitpid(pid,0)[1])
b.close()
pid=os.fork()
if pid==0:
    c=open("l","r+"); os._exit(0 if err(fcntl.lockf,c,fcntl.LOCK_EX|fcntl.LOCK_NB) is None else 1)
show("lock gone by close", os.waitpid(pid,0)[1]); a.close()
a=open("l","r+"); fcntl.flock(a,fcntl.LOCK_EX); b=open("l","r+"); show(err(fcntl.flock,b,fcntl.LOCK_EX|fcntl.LOCK_NB)); a.close(); show(err(fcntl.flock,b,fcntl.LOCK_EX|fcntl.LOCK_NB)); b.close()
# SCM_RIGHTS
s,t=socket.socketpair(); f=open("m","rb"); f.read(1); os.lseek(f.fileno(),2,0)
socket.send_fds(s,[b"x"],[f.fileno()]); _,fds,_,_=socket.recv_fds(t,1,1); show("passed", os.read(fds[0],3)); 
# poll and select
show(select.select([f],[f],[],0)[0]==[f]); p=select.poll(); p.register(f,select.POLLIN); show(len(p.poll(0)))
# /proc/self/fd, fdopen, O_PATH
show(err(lambda: open(f"/proc/self/fd/{f.fileno()}","rb").read(4)))
# directories
os.makedirs("dd/e",exist_ok=True)
dfd=os.open("dd",os.O_RDONLY|os.O_DIRECTORY); show(os.listdir(dfd)); os.mkdir("x",dir_fd=dfd); show(sorted(os.listdir(dfd))); show(sorted(os.listdir(dfd)))
show(err(os.stat,"nothing")); os.rename("x","y",src_dir_fd=dfd,dst_dir_fd=dfd); show(sorted(os.listdir("dd")))
os.fchdir(dfd); show(sorted(os.listdir("."))); os.chdir(".."); os.close(dfd)
# sendfile, copy_file_range to and from elsewhere
w=os.open("sf",os.O_RDWR|os.O_CREAT|os.O_TRUNC,0o600); pw=open("/etc/passwd","rb"); n=os.fstat(pw.fileno()).st_size
show(os.sendfile(w,pw.fileno(),None,n)==n, os.lseek(w,0,1)==n, os.lseek(pw.fileno(),0,1)==n)
r,q=os.pipe(); os.lseek(w,0,0); show(os.sendfile(q,w,0,10), os.read(r,20)==open("/etc/passwd","rb").read(10))
shutil.copyfile("/etc/passwd","cp"); shutil.copy2("cp","cp2"); show(open("cp2","rb").read()==open("/etc/passwd","rb").read())
# xattr
os.setxattr("cp",b"user.a",b"v"); show(os.listxattr("cp"), os.getxattr("cp",b"user.a")); show(err(os.getxattr,"cp",b"user.b"))
# statvfs, limits
st=os.statvfs("."); show(st.f_bsize, st.f_namemax)
import resource
# times
os.utime("cp",ns=(1234567890123456789,987654321987654321)); s=os.stat("cp"); show(s.st_atime_ns,s.st_mtime_ns)
# tempfile with O_TMPFILE
with tempfile.TemporaryFile(dir=".") as tf: tf.write(b"abc"); tf.seek(0); show(tf.read())
with tempfile.NamedTemporaryFile(dir=".") as tf: tf.write(b"abc"); tf.flush(); show(open(tf.name).read())
# umask
old=os.umask(0o077); open("um","w").close(); show(oct(os.stat("um").st_mode)); os.umask(old); open("um2","w").close(); show(oct(os.stat("um2").st_mode))
# absolute paths, .., and out
show(os.path.exists(d+"/cp"), os.path.exists(d+"/../"+os.path.basename(d)+"/cp"), os.path.exists("../../etc/passwd"))
# close-on-exec
fd=os.open("cp",os.O_RDONLY); show(os.get_inheritable(fd)); 
show(subprocess.run(["sh","-c",f"cat <&{fd} 2>/dev/null | wc -c"],pass_fds=[fd],capture_output=True).stdout.strip()==str(os.stat('cp').st_size).encode()); os.close(fd)
# setuid
pid=os.fork()
if pid==0:
    os.setgid(1234); os.setuid(1234)
    show(err(open,"um")); show(err(os.mkdir,"nope")); show(err(os.unlink,"cp")); show(err(os.chmod,"cp",0o777)); show(open("um2").read()); sys.stdout.flush(); os._exit(0)
os.waitpid(pid,0)
# a descriptor by its path
f=open("cp","rb"); n=os.fstat(f.fileno()).st_size
for way in ("/proc/self/fd/%d", "/dev/fd/%d", f"/proc/{os.getpid()}/fd/%d"):
    f=open("cp","rb"); p=way%f.fileno(); show(os.stat(p).st_size==n, stat.S_ISREG(os.stat(p).st_mode), len(open(p,"rb").read())==n)
# a program by its descriptor, which closes on exec
shutil.copy("/bin/true","prog"); os.chmod("prog",0o755)
pid=os.fork()
if pid==0:
    try: os.execve(os.open("prog",os.O_RDONLY|os.O_CLOEXEC),["prog"],os.environ)
    except OSError as e: print(e); os._exit(9)
show("by descriptor", os.waitpid(pid,0)[1])
# a signal's handler runs while the process waits for a lock, which another gives back then
signal.signal(signal.SIGALRM,lambda *a: None); signal.siginterrupt(signal.SIGALRM,False)
for lock in (fcntl.lockf, fcntl.flock):
    (r,q),(woken,wake)=os.pipe(),os.pipe(); pid=os.fork()
    if pid==0:
        c=open("cp","r+"); lock(c,fcntl.LOCK_EX); os.write(q,b"x"); os._exit(0 if select.select([woken],[],[],10)[0] else 1)
    os.set_blocking(wake,False); old=signal.set_wakeup_fd(wake); os.read(r,1); c=open("cp","r+"); signal.setitimer(signal.ITIMER_REAL,0.05)
    lock(c,fcntl.LOCK_EX); signal.set_wakeup_fd(old); show("handled", os.waitpid(pid,0)[1]); c.close()
# the same while it waits for a reader
signal.signal(signal.SIGALRM,lambda *a: None); signal.siginterrupt(signal.SIGALRM,False); r,q=os.pipe(); woken,wake=os.pipe(); pid=os.fork()
if pid==0: handled=bool(select.select([woken],[],[],10)[0]); os.read(r,1<<20); os._exit(0 if handled else 1)
os.set_blocking(wake,False); old=signal.set_wakeup_fd(wake); w=os.open("sent",os.O_RDWR|os.O_CREAT); os.write(w,b"s"*200000)
while os.write(q,b"q"*4096) and select.select([],[q],[],0)[1]: pass
signal.setitimer(signal.ITIMER_REAL,0.05); show(os.sendfile(q,w,0,4096)); signal.set_wakeup_fd(old); show("handled", os.waitpid(pid,0)[1]); os.close(w); os.close(r); os.close(q)
# removed directories that are open, beside other descriptors
os.makedirs("gone/too"); g=os.open("gone/too",os.O_RDONLY); h=os.open("gone",os.O_RDONLY); w=os.open("stays",os.O_RDWR|os.O_CREAT); os.write(w,b"stays")
os.mkdir("new"); os.rmdir("gone/too"); os.rename("new","gone"); show(os.fstat(g).st_nlink, os.fstat(h).st_nlink, os.listdir(g), err(os.mkdir,"x"), err(lambda: os.open("y",os.O_CREAT,0o600,dir_fd=g)))
show(select.select([w],[],[],0)[0]==[w], select.select([g],[],[],0)[0]==[g]); sys.stdout.flush()
pid=os.fork()
if pid==0: show(stat.S_ISDIR(os.fstat(g).st_mode), os.listdir(h), os.pread(w,9,0), err(os.copy_file_range,g,w,1)); sys.stdout.flush(); os._exit(0)
os.waitpid(pid,0); os.rmdir("gone"); os.rmdir("x"); os.close(g); os.close(h); os.close(w)
# what is stored through a mapping is read by another descriptor
w=open("m","r+b"); m=mmap.mmap(w.fileno(),8192); g=os.open("m",os.O_RDWR)
m[5:8]=b"new"; show(os.pread(g,3,5)); os.pwrite(g,b"NEWER",4096); show(m[4096:4101]); m[6:7]=b"E"
pid=os.fork()
if pid==0: show(os.pread(os.open("m",os.O_RDONLY),3,5)); sys.stdout.flush(); os._exit(0)
os.waitpid(pid,0); m.close()
# data that lies in a mapping which the kernel has to read while the file is written
with open("self","wb") as f: f.write(b"0123456789abcdef"*65536)
libc=ctypes.CDLL(None,use_errno=True)
for n in range(20):
    w=os.open("self",os.O_RDWR); m=mmap.mmap(w,1<<20); os.posix_fadvise(w,0,0,os.POSIX_FADV_DONTNEED); v=memoryview(m)
    x=os.open("self",os.O_RDWR); y=os.open("self",os.O_RDONLY); os.pwrite(x,b"%02d"%n,0)
    show(os.pwrite(x,v[4096*n:4096*n+50000],500000+n), os.preadv(y,[v[700000:750000]],0)); v.release(); m.close(); os.close(w); os.close(x); os.close(y)
show(hashlib.sha1(open("self","rb").read()).hexdigest())
# forks beside threads at work, and credentials of one thread
import threading
done=threading.Event()
def work():
    while not done.is_set(): os.close(os.open("um2",os.O_RDONLY)); os.stat(".")
threads=[threading.Thread(target=work) for _ in range(3)]
for t in threads: t.start()
for _ in range(100):
    pid=os.fork()
    if pid==0:
        signal.alarm(10); os.close(os.open("um2",os.O_RDONLY)); os._exit(0)
    st=os.waitpid(pid,0)[1]
    if st: show("child", st); break
done.set()
for t in threads: t.join()
os.mkdir("private",0o700)
here,there=threading.Event(),threading.Event()
def other():
    libc.setfsuid(65534); here.set(); there.wait(); show("apart", err(lambda path: os.stat(path).st_mode, "private/.")); libc.setfsuid(0)
t=threading.Thread(target=other); t.start(); here.wait(); show("here", err(os.listdir,"private")); libc.setfsuid(0); there.set(); t.join(); show("here", err(os.listdir,"private"))
resource.setrlimit(resource.RLIMIT_FSIZE,(5000,resource.RLIM_INFINITY)); signal.signal(signal.SIGXFSZ,signal.SIG_IGN)
fd=os.open("big",os.O_RDWR|os.O_CREAT,0o600); show(err(os.write,fd,b"y"*9000), err(os.write,fd,b"y"), err(os.ftruncate,fd,6000))
show(sorted(os.listdir(".")) )

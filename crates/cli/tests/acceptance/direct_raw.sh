# A library that makes system calls itself reads files that the program has opened.
printf 'long raw_pread(int f,void*b,long n,long o){long r; register long r10 __asm__("r10")=o; __asm__ volatile("syscall":"=a"(r):"0"(17),"D"(f),"S"(b),"d"(n),"r"(r10):"rcx","r11","memory"); return r;}\n' >raw.c; cc -O1 -shared -fPIC raw.c -o libraw.so; echo 0123456789 >data; python3 -c "
import ctypes, os
f=os.open('data',os.O_RDWR); os.lseek(f,2,0); lib=ctypes.CDLL('./libraw.so'); g=os.open('data',os.O_RDWR); b=ctypes.create_string_buffer(9)
def pread(f): n=lib.raw_pread(f,b,4,3); return n, b.raw[:4]
print(f,g,pread(g),pread(f),os.read(f,3)); os.pwrite(f,b'X',4); print(pread(g)); pid=os.fork()
if pid==0: print(pread(os.open('data',0)),flush=True); os._exit(0)
os.waitpid(pid,0)"

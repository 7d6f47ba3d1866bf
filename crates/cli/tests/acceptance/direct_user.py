# What a user has open goes to children whatever happens to its name and its mode.
import ctypes, os, subprocess
libc = ctypes.CDLL(None)
def child(what, file):
    os.lseek(file, 0, os.SEEK_SET)
    read = subprocess.run(['cat'], stdin=file, capture_output=True)
    write = subprocess.run(['sh', '-c', 'echo more'], stdout=file, stderr=subprocess.PIPE)
    print(what, read, write.stderr, os.fstat(file).st_size, os.fstat(file).st_nlink, oct(os.fstat(file).st_mode), flush=True)
    os.close(file)
def made(name, mode=0o600, flags=os.O_RDWR):
    file = os.open(name, flags | os.O_CREAT, mode)
    if flags != os.O_RDONLY: os.write(file, b'text')
    return file
os.mkdir('user'); os.chdir('user'); os.mkdir('d'); os.mkdir('e')
changes = {
    'nothing': lambda: None,
    'unlink': lambda: os.unlink('d/f'),
    'renamed': lambda: os.rename('d/f', 'd/g'),
    'moved': lambda: os.rename('d/f', 'e/f'),
    'replaced': lambda: (made('e/new'), os.rename('e/new', 'd/f')),
    'exchanged': lambda: (made('e/f'), libc.renameat2(-100, b'd/f', -100, b'e/f', 2)),
    'linked': lambda: (os.link('d/f', 'e/l'), os.unlink('d/f')),
    'chmod': lambda: os.chmod('d/f', 0o444),
    'chmod of the directory': lambda: os.chmod('d', 0o444),
    'directory renamed': lambda: os.rename('d', 'c'),
    'directory removed': lambda: (os.unlink('d/f'), os.rmdir('d')),
}
for what, change in changes.items():
    os.makedirs('d', exist_ok=True)
    file = made('d/f'); change(); child(what, file)
    for dir in 'd', 'e', 'c':
        if os.path.exists(dir): os.chmod(dir, 0o700)
    subprocess.run('rm -rf d/* e/* c', shell=True)
os.makedirs('d', exist_ok=True)
file = made('d/f'); os.fchmod(file, 0o040); child('fchmod', file)
for mode in 0o000, 0o200, 0o400, 0o444:
    for flags in os.O_RDONLY, os.O_WRONLY, os.O_RDWR:
        child(f'made with {mode:o} {flags}', made(f'd/{mode:o}{flags}', mode, flags))
os.umask(0o777); file = made('d/masked', 0o666); os.umask(0o022); child('umask', file)
dir = os.open('d', os.O_RDONLY); os.chmod('d', 0); print(subprocess.run(['ls', '-f', '/proc/self/fd/0/.'], stdin=dir, capture_output=True).returncode, len(os.listdir(dir)))
os.chmod('d', 0o700); os.chdir('..'); subprocess.run(['rm', '-rf', 'user'])

//! The guest's root: programs of this machine with their libraries, modules of the guest's kernel, and an init that
//! loads the modules and starts the tests' program. They are packed as the archive that the kernel unpacks (cpio,
//! newc).

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::lab::{self, program, require};
use crate::Skip;

/// The first program: it starts the tests' own program as `guest`, with the words of the machine's command line, and
/// reports its end.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
exec </dev/null >/dev/ttyS0 2>&1
for module in $(cat /modules/order); do insmod /modules/$module || echo \"$module is not loaded\"; done
/bin/tests --guest \"$@\"
echo \"@ ended $?\"
poweroff -f
";

/// Directories that INIT and the tests mount on.
const MOUNT_POINTS: [&str; 7] = ["proc", "sys", "dev", "tmp", "mnt", "pm", "disk"];
const MODULES: [&str; 7] = ["nfit", "nd_pmem", "device_dax", "dax_pmem", "fuse", "virtio_pci", "virtio_blk"];
const PROGRAMS: [&str; 3] = ["busybox", "ndctl", "mkfs.ext4"];

/// Skips the test if a program is missing.
pub fn what_is_missing() -> Result<(), Skip> {
    PROGRAMS.iter().chain(&["ldd", "strip"]).try_for_each(|name| require(name))
}

/// Packs the root into `archive`, with `conquest` and this program.
pub fn pack(modules: &Path, conquest: &Path, archive: &Path) {
    let root = tempfile::tempdir().expect("a temporary directory");
    let root = root.path();
    MOUNT_POINTS.iter().for_each(|dir| make_dir(&root.join(dir)));
    for name in PROGRAMS {
        copy_program(&find(name), root, name);
    }
    copy_program(conquest, root, "conquest");
    copy_program(&std::env::current_exe().expect("this program"), root, "tests");
    copy_modules(modules, root);
    write(&root.join("init"), INIT.as_bytes());
    let mut out = Vec::new();
    collect(root, root, &mut out);
    entry(&mut out, "TRAILER!!!", 0, &[]);
    write(archive, &out);
}

fn make_dir(path: &Path) {
    fs::create_dir_all(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

fn write(path: &Path, bytes: &[u8]) {
    let written = fs::File::create(path).and_then(|mut f| {
        f.write_all(bytes)?;
        f.set_permissions(fs::Permissions::from_mode(0o755))
    });
    written.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn find(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} was there before"))
}

/// Copies a program without its debugging information, and its libraries.
fn copy_program(from: &Path, root: &Path, name: &str) {
    make_dir(&root.join("bin"));
    let to = root.join("bin").join(name);
    lab::ok(program("strip", &["-o"]).arg(&to).arg(from));
    // ldd fails for a static program, after saying so.
    let libraries = Command::new("ldd").arg(from).stderr(Stdio::null()).output().expect("ldd of libc-bin");
    for library in String::from_utf8_lossy(&libraries.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
        let place = root.join(library.trim_start_matches('/'));
        make_dir(place.parent().expect("a directory"));
        write(&place, &read(Path::new(library)));
    }
}

/// Copies the modules that the guest needs, and the order in which to load them.
fn copy_modules(from: &Path, root: &Path) {
    make_dir(&root.join("modules"));
    let index = Index::read(from);
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for name in MODULES {
        match index.path_of(name) {
            Some(path) => index.add(&path, &mut seen, &mut order),
            None => assert!(index.is_builtin(name), "the guest's kernel has no module {name}"),
        }
    }
    let mut names = String::new();
    for path in order {
        let (name, content) = uncompressed(&from.join(&path));
        write(&root.join("modules").join(&name), &content);
        names += &format!("{name}\n");
    }
    write(&root.join("modules/order"), names.as_bytes());
}

/// The output of depmod: which modules each module needs.
struct Index {
    dependencies: String,
    builtin: String,
}

impl Index {
    fn read(modules: &Path) -> Index {
        let text = |name: &str| String::from_utf8_lossy(&read(&modules.join(name))).into_owned();
        Index { dependencies: text("modules.dep"), builtin: text("modules.builtin") }
    }

    fn path_of(&self, name: &str) -> Option<String> {
        let paths = self.dependencies.lines().filter_map(|line| line.split(':').next());
        paths.into_iter().find(|path| is_module(path, name)).map(Into::into)
    }

    fn is_builtin(&self, name: &str) -> bool {
        self.builtin.lines().any(|path| is_module(path, name))
    }

    /// Adds the modules that `path` needs, and `path` after them.
    fn add(&self, path: &str, seen: &mut BTreeSet<String>, order: &mut Vec<String>) {
        if !seen.insert(path.into()) {
            return;
        }
        let of_this = self.dependencies.lines().filter_map(|line| line.split_once(':')).find(|(p, _)| *p == path);
        for needed in of_this.map_or("", |(_, needed)| needed).split_whitespace() {
            self.add(needed, seen, order);
        }
        order.push(path.into());
    }
}

fn is_module(path: &str, name: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next() == Some(name)
}

/// A module's name and content in the form for insmod.
fn uncompressed(path: &Path) -> (String, Vec<u8>) {
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    let tool = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return (name, read(path)),
    };
    let output = Command::new(tool).arg("-dc").arg(path).output().unwrap_or_else(|e| panic!("{tool}: {e}"));
    assert!(output.status.success(), "{tool} cannot unpack {}", path.display());
    (name.rsplit_once('.').map_or(name.clone(), |(stem, _)| stem.into()), output.stdout)
}

/// Adds everything below `dir`, directories before their entries.
fn collect(root: &Path, dir: &Path, out: &mut Vec<u8>) {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir).expect("a directory").map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        let name = path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
        if path.is_dir() {
            entry(out, &name, 0o040755, &[]);
            collect(root, &path, out);
        } else {
            entry(out, &name, 0o100755, &read(&path));
        }
    }
}

/// One file of the archive: 13 numbers of 8 hexadecimal digits, the name, the content, padded to words.
fn entry(out: &mut Vec<u8>, name: &str, mode: u32, content: &[u8]) {
    let (ino, links, size) = (out.len() as u32, 1, content.len() as u32);
    let numbers = [ino, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name.len() as u32 + 1, 0];
    out.extend(b"070701");
    numbers.iter().for_each(|n| out.extend(format!("{n:08x}").bytes()));
    out.extend(name.bytes());
    out.push(0);
    pad(out);
    out.extend(content);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

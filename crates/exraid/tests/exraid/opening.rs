//! Each reason not to open or make a disk.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use exraid::label::{stamp, Epoch};
use exraid::{Claim, Device, Disk, Label, Layout, Making, OpenError, Options, Uuid};

const MIB: u64 = 1 << 20;

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir_in(".").expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A sparse file with these bytes at `at`.
    fn file(&self, name: &str, size: u64, at: u64, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        let file = File::create(&path).expect("a file");
        file.set_len(size).expect("a length");
        file.write_all_at(bytes, at).expect("a write");
        path
    }
}

fn making(size: u64, force: bool) -> Making {
    Making { size: Some(size), force, ..Making::default() }
}

fn refusal(path: &Path, how: &Making) -> OpenError {
    match Disk::make(path, how) {
        Ok(_) => panic!("{} was taken", path.display()),
        Err(e) => {
            assert!(e.to_string().contains(path.to_str().expect("plain")), "names the disk: {e}");
            e
        }
    }
}

#[test]
fn what_is_no_disk_is_refused() {
    let dir = Dir::new();
    let open = |path: &Path| Disk::open(path, &Options::default()).err().expect("refused");
    assert!(matches!(open(&dir.path("none")), OpenError::Missing(_)));
    assert!(matches!(open(&dir.path("none/none")), OpenError::Missing(_)));
    assert!(matches!(open(dir.0.path()), OpenError::Unsuitable { what: "a directory", .. }));
    assert!(matches!(open(Path::new("/dev/null")), OpenError::Unsuitable { .. }));
    let small = dir.file("small", MIB, 0, b"");
    assert!(matches!(open(&small), OpenError::TooSmall { found: MIB, .. }));
    assert!(matches!(refusal(&dir.path("new"), &making(MIB, false)), OpenError::TooSmall { .. }));
    assert!(!dir.path("new").exists(), "nothing is left of it");
    assert!(matches!(refusal(Path::new("/proc/none"), &making(64 * MIB, false)), OpenError::Missing(_)));
}

#[test]
fn what_may_not_be_used_is_refused() {
    let dir = Dir::new();
    let path = dir.file("disk", 32 * MIB, 0, b"");
    std::fs::set_permissions(&path, Permissions::from_mode(0o400)).expect("a mode");
    if File::options().write(true).open(&path).is_ok() {
        return; // Root may do anything.
    }
    assert!(matches!(Disk::open(&path, &Options::default()), Err(OpenError::Permission(_))));
    let read_only = Options { read_only: true, ..Options::default() };
    assert!(Disk::open(&path, &read_only).is_ok());
}

/// Real file systems where mkfs is installed, else their signatures.
#[test]
fn what_is_on_it_is_named_and_kept() {
    let dir = Dir::new();
    for (maker, args, expected) in [
        ("mkfs.ext4", &["-q", "-F"][..], "an ext file system"),
        ("mkfs.xfs", &["-q", "-f"], "an XFS file system"),
        ("mkfs.btrfs", &["-q", "-f"], "a btrfs file system"),
        ("mkfs.vfat", &[], "a FAT file system"),
        ("mkswap", &[], "swap space"),
        (
            "cryptsetup",
            &["luksFormat", "-q", "--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000", "-d", "/dev/zero", "-l1"],
            "LUKS",
        ),
    ] {
        let path = dir.file(maker, 400 * MIB, 0, b"");
        let made = Command::new(maker).args(args).arg(&path).output();
        if !made.as_ref().is_ok_and(|made| made.status.success()) {
            eprintln!("{maker} is not here, or fails");
            continue;
        }
        let e = refusal(&path, &making(400 * MIB, false));
        assert!(matches!(&e, OpenError::Foreign { what, .. } if what.contains(expected)), "{maker}: {e}");
    }
    let mut gpt = [0; 1024];
    gpt[510..520].copy_from_slice(b"\x55\xaaEFI PART");
    for (name, at, bytes, expected) in [
        ("ext", 0x438, &b"\x53\xef"[..], "an ext file system"),
        ("btrfs", 0x10040, b"_BHRfS_M", "a btrfs file system"),
        ("gpt", 0, &gpt, "a GPT partition table"),
        ("gpt-end", 32 * MIB - 512, b"EFI PART", "a GPT partition table"),
        ("lvm", 536, b"LVM2 001", "an LVM physical volume"),
        ("md", 4096, b"\xfc\x4e\x2b\xa9", "a member of an MD array"),
        ("zfs", 132 << 10, b"\x0c\xb1\xba\0\0\0\0\0", "a member of a ZFS pool"),
        ("mbr", 450, &[&[0x83u8][..], &[0; 59], b"\x55\xaa"].concat(), "a partition table (MBR)"),
        ("text", 0, b"dear diary", "a file of 33554432 bytes with content"),
    ] {
        let path = dir.file(name, 32 * MIB, at, bytes);
        let before = std::fs::read(&path).expect("it is there");
        let e = refusal(&path, &making(32 * MIB, false));
        assert!(matches!(&e, OpenError::Foreign { what, .. } if what == expected), "{name}: {e}");
        assert!(std::fs::read(&path).expect("still there") == before, "{name} is as it was");
        drop(Disk::make(&path, &making(32 * MIB, true)).unwrap_or_else(|e| panic!("{name}: {e}")));
        let after = std::fs::read(&path).expect("still there");
        let ends = [&after[..MIB as usize], &after[31 * MIB as usize..]].concat();
        assert!(ends.iter().all(|byte| *byte == 0), "{name}: nothing of it is left at the ends");
        drop(Disk::make(&path, &making(32 * MIB, false)).unwrap_or_else(|e| panic!("{name}: {e}")));
    }
}

fn labelled(path: &Path) -> (Disk, Label) {
    let disk = Disk::make(path, &making(32 * MIB, true)).expect("a disk");
    let device = Uuid::random().expect("random");
    let epoch = Epoch::first(stamp().expect("random"));
    let mut label = Label::new(Uuid([7; 16]), 3, Layout::Single, &[device], 0, 32 * MIB, epoch);
    label.write(&disk).expect("a label");
    (disk, label)
}

#[test]
fn a_disk_of_another_pool_is_named() {
    let dir = Dir::new();
    let path = dir.path("disk");
    drop(labelled(&path));
    let e = refusal(&path, &making(32 * MIB, false));
    let expected = "disk 1 of region 3 of the pool 07070707-0707-0707-0707-070707070707";
    assert!(e.to_string().contains(expected), "{e}");
    // Either end alone suffices.
    File::options().write(true).open(&path).expect("there").write_all_at(&[0; 4096], 0).expect("a write");
    assert!(refusal(&path, &making(32 * MIB, false)).to_string().contains(expected));
}

#[test]
fn a_disk_that_is_used_is_not_made_anew() {
    let dir = Dir::new();
    let path = dir.path("disk");
    let (disk, _) = labelled(&path);
    let busy = |path: &Path| matches!(Disk::open(path, &Options::default()), Err(OpenError::Busy { .. }));
    assert!(busy(&path), "it is being made");
    disk.share();
    let other = Disk::open(&path, &Options::default()).expect("several may use it");
    assert_eq!(other.identity(), disk.identity());
    drop(disk);
    assert!(matches!(refusal(&path, &making(32 * MIB, true)), OpenError::Busy { .. }));
    drop(other);
    drop(Disk::make(&path, &making(32 * MIB, true)).expect("nobody uses it"));
}

#[test]
fn the_same_file_by_another_name_is_the_same_disk() {
    let dir = Dir::new();
    let path = dir.path("disk");
    drop(labelled(&path));
    std::fs::hard_link(&path, dir.path("link")).expect("a link");
    let open = |name| Disk::open(&dir.path(name), &Options::default()).expect("a disk").identity();
    assert_eq!(open("disk"), open("link"));
}

#[test]
fn a_size_that_is_not_given_is_what_the_host_could_hold() {
    let dir = Dir::new();
    let disk = Disk::make(&dir.path("disk"), &Making::default()).expect("a disk");
    let room = disk.room().expect("an answer").expect("a file");
    assert!(disk.properties().size > room.free, "{} of {}", disk.properties().size, room.free);
    assert!(room.backed < 8 * MIB);
}

/// A loop device is a block device: the kernel tells when it is held, mounted, read-only or gone. Needs root.
mod block {
    use super::*;
    use exraid::{Aligned, Buffers, Request};

    struct Loop(PathBuf);

    impl Loop {
        fn over(file: &Path, args: &[&str]) -> Option<Loop> {
            let made = Command::new("losetup").args(["-f", "--show"]).args(args).arg(file).output().ok()?;
            let name = String::from_utf8(made.stdout).ok()?;
            (made.status.success()).then(|| Loop(name.trim().into()))
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
        }
    }

    #[test]
    fn what_is_claimed_is_nobody_elses_and_as_it_was() {
        let dir = Dir::new();
        let file = dir.file("backing", 64 * MIB, 0, b"");
        let Some(device) = Loop::over(&file, &[]) else { return eprintln!("no loop devices here") };
        let claim = Claim::take(&device.0, false).expect("claimed");
        assert_eq!((claim.size, claim.is_block), (64 * MIB, true));
        assert!(matches!(Claim::take(&device.0, true), Err(OpenError::Busy { .. })));
        assert!(matches!(Disk::make(&device.0, &Making::default()), Err(OpenError::Busy { .. })));
        assert!(matches!(Disk::open(&device.0, &Options::default()), Err(OpenError::Busy { .. })));
        drop(claim);
        Disk::make(&device.0, &Making::default()).expect("nobody has it");
    }

    #[test]
    fn a_block_device_is_a_disk() {
        let dir = Dir::new();
        let file = dir.file("backing", 64 * MIB, 0, b"");
        let Some(device) = Loop::over(&file, &[]) else { return eprintln!("no loop devices here") };
        let disk = Disk::make(&device.0, &Making::default()).expect("a disk");
        let properties = disk.properties();
        assert_eq!((properties.size, properties.sparse), (64 * MIB, false));
        assert!(properties.direct && properties.discards, "{properties:?}");
        let bytes = rng::Rng::new(4).bytes(2 * MIB as usize);
        disk.run(Request::write(8 * MIB, Buffers::whole(&Aligned::of(&bytes)))).result.expect("a write");
        disk.flush().expect("a flush");
        let mut found = vec![0; bytes.len()];
        disk.read_at(&mut found, 8 * MIB).expect("a read");
        assert!(found == bytes);
        disk.discard(8 * MIB..10 * MIB).expect("a discard");
        disk.share();
        let second = Disk::open(&device.0, &Options::default()).expect("another process of the pool");
        assert_eq!(second.identity(), disk.identity());
        assert!(matches!(refusal(&device.0, &making(64 * MIB, true)), OpenError::Busy { .. }));
        assert!(matches!(refusal(&device.0, &making(65 * MIB, true)), OpenError::Busy { .. }));
        drop((disk, second));
        assert!(matches!(refusal(&device.0, &making(65 * MIB, true)), OpenError::TooSmall { .. }));
    }

    #[test]
    fn a_mounted_device_is_busy_and_says_where() {
        let dir = Dir::new();
        let file = dir.file("backing", 64 * MIB, 0, b"");
        let Some(device) = Loop::over(&file, &[]) else { return eprintln!("no loop devices here") };
        let (at, run) = (dir.path("mnt"), |program: &str, args: &[&Path]| {
            Command::new(program).args(args).output().is_ok_and(|made| made.status.success())
        });
        std::fs::create_dir(&at).expect("a directory");
        if !run("mkfs.ext4", &[&device.0]) || !run("mount", &[&device.0, &at]) {
            return eprintln!("nothing can be mounted here");
        }
        let making = refusal(&device.0, &making(64 * MIB, true));
        let opening = Disk::open(&device.0, &Options::default()).err().map(|e| e.to_string());
        assert!(run("umount", &[&at]));
        assert!(making.to_string().contains("mounted at"), "{making}");
        assert!(opening.as_ref().is_some_and(|e| e.contains("mounted at")), "{opening:?}");
    }

    #[test]
    fn a_read_only_device_is_refused_where_it_is_to_be_written() {
        let dir = Dir::new();
        let file = dir.file("backing", 64 * MIB, 0, b"");
        let Some(device) = Loop::over(&file, &["-r"]) else { return eprintln!("no loop devices here") };
        let e = refusal(&device.0, &making(64 * MIB, true));
        assert!(matches!(e, OpenError::Permission(_) | OpenError::ReadOnly(_)), "{e}");
        let disk = Disk::open(&device.0, &Options { read_only: true, ..Options::default() }).expect("to be read");
        disk.read_at(&mut [0; 512], 0).expect("a read");
        assert_eq!(disk.write_at(&[0; 4096], 0).expect_err("read-only").class, exraid::Class::ReadOnly);
    }
}

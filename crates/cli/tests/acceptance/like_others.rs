//! Set-id bits, whiteouts and missing ACLs behave as on other file systems, as suites expect.

use std::fs::{File, Permissions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{chown, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{fallocate, renameat_with, setxattr, FallocateFlags, OFlags, RenameFlags, XattrFlags, CWD};

use crate::lab::{self, program, Lab};
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("like_others::set_id_bits_go_with_every_change_and_stay_on_directories", set_id_bits),
    ("like_others::a_rename_leaves_a_whiteout", whiteout),
    ("like_others::an_overlay_has_its_upper_layer_here", overlay),
    ("like_others::a_handle_outlives_the_mount", handles),
    ("like_others::an_acl_that_is_not_there_is_removed", no_acl),
    ("like_others::trusted_attributes_are_listed_for_who_may_read_them", trusted),
    ("like_others::a_set_group_id_bit_that_runs_nothing_goes_too", idle_setgid),
    ("like_others::who_was_given_a_descriptor_writes_to_a_set_id_file", given_descriptor),
    ("like_others::a_default_acl_leaves_the_set_group_id_bit", default_acl),
];

pub const USER: u32 = 65534;

pub fn mode(path: &Path) -> u32 {
    path.metadata().expect("stat").mode() & 0o7777
}

pub fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

/// A group that the ordinary user is in.
const GROUP: u32 = 7;

/// Runs `change` in a thread of an ordinary user.
pub fn as_user(change: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let changed = scope.spawn(|| {
            let group = rustix::process::Gid::from_raw(GROUP);
            rustix::thread::set_thread_groups(&[group]).expect("setgroups");
            let uid = rustix::process::Uid::from_raw(USER);
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid");
            change();
        });
        changed.join().expect("the change");
    });
}

/// fallocate, copy_file_range and a chown to the same owner once left these bits: the kernel leaves clearing to the
/// server. And a chown cleared them on directories, whose new files then no longer had the directory's group.
fn set_id_bits() -> Outcome {
    for transport in ["uring", "dev"] {
        let lab = Lab::with_pool("16M");
        lab.mount_with(&format!("transport={transport}"));
        let (path, source) = (lab.mnt().join("program"), lab.mnt().join("source"));
        std::fs::write(&path, b"text").expect("write");
        std::fs::write(&source, b"other").expect("write");
        let open = || File::options().read(true).write(true).open(&path).expect("open");
        type Change<'a> = &'a (dyn Fn(&File) + Sync);
        let changes: [(&str, Change); 2] = [
            ("fallocate", &|file| fallocate(file, FallocateFlags::empty(), 0, 100).expect("fallocate")),
            ("copy_file_range", &|file| {
                let source = File::open(&source).expect("open");
                rustix::fs::copy_file_range(source, None, file, None, 5).expect("copy_file_range");
            }),
        ];
        for (name, change) in changes {
            chmod(&path, 0o6777);
            change(&open());
            assert_eq!(mode(&path), 0o6777, "{transport}: the superuser's {name}");
            let file = open();
            as_user(|| change(&file));
            assert_eq!(mode(&path), 0o777, "{transport}: {name}");
        }
        chmod(&path, 0o6777);
        chown(&path, None, None).expect("chown");
        assert_eq!(mode(&path), 0o777, "{transport}: chown to who has it");
        // Otherwise any user could clear the bits of any program.
        let nobodys = |mode| {
            chmod(&path, mode);
            let mut done = Ok(());
            as_user(|| done = chown(&path, None, None));
            done
        };
        let refused = nobodys(0o4755).expect_err("it is not the user's");
        assert_eq!((refused.raw_os_error(), mode(&path)), (Some(libc::EPERM), 0o4755), "{transport}");
        chown(&path, None, Some(GROUP)).expect("chown");
        nobodys(0o6775).expect("the user's group may write");
        assert_eq!(mode(&path), 0o775, "{transport}: by the user's group");
        chown(&path, Some(USER), None).expect("chown");
        nobodys(0o6555).expect("it is the user's");
        assert_eq!(mode(&path), 0o555, "{transport}: chown by the owner");

        let dir = lab.mnt().join("shared");
        std::fs::create_dir(&dir).expect("mkdir");
        chmod(&dir, 0o7775);
        chown(&dir, Some(USER), Some(7)).expect("chown");
        chown(&dir, None, None).expect("chown");
        assert_eq!(mode(&dir), 0o7775, "{transport}: chown of a directory");
        lab.umount();
        lab.check();
    }
    Ok(())
}

fn whiteout() -> Outcome {
    for transport in ["uring", "dev"] {
        let lab = Lab::with_pool("16M");
        lab.mount_with(&format!("transport={transport}"));
        let (a, b) = (lab.mnt().join("a"), lab.mnt().join("b"));
        std::fs::write(&a, b"a").expect("write");
        std::fs::write(&b, b"b").expect("write");
        let both = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
        renameat_with(CWD, &a, CWD, &b, both).expect_err("the new name is there");
        renameat_with(CWD, &a, CWD, &b, RenameFlags::WHITEOUT).expect("rename");
        assert_eq!(std::fs::read(&b).expect("read"), b"a");
        let left = a.symlink_metadata().expect("stat");
        assert!(left.file_type().is_char_device() && left.rdev() == 0 && left.mode() & 0o7777 == 0, "{left:?}");
        std::fs::remove_file(&a).expect("unlink");
        lab.umount();
        lab.check();
    }
    Ok(())
}

/// An overlay of a lower, an upper and a work directory.
pub fn over(lab: &Lab, [low, up, work]: &[PathBuf; 3], options: &str) -> Result<PathBuf, Skip> {
    let over = lab.path("over");
    std::fs::create_dir(&over).expect("mkdir");
    let dirs = format!("lowerdir={},upperdir={},workdir={}", low.display(), up.display(), work.display());
    if !std::fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains("\toverlay\n")) {
        lab::require("modprobe")?;
        lab::ok(&mut program("modprobe", &["overlay"]));
    }
    lab::ok(program("mount", &["-t", "overlay", "overlay", "-o", &format!("{dirs},{options}")]).arg(&over));
    Ok(over)
}

/// This was once refused: an upper layer of this kind must support whiteouts.
fn overlay() -> Outcome {
    let lab = Lab::mounted("16M");
    let [low, up, work] = ["low", "up", "work"].map(|name| lab.mnt().join(name));
    for dir in [&low.join("d"), &up, &work] {
        std::fs::create_dir_all(dir).expect("mkdir");
    }
    for name in ["f", "g", "d/x"] {
        std::fs::write(low.join(name), name).expect("write");
    }
    let over = over(&lab, &[low.clone(), up, work], "")?;
    std::fs::write(over.join("f"), "changed").expect("write");
    std::fs::rename(over.join("g"), over.join("h")).expect("rename");
    std::fs::remove_dir_all(over.join("d")).expect("remove");
    let names = |dir: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(dir).expect("readdir").map(|e| e.expect("an entry").file_name());
        let mut names: Vec<_> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&over), ["f", "h"]);
    assert_eq!(std::fs::read(over.join("f")).expect("read"), b"changed");
    assert_eq!(std::fs::read(over.join("h")).expect("read"), b"g");
    lab::ok(program("umount", &[]).arg(&over));
    assert_eq!(names(&low), ["d", "f", "g"]);
    lab.umount();
    lab.check();
    Ok(())
}

/// The file handles that NFS hands out. Once the kernel had forgotten the inode, only handles of directories worked.
fn handles() -> Outcome {
    for transport in ["uring", "dev"] {
        let lab = Lab::with_pool("16M");
        let mount = || lab.mount_with(&format!("transport={transport}"));
        mount();
        std::fs::write(lab.mnt().join("file"), b"text").expect("write");
        std::fs::write(lab.mnt().join("gone"), b"text").expect("write");
        std::os::unix::fs::symlink("file", lab.mnt().join("link")).expect("symlink");
        std::fs::create_dir(lab.mnt().join("dir")).expect("mkdir");
        let [file, gone, link, dir] = ["file", "gone", "link", "dir"].map(|name| Handle::of(&lab.mnt().join(name)));
        std::fs::remove_file(lab.mnt().join("gone")).expect("unlink");
        lab.umount();
        mount();
        for i in 0..40 {
            std::fs::write(lab.mnt().join(format!("new{i}")), b"other").expect("write");
        }
        let opened = file.open(&lab.mnt(), OFlags::RDONLY).expect("the file");
        assert_eq!(std::io::read_to_string(File::from(opened)).expect("read"), "text", "{transport}");
        dir.open(&lab.mnt(), OFlags::DIRECTORY).expect("the directory");
        link.open(&lab.mnt(), OFlags::PATH | OFlags::NOFOLLOW).expect("the link");
        let stale = gone.open(&lab.mnt(), OFlags::RDONLY).expect_err("what is gone");
        assert_eq!(stale.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()), "{transport}: {stale}");
        lab.umount();
        lab.check();
    }
    Ok(())
}

/// `struct file_handle` of Linux, with room for the largest.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    data: [u8; 128],
}

impl Handle {
    fn of(path: &Path) -> Handle {
        let mut handle = Handle { bytes: 128, kind: 0, data: [0; 128] };
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        let mut mount = 0;
        // SAFETY: `path` ends with a zero byte, and `handle` has the room that it says.
        let done = unsafe {
            libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, path.as_ptr(), &mut handle, &mut mount, 0)
        };
        assert_eq!(done, 0, "name_to_handle_at: {}", std::io::Error::last_os_error());
        handle
    }

    fn open(&self, mount: &Path, flags: OFlags) -> std::io::Result<OwnedFd> {
        let mount = File::open(mount)?;
        // SAFETY: `self` is as the kernel filled it.
        let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), self, flags.bits()) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given it to us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

fn no_acl() -> Outcome {
    let lab = Lab::mounted("16M");
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        rustix::fs::removexattr(lab.mnt(), name).expect("removexattr");
    }
    Ok(())
}

/// Only an access ACL decides about the set-group-id bit.
fn default_acl() -> Outcome {
    let lab = Lab::mounted("16M");
    let dir = lab.mnt().join("shared");
    std::fs::create_dir(&dir).expect("mkdir");
    // A group without the directory's owner, who therefore may not set the bit.
    chown(&dir, Some(USER), Some(GROUP + 1)).expect("chown");
    let entry = |tag: u16, perm: u16| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &u32::MAX.to_le_bytes()].concat();
    let acl = [2u32.to_le_bytes().to_vec(), entry(1, 7), entry(4, 7), entry(32, 5)].concat();
    for (name, left) in [("system.posix_acl_default", 0o2775), ("system.posix_acl_access", 0o775)] {
        chmod(&dir, 0o2775);
        as_user(|| setxattr(&dir, name, &acl, XattrFlags::empty()).expect("setxattr"));
        assert_eq!(mode(&dir), left, "{name}");
    }
    lab.umount();
    lab.check();
    Ok(())
}

/// The kernel clears the bits before such a write, with the same request as for a change of owner to the same one.
fn given_descriptor() -> Outcome {
    for transport in ["uring", "dev"] {
        let lab = Lab::with_pool("16M");
        lab.mount_with(&format!("transport={transport}"));
        let path = lab.mnt().join("program");
        std::fs::write(&path, b"text").expect("write");
        for setid in [0o4755, 0o2755] {
            chmod(&path, setid);
            let file = File::options().read(true).write(true).open(&path).expect("open");
            as_user(|| std::os::unix::fs::FileExt::write_all_at(&file, b"T", 0).expect("write"));
            assert_eq!(mode(&path), 0o755, "{transport}");
            drop(file);
            chmod(&path, setid);
            let _reader = File::open(&path).expect("open");
            as_user(|| _ = chown(&path, None, None).expect_err("open for reading"));
            assert_eq!(mode(&path), setid, "{transport}");
        }
        lab.umount();
        lab.check();
    }
    Ok(())
}

/// A change by a user outside the file's group clears the bit; a change by a member keeps it.
fn idle_setgid() -> Outcome {
    let lab = Lab::mounted("16M");
    let path = lab.mnt().join("file");
    std::fs::write(&path, b"text").expect("write");
    let open = || File::options().read(true).write(true).open(&path).expect("open");
    type Change<'a> = &'a (dyn Fn() + Sync);
    let changes: [(&str, Change); 5] = [
        ("write", &|| std::os::unix::fs::FileExt::write_all_at(&open(), b"T", 0).expect("write")),
        ("truncate", &|| open().set_len(3).expect("truncate")),
        ("O_TRUNC", &|| drop(File::create(&path).expect("open"))),
        ("fallocate", &|| fallocate(open(), FallocateFlags::empty(), 0, 100).expect("fallocate")),
        ("chgrp", &|| chown(&path, None, Some(GROUP)).expect("chown")),
    ];
    for (name, change) in changes {
        for (group, left) in [(GROUP + 1, 0o666), (GROUP, 0o2666)] {
            chown(&path, Some(USER), Some(group)).expect("chown");
            chmod(&path, 0o2666);
            as_user(change);
            assert_eq!(mode(&path), left, "{name}, group {group}");
        }
    }
    lab.umount();
    lab.check();
    Ok(())
}

/// The superuser of a container often may not.
fn trusted() -> Outcome {
    let lab = Lab::mounted("16M");
    let path = lab.mnt().join("file");
    std::fs::write(&path, b"text").expect("write");
    setxattr(&path, "trusted.a", b"1", XattrFlags::empty()).expect("setxattr");
    let listed = || {
        let mut names = [0; 64];
        let len = rustix::fs::listxattr(&path, &mut names[..]).expect("listxattr");
        String::from_utf8_lossy(&names[..len]).into_owned()
    };
    assert_eq!(listed(), "trusted.a\0");
    std::thread::scope(|scope| {
        let powerless = scope.spawn(|| {
            let mut sets = rustix::thread::capabilities(None).expect("capget");
            sets.effective.remove(rustix::thread::CapabilitySet::SYS_ADMIN);
            rustix::thread::set_capabilities(None, sets).expect("capset");
            assert_eq!(listed(), "");
        });
        powerless.join().expect("a list");
    });
    lab.umount();
    lab.check();
    Ok(())
}

//! A mount point that maps users and groups to others, like a container's volume with `:idmap`: ownership and
//! permissions.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::CWD;
use rustix::mount::{move_mount, open_tree, MoveMountFlags, OpenTreeFlags};

use crate::lab::{program, require, Lab, Ran};
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("idmap::a_place_shows_other_users_and_lets_them_do_what_is_theirs", mapped),
    ("idmap::without_the_option_there_is_none", refused),
];

/// The mapped mount point shows root as this user, and the next users follow.
const FIRST: u32 = 100_000;
const MANY: u32 = 65_536;

/// Attaches a further mount of `place` at `dir`, which maps users.
fn put_mapped(place: &Path, dir: &Path) -> rustix::io::Result<()> {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(CWD, place, clone)?;
    set_map(&mount, &namespace())?;
    move_mount(mount, "", CWD, dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn set_map(mount: &OwnedFd, users: &std::fs::File) -> rustix::io::Result<()> {
    let userns_fd = users.as_raw_fd() as u64;
    let attr = libc::mount_attr { attr_set: libc::MOUNT_ATTR_IDMAP, attr_clr: 0, propagation: 0, userns_fd };
    let (mount, size) = (mount.as_raw_fd(), std::mem::size_of::<libc::mount_attr>());
    // SAFETY: the path ends with a zero and `attr` is of the size that is passed; both live through the call.
    match unsafe { libc::syscall(libc::SYS_mount_setattr, mount, c"".as_ptr(), libc::AT_EMPTY_PATH, &attr, size) } {
        0 => Ok(()),
        _ => Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error()).expect("an errno")),
    }
}

/// A user namespace that maps root to `FIRST`.
fn namespace() -> std::fs::File {
    let mut process = Command::new("unshare");
    let process = process.args(["--user", "sh", "-c", "echo; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = process.spawn().expect("unshare");
    std::io::Read::read_exact(process.stdout.as_mut().expect("a pipe"), &mut [0]).expect("it has its own users");
    let of = |name: &str| format!("/proc/{}/{name}", process.id());
    for map in ["uid_map", "gid_map"] {
        std::fs::write(of(map), format!("0 {FIRST} {MANY}")).expect("a map");
    }
    let users = std::fs::File::open(of("ns/user")).expect("a namespace");
    process.kill().and_then(|()| process.wait()).expect("its end");
    users
}

/// Runs `words` as this user, with a group of the same number.
fn run_as(user: u32, words: &[&str]) -> Ran {
    let user = user.to_string();
    let as_user = ["--reuid", &user, "--regid", &user, "--clear-groups"];
    Ran::from(program("setpriv", &as_user).args(words).output().expect("setpriv"))
}

fn owner(path: &Path) -> (u32, u32) {
    let found = path.symlink_metadata().expect("stat");
    (found.uid(), found.gid())
}

fn mapped() -> Outcome {
    require("setpriv")?;
    let lab = Lab::with_pool("32M");
    let (mnt, second) = (lab.mnt(), lab.path("second"));
    std::fs::create_dir(&second).expect("mkdir");
    let ran = lab.run(&["mount", &lab.pool(), &lab.text("mnt"), "-o", "idmap"]);
    if ran.err.contains("6.12") {
        return Err(Skip("needs Linux 6.12, which maps users on FUSE".into()));
    }
    assert_eq!(ran.code, 0, "{}", ran.err);
    std::fs::write(mnt.join("roots"), "text").expect("write");
    std::fs::set_permissions(mnt.join("roots"), std::fs::Permissions::from_mode(0o600)).expect("chmod");
    std::fs::create_dir(mnt.join("sticky")).expect("mkdir");
    std::fs::set_permissions(mnt.join("sticky"), std::fs::Permissions::from_mode(0o1777)).expect("chmod");
    put_mapped(&mnt, &second).expect("a place that maps users");
    assert_eq!(owner(&second.join("roots")), (FIRST, FIRST));
    let text = |name: &str| second.join(name).to_string_lossy().into_owned();
    let may = |user: u32, words: &[&str]| {
        let ran = run_as(user, words);
        assert_eq!(ran.code, 0, "{user} {words:?}: {}", ran.err);
    };
    let may_not = |user: u32, words: &[&str]| {
        let ran = run_as(user, words);
        let is_refused = ran.err.contains("not permitted") || ran.err.contains("denied");
        assert!(ran.code != 0 && is_refused, "{user} {words:?}: {} {}", ran.code, ran.err);
    };
    // Through the mapping `FIRST` is root: root's files are its own, and its files belong to root.
    may(FIRST, &["cat", &text("roots")]);
    may(FIRST, &["chmod", "640", &text("roots")]);
    may(FIRST, &["touch", &text("sticky/first")]);
    may(FIRST + 1, &["mkdir", &text("sticky/dir")]);
    may(FIRST + 1, &["ln", "-s", "x", &text("sticky/link")]);
    assert_eq!((owner(&mnt.join("sticky/first")), owner(&mnt.join("sticky/dir"))), ((0, 0), (1, 1)));
    assert_eq!(owner(&mnt.join("sticky/link")), (1, 1));
    assert_eq!(mnt.join("roots").metadata().expect("stat").mode() & 0o777, 0o640);
    // All other users stay unprivileged, at either mount point.
    for (user, place) in [(FIRST + 1, &second), (1, &mnt), (65_534, &mnt)] {
        let text = |name: &str| place.join(name).to_string_lossy().into_owned();
        may_not(user, &["cat", &text("roots")]);
        may_not(user, &["chmod", "666", &text("roots")]);
        may_not(user, &["touch", "-d", "@1", &text("roots")]);
        may_not(user, &["chown", &user.to_string(), &text("roots")]);
        may_not(user, &["rm", "-f", &text("sticky/first")]);
        may_not(user, &["mv", &text("sticky/first"), &text("sticky/taken")]);
    }
    may_not(65_534, &["rmdir", &mnt.join("sticky/dir").to_string_lossy()]);
    may(1, &["chmod", "700", &mnt.join("sticky/dir").to_string_lossy()]);
    // An unmapped user cannot create files there, not even root.
    assert!(std::fs::write(second.join("sticky/root"), "").is_err());
    may(FIRST + 1, &["rmdir", &text("sticky/dir")]);
    may_not(FIRST, &["chown", &(FIRST + 1).to_string(), &text("sticky/first")]);
    lab.ok(&["umount", &lab.pool()]);
    lab.check();
    Ok(())
}

fn refused() -> Outcome {
    let lab = Lab::mounted("16M");
    std::fs::create_dir(lab.path("second")).expect("mkdir");
    assert_eq!(put_mapped(&lab.mnt(), &lab.path("second")), Err(rustix::io::Errno::INVAL));
    lab.refused(1, &["mount", &lab.pool(), &lab.text("second"), "-o", "idmap"], &["idmap", "all its places", "umount"]);
    lab.umount();
    Ok(())
}

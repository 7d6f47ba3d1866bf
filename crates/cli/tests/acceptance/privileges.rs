//! Which calls of which users clear set-id bits and capabilities of files: as on ext4, for every pair of calls.

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{chown, fchown, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{fallocate, fgetxattr, fremovexattr, fsetxattr, FallocateFlags, XattrFlags};

use crate::lab::{self, program, Lab};
use crate::like_others::{as_user, chmod, mode, over, USER};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("privileges::pairs_of_calls_take_what_they_take_on_ext4", pairs),
    ("privileges::an_overlay_copies_files_with_their_privileges", copied_up),
];

const CAPABILITY: &str = "security.capability";
/// CAP_NET_RAW, effective and permitted, in the kernel's form.
const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A file of one of the two file systems, with a name or without.
struct Subject {
    file: File,
    path: PathBuf,
    source: File,
}

/// The state after a call.
#[derive(Debug, PartialEq)]
struct Left {
    error: Option<i32>,
    mode: u32,
    owner: (u32, u32),
    capability: bool,
    size: u64,
}

type Call = (&'static str, fn(&Subject) -> std::io::Result<()>);

const CALLS: &[Call] = &[
    ("write", |s| s.file.write_all_at(b"abc", 0)),
    ("direct write", |s| {
        let direct = File::options().write(true).custom_flags(libc::O_DIRECT).open(&s.path)?;
        // A block at an address that is a multiple of its size.
        let room = vec![1; 8192];
        let skip = room.as_ptr().align_offset(4096);
        direct.write_all_at(&room[skip..skip + 4096], 0)
    }),
    ("ftruncate", |s| s.file.set_len(100)),
    ("truncate", |s| File::options().write(true).open(&s.path)?.set_len(200)),
    ("O_TRUNC", |s| File::options().write(true).truncate(true).open(&s.path).map(drop)),
    ("fallocate", |s| Ok(fallocate(&s.file, FallocateFlags::empty(), 0, 10_000)?)),
    ("punch", |s| Ok(fallocate(&s.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096)?)),
    ("copy_file_range", |s| {
        Ok(rustix::fs::copy_file_range(&s.source, Some(&mut 0), &s.file, Some(&mut 0), 100).map(drop)?)
    }),
    ("chown to nobody new", |s| fchown(&s.file, None, None)),
    ("chown to the owner", |s| {
        let now = s.file.metadata()?;
        chown(&s.path, Some(now.uid()), Some(now.gid()))
    }),
    ("chown", |s| fchown(&s.file, Some(1234), Some(55))),
    ("chmod with bits", |s| s.file.set_permissions(std::fs::Permissions::from_mode(0o6755))),
    ("chmod without", |s| s.file.set_permissions(std::fs::Permissions::from_mode(0o777))),
    ("setcap", |s| Ok(fsetxattr(&s.file, CAPABILITY, &NET_RAW, XattrFlags::empty())?)),
    ("removal of the capability", |s| Ok(fremovexattr(&s.file, CAPABILITY)?)),
    ("utimes", |s| s.file.set_modified(std::time::SystemTime::UNIX_EPOCH)),
];

/// The state of the file before the calls: owner, group, mode, and whether it has a capability.
const STARTS: [(u32, u32, u32, bool); 3] = [(0, 0, 0o6777, true), (USER, 55, 0o6777, false), (USER, 7, 0o6766, true)];

impl Subject {
    fn new(dir: &Path, named: bool, (uid, gid, mode, capability): (u32, u32, u32, bool)) -> Subject {
        let (named_path, mut options) = (dir.join("f"), File::options());
        options.read(true).write(true);
        let opened = match named {
            true => {
                _ = std::fs::remove_file(&named_path);
                options.create_new(true).open(&named_path)
            }
            false => options.custom_flags(libc::O_TMPFILE).open(dir),
        };
        let file = opened.expect("a file");
        let path = if named { named_path } else { format!("/proc/self/fd/{}", file.as_raw_fd()).into() };
        file.write_all_at(&[b'x'; 5000], 0).expect("write");
        fchown(&file, Some(uid), Some(gid)).expect("chown");
        file.set_permissions(std::fs::Permissions::from_mode(mode)).expect("chmod");
        if capability {
            fsetxattr(&file, CAPABILITY, &NET_RAW, XattrFlags::empty()).expect("setcap");
        }
        Subject { file, path, source: File::open(dir.join("source")).expect("open") }
    }

    fn left_by(&self, call: &Call, user: bool) -> Left {
        let mut done = Ok(());
        let mut act = || done = call.1(self);
        match user {
            true => as_user(act),
            false => act(),
        }
        let now: Metadata = self.file.metadata().expect("stat");
        Left {
            error: done.err().and_then(|e| e.raw_os_error()),
            mode: now.mode() & 0o7777,
            owner: (now.uid(), now.gid()),
            capability: fgetxattr(&self.file, CAPABILITY, &mut [0; 32][..]).is_ok(),
            size: now.len(),
        }
    }
}

/// A write by root to a program with both once cleared the bits with the capability.
fn pairs() -> Outcome {
    let lab = Lab::mounted("16M");
    let ext4 = lab.loop_ext4()?;
    for dir in [&ext4, &lab.mnt()] {
        chmod(dir, 0o777);
        std::fs::write(dir.join("source"), [b'y'; 9000]).expect("write");
    }
    for (start, named) in STARTS.into_iter().flat_map(|start| [(start, true), (start, false)]) {
        for (first, second) in CALLS.iter().flat_map(|first| CALLS.iter().map(move |second| (first, second))) {
            for users in [[false, false], [true, true], [false, true], [true, false]] {
                let there = [&ext4, &lab.mnt()].map(|dir| Subject::new(dir, named, start));
                for (call, user) in [first, second].into_iter().zip(users) {
                    let [wanted, found] = there.each_ref().map(|subject| subject.left_by(call, user));
                    // A user who has it open for writing may do that: the request looks the same as the one before a
                    // write.
                    if call.0 == "chown to nobody new" && user && wanted.error == Some(libc::EPERM) {
                        break;
                    }
                    let story = format!("{start:?}, named {named}: {} and {} by users {users:?}", first.0, second.0);
                    assert_eq!(found, wanted, "{story}: after {}", call.0);
                }
            }
        }
    }
    drop(ext4);
    lab.umount();
    lab.check();
    Ok(())
}

/// The kernel gives such a copy its owner and its size while it has no name; the first once cleared the bits, the
/// second the capability.
fn copied_up() -> Outcome {
    for transport in ["uring", "dev"] {
        for options in ["metacopy=off", "metacopy=on"] {
            let lab = Lab::with_pool("16M");
            lab.mount_with(&format!("transport={transport}"));
            let dirs = ["low", "up", "work"].map(|name| lab.mnt().join(name));
            dirs.iter().for_each(|dir| std::fs::create_dir(dir).expect("mkdir"));
            for (name, bits) in [("touched", 0o4755), ("moved", 0o6755), ("given", 0o2755)] {
                let path = dirs[0].join(name);
                std::fs::write(&path, b"text").expect("write");
                chown(&path, Some(USER), Some(33)).expect("chown");
                chmod(&path, bits);
                rustix::fs::setxattr(&path, CAPABILITY, &NET_RAW, XattrFlags::empty()).expect("setcap");
            }
            let merged = over(&lab, &dirs, options)?;
            let capable = |path: &Path| rustix::fs::getxattr(path, CAPABILITY, &mut [0; 32][..]).is_ok();
            let [touched, moved, given] = ["touched", "moved", "given"].map(|name| merged.join(name));
            File::open(&touched).and_then(|file| file.set_modified(std::time::SystemTime::now())).expect("utimes");
            std::fs::rename(&moved, merged.join("elsewhere")).expect("rename");
            let moved = merged.join("elsewhere");
            for (path, bits) in [(&touched, 0o4755), (&moved, 0o6755)] {
                assert_eq!((mode(path), capable(path)), (bits, true), "{transport}, {options}: {}", path.display());
                assert_eq!(path.metadata().expect("stat").uid(), USER);
            }
            // A chown of its own clears both, which once failed with ENODATA.
            chown(&given, Some(12), None).expect("chown");
            assert_eq!((mode(&given), capable(&given)), (0o755, false), "{transport}, {options}");
            lab::ok(program("umount", &[]).arg(&merged));
            assert_eq!(mode(&dirs[1].join("touched")), 0o4755, "{transport}, {options}: in the upper layer");
            lab.umount();
            lab.check();
        }
    }
    Ok(())
}

//! A disk that is a file on a host that another program fills.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use conquest::NewDisk;
use conquest::{Caller, FormatOptions, OpenOptions, Pool};
use conquest_fs::node::{Fallocate, WriteFlags};
use conquest_fs::path::View;
use rng::Rng;
use rustix::io::Errno;

const MIB: u64 = 1 << 20;

/// An ext4 of its own, in a file.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    /// None where nothing can be mounted.
    fn new(bytes: u64) -> Option<Host> {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let (image, at) = (dir.path().join("image"), dir.path().join("at"));
        File::create(&image).and_then(|file| file.set_len(bytes)).expect("a file");
        std::fs::create_dir(&at).expect("a directory");
        let run = |command: &mut Command| command.status().is_ok_and(|status| status.success());
        let made = run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))
            && run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at));
        made.then_some(Host { dir })
    }

    fn at(&self) -> PathBuf {
        self.dir.path().join("at")
    }

    fn free(&self) -> u64 {
        let found = rustix::fs::statvfs(self.at()).expect("it is mounted");
        found.f_bavail * found.f_frsize
    }

    /// Another program takes all but so many bytes.
    fn fill(&self, name: &str, but: u64) {
        let mut file = File::create(self.at().join(name)).expect("a file");
        while self.free() > but {
            let len = (self.free() - but).min(MIB) as usize;
            if file.write_all(&vec![1; len]).and_then(|()| file.sync_data()).is_err() {
                break;
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.at()).status();
    }
}

fn pool_on(host: &Host, dir: &Path) -> Pool {
    let regions = vec![NewDisk { path: host.at().join("disk"), size: Some(200 * MIB) }.into()];
    let how =
        FormatOptions { root_owner: (0, 0), regions, ..FormatOptions::on(conquest::MediumKind::Battery, 128 * MIB) };
    Pool::format(dir, &how).expect("there is room");
    Pool::open(dir, &OpenOptions::default()).expect("it is opened")
}

/// Writes on until there is no room; returns the end of the written content.
fn write_until_full(pool: &Pool, ino: conquest_fs::Ino, from: u64, content: &[u8]) -> u64 {
    let mut at = from;
    for piece in content[from as usize..].chunks(64 << 10) {
        match pool.write(ino, at, piece, WriteFlags::default()) {
            Ok(_) => at += piece.len() as u64,
            Err(e) if e.errno() == Errno::NOSPC => return at,
            Err(e) => panic!("byte {at}: {e}"),
        }
    }
    at
}

#[test]
fn what_was_acknowledged_is_written_although_the_host_is_full() {
    let Some(host) = Host::new(256 * MIB) else { return eprintln!("nothing can be mounted here") };
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let pool = pool_on(&host, dir.path());
    let view = View::new(&pool, Caller::root());
    let mut content = Rng::new(1).bytes(160 * MIB as usize);
    let (file, other) = (view.create(b"file", 0o644).expect("room"), view.create(b"other", 0o644).expect("room"));
    let (ino, other) = (file.attr().expect("there").ino, other.attr().expect("there").ino);
    let union = pool.union().expect("there is a disk").clone();
    let first = 8 * MIB;
    pool.write(ino, 0, &content[..first as usize], WriteFlags::default()).expect("there is room");
    union.write_all(&pool).expect("there is room");

    host.fill("somebody", 20 * MIB);
    pool.session().clock().advance(std::time::Duration::from_millis(600));
    let stat = pool.statfs();
    let disks = stat.free_blocks.saturating_sub(128 * MIB / 4096) * 4096;
    assert!(disks < 40 * MIB, "df tells of {disks} bytes, the host has {}", host.free());

    let end = write_until_full(&pool, ino, first, &content);
    assert!(end > first, "some segments were held");
    assert!(end < content.len() as u64, "the host is full");
    let refused = pool.fallocate(other, Fallocate::Allocate { keep_size: false }, 0, 100 * MIB).expect_err("no room");
    assert_eq!(refused.errno(), Errno::NOSPC);
    // No room at all is left by now.
    host.fill("somebody else", 0);
    union.write_all(&pool).expect("what was acknowledged has room");
    let status = union.status(pool.session()).expect("it is mapped");
    assert_eq!(status.dirty, 0, "{status:?}");
    union.move_to_disk(&pool, ino).expect("it is on disk");
    // Existing content can be overwritten all over.
    let mut rng = Rng::new(2);
    for n in 0..2 * end / 4096 {
        let (at, page) = (rng.below(end / 4096) * 4096, rng.bytes(4096));
        pool.write(ino, at, &page, WriteFlags::default()).unwrap_or_else(|e| panic!("the {n}th page: {e}"));
        content[at as usize..][..4096].copy_from_slice(&page);
    }
    union.move_to_disk(&pool, ino).expect("it is on disk");
    let mut back = vec![0; end as usize];
    assert_eq!(pool.read(ino, 0, &mut back).expect("it can be read"), back.len());
    assert!(back == content[..end as usize]);

    for name in ["somebody", "somebody else"] {
        std::fs::remove_file(host.at().join(name)).expect("it is there");
    }
    rustix::fs::sync();
    let more = write_until_full(&pool, ino, end, &content[..(end + 16 * MIB) as usize]);
    assert_eq!(more, end + 16 * MIB, "there is room again");
    let report = pool.fsck(false, &mut |_, _| {}).expect("it runs");
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

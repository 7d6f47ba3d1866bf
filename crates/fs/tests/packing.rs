//! What packed inodes take and cost. `cargo test --release -p conquest-fs --test packing -- --ignored --nocapture` prints it; times
//! mean something on a machine that does nothing else.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};

use fs::layout::tag;
use fs::node::WriteFlags;
use fs::{Caller, FormatOptions, Ino, Kind, OpenOptions, Pool, SetAttr, SetTime, Time, ROOT};

/// Processor time of this thread.
struct Instant(Duration);

impl Instant {
    fn now() -> Instant {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Instant(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    fn elapsed(&self) -> Duration {
        Instant::now().0 - self.0
    }
}

/// Most inodes that are copied.
const MOST: u64 = 150_000;

fn kind_of(meta: &std::fs::Metadata) -> Kind {
    let is = meta.file_type();
    match () {
        () if is.is_dir() => Kind::Directory,
        () if is.is_symlink() => Kind::Symlink,
        () if is.is_char_device() => Kind::CharDevice,
        () if is.is_block_device() => Kind::BlockDevice,
        () if is.is_fifo() => Kind::Fifo,
        () if is.is_socket() => Kind::Socket,
        () => Kind::Regular,
    }
}

/// Copies names and metadata of a tree; of content a byte, so that it has a place.
fn copy(pool: &Pool, from: &Path, to: Ino, inodes: &mut Vec<Ino>) -> fs::Result<()> {
    let (root, mut dirs) = (Caller::root(), vec![(from.to_path_buf(), to)]);
    while let Some((from, to)) = dirs.pop() {
        let Ok(entries) = std::fs::read_dir(&from) else { continue };
        let mut entries: Vec<_> = entries.flatten().collect();
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let Ok(meta) = entry.path().symlink_metadata() else { continue };
            let (name, kind) = (entry.file_name(), kind_of(&meta));
            let name = std::os::unix::ffi::OsStrExt::as_bytes(name.as_os_str());
            let ino = match kind {
                Kind::Symlink => {
                    let target = std::fs::read_link(entry.path()).unwrap_or_else(|_| "unknown".into());
                    pool.symlink(to, name, std::os::unix::ffi::OsStrExt::as_bytes(target.as_os_str()), &root)?.ino
                }
                kind => pool.create(to, name, kind, meta.mode() & 0o7777, meta.rdev(), &root)?.ino,
            };
            let time = |s: i64, n: i64| Some(SetTime::At(Time(s * 1_000_000_000 + n)));
            let mut set = SetAttr {
                uid: Some(meta.uid()),
                gid: Some(meta.gid()),
                atime: time(meta.atime(), meta.atime_nsec()),
                mtime: time(meta.mtime(), meta.mtime_nsec()),
                ..SetAttr::default()
            };
            match kind {
                Kind::Regular if meta.size() > 0 => {
                    pool.write(ino, 0, b"x", WriteFlags::default())?;
                    set.size = Some(meta.size());
                }
                Kind::Directory => dirs.push((entry.path(), ino)),
                _ => {}
            }
            pool.setattr(ino, &set, &root)?;
            inodes.push(ino);
            if inodes.len() as u64 >= MOST {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Nanoseconds for each, the best of some rounds.
fn stat(pool: &Pool, inodes: &[Ino]) -> f64 {
    let round = || {
        let start = Instant::now();
        let mut sum = 0u64;
        for ino in inodes {
            sum = sum.wrapping_add(pool.getattr(*ino).unwrap().size);
        }
        std::hint::black_box(sum);
        start.elapsed().as_nanos() as f64 / inodes.len() as f64
    };
    (0..9).map(|_| round()).fold(f64::MAX, f64::min)
}

#[test]
#[ignore = "prints what packing costs"]
fn costs() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let how = FormatOptions { root_owner: (0, 0), ..FormatOptions::sized(1 << 30) };
    Pool::format(dir.path(), &how).unwrap();
    let pool = Pool::open(dir.path(), &OpenOptions { noatime: true, ..OpenOptions::default() }).unwrap();
    let mut inodes = Vec::new();
    copy(&pool, Path::new("/usr"), ROOT, &mut inodes).unwrap();
    let few = &inodes[..inodes.len().min(2000)];
    let plain = [stat(&pool, few), stat(&pool, &inodes)];
    let of_names = |pool: &Pool| {
        let bytes = pool.session().region().allocated().unwrap();
        (bytes[usize::from(tag::BUCKET.0)] + bytes[usize::from(tag::BUCKET_TABLE.0)]) as f64 / inodes.len() as f64
    };
    let start = Instant::now();
    let foreign = pool.pack_inodes(0..pool.inode_blocks(), Time(i64::MAX), &|| true).unwrap();
    let foreign_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    inodes.iter().step_by(8).for_each(|ino| pool.unpack_inodes_beside(*ino).unwrap());
    println!("unpacking: {:.2} million inodes a second", foreign.inodes as f64 / start.elapsed().as_secs_f64() / 1e6);
    let start = Instant::now();
    pool.train_profile().unwrap();
    println!("a profile of the pool's own: {:.2} s", start.elapsed().as_secs_f64());
    println!(
        "with the profile of the program: {:.2} bytes, {:.2} million inodes a second",
        per(foreign.packed_bytes, foreign.inodes),
        foreign.inodes as f64 / foreign_seconds / 1e6
    );
    let start = Instant::now();
    let done = pool.pack_inodes(0..pool.inode_blocks(), Time(i64::MAX), &|| true).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    let packed = [stat(&pool, few), stat(&pool, &inodes)];
    println!("{} inodes of /usr in {} blocks", done.inodes, done.blocks);
    println!(
        "bytes of an inode: {:.2} packed, {:.2} plain",
        per(done.packed_bytes, done.inodes),
        per(done.plain_bytes, done.inodes)
    );
    println!("bytes of a name in its directory: {:.2}", of_names(&pool));
    println!("packing: {:.2} million inodes a second", done.inodes as f64 / seconds / 1e6);
    for (n, what) in ["2,000 inodes", "all inodes"].iter().enumerate() {
        println!(
            "stat of {what}: {:.1} ns packed, {:.1} ns plain, {:.2} times; {:.1} million a second",
            packed[n],
            plain[n],
            packed[n] / plain[n],
            1e3 / packed[n]
        );
    }
    let report = pool.fsck(false, &mut |_, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

fn per(bytes: u64, inodes: u64) -> f64 {
    bytes as f64 / inodes.max(1) as f64
}

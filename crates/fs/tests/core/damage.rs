//! Flipped bytes anywhere in a region: opening, checking, repairing and working end, with errors at worst.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use conquest::{Caller, Kind, OpenOptions, Pool};
use conquest_fs::node::SetXattr;
use conquest_fs::path::Open;
use pram::memory::Meta;
use rng::Rng;

use crate::rig::*;

const SIZE: u64 = 4 * MIB;

/// A pool with something of everything.
fn sample() -> tempfile::TempDir {
    let (dir, pool) = pool(SIZE);
    let v = root(&pool);
    let caller = Caller::root();
    for d in 0..4 {
        v.mkdir(format!("d{d}").as_bytes(), 0o755).unwrap();
        for f in 0..if d == 0 { 300 } else { 20 } {
            put(&v, &format!("d{d}/file{f}"), &vec![f as u8; (f * 37) % 2500]).unwrap();
        }
        v.symlink(b"file1", format!("d{d}/link").as_bytes()).unwrap();
        v.link(format!("d{d}/file2").as_bytes(), format!("hard{d}").as_bytes()).unwrap();
        let ino = v.stat(format!("d{d}/file3").as_bytes()).unwrap().ino;
        pool.setxattr(ino, b"user.some", &[4; 200], SetXattr::Any, &caller).unwrap();
    }
    let big = v.create(b"big", 0o644).unwrap();
    for page in [0u64, 1, 5, 40, 700, 100_000] {
        big.write_all_at(&[page as u8; 4096], page * 4096).unwrap();
    }
    drop(big);
    dir
}

/// Offsets worth damaging, and offsets that more depends on: in objects, but not in content. The
/// header is tested where it is made.
fn places(dir: &tempfile::TempDir, bytes: &[u8]) -> [Vec<u64>; 2] {
    let pool = open(dir);
    let region = pool.session().memory();
    let is_content = |at: u64| match region.meta(region.geo.chunk_of(at)).unwrap() {
        Meta::Small { tag, .. } | Meta::RunHead { tag, .. } => tag == conquest_fs::layout::tag::DATA,
        Meta::RunBody { .. } => true,
        _ => false,
    };
    let used: Vec<u64> = (8192..bytes.len() as u64).filter(|at| bytes[*at as usize] != 0).collect();
    let vital = used.iter().copied().filter(|at| !is_content(*at)).collect();
    [used, vital]
}

/// Reads everything that can be reached.
fn read_all(pool: &Pool) {
    let v = root(pool);
    let Ok(all) = walk(&v, "", 8) else { return };
    for (path, kind) in all.into_iter().take(2000) {
        let Ok(attr) = v.lstat(path.as_bytes()) else { continue };
        let _ = pool.listxattr(attr.ino);
        let _ = pool.getxattr(attr.ino, b"user.some");
        let _ = v.readlink(path.as_bytes());
        if kind == Kind::Regular {
            let Ok(file) = v.open(path.as_bytes(), Open::new().read(true)) else { continue };
            let mut buf = [0; 5000];
            for at in [0, attr.size / 2, attr.size.saturating_sub(3000)] {
                let _ = file.read_at(&mut buf, at);
            }
            let _ = pool.seek(attr.ino, 0, conquest_fs::node::Seek::Hole);
        }
    }
}

/// Works; any of it may fail.
fn work(pool: &Pool, rng: &mut Rng) {
    let v = root(pool);
    for _ in 0..60 {
        let d = rng.below(4);
        let file = format!("d{d}/file{}", rng.below(20));
        let _ = match rng.below(7) {
            0 => v.unlink(file.as_bytes()),
            1 => put(&v, &file, &[1; 3000]),
            2 => v.rename(
                file.as_bytes(),
                format!("d{}/moved{}", rng.below(4), rng.below(9)).as_bytes(),
                conquest_fs::node::Rename::Replace,
            ),
            3 => v.mkdir(format!("d{d}/new{}", rng.below(9)).as_bytes(), 0o755).map(|_| ()),
            4 => v.open(file.as_bytes(), Open::new().append(true)).and_then(|f| f.append(&[2; 900])).map(|_| ()),
            5 => v.open(b"big", Open::new().write(true)).and_then(|f| f.set_len(rng.below(1 << 30))),
            _ => v
                .lstat(file.as_bytes())
                .and_then(|a| pool.setxattr(a.ino, b"user.more", &[3; 50], SetXattr::Any, &Caller::root())),
        };
    }
}

/// Everything on a damaged region; the problems that remain after one repair.
fn ordeal(dir: &tempfile::TempDir, rng: &mut Rng) -> conquest_fs::Result<Vec<String>> {
    let pool = Pool::open(dir.path(), &OpenOptions::default())?;
    match rng.below(3) {
        // Some work on the damage first, some see a check, some a repair.
        0 => {
            read_all(&pool);
            work(&pool, rng);
        }
        1 => {
            let _ = pool.sweep();
        }
        _ => {
            let _ = pool.fsck(false, &mut |_, _| {});
        }
    }
    pool.fsck(true, &mut |_, _| {})?;
    read_all(&pool);
    let after = pool.fsck(false, &mut |_, _| {})?;
    work(&pool, rng);
    read_all(&pool);
    Ok(after.problems)
}

fn flip(file: &std::fs::File, places: &[Vec<u64>; 2], rng: &mut Rng) {
    let places = &places[usize::from(rng.below(8) > 0)];
    let near = places[rng.below(places.len() as u64) as usize];
    for _ in 0..1 + rng.below(8) {
        let at = match rng.below(3) {
            0 => (near + rng.below(64)).min(SIZE - 1),
            _ => places[rng.below(places.len() as u64) as usize],
        };
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        let byte = match rng.below(3) {
            0 => [byte[0] ^ 1 << rng.below(8)],
            1 => [rng.next() as u8],
            _ => [if rng.below(2) == 0 { 0 } else { 0xff }],
        };
        file.write_all_at(&byte, at).unwrap();
    }
}

#[test]
fn flipped_bytes_are_survived() {
    let dir = sample();
    let path = dir.path().join("nvram");
    let whole = std::fs::read(&path).unwrap();
    let places = places(&dir, &whole);
    let rounds = std::env::var("CONQUEST_DAMAGE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let first = std::env::var("CONQUEST_DAMAGE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let (mut opened, mut whole_again) = (0, 0);
    for seed in first..first + rounds {
        let _dog = Watchdog::start(&format!("damage of seed {seed}"), Duration::from_secs(20));
        std::fs::write(&path, &whole).unwrap();
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut rng = Rng::new(seed);
        flip(&file, &places, &mut rng);
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ordeal(&dir, &mut rng)));
        match done {
            Ok(Ok(remaining)) => {
                opened += 1;
                whole_again += u64::from(remaining.is_empty());
                remaining.iter().take(3).for_each(|p| eprintln!("seed {seed}: after the repair: {p}"));
            }
            Ok(Err(e)) => eprintln!("seed {seed}: {e}"),
            Err(_) => panic!("seed {seed} panicked"),
        }
    }
    eprintln!("{rounds} rounds: {opened} opened, {whole_again} whole after one repair");
    assert!(opened * 10 > rounds * 9, "{opened} of {rounds} could be opened");
    assert!(whole_again * 100 > opened * 97, "{whole_again} of {opened} were whole after one repair");
}

/// A sweep of a damaged pool took the objects of a damaged inode for leaks, and freed them before a repair
/// could save them.
#[test]
fn a_sweep_frees_nothing_in_a_damaged_pool() {
    let dir = format(4 * MIB);
    let pool = open(&dir);
    put(&root(&pool), "victim", &[0x5a; 3000]).unwrap();
    let ino = root(&pool).stat(b"victim").unwrap().ino;
    drop(pool);
    let path = dir.path().join("nvram");
    let whole = std::fs::read(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // The only inode of 3000 bytes: another form of content, which does not exist.
    let size_at = whole.windows(8).position(|w| w == 3000u64.to_le_bytes()).unwrap() as u64;
    file.write_all_at(&[0x77], size_at - 2).unwrap();
    let pool = open(&dir);
    let before = pool.session().memory().allocated_bytes().unwrap();
    assert!(pool.sweep().is_err(), "inode {ino} is damaged");
    assert_eq!(pool.session().memory().allocated_bytes().unwrap(), before);
    assert!(pool.session().runtime().leaks_pending(), "a sweep is still due");
}

/// The offsets of all objects of a type.
fn objects(pool: &Pool, tag: pram::Tag) -> Vec<u64> {
    let region = pool.session().memory();
    let all = (region.geo.heap()..region.geo.chunk(region.chunks_end())).step_by(16);
    all.filter(|at| region.resolve(*at, tag).is_ok() && region.is_allocated(*at).unwrap()).collect()
}

/// A directory that was to be made anew was emptied first: where memory did not suffice for all of its names, the rest
/// was lost.
#[test]
fn a_repair_that_finds_no_memory_leaves_a_directory_as_it_was() {
    let (_dir, pool) = pool(2 * MIB);
    let v = root(&pool);
    v.mkdir(b"d", 0o755).unwrap();
    let name = |n: u32| format!("d/a-name-that-takes-some-room-{n}");
    v.create(b"file", 0o600).unwrap();
    (0..400).for_each(|n| v.link(b"file", name(n).as_bytes()).map(|_| ()).unwrap());
    // A bucket that counts its bytes wrong: all names can be read.
    let region = pool.session().memory();
    let bucket = *objects(&pool, conquest_fs::layout::tag::BUCKET).last().unwrap();
    let head = region.load(pram::Off::new(bucket)).unwrap();
    region.commit_word(pram::Off::new(bucket), head ^ 8 << 32).unwrap();
    let filling = v.create(b"filling", 0o600).unwrap();
    while filling.append(&[7; 4096]).is_ok() {}

    let report = pool.fsck(true, &mut |_, _| {}).unwrap();
    assert!(report.repaired.iter().any(|r| r.contains("could not be repaired")), "{report:?}");
    (0..400).for_each(|n| assert!(v.stat(name(n).as_bytes()).is_ok(), "{} is lost", name(n)));

    filling.set_len(0).unwrap();
    let report = pool.fsck(true, &mut |_, _| {}).unwrap();
    assert!(report.repaired.iter().any(|r| r.contains("400 entries")), "{report:?}");
    assert_tidy(&pool);
    (0..400).for_each(|n| assert!(v.stat(name(n).as_bytes()).is_ok(), "{} is lost", name(n)));
}

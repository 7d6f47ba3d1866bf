//! Pools as a program that embeds Conquest uses them.

use conquest::{Activity, Caller, FormatOptions, Kind, Layout, NewDisk, NewRegion, OpenOptions, Pool};
use conquest_fs::node::{Rename, WriteFlags};
use conquest_fs::path::{Open, View};
use conquest_fs::poll::poll_until;

fn options(size: u64) -> FormatOptions {
    FormatOptions { root_owner: (0, 0), ..FormatOptions::on(conquest::MediumKind::Battery, size) }
}

fn pool(size: u64) -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    Pool::format(dir.path(), &options(size)).unwrap();
    let pool = Pool::open(dir.path(), &OpenOptions::default()).unwrap();
    (dir, pool)
}

fn clean(pool: &Pool) {
    let report = pool.fsck(false, &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

#[test]
fn names_and_content_survive_reopening() {
    let (dir, pool) = pool(64 << 20);
    {
        let v = View::new(&pool, Caller::root());
        v.mkdir(b"a", 0o755).unwrap();
        for i in 0..2000 {
            let f = v.create(format!("a/file{i}").as_bytes(), 0o644).unwrap();
            f.write_all_at(format!("content {i}").as_bytes(), 0).unwrap();
        }
        v.symlink(b"a/file7", b"link").unwrap();
        v.link(b"a/file8", b"hard").unwrap();
        v.rename(b"a/file9", b"nine", Rename::Replace).unwrap();
        for i in (0..2000).step_by(3).filter(|i| *i != 9) {
            v.unlink(format!("a/file{i}").as_bytes()).unwrap();
        }
        clean(&pool);
    }
    drop(pool);
    let pool = Pool::open(dir.path(), &OpenOptions::default()).unwrap();
    let v = View::new(&pool, Caller::root());
    let read = |path: &[u8]| {
        let f = v.open(path, Open::new().read(true)).unwrap();
        let mut buf = [0; 100];
        let n = f.read_at(&mut buf, 0).unwrap();
        String::from_utf8(buf[..n].to_vec()).unwrap()
    };
    assert_eq!(read(b"link"), "content 7");
    assert_eq!(read(b"/hard"), "content 8");
    assert_eq!(read(b"nine"), "content 9");
    assert_eq!(v.stat(b"hard").unwrap().nlink, 2);
    assert_eq!(v.read_dir(b"a").unwrap().count(), 2000 - 667);
    clean(&pool);
}

#[test]
fn big_and_sparse_files() {
    let (_dir, pool) = pool(64 << 20);
    let v = View::new(&pool, Caller::root());
    let f = v.open(b"big", Open::new().read(true).write(true).create(true).mode(0o600)).unwrap();
    let data: Vec<u8> = (0..5_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    f.write_all_at(&data, 0).unwrap();
    let mut back = vec![0; data.len()];
    assert_eq!(f.read_at(&mut back, 0).unwrap(), data.len());
    assert_eq!(back, data);
    f.write_all_at(b"far", 1 << 40).unwrap();
    assert_eq!(f.attr().unwrap().size, (1 << 40) + 3);
    clean(&pool);
    drop(f);
    v.unlink(b"big").unwrap();
    clean(&pool);
}

#[test]
fn an_unlinked_file_lives_while_open() {
    let (_dir, pool) = pool(16 << 20);
    let v = View::new(&pool, Caller::root());
    let f = v.create(b"x", 0o600).unwrap();
    f.write_all_at(b"abc", 0).unwrap();
    v.unlink(b"x").unwrap();
    assert_eq!(f.attr().unwrap().nlink, 0);
    assert_eq!(f.append(b"d").unwrap(), 3);
    let ino = f.ino();
    drop(f);
    assert!(pool.getattr(ino).is_err());
    clean(&pool);
}

#[test]
fn a_full_pool_loses_nothing_and_deletes() {
    let (_dir, pool) = pool(4 << 20);
    let v = View::new(&pool, Caller::root());
    let mut made = 0;
    let error = loop {
        match v.create(format!("f{made}").as_bytes(), 0o600).and_then(|f| f.write_all_at(&[7; 3000], 0)) {
            Ok(()) => made += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(error.errno(), rustix::io::Errno::NOSPC);
    clean(&pool);
    for i in 0..made {
        v.unlink(format!("f{i}").as_bytes()).unwrap();
    }
    let _ = v.unlink(format!("f{made}").as_bytes());
    clean(&pool);
    assert_eq!(v.read_dir(b"").unwrap().count(), 0);
    let report = pool.fsck(true, &mut |_, _| {}).unwrap();
    assert_eq!(report.leaked_objects, 0);
}

#[test]
fn threads_in_one_directory() {
    let (_dir, pool) = pool(64 << 20);
    std::thread::scope(|s| {
        for t in 0..4 {
            let pool = &pool;
            s.spawn(move || {
                let v = View::new(pool, Caller::root());
                for i in 0..3000 {
                    let name = format!("t{t}-{i}");
                    let f = v.create(name.as_bytes(), 0o600).unwrap();
                    f.append(&[1; 100]).unwrap();
                    drop(f);
                    if i % 2 == 0 {
                        v.unlink(name.as_bytes()).unwrap();
                    } else if i % 3 == 0 {
                        v.rename(name.as_bytes(), format!("r{t}-{i}").as_bytes(), Rename::Replace).unwrap();
                    }
                }
            });
        }
    });
    clean(&pool);
    assert_eq!(View::new(&pool, Caller::root()).read_dir(b"/").unwrap().count(), 4 * 1500);
}

#[test]
fn appends_from_threads_do_not_overlap() {
    let (_dir, pool) = pool(64 << 20);
    let attr = pool.create(1, b"log", Kind::Regular, 0o600, 0, &Caller::root()).unwrap();
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let pool = &pool;
            s.spawn(move || {
                for _ in 0..2000 {
                    pool.write(attr.ino, 0, &[t; 10], WriteFlags { append: true, ..Default::default() }).unwrap();
                }
            });
        }
    });
    let mut all = vec![0; 80_000];
    assert_eq!(pool.read(attr.ino, 0, &mut all).unwrap(), 80_000);
    assert!(all.chunks(10).all(|c| c.iter().all(|b| *b == c[0])));
    clean(&pool);
}

/// A mount sees no file closed, so the tail is given back once the file is quiet.
#[test]
fn unused_tails_are_given_back() {
    let (_dir, pool) = pool(16 << 20);
    let attr = pool.create_retain(1, b"log", Kind::Regular, 0o600, 0, &Caller::root()).unwrap();
    for _ in 0..52 {
        pool.write(attr.ino, 0, &[5; 100], WriteFlags { append: true, ..Default::default() }).unwrap();
    }
    let blocks = || pool.getattr(attr.ino).unwrap().blocks;
    let grown = blocks();
    let start = std::time::Instant::now();
    while blocks() == grown && start.elapsed().as_secs() < 20 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(blocks() < grown && blocks() * 512 < 5456 + 512, "{} of {grown} blocks", blocks());
    let mut all = [0; 5200];
    assert_eq!(pool.read(attr.ino, 0, &mut all).unwrap(), 5200);
    assert!(all.iter().all(|b| *b == 5));
    clean(&pool);
}

/// Every process has tasks of its own; work that one process does for all, the others leave to it until it ends.
#[test]
fn background_tasks_tell_what_they_do() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let disk = NewDisk { path: "disk".into(), size: Some(16 << 20) };
    let regions = vec![NewRegion { layout: Layout::Single, disks: vec![disk] }];
    let how = FormatOptions { backing: Some("backing".into()), regions, ..options(16 << 20) };
    Pool::format(dir.path(), &how).unwrap();
    let pool = Pool::open(dir.path(), &OpenOptions::default()).unwrap();
    let names = |pool: &Pool| pool.tasks().iter().map(|task| task.name).collect::<Vec<_>>();
    let all = ["rebuild", "write-back", "compression", "preallocate", "reclaim", "commit", "checkpoint"];
    assert_eq!(names(&pool), all);
    let rests_for_another = |pool: &Pool| {
        let tasks = pool.tasks();
        let task = tasks.iter().find(|task| task.name == "rebuild").unwrap();
        (task.state == Activity::Waiting && task.why.starts_with("another process")).then_some(task.runs)
    };
    let has = |what: &str, done: &mut dyn FnMut() -> bool| {
        assert!(poll_until(std::time::Duration::from_secs(60), done), "{what}");
    };
    has("the first one has the role", &mut || pool.tasks()[0].runs > 0 && rests_for_another(&pool).is_none());
    let other = Pool::open(dir.path(), &OpenOptions::default()).unwrap();
    has("the other one leaves it to the first", &mut || rests_for_another(&other).is_some());
    // Each process sees the tasks of both.
    for session in other.status().unwrap().sessions {
        let mut shown: Vec<_> = session.tasks.iter().map(|task| task.name).collect();
        let mut all = all;
        shown.sort();
        all.sort();
        assert!(shown == all && !session.gone, "{session:?}");
    }
    drop(pool);
    has("the other one has the role", &mut || rests_for_another(&other).is_none());
    assert!(other.tasks().iter().all(|task| task.last_error.is_none()), "{:?}", other.tasks());
    drop(other);
    let how = OpenOptions { read_only: true, ..OpenOptions::default() };
    assert_eq!(names(&Pool::open(dir.path(), &how).unwrap()), ["commit", "checkpoint"]);
}

//! The backing of pools on `battery`: import, mirrors, backings that cannot be used; and images on `logged`.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conquest::{Caller, FormatOptions, MediumKind, OpenOptions, Pool};
use conquest::{CommitInterval, Rate};
use conquest_fs::path::{Open, View};
use conquest_fs::poll::poll_until;
use pram::marks::Marks;
use pram::Mapping;

/// A pool on battery in a directory of its own, which removes the pool's shared memory too.
struct Home(tempfile::TempDir);

impl Home {
    fn new(how: FormatOptions) -> Home {
        let home = Home(tempfile::tempdir_in("/dev/shm").unwrap());
        Pool::format(home.pool(), &how).unwrap();
        home
    }

    fn pool(&self) -> PathBuf {
        self.0.path().join("pool")
    }

    fn open(&self) -> Pool {
        Pool::open(self.pool(), &OpenOptions::default()).unwrap()
    }

    fn refused(&self) -> String {
        Pool::open(self.pool(), &OpenOptions::default()).err().expect("refused").to_string()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        forget(&self.pool());
    }
}

/// The files of a backing.
const BACKING: [&str; 3] = ["image", "redo-0", "redo-1"];

/// Removes the shared memory of the pool at `dir`.
fn forget(dir: &Path) {
    let Ok(Some(config)) = conquest::config::Config::read(dir) else { return };
    let name = format!("conquest-{}", config.uuid.replace('-', ""));
    for entry in std::fs::read_dir("/dev/shm").unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&name) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// A pool with a backing that only requests reach.
fn with_backing(backing: &Path) -> FormatOptions {
    let day = CommitInterval::try_from(86_400.0).unwrap();
    FormatOptions {
        backing: Some(backing.into()),
        commit_interval: Some(day),
        ..FormatOptions::on(MediumKind::Battery, 8 << 20)
    }
}

fn write(pool: &Pool, path: &str, text: &str) {
    View::new(pool, Caller::root()).create(path.as_bytes(), 0o600).unwrap().write_all_at(text.as_bytes(), 0).unwrap();
}

fn read(pool: &Pool, path: &str) -> Option<String> {
    let file = View::new(pool, Caller::root()).open(path.as_bytes(), Open::new().read(true)).ok()?;
    let mut bytes = vec![0; file.attr().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    Some(String::from_utf8(bytes).unwrap())
}

fn import(dir: &Path, force: bool) -> conquest_fs::Result<i64> {
    Pool::import(dir, force, &mut |_, _| {})
}

fn clean(pool: &Pool) {
    assert_eq!(pool.fsck(false, &mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_lost_region_is_made_from_its_backing() {
    let home = Home::new(with_backing(".".as_ref()));
    let pool = home.open();
    write(&pool, "early", "in the backing");
    backing::of(pool.session()).unwrap().wait(pool.session()).unwrap();
    let committed = pool.session().runtime().backing_time();
    write(&pool, "late", "in memory alone");
    let status = pool.status().unwrap().backing.unwrap();
    assert!(status.pending > 0 && status.failure.is_none(), "{status:?}");
    // As after the loss of the memory: changes after the commit are nowhere.
    let lost = tempfile::tempdir_in(home.0.path()).unwrap();
    for name in ["pool.toml", "image", "redo-0", "redo-1"] {
        std::fs::copy(home.pool().join(name), lost.path().join(name)).unwrap();
    }
    let refused = Pool::open(lost.path(), &OpenOptions::default()).err().expect("no region").to_string();
    assert!(refused.contains("conquest import"), "{refused}");
    assert_eq!(import(lost.path(), false).unwrap(), committed, "it says as of when");
    let found = Pool::open(lost.path(), &OpenOptions::default()).unwrap();
    clean(&found);
    assert_eq!(read(&found, "early").as_deref(), Some("in the backing"));
    assert_eq!(read(&found, "late"), None);
    drop(found);

    // An existing memory is only lost on request; closed in order, its backing holds everything.
    drop(pool);
    assert!(import(&home.pool(), false).unwrap_err().to_string().contains("--force"));
    import(&home.pool(), true).unwrap();
    assert_eq!(read(&home.open(), "late").as_deref(), Some("in memory alone"));
}

/// A store must never meet a full disk.
#[test]
fn an_imported_region_has_the_memory_that_it_uses() {
    let home = Home::new(FormatOptions { size: 32 << 20, ..with_backing(".".as_ref()) });
    drop(home.open());
    import(&home.pool(), true).unwrap();
    let (found, nvram) = (home.open(), std::fs::metadata(home.pool().join("nvram")).unwrap());
    let (used, blocks) = (found.status().unwrap().used, nvram.blocks());
    assert!(used > 0 && blocks * 512 >= used && blocks * 512 < nvram.len(), "{blocks} blocks for {used} bytes");
}

#[test]
fn a_mirror_holds_what_has_returned() {
    let mirror = tempfile::tempdir_in("/dev/shm").unwrap();
    let how = FormatOptions { mirror: true, ..with_backing(&mirror.path().join("m")) };
    let home = Home::new(how);
    let pool = home.open();
    for n in 0..20 {
        write(&pool, &format!("f{n}"), "both");
    }
    assert!(!pool.durable_at_return());
    // All that has returned is in it. The background may change something meanwhile, and commits that long before the next commit is due.
    let pending = || pool.status().unwrap().backing.unwrap().pending;
    assert!(poll_until(Duration::from_secs(5), || pending() == 0), "{} bytes pending", pending());
    drop(pool);
    // Either is enough.
    std::fs::remove_file(home.pool().join("nvram")).unwrap();
    let pool = home.open();
    clean(&pool);
    assert!((0..20).all(|n| read(&pool, &format!("f{n}")).as_deref() == Some("both")));
    drop(pool);
    std::fs::remove_dir_all(mirror.path().join("m")).unwrap();
    assert_eq!(read(&home.open(), "f7").as_deref(), Some("both"), "and a mirror that is lost is made anew");
    assert!(mirror.path().join("m/image").exists());
}

#[test]
fn a_mirror_that_is_lost_with_all_processes_is_made_anew() {
    let mirror = tempfile::tempdir_in("/dev/shm").unwrap();
    let home = Home::new(FormatOptions { mirror: true, ..with_backing(&mirror.path().join("m")) });
    let marks = || Pool::memory(home.pool()).unwrap().remove(0);
    let pool = home.open();
    write(&pool, "early", "both");
    let killed = std::fs::read(marks()).unwrap();
    drop(pool);
    let old: Vec<Vec<u8>> =
        BACKING.iter().map(|name| std::fs::read(mirror.path().join("m").join(name)).unwrap()).collect();
    // Interrupted after so many steps, the making of a new one begins again.
    for there in 0..=BACKING.len() {
        std::fs::remove_dir_all(mirror.path().join("m")).unwrap();
        std::fs::write(marks(), &killed).unwrap();
        std::fs::create_dir_all(mirror.path().join("m/.made")).unwrap();
        std::fs::write(mirror.path().join("m/.made/image"), b"half").unwrap();
        // The image is missing, whichever other files exist.
        for (name, bytes) in BACKING.iter().zip(&old).skip(1).take(there) {
            std::fs::write(mirror.path().join("m").join(name), bytes).unwrap();
        }
        let pool = home.open();
        clean(&pool);
        write(&pool, &format!("late-{there}"), "both");
        drop(pool);
        std::fs::remove_file(home.pool().join("nvram")).unwrap();
        let pool = home.open();
        assert_eq!(read(&pool, "early").as_deref(), Some("both"));
        assert_eq!(read(&pool, &format!("late-{there}")).as_deref(), Some("both"));
        assert!(!mirror.path().join("m/.made").exists());
        drop(pool);
    }
}

#[test]
fn a_backing_that_cannot_be_made_leaves_the_pool_at_work() {
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let place = elsewhere.path().join("place");
    let home = Home::new(with_backing(&place));
    // No directory can be made there.
    std::fs::write(&place, b"a file").unwrap();
    let (pool, other) = (home.open(), home.open());
    write(&pool, "one", "kept");
    write(&other, "two", "kept");
    assert!(other.status().unwrap().backing.unwrap().failure.is_some());
    // A process that comes when it could be made again must not begin one while others do not track their changes.
    std::fs::remove_file(&place).unwrap();
    let third = home.open();
    write(&third, "three", "kept");
    write(&pool, "four", "kept");
    drop((pool, other, third));
    // From the next opening on there is one, of everything.
    let pool = home.open();
    write(&pool, "five", "kept");
    assert!(pool.status().unwrap().backing.unwrap().failure.is_none());
    drop(pool);
    import(&home.pool(), true).unwrap();
    let pool = home.open();
    clean(&pool);
    for name in ["one", "two", "three", "four", "five"] {
        assert_eq!(read(&pool, name).as_deref(), Some("kept"), "{name}");
    }
}

#[test]
fn a_foreign_backing_is_neither_used_nor_overwritten() {
    let (home, other) = (Home::new(with_backing(".".as_ref())), Home::new(with_backing(".".as_ref())));
    write(&other.open(), "theirs", "kept");
    drop(home.open());
    let files = ["image", "redo-0", "redo-1"];
    files.iter().for_each(|f| _ = std::fs::copy(other.pool().join(f), home.pool().join(f)).unwrap());
    let before = files.map(|f| std::fs::read(home.pool().join(f)).unwrap());
    let pool = home.open();
    assert!(pool.status().unwrap().backing.unwrap().failure.is_some());
    drop(pool);
    assert!(import(&home.pool(), true).unwrap_err().to_string().contains("of the pool"));
    assert!(files.map(|f| std::fs::read(home.pool().join(f)).unwrap()) == before);
}

#[test]
fn images_come_back_on_logged() {
    let home = Home::new(with_backing(".".as_ref()));
    let image = home.0.path().join("saved");
    let pool = home.open();
    write(&pool, "luggage", "packed");
    pool.save(&image, &mut |_, _| {}).unwrap();
    drop(pool);
    let away = Home::new(FormatOptions::on(MediumKind::Logged, 16 << 20));
    write(&away.open(), "mine", "still here");
    let restore = |force| Pool::restore(away.pool(), &image, None, force, &mut |_, _| {});
    assert!(restore(false).unwrap_err().to_string().contains("--force"));
    assert_eq!(read(&away.open(), "mine").as_deref(), Some("still here"));
    restore(true).unwrap();
    for round in ["from memory", "from the backing"] {
        let pool = away.open();
        clean(&pool);
        assert_eq!(pool.status().unwrap().medium, MediumKind::Logged);
        assert_eq!((read(&pool, "luggage").as_deref(), read(&pool, "mine")), (Some("packed"), None), "{round}");
        drop(pool);
        forget(&away.pool());
    }
}

/// The image was written, and the pool did not open any more.
#[test]
fn an_image_takes_the_place_of_no_file_of_the_pool() {
    let away = tempfile::tempdir_in("/dev/shm").unwrap();
    let nvram = away.path().join(".ram.new");
    let battery = FormatOptions { nvram: Some(nvram.clone()), ..with_backing(&away.path().join("backing")) };
    let logged = FormatOptions::on(MediumKind::Logged, 8 << 20);
    for (how, backing) in [(battery, away.path().join("backing")), (logged, "".into())] {
        let home = Home::new(how);
        let (dir, link) = (home.pool(), home.0.path().join("link"));
        let backing = dir.join(backing);
        let pool = home.open();
        write(&pool, "file", "kept");
        let mut parts = vec![dir.join("pool.toml"), dir.join("server.log"), dir.join("../pool/pool.toml")];
        parts.extend(BACKING.map(|name| backing.join(name)));
        parts.extend(Pool::memory(&dir).unwrap());
        if pool.status().unwrap().medium == MediumKind::Battery {
            // The second is written at the first's place before it gets its name.
            parts.extend([nvram.clone(), away.path().join("ram")]);
        }
        for part in &parts {
            let number = || std::fs::metadata(part).map(|found| found.ino()).ok();
            let before = number();
            std::os::unix::fs::symlink(part, &link).unwrap();
            let targets = if before.is_some() { vec![part, &link] } else { vec![part] };
            for target in targets {
                let refused = pool.save(target, &mut |_, _| {}).expect_err("a part of the pool").to_string();
                assert!(refused.contains("a part of the pool itself; choose another file"), "{refused}");
                assert_eq!(Pool::refuse_own_file(&dir, target).unwrap_err().to_string(), refused);
            }
            assert_eq!(number(), before, "{} was replaced", part.display());
            std::fs::remove_file(&link).unwrap();
        }
        // Another name of the same file, and a file of the backing that is not there.
        std::fs::hard_link(backing.join("redo-0"), &link).unwrap();
        assert!(Pool::refuse_own_file(&dir, &link).is_err());
        for free in [dir.join("saved"), away.path().join("image"), home.0.path().join("redo-0")] {
            pool.save(&free, &mut |_, _| {}).unwrap();
        }
        drop(pool);
        assert_eq!(read(&home.open(), "file").as_deref(), Some("kept"));
        std::fs::rename(backing.join("image"), backing.join("moved")).unwrap();
        assert!(Pool::refuse_own_file(&dir, backing.join("image")).is_err());
        std::fs::rename(backing.join("moved"), backing.join("image")).unwrap();
    }
}

#[test]
fn what_failed_leaves_no_directory() {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let (file, new, there) = (home.path().join("file"), home.path().join("a/new"), home.path().join("there"));
    std::fs::write(&file, "no image").unwrap();
    std::fs::create_dir(&there).unwrap();
    for medium in [MediumKind::Logged, MediumKind::Battery] {
        for dir in [&new, &there] {
            assert!(Pool::restore(dir, &file, Some(medium), false, &mut |_, _| {}).is_err());
        }
    }
    assert!(there.exists() && !home.path().join("a").exists());
    // A directory with files in it by then stays.
    assert!(Pool::format(&new, &FormatOptions::on(MediumKind::Battery, 4096)).is_err());
    std::fs::create_dir_all(home.path().join("a")).unwrap();
    Pool::format(&new, &FormatOptions::on(MediumKind::Battery, 8 << 20)).unwrap();
    assert!(Pool::exists(&new));
}

#[test]
fn memory_of_a_pool_that_is_gone_is_given_back() {
    let logged = || FormatOptions::on(MediumKind::Logged, 8 << 20);
    let (gone, kept) = (Home::new(logged()), Home::new(logged()));
    let memory = |home: &Home| home.open().status().unwrap().nvram;
    let (theirs, ours) = (memory(&gone), memory(&kept));
    assert!(theirs.exists() && ours.exists());
    std::fs::remove_dir_all(gone.pool()).unwrap();
    drop(Home::new(logged()));
    assert!(!theirs.exists() && ours.exists());
    assert!(home_is_usable(&kept));
}

#[test]
fn memory_is_given_back_when_nobody_needs_it() {
    let home = Home::new(FormatOptions::on(MediumKind::Logged, 8 << 20));
    let pool = home.open();
    let memory = pool.status().unwrap().nvram;
    write(&pool, "kept", "on disk");
    assert!(Pool::release(home.pool()).unwrap_err().to_string().contains("in use"));
    drop(pool);
    Pool::release(home.pool()).unwrap();
    assert!(!memory.exists());
    Pool::release(home.pool()).unwrap();
    let pool = home.open();
    clean(&pool);
    assert_eq!(read(&pool, "kept").as_deref(), Some("on disk"));
    let battery = Home::new(with_backing(".".as_ref()));
    assert!(Pool::release(battery.pool()).is_err() && battery.pool().join("nvram").exists());
}

fn home_is_usable(home: &Home) -> bool {
    let pool = home.open();
    write(&pool, "still", "there");
    read(&pool, "still").is_some()
}

#[test]
fn a_region_of_another_pool_is_not_copied_over() {
    let (home, other) = (Home::new(with_backing(".".as_ref())), Home::new(with_backing(".".as_ref())));
    drop(home.open());
    std::fs::copy(other.pool().join("nvram"), home.pool().join("nvram")).unwrap();
    let refused = home.refused();
    assert!(refused.contains("belongs to another pool"), "{refused}");
}

/// Commits as soon as anything has changed.
fn at_once(rate: u64, how: FormatOptions) -> FormatOptions {
    let soon = CommitInterval::try_from(0.01).unwrap();
    FormatOptions { commit_interval: Some(soon), backing_rate: Some(Rate::try_from(rate).unwrap()), ..how }
}

/// Writes `megabytes`, each different.
fn fill(pool: &Pool, path: &str, megabytes: u64) {
    let file = View::new(pool, Caller::root()).create(path.as_bytes(), 0o600).unwrap();
    for n in 0..megabytes {
        let bytes: Vec<u8> = (0..1u32 << 18).flat_map(|word| (word ^ (n as u32) << 24).to_le_bytes()).collect();
        file.write_all_at(&bytes, n << 20).unwrap();
    }
}

fn pending(pool: &Pool) -> u64 {
    pool.status().unwrap().backing.unwrap().pending
}

/// The time that `work` takes.
fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Writes at the rates of these tests take at least so long.
const FOREVER: Duration = Duration::from_secs(20);

#[test]
fn what_nobody_waits_for_keeps_to_the_rate() {
    let home = Home::new(FormatOptions { size: 64 << 20, ..at_once(8 << 20, with_backing(".".as_ref())) });
    let pool = home.open();
    assert_eq!(pool.status().unwrap().backing.unwrap().rate, Some(8 << 20));
    let (mut slowest, mut held) = (Duration::ZERO, 0);
    let took = timed(|| {
        fill(&pool, "much", 16);
        while pending(&pool) > 1 << 20 {
            slowest = slowest.max(timed(|| write(&pool, &format!("f{held}"), "meanwhile")));
            held += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    // Two seconds' worth; checkpoints come on top.
    assert!(took > Duration::from_millis(1500), "{took:?}");
    assert!(took < FOREVER, "{took:?}");
    // Operations do not wait for it.
    assert!(held > 20 && slowest < Duration::from_secs(1), "{held} of at most {slowest:?}");
    drop(pool);
    import(&home.pool(), true).unwrap();
    let pool = home.open();
    clean(&pool);
    assert_eq!(read(&pool, "f7").as_deref(), Some("meanwhile"));
}

#[test]
fn who_waits_is_not_held_up_by_the_rate() {
    let logged = FormatOptions::on(MediumKind::Logged, 64 << 20);
    let home = Home::new(at_once(Rate::MIN, logged));
    let pool = home.open();
    for round in 0..3 {
        fill(&pool, &format!("much{round}"), 8);
        // A commit of all that is under way, and would be for two minutes.
        std::thread::sleep(Duration::from_millis(300));
        assert!(pending(&pool) > 4 << 20, "nobody waits, and it is written all the same");
        match round {
            0 => assert!(timed(|| pool.sync().unwrap()) < FOREVER / 4),
            1 => {
                // By another process.
                let other = home.open();
                write(&other, "theirs", "now");
                assert!(timed(|| other.fsync(conquest_fs::ROOT, true).unwrap()) < FOREVER / 4);
            }
            _ => break,
        }
        assert!(pending(&pool) < 1 << 20);
    }
    // Nor does closing the pool wait.
    assert!(timed(|| drop(pool)) < FOREVER / 4);
    forget(&home.pool());
    clean(&home.open());
}

#[test]
fn checkpointing_keeps_to_the_rate_until_its_room_is_needed() {
    let home = Home::new(FormatOptions { size: 64 << 20, ..with_backing(".".as_ref()) });
    let config = home.pool().join("pool.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}backing_rate = {}\n", Rate::MIN)).unwrap();
    let pool = home.open();
    let image = || std::fs::metadata(home.pool().join("image")).unwrap().len();
    let before = image();
    let wait = || timed(|| backing::of(pool.session()).unwrap().wait(pool.session()).unwrap());
    // More than half a log of 8 MiB: the other takes over, and this one is checkpointed.
    fill(&pool, "one", 6);
    assert!(wait() < FOREVER / 4);
    std::thread::sleep(Duration::from_millis(700));
    assert!(image() < before + (1 << 20), "nobody needs it, and it is checkpointed all the same");
    // The second is full too, and can only give way to the first once that is checkpointed.
    for name in ["two", "three", "four", "five", "six", "seven"] {
        fill(&pool, name, 6);
        assert!(wait() < FOREVER / 4, "{name}");
    }
    assert!(image() > before + (12 << 20), "it was checkpointed");
    assert!(timed(|| drop(pool)) < FOREVER / 4);
    import(&home.pool(), true).unwrap();
    let pool = home.open();
    clean(&pool);
    for wrong in ["1000", "-5", "\"fast\""] {
        std::fs::write(&config, format!("{text}backing_rate = {wrong}\n")).unwrap();
        let refused = home.refused();
        assert!(refused.contains("pool.toml") && refused.contains("damaged"), "{refused}");
    }
    std::fs::write(&config, text).unwrap();
}

/// The mirror took over the content of an old memory, and changes in the mirror alone were lost.
#[test]
fn an_old_region_does_not_replace_what_its_mirror_has() {
    let mirror = tempfile::tempdir_in("/dev/shm").unwrap();
    let home = Home::new(FormatOptions { mirror: true, ..with_backing(&mirror.path().join("m")) });
    write(&home.open(), "early", "both");
    let (memory_path, old) = (home.pool().join("nvram"), home.pool().join("old"));
    std::fs::copy(&memory_path, &old).unwrap();
    write(&home.open(), "late", "both");
    std::fs::write(&memory_path, std::fs::read(&old).unwrap()).unwrap();
    // The error was that the region is the newer one.
    for refusal in [home.refused(), import(&home.pool(), false).unwrap_err().to_string()] {
        assert!(refusal.contains("an old one") && refusal.contains("conquest import"), "{refusal}");
    }
    import(&home.pool(), true).unwrap();
    let refusal = import(&home.pool(), false).unwrap_err().to_string();
    assert!(refusal.contains("may hold more"), "{refusal}");
    let pool = home.open();
    clean(&pool);
    assert_eq!((read(&pool, "early").as_deref(), read(&pool, "late").as_deref()), (Some("both"), Some("both")));
}

#[test]
fn a_region_that_cannot_be_used_can_be_made_from_its_backing() {
    let home = Home::new(with_backing(".".as_ref()));
    write(&home.open(), "early", "in the backing");
    let region = std::fs::read(home.pool().join("nvram")).unwrap();
    let harms = [region[..region.len() / 2].to_vec(), [vec![0xff; 16 << 10], region[16 << 10..].to_vec()].concat()];
    for harm in harms {
        std::fs::write(home.pool().join("nvram"), harm).unwrap();
        let refusal = home.refused();
        assert!(refusal.contains("conquest import --force"), "{refusal}");
        import(&home.pool(), true).unwrap();
        assert_eq!(read(&home.open(), "early").as_deref(), Some("in the backing"));
    }
}

/// Without `pool.toml` a backing was no pool, and an operator that followed the message then formatted over it.
#[test]
fn a_backing_that_is_all_that_is_left_becomes_a_pool() {
    let away = tempfile::tempdir_in("/dev/shm").unwrap();
    let backing = away.path().join("m");
    let home = Home::new(FormatOptions { mirror: true, ..with_backing(&backing) });
    let pool = home.open();
    write(&pool, "early", "both");
    let refusal = import(&backing, true).unwrap_err().to_string();
    assert!(refusal.contains("unmount it first"), "{refusal}");
    drop(pool);
    std::fs::remove_dir_all(home.pool()).unwrap();

    let refusal = Pool::open(&backing, &OpenOptions::default()).err().expect("no pool").to_string();
    assert!(refusal.contains("conquest import"), "{refusal}");
    let how = FormatOptions::on(MediumKind::Logged, 8 << 20);
    let refusal = Pool::format(&backing, &how).unwrap_err().to_string();
    assert!(refusal.contains("conquest import") && refusal.contains("--force"), "{refusal}");
    import(&backing, false).unwrap();
    for text in ["both", "again"] {
        let pool = Pool::open(&backing, &OpenOptions::default()).unwrap();
        clean(&pool);
        assert_eq!(read(&pool, "early").as_deref(), Some(text));
        View::new(&pool, Caller::root()).unlink(b"early").unwrap();
        write(&pool, "early", "again");
        pool.sync().unwrap();
        drop(pool);
        forget(&backing);
    }
    // The remains of an interrupted format do not matter.
    std::fs::remove_file(backing.join("pool.toml")).unwrap();
    std::fs::write(backing.join("image"), "").unwrap();
    Pool::format(&backing, &how).unwrap();
    forget(&backing);
}

/// Without `pool.toml` newer memory was lost unasked.
#[test]
fn newer_memory_is_not_lost_to_a_backing_alone() {
    let how = FormatOptions { medium: MediumKind::Logged, ..with_backing(".".as_ref()) };
    let home = Home::new(FormatOptions { backing: None, ..how });
    let memory = Pool::memory(home.pool()).unwrap();
    let (toml, aside) = (home.pool().join("pool.toml"), home.0.path().join("pool.toml"));
    let pool = home.open();
    write(&pool, "early", "in the backing");
    pool.sync().unwrap();
    write(&pool, "late", "in memory alone");
    // As a killed process leaves it.
    let killed: Vec<Vec<u8>> = memory.iter().map(|part| std::fs::read(part).unwrap()).collect();
    let backing = BACKING.map(|name| std::fs::read(home.pool().join(name)).unwrap());
    drop(pool);
    memory.iter().zip(&killed).for_each(|(part, bytes)| std::fs::write(part, bytes).unwrap());
    BACKING.iter().zip(&backing).for_each(|(name, bytes)| std::fs::write(home.pool().join(name), bytes).unwrap());
    std::fs::rename(&toml, &aside).unwrap();
    let refusal = import(&home.pool(), false).unwrap_err().to_string();
    assert!(refusal.contains("newer") && refusal.contains("pool.toml") && refusal.contains("--force"), "{refusal}");
    std::fs::rename(&aside, &toml).unwrap();
    assert_eq!(read(&home.open(), "late").as_deref(), Some("in memory alone"));

    // Closed in order, the backing holds everything, and nothing is lost.
    std::fs::rename(&toml, &aside).unwrap();
    import(&home.pool(), false).unwrap();
    assert_eq!(read(&home.open(), "late").as_deref(), Some("in memory alone"));
}

/// With a file of the backing lost, the memory held everything, and nothing got it out.
#[test]
fn memory_whose_backing_is_lost_is_saved_alone() {
    let home = Home::new(FormatOptions::on(MediumKind::Logged, 8 << 20));
    let save = |image: &Path| Pool::of_memory(home.pool())?.save(image, &mut |_, _| {});
    let image = home.0.path().join("saved");
    for (lost, text) in BACKING.into_iter().zip(["one", "two", "three"]) {
        let pool = home.open();
        write(&pool, lost, text);
        std::fs::remove_file(home.pool().join(lost)).unwrap();
        let refusal = save(&image).unwrap_err().to_string();
        assert!(
            refusal.contains(&format!("process {}", std::process::id())) && refusal.contains("unmount"),
            "{refusal}"
        );
        drop(pool);
        for refusal in [home.refused(), import(&home.pool(), false).unwrap_err().to_string()] {
            assert!(refusal.contains(&format!("{lost} is missing")) && refusal.contains("conquest save"), "{refusal}");
        }
        let memory: Vec<PathBuf> = regions(&home.pool());
        let before = std::fs::read(&memory[0]).unwrap();
        save(&image).unwrap();
        let alone = Pool::of_memory(home.pool()).unwrap();
        clean(&alone);
        assert_eq!(read(&alone, lost).as_deref(), Some(text));
        assert!(View::new(&alone, Caller::root()).unlink(lost.as_bytes()).is_err(), "to look at");
        assert!(alone.status().unwrap().backing.unwrap().failure.is_some());
        drop(alone);
        if lost == "image" {
            BACKING.iter().for_each(|name| _ = std::fs::remove_file(home.pool().join(name)));
        }
        let refusal = Pool::restore(home.pool(), &image, None, false, &mut |_, _| {}).unwrap_err().to_string();
        assert!(refusal.contains("--force"), "{refusal}");
        assert!(std::fs::read(&memory[0]).unwrap() == before, "it is as it was");
        Pool::restore(home.pool(), &image, None, true, &mut |_, _| {}).unwrap();
        assert!(!memory[0].exists() || lost != "image", "nobody would find it any more");
        let pool = home.open();
        clean(&pool);
        assert_eq!(read(&pool, lost).as_deref(), Some(text));
    }
}

/// Without `pool.toml` nothing told which pool the memory belonged to.
#[test]
fn memory_of_which_nothing_else_is_left_is_saved() {
    type Harm = (&'static str, fn(&Path));
    let harms: [Harm; 4] = [
        ("pool.toml is lost", |pool| std::fs::remove_file(pool.join("pool.toml")).unwrap()),
        ("pool.toml is damaged", |pool| std::fs::write(pool.join("pool.toml"), [0; 300]).unwrap()),
        ("all files are lost", |pool| {
            std::fs::read_dir(pool).unwrap().for_each(|f| std::fs::remove_file(f.unwrap().path()).unwrap())
        }),
        ("the directory is lost", |pool| std::fs::remove_dir_all(pool).unwrap()),
    ];
    for (what, harm) in harms {
        let home = Home::new(logged());
        let (pool, image) = (home.pool(), home.0.path().join("saved"));
        let toml = std::fs::read(pool.join("pool.toml")).unwrap();
        write(&home.open(), "late", what);
        let has_memory = |dir: &Path| Pool::memory_alone(dir).unwrap().is_some();
        assert!(has_memory(&pool) && !has_memory(home.0.path()), "{what}");
        mark(&regions(&pool)[0]);
        harm(&pool);
        let refusal = home.refused();
        assert!(has_memory(&pool) && refusal.contains("conquest save"), "{what}: {refusal}");
        Pool::of_memory(&pool).unwrap().save(&image, &mut |_, _| {}).unwrap();
        let other = home.0.path().join("other");
        Pool::restore(&other, &image, None, false, &mut |_, _| {}).unwrap();
        assert_eq!(read(&open(&other), "late").as_deref(), Some(what));
        // To be found and given back.
        std::fs::create_dir_all(&pool).and_then(|()| std::fs::write(pool.join("pool.toml"), toml)).unwrap();
    }
}

/// Memory has changes that its backing lacks: else a process that makes a pool just now may give it back.
fn mark(memory_path: &Path) {
    let marks = memory_path.to_string_lossy().replace("-region", "-marks");
    let marks = File::options().read(true).write(true).open(marks).unwrap();
    let map = Mapping::file(&marks, marks.metadata().unwrap().len()).unwrap();
    Marks::over_file(map, pram::mem::descriptor::Kept::new(marks.into()).unwrap()).unwrap().mark(8192, 8).unwrap();
}

/// If the new `image` got the number of the old one, memory was overwritten; else nothing led to it any more.
#[test]
fn memory_of_which_nothing_else_is_left_makes_way_for_a_new_pool() {
    type Make = fn(&Path, &Path);
    let makes: [Make; 2] = [
        |pool, image| Pool::restore(pool, image, None, false, &mut |_, _| {}).unwrap(),
        |pool, _| Pool::format(pool, &logged()).unwrap(),
    ];
    for make in makes {
        let home = Home::new(logged());
        let (pool, image) = (home.pool(), home.0.path().join("saved"));
        home.open().save(&image, &mut |_, _| {}).unwrap();
        write(&home.open(), "late", "in memory alone");
        mark(&regions(&pool)[0]);
        let toml = std::fs::read_to_string(pool.join("pool.toml")).unwrap();
        std::fs::remove_dir_all(&pool).unwrap();
        make(&pool, &image);
        assert_eq!(read(&home.open(), "late"), None);
        let uuid = toml.lines().find_map(|line| line.strip_prefix("uuid = ")).unwrap().replace(['"', '-'], "");
        let away = std::fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.path()).find(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with(&format!("conquest-{uuid}-away-")) && name.ends_with("-region")
        });
        let away = away.expect("it is kept");
        Pool::of_memory(&away).unwrap().save(&image, &mut |_, _| {}).unwrap();
        let other = home.0.path().join("other");
        Pool::restore(&other, &image, None, false, &mut |_, _| {}).unwrap();
        assert_eq!(read(&open(&other), "late").as_deref(), Some("in memory alone"));
        forget(&other);
    }
}

fn logged() -> FormatOptions {
    FormatOptions::on(MediumKind::Logged, 8 << 20)
}

/// Two pools on `logged`, restored from one image: they have one UUID.
fn twins() -> (Home, PathBuf, PathBuf) {
    let home = Home::new(logged());
    let (image, twins) = (home.0.path().join("saved"), ["one", "other"].map(|name| home.0.path().join(name)));
    home.open().save(&image, &mut |_, _| {}).unwrap();
    Pool::release(home.pool()).unwrap();
    twins.iter().for_each(|dir| Pool::restore(dir, &image, None, false, &mut |_, _| {}).unwrap());
    let [one, other] = twins;
    (home, one, other)
}

fn open(dir: &Path) -> Pool {
    Pool::open(dir, &OpenOptions::default()).unwrap()
}

/// The memory of one pool was saved as that of another, and given up for it.
#[test]
fn memory_of_a_pool_of_the_same_uuid_is_not_taken() {
    for renamed in [false, true] {
        let (home, one, other) = twins();
        drop(open(&one));
        Pool::release(&one).unwrap();
        write(&open(&other), "theirs", "in memory");
        std::fs::remove_file(one.join("image")).unwrap();
        let moved = home.0.path().join("moved");
        if renamed {
            std::fs::rename(&other, &moved).unwrap();
        }
        let other = if renamed { moved } else { other };
        let memory = Pool::memory(&other).unwrap();
        let refusal = Pool::of_memory(&one).err().expect("there is none").to_string();
        assert!(refusal.contains("no memory"), "{refusal}");
        Pool::restore(&one, home.0.path().join("saved"), None, true, &mut |_, _| {}).unwrap();
        // If the directory that it notes is gone, a process that makes a pool just now may give it back: the backing holds it all.
        assert!(renamed || memory.iter().all(|part| part.exists()));
        assert_eq!(read(&open(&other), "theirs").as_deref(), Some("in memory"));
    }
}

/// If another pool had the same UUID, the pools could not tell their memories apart.
#[test]
fn memory_is_found_beside_that_of_a_pool_of_the_same_uuid() {
    for renamed in [false, true] {
        let (home, one, other) = twins();
        write(&open(&other), "theirs", "in memory");
        write(&open(&one), "ours", "in memory");
        let moved = home.0.path().join("moved");
        if renamed {
            std::fs::rename(&one, &moved).unwrap();
        }
        let one = if renamed { moved } else { one };
        std::fs::remove_file(one.join("image")).unwrap();
        let refusal = Pool::open(&one, &OpenOptions::default()).err().expect("refused").to_string();
        assert!(refusal.contains("conquest save"), "{refusal}");
        let alone = Pool::of_memory(&one).unwrap();
        assert_eq!(read(&alone, "ours").as_deref(), Some("in memory"));
    }
}

/// Nothing tells which pool it belongs to: both were noted at one place, and no log is left there.
#[test]
fn memory_that_cannot_be_distinguished_is_named() {
    let home = Home::new(logged());
    drop(home.open());
    let regions = Pool::memory(home.pool()).unwrap();
    for part in &regions {
        let again = part.to_string_lossy().replace("-region", "0-region").replace("-marks", "0-marks");
        std::fs::copy(part, again).unwrap();
    }
    BACKING.iter().for_each(|name| std::fs::remove_file(home.pool().join(name)).unwrap());
    let refusal = home.refused();
    assert!(refusal.contains("may both be") && refusal.contains("move the one away"), "{refusal}");
}

/// A process that made another pool destroyed the rest of one whose `image` was gone, and memory of restored pools.
#[test]
fn memory_stays_as_long_as_its_pool_is_there() {
    let (home, restored, renamed) = twins();
    let moved = home.0.path().join("moved");
    std::fs::rename(&renamed, &moved).unwrap();
    for dir in [&home.pool(), &restored, &moved] {
        write(&open(dir), "precious", "in memory");
    }
    let memory = [&home.pool(), &restored, &moved].map(|dir| Pool::memory(dir).unwrap());
    std::fs::remove_file(home.pool().join("image")).unwrap();
    drop(Home::new(logged()));
    assert!(memory.iter().flatten().all(|part| part.exists()));
    let alone = Pool::of_memory(home.pool()).unwrap();
    assert_eq!(read(&alone, "precious").as_deref(), Some("in memory"));
    drop(alone);

    // Another pool in the place of the one that is gone.
    std::fs::remove_dir_all(&restored).unwrap();
    Pool::format(&restored, &logged()).unwrap();
    drop(Home::new(logged()));
    assert!(!memory[1].iter().any(|part| part.exists()) && memory[2].iter().all(|part| part.exists()));
    forget(&restored);
}

/// A pool with "early" in its backing and "late" in memory alone, whose name is as if its disk had had another number.
fn leave_on_another_disk(dir: &Path) {
    let pool = open(dir);
    write(&pool, "early", "in the backing");
    pool.sync().unwrap();
    write(&pool, "late", "in memory alone");
    // As a killed process leaves it.
    let memory = Pool::memory(dir).unwrap();
    let killed: Vec<Vec<u8>> = memory.iter().map(|part| std::fs::read(part).unwrap()).collect();
    let backing = BACKING.map(|name| std::fs::read(dir.join(name)).unwrap());
    drop(pool);
    for (part, bytes) in memory.iter().zip(&killed) {
        std::fs::remove_file(part).unwrap();
        let name = part.file_name().unwrap().to_str().unwrap();
        let mut name: Vec<&str> = name.split('-').collect();
        name[2] = "fffff";
        std::fs::write(part.with_file_name(name.join("-")), bytes).unwrap();
    }
    BACKING.iter().zip(&backing).for_each(|(name, bytes)| std::fs::write(dir.join(name), bytes).unwrap());
}

/// Changes of a restored or renamed pool in memory alone were lost when its disk was attached anew.
#[test]
fn memory_is_found_again_when_its_disk_has_another_number() {
    let (home, restored, renamed) = twins();
    let (early, late) = (home.0.path().join("renamed-early"), home.0.path().join("renamed-late"));
    std::fs::rename(&renamed, &early).unwrap();
    for dir in [&home.pool(), &restored, &early] {
        leave_on_another_disk(dir);
        if *dir == early {
            std::fs::rename(&early, &late).unwrap();
        }
        let dir = if *dir == early { &late } else { dir };
        let pool = open(dir);
        assert_eq!(read(&pool, "late").as_deref(), Some("in memory alone"), "{}", dir.display());
        drop(pool);
        forget(dir);
    }
}

/// Two disks that changed their numbers: the memory that has a pool's name is another's, of the same UUID.
#[test]
fn memory_of_another_pool_makes_way() {
    let (home, one, other) = twins();
    write(&open(&one), "ours", "on disk");
    write(&open(&other), "theirs", "in memory");
    Pool::release(&one).unwrap();
    let (named, theirs) = (Pool::memory(&one).unwrap(), Pool::memory(&other).unwrap());
    for (from, to) in theirs.iter().zip(&named) {
        std::fs::rename(from, to).unwrap();
    }
    assert!(Pool::memory_alone(&one).unwrap().is_none());
    import(&one, true).unwrap();
    assert!(named.iter().all(|part| part.exists()), "it is not the one that is given up");
    for (dir, name) in [(&one, "ours"), (&other, "theirs"), (&one, "ours")] {
        let pool = open(dir);
        clean(&pool);
        let all = ["ours", "theirs"].map(|name| read(&pool, name).is_some());
        assert_eq!(all, ["ours", "theirs"].map(|there| there == name), "{}", dir.display());
    }
    assert!(theirs.iter().all(|part| part.exists()), "it was not made anew");
    drop(home);
}

/// Removes the marks, as a restart of the host does.
fn restart(home: &Home) {
    forget(&home.pool());
}

fn mirrored() -> FormatOptions {
    FormatOptions { mirror: true, ..with_backing("backing".as_ref()) }
}

/// The files of a backing that had been away were taken for the ones that took their place: both had as many commits.
#[test]
fn a_backing_that_was_away_meanwhile_is_distinguished() {
    for how in [with_backing("backing".as_ref()), mirrored()] {
        let home = Home::new(how.clone());
        let (backing, away) = (home.pool().join("backing"), home.pool().join("away"));
        write(&home.open(), "first", "with the first backing");
        restart(&home);
        std::fs::rename(&backing, &away).unwrap();
        write(&home.open(), "second", "with the second backing");
        restart(&home);
        let aside = home.pool().join("aside");
        std::fs::rename(&backing, &aside).unwrap();
        std::fs::rename(&away, &backing).unwrap();
        for _ in 0..2 {
            match how.mirror {
                true => {
                    let refusal = home.refused();
                    assert!(refusal.contains("another backing") && refusal.contains("Move image"), "{refusal}");
                }
                false => {
                    let pool = home.open();
                    assert!(pool.status().unwrap().backing.unwrap().failure.is_some());
                    assert_eq!(read(&pool, "second").as_deref(), Some("with the second backing"));
                }
            }
            restart(&home);
        }
        // The right one is put back.
        std::fs::rename(&backing, &away).unwrap();
        std::fs::rename(&aside, &backing).unwrap();
        let pool = home.open();
        clean(&pool);
        assert!(pool.status().unwrap().backing.unwrap().failure.is_none());
        drop(pool);
        restart(&home);
        import(&home.pool(), true).unwrap();
        assert_eq!(read(&home.open(), "second").as_deref(), Some("with the second backing"));
    }
}

/// An older state of the memory was taken for the newer one when it was opened twice, or had been copied while in use.
#[test]
fn an_older_region_never_replaces_what_the_backing_has() {
    for (how, in_use) in
        [(with_backing("backing".as_ref()), false), (with_backing("backing".as_ref()), true), (mirrored(), true)]
    {
        let home = Home::new(how.clone());
        let (memory_path, old) = (home.pool().join("nvram"), home.pool().join("old"));
        let pool = home.open();
        write(&pool, "early", "in both");
        backing::of(pool.session()).unwrap().wait(pool.session()).unwrap();
        if in_use {
            std::fs::copy(&memory_path, &old).unwrap();
        }
        drop(pool);
        if !in_use {
            std::fs::copy(&memory_path, &old).unwrap();
        }
        write(&home.open(), "late", "in the newer one and in the backing");
        restart(&home);
        std::fs::copy(&old, &memory_path).unwrap();
        for _ in 0..3 {
            if how.mirror {
                let refusal = home.refused();
                assert!(refusal.contains("an old one") && refusal.contains("conquest import --force"), "{refusal}");
            } else {
                let pool = home.open();
                assert!(pool.status().unwrap().backing.unwrap().failure.is_some(), "in use: {in_use}");
            }
            restart(&home);
        }
        import(&home.pool(), true).unwrap();
        let pool = home.open();
        clean(&pool);
        assert!(pool.status().unwrap().backing.unwrap().failure.is_none());
        assert_eq!(read(&pool, "late").as_deref(), Some("in the newer one and in the backing"));
    }
}

/// A memory that had only lost its name was made anew beside the one in use, and both wrote to one mirror.
#[test]
fn a_region_in_use_is_not_made_a_second_time() {
    let home = Home::new(mirrored());
    let pool = home.open();
    write(&pool, "before", "1");
    std::fs::remove_file(home.pool().join("nvram")).unwrap();
    let refusal = home.refused();
    assert!(refusal.contains("works on the pool") && refusal.contains("unmount"), "{refusal}");
    assert!(import(&home.pool(), true).unwrap_err().to_string().contains("works on the pool"));
    write(&pool, "after", "2");
    drop(pool);
    let pool = home.open();
    clean(&pool);
    assert_eq!([read(&pool, "before"), read(&pool, "after")].map(Option::unwrap), ["1", "2"]);
}

/// A copied pool directory led to the mirror of the first one: both wrote to it, and in the end neither could be opened.
#[test]
fn a_copied_pool_does_not_work_with_the_backing_of_the_first() {
    for mirror in [true, false] {
        let backing = tempfile::tempdir_in("/dev/shm").unwrap();
        let home = Home::new(FormatOptions { mirror, ..with_backing(&backing.path().join("m")) });
        write(&home.open(), "early", "in both");
        let other = Home(tempfile::tempdir_in("/dev/shm").unwrap());
        std::fs::create_dir(other.pool()).unwrap();
        for name in ["pool.toml", "nvram"] {
            std::fs::copy(home.pool().join(name), other.pool().join(name)).unwrap();
        }
        let pool = home.open();
        match mirror {
            true => {
                let refusal = other.refused();
                assert!(refusal.contains("in use by a process that has another region open"), "{refusal}");
            }
            false => assert!(other.open().status().unwrap().backing.unwrap().failure.is_some()),
        }
        write(&pool, "late", "in one");
        backing::of(pool.session()).unwrap().wait(pool.session()).unwrap();
        let again = home.open();
        drop((pool, again));
        // One after the other, too, the backing stays with the newer one.
        match mirror {
            true => assert!(other.refused().contains("an old one")),
            false => assert!(other.open().status().unwrap().backing.unwrap().failure.is_some()),
        }
        let pool = home.open();
        assert!(pool.status().unwrap().backing.unwrap().failure.is_none());
        drop(pool);
        import(&home.pool(), true).unwrap();
        assert_eq!(read(&home.open(), "late").as_deref(), Some("in one"));
    }
}

/// Memory whose marks were lost was taken for the newer one, though the backing had gone on elsewhere.
#[test]
fn older_memory_without_marks_does_not_replace_what_the_backing_has() {
    for closed in [true, false] {
        let home = Home::new(logged());
        let memory_path = Pool::memory(home.pool()).unwrap().remove(0);
        let pool = home.open();
        write(&pool, "early", "in both");
        pool.sync().unwrap();
        let killed = std::fs::read(&memory_path).unwrap();
        drop(pool);
        let old = if closed { std::fs::read(&memory_path).unwrap() } else { killed };
        // Another host.
        forget(&home.pool());
        let pool = home.open();
        write(&pool, "new", "durable");
        pool.sync().unwrap();
        drop(pool);
        forget(&home.pool());
        std::fs::write(&memory_path, &old).unwrap();
        if !closed {
            for _ in 0..2 {
                let refusal = home.refused();
                assert!(refusal.contains("gone on"), "{refusal}");
                assert!(refusal.contains("conquest save"), "{refusal}");
            }
            let alone = Pool::of_memory(home.pool()).unwrap();
            assert_eq!(read(&alone, "early").as_deref(), Some("in both"));
            drop(alone);
            std::fs::remove_file(&memory_path).unwrap();
        }
        let pool = home.open();
        clean(&pool);
        assert_eq!([read(&pool, "early"), read(&pool, "new")].map(Option::unwrap), ["in both", "durable"]);
    }
}

/// Marks alone are lost: the memory is used, with the changes that it alone has.
#[test]
fn memory_without_marks_goes_on_where_its_backing_has_not() {
    for loaded in [false, true] {
        let home = Home::new(logged());
        if loaded {
            write(&home.open(), "first", "in both");
            forget(&home.pool());
        }
        let pool = home.open();
        write(&pool, "early", "in both");
        pool.sync().unwrap();
        write(&pool, "late", "in memory alone");
        let memory = Pool::memory(home.pool()).unwrap();
        let killed = std::fs::read(&memory[0]).unwrap();
        let backing = BACKING.map(|name| std::fs::read(home.pool().join(name)).unwrap());
        drop(pool);
        std::fs::write(&memory[0], &killed).unwrap();
        std::fs::remove_file(&memory[1]).unwrap();
        BACKING.iter().zip(&backing).for_each(|(name, bytes)| std::fs::write(home.pool().join(name), bytes).unwrap());
        let pool = home.open();
        clean(&pool);
        assert_eq!(read(&pool, "late").as_deref(), Some("in memory alone"));
        drop(pool);
        // Closed in order: nothing need be compared.
        std::fs::remove_file(&memory[1]).unwrap();
        assert_eq!(read(&home.open(), "late").as_deref(), Some("in memory alone"));
    }
}

/// A memory from before the first commit was taken for the newest.
#[test]
fn a_region_that_was_new_does_not_replace_what_its_backing_has() {
    for (how, opened) in
        [(mirrored(), false), (with_backing("backing".as_ref()), false), (with_backing("backing".as_ref()), true)]
    {
        let home = Home::new(how.clone());
        let region = home.pool().join("nvram");
        let pool = opened.then(|| home.open());
        let old = std::fs::read(&region).unwrap();
        drop(pool);
        write(&home.open(), "late", "in both");
        restart(&home);
        std::fs::write(&region, &old).unwrap();
        for _ in 0..2 {
            match how.mirror {
                true => assert!(home.refused().contains("conquest import --force")),
                false => assert!(home.open().status().unwrap().backing.unwrap().failure.is_some(), "opened: {opened}"),
            }
            restart(&home);
        }
        import(&home.pool(), true).unwrap();
        assert_eq!(read(&home.open(), "late").as_deref(), Some("in both"));
    }
}

/// The memories of the pool at `dir`.
fn regions(dir: &Path) -> Vec<PathBuf> {
    let uuid = conquest::config::Config::read(dir).unwrap().unwrap().uuid.replace('-', "");
    let is_its = |path: &PathBuf| path.to_string_lossy().contains(&uuid) && path.to_string_lossy().ends_with("-region");
    std::fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.path()).filter(is_its).collect()
}

/// A directory's own `image` was taken for what an interrupted format had left.
#[test]
fn files_that_are_nobodys_backing_are_not_formatted_over() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let how = FormatOptions::on(MediumKind::Logged, 8 << 20);
    let away = tempfile::tempdir_in("/dev/shm").unwrap();
    let (other, image) = (away.path().join("other"), away.path().join("saved"));
    Pool::format(&other, &how).unwrap();
    open(&other).save(&image, &mut |_, _| {}).unwrap();
    forget(&other);
    for name in BACKING {
        std::fs::write(dir.path().join(name), "mine").unwrap();
        for force in [false, true] {
            let refusal = Pool::format(dir.path(), &FormatOptions { force, ..how.clone() }).unwrap_err().to_string();
            assert!(refusal.contains(name) && refusal.contains("no pool's memory"), "{refusal}");
        }
        let restored = Pool::restore(dir.path(), &image, Some(MediumKind::Logged), true, &mut |_, _| {});
        assert!(restored.is_err_and(|e| e.to_string().contains("no pool's memory")));
        assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), b"mine");
        std::fs::write(dir.path().join(name), [0; 5000]).unwrap();
    }
    Pool::format(dir.path(), &how).unwrap();
    forget(dir.path());
}

/// The option that destroys a pool overwrote any file that was named as memory, beside it.
#[test]
fn memory_is_made_over_that_of_pools_and_over_no_other_file() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (thesis, pool) = (dir.path().join("thesis"), dir.path().join("pool"));
    std::fs::write(&thesis, "text").unwrap();
    let on = |nvram: &Path, force| FormatOptions {
        nvram: Some(nvram.into()),
        force,
        ..FormatOptions::on(MediumKind::Battery, 8 << 20)
    };
    for force in [false, true] {
        let refusal = Pool::format(&pool, &on(&thesis, force)).unwrap_err().to_string();
        assert!(refusal.contains("no pool's memory") && refusal.contains("remove it"), "{refusal}");
    }
    assert_eq!(std::fs::read(&thesis).unwrap(), b"text");
    // Room that a user has made for it; a pool's memory; and the pool's own, in any state.
    let memory = dir.path().join("memory");
    std::fs::File::create(&memory).unwrap().set_len(8 << 20).unwrap();
    Pool::format(&pool, &on(&memory, false)).unwrap();
    let other = dir.path().join("other");
    assert!(Pool::format(&other, &on(&memory, false)).unwrap_err().to_string().contains("--force"));
    Pool::format(&other, &on(&memory, true)).unwrap();
    std::fs::write(&memory, "damaged").unwrap();
    Pool::format(&other, &on(&memory, true)).unwrap();
    Pool::open(&other, &OpenOptions::default()).unwrap();
}

/// A format or restore that was killed left the memory of a whole pool, which no process ever found.
#[test]
fn memory_of_pools_that_were_never_finished_is_given_back() {
    let name = |before: &str, what: &str, end: &str| {
        PathBuf::from(format!("/dev/shm/{before}conquest-test{}{what}-0-0-region{end}", std::process::id()))
    };
    let left = [name("", "left", ""), name("", "loaded", ".new"), name(".", "restored", ".new")];
    let [making, made] = ["making", "made"].map(|what| name("", what, ""));
    left.iter().chain([&making]).for_each(|path| std::fs::write(path, [0; 100_000]).unwrap());
    [&left[1], &left[2], &made].into_iter().for_each(|path| std::fs::write(path, [1; 100_000]).unwrap());
    let locked = std::fs::File::open(&making).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();
    drop(Home::new(FormatOptions::on(MediumKind::Logged, 8 << 20)));
    let there = [&making, &made].map(|path| path.exists());
    [making, made].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    assert_eq!((left.map(|path| path.exists()), there), ([false; 3], [true; 2]));
}

/// The runtime file of killed processes stayed for ever if the file was replaced after which it is named.
#[test]
fn what_killed_processes_shared_goes_with_their_pool() {
    let logged = FormatOptions::on(MediumKind::Logged, 8 << 20);
    for how in [logged, with_backing(".".as_ref())] {
        let home = Home::new(how.clone());
        let image = home.0.path().join("saved");
        home.open().save(&image, &mut |_, _| {}).unwrap();
        let restore = |dir: &Path| Pool::restore(dir, &image, None, true, &mut |_, _| {});
        let format = |dir: &Path| Pool::format(dir, &FormatOptions { force: true, ..how.clone() });
        for replace in
            [&restore as &dyn Fn(&Path) -> conquest_fs::Result<()>, &|dir| import(dir, true).map(drop), &format]
        {
            drop(home.open());
            home.open().sync().unwrap();
            let memory = Pool::memory(home.pool()).unwrap().pop().unwrap().to_string_lossy().into_owned();
            let shared = PathBuf::from(memory.strip_suffix("-marks").unwrap());
            std::fs::write(&shared, "left").unwrap();
            replace(&home.pool()).unwrap();
            assert!(!shared.exists());
            clean(&home.open());
        }
    }
}

/// A size that was mistyped, or too large, cost the existing pool.
#[test]
fn a_pool_that_cannot_be_made_leaves_the_one_that_is_there() {
    let logged = FormatOptions::on(MediumKind::Logged, 8 << 20);
    for how in [logged, with_backing(".".as_ref())] {
        let home = Home::new(how.clone());
        write(&home.open(), "old", "still there");
        for size in [100 << 10, 1 << 45] {
            let new = FormatOptions { size, force: true, ..how.clone() };
            assert!(Pool::format(home.pool(), &new).is_err());
            assert_eq!(read(&home.open(), "old").as_deref(), Some("still there"));
        }
        let files = std::fs::read_dir(home.pool()).unwrap().flatten();
        assert_eq!(files.filter(|file| file.file_name().to_string_lossy().starts_with('.')).count(), 0);
    }
}

/// A process that had mapped the memory, to test whether it is one, ended by SIGBUS.
#[test]
fn a_region_is_not_cut_short_where_a_new_one_is_made() {
    let home = Home::new(with_backing(".".as_ref()));
    let looking = std::fs::File::open(home.pool().join("nvram")).unwrap();
    let before = looking.metadata().unwrap();
    Pool::format(home.pool(), &FormatOptions { force: true, ..with_backing(".".as_ref()) }).unwrap();
    let after = looking.metadata().unwrap();
    assert_eq!((after.size(), after.blocks(), after.nlink()), (before.size(), before.blocks(), 0));
    clean(&home.open());
}

/// The mirror of a pool in use was deleted.
#[test]
fn a_backing_that_another_pool_works_with_stays() {
    let beside = tempfile::tempdir_in("/dev/shm").unwrap();
    let home = Home::new(FormatOptions { mirror: true, ..with_backing(beside.path()) });
    let pool = home.open();
    let image = home.0.path().join("saved");
    pool.save(&image, &mut |_, _| {}).unwrap();
    let (new, logged) = (home.0.path().join("new"), FormatOptions::on(MediumKind::Logged, 8 << 20));
    let refused = [
        Pool::format(&new, &FormatOptions { force: true, ..with_backing(beside.path()) }),
        Pool::format(beside.path(), &FormatOptions { force: true, ..logged }),
        Pool::restore(beside.path(), &image, None, true, &mut |_, _| {}),
    ];
    for refusal in refused.map(|made| made.unwrap_err().to_string()) {
        let is_another = refusal.contains("in use") || refusal.contains("of another pool");
        assert!(is_another && refusal.contains(&*beside.path().to_string_lossy()), "{refusal}");
    }
    assert!(!new.exists());
    write(&pool, "more", "in the mirror");
    drop(pool);
    // Nor when no process uses it.
    assert!(Pool::format(&new, &FormatOptions { force: true, ..with_backing(beside.path()) }).is_err());
    assert!(View::new(&home.open(), Caller::root()).stat(b"more").is_ok());
}

/// Writes from within the restore or import of the pool at `dir` that `replace` begins; returns the outcome.
fn opened_meanwhile(
    home: &Home,
    replace: impl FnOnce(&Path, &mut dyn FnMut(u64, u64)) -> conquest_fs::Result<()>,
) -> String {
    let mut during = None;
    let refusal = replace(&home.pool(), &mut |_, _| {
        during.get_or_insert_with(|| {
            let pool = home.open();
            write(&pool, "acked", "promised");
            pool
        });
    });
    let refusal = refusal.unwrap_err().to_string();
    write(&home.open(), "later", "promised too");
    drop(during.expect("there was time"));
    let pool = home.open();
    clean(&pool);
    assert_eq!(read(&pool, "acked").as_deref(), Some("promised"));
    assert_eq!(read(&pool, "later").as_deref(), Some("promised too"));
    refusal
}

#[test]
fn a_pool_that_is_opened_while_it_is_replaced_stays() {
    let home = Home::new(with_backing(".".as_ref()));
    let image = home.0.path().join("saved");
    home.open().save(&image, &mut |_, _| {}).unwrap();
    let refusal = opened_meanwhile(&home, |dir, progress| Pool::restore(dir, &image, None, true, progress));
    assert!(refusal.contains("in use"), "{refusal}");
    let home = Home::new(with_backing(".".as_ref()));
    drop(home.open());
    let refusal = opened_meanwhile(&home, |dir, progress| Pool::import(dir, true, progress).map(drop));
    assert!(refusal.contains("in use"), "{refusal}");
}

#[test]
fn a_pool_that_was_used_while_it_was_imported_stays() {
    let home = Home::new(with_backing(".".as_ref()));
    drop(home.open());
    let mut used = false;
    let refusal = Pool::import(home.pool(), true, &mut |_, _| {
        if !std::mem::replace(&mut used, true) {
            write(&home.open(), "acked", "and in the backing when it was closed");
        }
    });
    assert!(refusal.unwrap_err().to_string().contains("try again"));
    assert!(read(&home.open(), "acked").is_some());
    import(&home.pool(), true).unwrap();
    assert!(read(&home.open(), "acked").is_some());
}

#[test]
fn a_region_that_is_replaced_while_one_waits_for_it_is_not_used() {
    let home = Home::new(FormatOptions::on(MediumKind::Battery, 8 << 20));
    let (nvram, other) = (home.pool().join("nvram"), home.pool().join("other"));
    let held = std::fs::File::open(&nvram).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|s| {
        let opening = s.spawn(|| write(&home.open(), "acked", "promised"));
        std::thread::sleep(Duration::from_millis(300));
        std::fs::copy(&nvram, &other).unwrap();
        std::fs::rename(&other, &nvram).unwrap();
        drop(held);
        opening.join().unwrap();
    });
    assert_eq!(read(&home.open(), "acked").as_deref(), Some("promised"));
}

/// A pool on battery is replaced by a memory whose file has the number of one that was killed: marks that say that
/// its backing holds it must not count.
fn stale_marks_are_not_believed(mirror: bool) {
    let home = Home::new(FormatOptions { mirror, ..with_backing(".".as_ref()) });
    let image = home.0.path().join("saved");
    let pool = home.open();
    (0..40).for_each(|n| write(&pool, &format!("early{n}"), &"e".repeat(3000)));
    pool.save(&image, &mut |_, _| {}).unwrap();
    for n in 0..40 {
        View::new(&pool, Caller::root()).unlink(format!("early{n}").as_bytes()).unwrap();
        write(&pool, &format!("late{n}"), &"l".repeat(3000));
    }
    backing::of(pool.session()).unwrap().wait(pool.session()).unwrap();
    let old = Pool::memory(home.pool()).unwrap().remove(0);
    let killed = std::fs::read(&old).unwrap();
    drop(pool);
    // The remains of a killed restore become the new memory, and its number is known.
    let number = |name: &str| format!("{:x}-marks", std::fs::metadata(home.pool().join(name)).unwrap().ino());
    std::fs::write(home.pool().join(".nvram.new"), "").unwrap();
    let name = old.file_name().unwrap().to_str().unwrap().replace(&number("nvram"), &number(".nvram.new"));
    let new = old.with_file_name(name);
    assert_ne!(old, new);
    [&old, &new].into_iter().for_each(|marks| std::fs::write(marks, &killed).unwrap());

    Pool::restore(home.pool(), &image, None, true, &mut |_, _| {}).unwrap();
    assert_eq!(Pool::memory(home.pool()).unwrap(), std::slice::from_ref(&new));
    assert!(!old.exists() && !new.exists());
    let pool = home.open();
    write(&pool, "restored", "yes");
    backing::of(pool.session()).unwrap().wait(pool.session()).unwrap();
    drop(pool);
    import(&home.pool(), true).unwrap();
    let pool = home.open();
    clean(&pool);
    assert!(["early3", "restored"].iter().all(|path| read(&pool, path).is_some()));
    assert_eq!(read(&pool, "late3"), None);
}

#[test]
fn marks_of_a_region_that_is_gone_are_not_believed() {
    stale_marks_are_not_believed(false);
    stale_marks_are_not_believed(true);
}

#[test]
fn a_scrub_puts_right_a_backing_that_lies_in_files() {
    let beside = tempfile::tempdir_in(".").unwrap();
    let home = Home::new(FormatOptions {
        regions: vec![conquest::NewDisk { path: beside.path().join("disk"), size: Some(64 << 20) }.into()],
        ..with_backing(&beside.path().join("backing"))
    });
    let pool = home.open();
    write(&pool, "file", "text");
    backing::of(pool.session()).unwrap().wait(pool.session()).unwrap();
    let scrub = || pool.scrub(&mut |_, _| true).unwrap().damage;
    assert!(scrub().is_empty());
    for name in &BACKING[1..] {
        let path = beside.path().join("backing").join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.iter_mut().skip(8192).step_by(4096).for_each(|byte| *byte ^= 0x10);
        // In place: else it is another file.
        std::os::unix::fs::FileExt::write_all_at(&File::options().write(true).open(&path).unwrap(), &bytes, 0).unwrap();
    }
    let found = scrub();
    assert!(!found.is_empty() && found.iter().all(|one| one.repaired && one.beside), "{found:?}");
    // None if the image has all of the logs.
    assert!(pool.session().runtime().backing_anew().0 <= 1, "once for all that is damaged");
    assert!(scrub().is_empty());
}

/// In files or on both disks of a mirror, and whether or not the pool is in use.
#[test]
fn a_check_tells_of_a_rotten_backing_and_leaves_it() {
    let beside = tempfile::tempdir_in(".").unwrap();
    let disks = ["d0", "d1"].map(|name| conquest::NewDisk { path: beside.path().join(name), size: Some(64 << 20) });
    let logged = || FormatOptions::on(MediumKind::Logged, 8 << 20);
    let in_regions = || FormatOptions {
        regions: vec![conquest::NewRegion { layout: conquest::Layout::Mirror, disks: disks.to_vec() }],
        backing_in_regions: conquest::InRegions::Yes,
        ..logged()
    };
    for how in [in_regions(), logged()] {
        let home = Home::new(how);
        let files: Vec<PathBuf> = match home.pool().join("redo-1").exists() {
            true => BACKING[1..].iter().map(|name| home.pool().join(name)).collect(),
            false => vec![disks[1].path.clone()],
        };
        let checked = |pool: &Pool| {
            let found = pool.check_backing().expect("it has one");
            assert!(found.damage.iter().all(|one| !one.repaired), "{found:?}");
            (found.damage.is_empty() && found.failure.is_none(), found)
        };
        let pool = home.open();
        write(&pool, "file", "text");
        backing::of(pool.session()).unwrap().wait(pool.session()).unwrap();
        assert!(checked(&pool).0 && checked(&pool).1.bytes > 0, "{:?}", checked(&pool));
        let flip = || {
            for path in &files {
                let mut bytes = std::fs::read(path).unwrap();
                let from = if files.len() == 1 { 1 << 20 } else { 8192 };
                bytes.iter_mut().skip(from + 20).step_by(512).for_each(|byte| *byte ^= 0x10);
                let file = File::options().write(true).open(path).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
            }
        };
        flip();
        assert!(!checked(&pool).0);
        // The pool repairs damage that reading finds by itself, some time.
        assert!(pool.scrub(&mut |_, _| true).unwrap().damage.iter().all(|one| one.repaired));
        backing::of(pool.session()).unwrap().wait(pool.session()).unwrap();
        assert!(checked(&pool).0, "{:?}", checked(&pool));
        drop(pool);
        let rest = || checked(&Pool::look_whole(home.pool()).unwrap());
        assert!(rest().0, "{:?}", rest());
        flip();
        let bytes = || files.iter().map(|path| std::fs::read(path).unwrap()).collect::<Vec<_>>();
        let rotten = bytes();
        assert!(!rest().0 && bytes() == rotten, "nobody uses it");
    }
}

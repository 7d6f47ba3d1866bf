//! A pool that was made beside another takes its place: entirely or not at all, wherever that is interrupted.
//!
//! The new pool is whole and durable before: in [`STAGING`] lie its `pool.toml` and, on `logged`, the files of its backing; on the
//! other media its memory lies [beside the memory](staged_beside) that it replaces, since that may be in another file system. Then, in
//! this order:
//!
//! 1. `STAGING` is named [`DECIDED`], durably. Until then the pool is the old one, from then on the new one: the next process
//!    does the rest, and repeats any part of it.
//! 2. Memory and marks of the old pool are removed. Earlier, changes that only they hold would be lost for a pool that never was;
//!    later, nothing would lead to them, as the file is replaced after which they are named.
//! 3. The memory takes its place.
//! 4. The backing of the old pool is removed, durably: opening the pool makes a new one. Earlier, an old memory that was lost by
//!    then could not be made from it.
//! 5. The disks of the old pool that the new pool does not use are removed, and the new pool's own take their places: they are
//!    durable one by one. Earlier, an old pool would have lost its content; later, its memory would lead to disks that are gone.
//! 6. The files take their places, durably; then `pool.toml` does, which tells that step 7 alone is left; it too is durable before
//!    `DECIDED` is removed.
//! 7. `DECIDED` is removed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::OnStep;
use crate::backing::{files, logged};
use crate::config::Config;
use crate::disks::place;
use crate::medium::MediumKind;
use crate::memory::marks;
use crate::paths::{self, staged_beside, BACKING, DECIDED, IMAGE, STAGING};
use conquest_fs::error::{Error, Result};

/// Puts the pool in `STAGING` in the place of the one in `dir`, to which no process is or can be attached.
pub fn replace(dir: &Path, step: OnStep) -> Result<()> {
    step()?;
    fs::rename(dir.join(STAGING), dir.join(DECIDED)).map_err(|e| Error::host(&dir.join(DECIDED), &e))?;
    sync(dir).map_err(|e| Error::host(dir, &e))?;
    finish(dir, step)
}

/// Does the rest, while no other process makes a pool there.
pub fn finish(dir: &Path, step: OnStep) -> Result<()> {
    let from = dir.join(DECIDED);
    if let Some(new) = Config::read_for(dir, &from.join(paths::CONFIG))? {
        let old = Config::read(dir).ok().flatten();
        let swap = Swap { dir, from: &from, old: old.as_ref(), new: &new };
        swap.clear_way(step)?;
        swap.move_in(step)?;
    }
    step()?;
    fs::remove_dir_all(&from).map_err(|e| unfinished(dir, &e))
}

/// The replacement of one pool, or of none, by another.
struct Swap<'a> {
    dir: &'a Path,
    from: &'a Path,
    old: Option<&'a Config>,
    new: &'a Config,
}

impl Swap<'_> {
    fn clear_way(&self, step: OnStep) -> Result<()> {
        // Of a pool that this one was copied from, say.
        if let Some(backing) = self.old_backings().find(|backing| files::are_in_use(backing).unwrap_or(false)) {
            return Err(Error::Pool(format!(
                "{}: making the pool was interrupted, and cannot be finished while somebody uses the backing in {}: unmount that \
                 first",
                self.dir.display(),
                backing.display()
            )));
        }
        // Once its image is in place, which moves last, the memory would be that of the new pool.
        if self.is_memory_new() || self.from.join(IMAGE).exists() {
            step()?;
            self.forget_memory();
        }
        if self.is_memory_new() {
            step()?;
            self.place_region().map_err(|e| unfinished(self.dir, &e))?;
        }
        for backing in self.old_backings() {
            step()?;
            files::remove(&backing);
            sync(&backing).map_err(|e| unfinished(self.dir, &e))?;
        }
        self.change_disks(step)
    }

    fn change_disks(&self, step: OnStep) -> Result<()> {
        let uuid = self.old.map(Config::uuid_bytes).transpose()?.unwrap_or_default();
        for entry in place::left_behind(self.dir, self.old, self.new) {
            step()?;
            place::remove(self.dir, entry, uuid)?;
        }
        for (n, entry) in place::waiting(self.dir, self.from, self.new) {
            step()?;
            place::take_place(self.dir, self.from, n, entry)?;
        }
        Ok(())
    }

    fn move_in(&self, step: OnStep) -> Result<()> {
        for name in BACKING.into_iter().filter(|name| self.from.join(name).exists()) {
            step()?;
            self.move_file(name)?;
        }
        sync(self.dir).map_err(|e| Error::host(self.dir, &e))?;
        step()?;
        self.move_file(paths::CONFIG)?;
        sync(self.dir).map_err(|e| Error::host(self.dir, &e))
    }

    fn move_file(&self, name: &str) -> Result<()> {
        fs::rename(self.from.join(name), self.dir.join(name)).map_err(|e| unfinished(self.dir, &e))
    }

    /// Is the memory a file that takes the place of another?
    fn is_memory_new(&self) -> bool {
        self.new.medium != MediumKind::Logged
    }

    fn forget_memory(&self) {
        self.old.iter().for_each(|old| forget(self.dir, old));
        if self.old.is_none() {
            forget_orphan(self.dir);
        }
        if self.is_memory_new() {
            let path = self.new.nvram_path(self.dir);
            let uuids: Vec<_> = self.old.into_iter().chain([self.new]).flat_map(Config::uuid_bytes).collect();
            // Also marks that were left of a memory whose file had the number of the new one: they would say that the backing of
            // the new one holds it.
            for lock in [&path, &staged_beside(&path)].into_iter().flat_map(fs::File::open) {
                uuids.iter().for_each(|uuid| marks::forget(&lock, uuid));
            }
        }
    }

    fn place_region(&self) -> std::io::Result<()> {
        let path = self.new.nvram_path(self.dir);
        let (new, path) = (staged_beside(&path), path.canonicalize().unwrap_or(path));
        if !new.exists() {
            return Ok(());
        }
        if let Ok(old) = fs::metadata(&path) {
            // Every user who could open the pool still can.
            let _ = std::os::unix::fs::chown(&new, Some(old.uid()), Some(old.gid()));
            let _ = fs::set_permissions(&new, old.permissions());
        }
        fs::rename(&new, &path)?;
        sync(path.parent().unwrap_or(Path::new("/")))
    }

    /// The directories of backings that must not be found. On `logged` the new backing takes the place of the old.
    fn old_backings(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let backings = self.old.into_iter().chain([self.new]).filter_map(|config| config.backing_dir(self.dir));
        let own = self.dir.canonicalize().ok().filter(|_| !self.is_memory_new());
        backings.filter(move |backing| paths::has_backing_files(backing) && backing.canonicalize().ok() != own)
    }
}

/// Removes the shared memory of the pool that was in `dir`.
pub fn forget(dir: &Path, old: &Config) {
    match (old.medium, old.uuid_bytes(), fs::File::open(old.lock_path(dir))) {
        (MediumKind::Logged, Ok(uuid), _) => logged::forget(dir, &uuid),
        (_, Ok(uuid), Ok(lock)) => marks::forget(&lock, &uuid),
        _ => {}
    }
}

/// The same where only a backing is left.
fn forget_orphan(dir: &Path) {
    if let Some(id) = files::open(dir).ok().and_then(|disks| backing::identify(&disks).ok()) {
        logged::forget(dir, &id.uuid);
    }
}

pub fn sync(dir: &Path) -> std::io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

fn unfinished(dir: &Path, e: &std::io::Error) -> Error {
    Error::Pool(format!(
        "{}: making the pool was interrupted and cannot be finished: {e}; open the pool once as its owner, where the directory \
         can be written",
        dir.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::super::cut_before;
    use super::super::format::format;
    use super::super::reconcile;
    use super::super::restore::{self, Over};
    use super::*;
    use crate::memory::shared;
    use crate::rescue::orphans;
    use crate::{Caller, FormatOptions, OpenOptions, Pool};
    use crate::{Layout, NewDisk, NewRegion};
    use conquest_fs::path::View;

    struct Home(tempfile::TempDir);

    impl Home {
        /// A pool with a file of this name.
        fn with(name: &str, how: &FormatOptions) -> Home {
            let home = Home(tempfile::tempdir_in("/dev/shm").expect("a directory"));
            fs::File::create(given(&home.dir())).and_then(|file| file.set_len(20 << 20)).expect("a file");
            Pool::format(home.dir(), how).expect("formatted");
            View::new(&home.open(), Caller::root()).create(name.as_bytes(), 0o600).expect("made");
            home
        }

        fn dir(&self) -> PathBuf {
            self.0.path().join("pool")
        }

        fn open(&self) -> Pool {
            Pool::open(self.dir(), &OpenOptions::default()).expect("a pool")
        }

        fn has(&self, name: &str) -> bool {
            let pool = self.open();
            assert_eq!(pool.fsck(false, &mut |_, _| {}).expect("checked").problems, Vec::<String>::new());
            assert!(backing::of(pool.session()).is_some());
            let found = View::new(&pool, Caller::root()).stat(name.as_bytes()).is_ok();
            found
        }

        fn memory(&self) -> Vec<PathBuf> {
            Pool::memory(self.dir()).expect("names")
        }

        fn save(&self) -> PathBuf {
            let image = self.0.path().join("saved");
            self.open().save(&image, &mut |_, _| {}).expect("saved");
            image
        }
    }

    impl Drop for Home {
        fn drop(&mut self) {
            Pool::memory(self.dir()).iter().flatten().for_each(|path| _ = fs::remove_file(path));
        }
    }

    fn logged() -> FormatOptions {
        FormatOptions::on(MediumKind::Logged, 8 << 20)
    }

    fn battery() -> FormatOptions {
        FormatOptions { backing: Some(".".into()), ..FormatOptions::on(MediumKind::Battery, 8 << 20) }
    }

    fn mirrored() -> FormatOptions {
        FormatOptions {
            backing: Some("mirror".into()),
            mirror: true,
            ..FormatOptions::on(MediumKind::Battery, 8 << 20)
        }
    }

    /// With a disk of its own and a given one.
    fn on_disks(how: FormatOptions) -> FormatOptions {
        let disk = |path: &str, size| NewDisk { path: path.into(), size };
        let regions = vec![disk("disk", Some(16 << 20)).into(), disk("../given", None).into()];
        FormatOptions { regions, ..how }
    }

    /// The same two disks as one region.
    fn on_a_mirror(how: FormatOptions) -> FormatOptions {
        let regions = on_disks(how.clone()).regions;
        let disks = regions.into_iter().flat_map(|region| region.disks).collect();
        FormatOptions { regions: vec![NewRegion { layout: Layout::Mirror, disks }], ..how }
    }

    fn given(dir: &Path) -> PathBuf {
        dir.with_file_name("given")
    }

    type Make<'a> = &'a dyn Fn(&Path, OnStep) -> Result<()>;

    const OVER: Over = Over { medium: None, force: true, disks: &[] };

    fn restore(dir: &Path, image: &Path, step: OnStep) -> Result<()> {
        restore::restore(dir, image, OVER, &mut |_, _| {}, &mut reconcile::refuse, step).map(drop)
    }

    /// Makes a pool in the place of another, interrupted before step `n`; false if it has fewer.
    fn interrupted(home: &Home, make: Make, n: usize) -> bool {
        cut_before(n, |step| make(&home.dir(), step)).is_err()
    }

    /// Makes pools like `how` with the file "old", each [`interrupted`] at a further step, and calls `check` after each, with
    /// whether the old pool should be there. Returns the number of interruptions.
    fn at_each_step(how: &FormatOptions, make: Make, check: impl Fn(&Home, bool)) -> usize {
        for n in 1.. {
            let home = Home::with("old", how);
            let stopped = interrupted(&home, make, n);
            check(&home, n == 1);
            if !stopped {
                return n - 1;
            }
        }
        0
    }

    /// The new pool has the file "new" if it `is_restored`.
    fn leaves_one(how: &FormatOptions, make: Make, is_restored: bool) -> usize {
        at_each_step(how, make, |home, old| {
            assert_eq!((home.has("old"), home.has("new")), (old, !old && is_restored));
            let is_hidden = |path: PathBuf| path.to_string_lossy().contains(STAGING);
            let left = fs::read_dir(home.dir()).expect("a directory").flatten().map(|entry| entry.path());
            assert_eq!(left.filter(|path| is_hidden(path.clone())).count(), 0);
        })
    }

    #[test]
    fn an_interrupted_restore_leaves_the_old_pool_or_the_new_one() {
        let away = Home::with("new", &logged());
        let image = away.save();
        let make: Make = &|dir, step| restore(dir, &image, step);
        assert_eq!(leaves_one(&logged(), make, true), 7, "the name, the memory, four files, the directory");
        for how in [battery(), mirrored()] {
            assert_eq!(
                leaves_one(&how, make, true),
                6,
                "the name, the marks, memory, backing, pool.toml, the directory"
            );
        }
    }

    /// The restored pool lacks changes that the backing has: it must not take that for its own.
    #[test]
    fn an_interrupted_restore_of_an_older_state_leaves_no_backing_that_does_not_fit() {
        for how in [battery(), mirrored()] {
            let home = Home::with("new", &how);
            let image = home.save();
            for n in 1..=6 {
                assert!(interrupted(&home, &|dir, step| restore(dir, &image, step), n));
                View::new(&home.open(), Caller::root()).create(b"later", 0o600).expect("made");
                assert!(home.has("new") && home.has("later"));
                restore(&home.dir(), &image, &mut || Ok(())).expect("repeated");
                assert!(home.has("new") && !home.has("later"));
            }
        }
    }

    #[test]
    fn an_interrupted_format_leaves_the_old_pool_or_the_new_one() {
        let all = [logged(), battery(), mirrored()];
        for (old, new) in all.iter().flat_map(|old| all.iter().map(move |new| (old, new))) {
            let new = FormatOptions { force: true, ..new.clone() };
            leaves_one(old, &|dir, step| format(dir, &new, step), false);
        }
    }

    /// Also where both have the same disks. Opening the pool tells whether a disk is another pool's.
    #[test]
    fn an_interrupted_format_leaves_a_pool_with_its_disks() {
        let all = [logged(), on_disks(logged()), on_disks(battery())];
        let mirror = on_a_mirror(logged());
        let pairs = all.iter().flat_map(|old| all.iter().map(move |new| (old, new)));
        for (old, new) in pairs.chain([(&all[1], &mirror), (&mirror, &mirror)]) {
            let new = FormatOptions { force: true, ..new.clone() };
            at_each_step(old, &|dir, step| format(dir, &new, step), |home, is_old| {
                assert_eq!(home.has("old"), is_old);
                let expected = if is_old { &old.regions } else { &new.regions };
                let disks: usize = expected.iter().map(|region| region.disks.len()).sum();
                assert_eq!(home.open().status().expect("facts").disks.len(), disks);
                let dir = home.dir();
                assert_eq!(dir.join("disk").exists(), !expected.is_empty());
                assert!(!staged_beside(&dir.join("disk")).exists());
                assert_eq!(label_of(&given(&dir)).is_some(), !expected.is_empty(), "it has a label or lost it");
            });
        }
    }

    /// The pool that a disk belongs to.
    fn label_of(path: &Path) -> Option<exraid::Uuid> {
        let disk = exraid::Disk::open(path, &exraid::Options::default()).expect("a file");
        exraid::Label::read(&disk).ok().map(|label| label.pool)
    }

    #[test]
    fn an_interrupted_restore_keeps_disks_that_carry_the_uuid() {
        for how in [on_disks(logged()), on_disks(battery())] {
            let home = Home::with("new", &how);
            let image = home.save();
            View::new(&home.open(), Caller::root()).create(b"later", 0o600).expect("made");
            for n in 1.. {
                let stopped = interrupted(&home, &|dir, step| restore(dir, &image, step), n);
                assert!(home.has("new"));
                assert_eq!(home.open().status().expect("facts").disks.len(), 2);
                if !stopped {
                    break;
                }
            }
            assert!(!home.has("later"));
        }
    }

    #[test]
    fn a_restore_of_another_pool_gives_up_disks_only_with_force() {
        let away = Home::with("new", &logged());
        let image = away.save();
        let home = Home::with("old", &on_disks(battery()));
        // Its memory is lost: there is no other reason to refuse.
        fs::remove_file(home.dir().join("nvram")).expect("removed");
        let over = Over { medium: None, force: false, disks: &[] };
        let refused =
            restore::restore(&home.dir(), &image, over, &mut |_, _| {}, &mut reconcile::refuse, &mut || Ok(()));
        let refusal = refused.expect_err("disks of another").to_string();
        assert!(
            refusal.contains("another pool") && refusal.contains("--force") && refusal.contains("disk"),
            "{refusal}"
        );
        assert!(home.dir().join("disk").exists() && label_of(&given(&home.dir())).is_some());
        restore(&home.dir(), &image, &mut || Ok(())).expect("forced");
        assert!(home.has("new"));
        assert!(!home.dir().join("disk").exists() && label_of(&given(&home.dir())).is_none());
    }

    #[test]
    fn memory_stays_until_it_is_decided_that_it_goes() {
        let away = Home::with("new", &logged());
        let image = away.save();
        for n in 1..9 {
            let home = Home::with("old", &logged());
            let memory = home.memory();
            interrupted(&home, &|dir, step| restore(dir, &image, step), n);
            assert!(memory.iter().all(|path| path.exists() == (n <= 2)), "before step {n}");
            home.has("new");
            assert!(memory.iter().all(|path| path.exists() == (n == 1)), "after step {n}");
        }
    }

    /// Until the pool is in place, another one is there, or none: its memory was given back as that of a removed pool.
    #[test]
    fn memory_of_a_pool_in_the_making_stays() {
        let home = Home::with("new", &logged());
        let (image, empty) = (home.save(), Home(tempfile::tempdir_in("/dev/shm").expect("a directory")));
        let over = FormatOptions { force: true, ..logged() };
        for home in [&home, &empty] {
            let makes: [Make; 2] = [&|dir, step| restore(dir, &image, step), &|dir, step| format(dir, &over, step)];
            for make in makes {
                let mut sweep = || {
                    orphans::sweep();
                    Ok(())
                };
                make(&home.dir(), &mut sweep).expect("made");
                let memory = home.memory();
                assert!(memory.iter().all(|path| path.exists()), "{memory:?}");
            }
        }
        interrupted(&home, &|dir, step| restore(dir, &image, step), 2);
        orphans::sweep();
        let uuid = backing::save::info(&image).expect("an image").uuid;
        assert!(
            shared::memory_path(&home.dir().join(DECIDED), &uuid).exists(),
            "that of the pool which is there from then on"
        );
        assert!(home.has("new"));
    }

    #[test]
    fn a_pool_whose_restore_was_interrupted_is_imported_from_what_counts() {
        let away = Home::with("new", &logged());
        let image = away.save();
        at_each_step(&logged(), &|dir, step| restore(dir, &image, step), |home, old| {
            Pool::import(home.dir(), true, &mut |_, _| {}).expect("imported");
            assert_eq!((home.has("old"), home.has("new")), (old, !old));
        });
    }

    /// As in the directory of a pool that was copied, with a backing elsewhere.
    #[test]
    fn a_backing_in_use_stays_where_another_pool_names_it() {
        let away = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let how = FormatOptions {
            backing: Some(away.path().join("backing")),
            ..FormatOptions::on(MediumKind::Battery, 8 << 20)
        };
        let (home, other) = (Home::with("old", &how), tempfile::tempdir_in("/dev/shm").expect("a directory"));
        let in_use = home.open();
        let made = other.path().join(DECIDED);
        fs::create_dir(&made).expect("a directory");
        for dir in [other.path(), made.as_path()] {
            fs::copy(home.dir().join(paths::CONFIG), dir.join(paths::CONFIG)).expect("copied");
        }
        let refusal = finish(other.path(), &mut || Ok(())).expect_err("it is in use").to_string();
        assert!(refusal.contains("unmount that first"), "{refusal}");
        assert!(paths::has_backing_files(&away.path().join("backing")));
        drop(in_use);
        assert!(home.has("old"));
    }

    /// A process that came before the restore was done lost its backing, or got the error that the memory was that of another
    /// pool.
    #[test]
    fn who_comes_before_all_is_done_waits() {
        let away = Home::with("new", &logged());
        let image = away.save();
        for (how, n) in [logged(), battery(), mirrored()].iter().flat_map(|how| (1..=6).map(move |n| (how, n))) {
            let (home, steps) = (Home::with("old", how), AtomicUsize::new(0));
            std::thread::scope(|s| {
                let mut coming = None;
                let done = restore(&home.dir(), &image, &mut || {
                    if steps.fetch_add(1, Ordering::Relaxed) + 1 == n {
                        coming = Some(s.spawn(|| View::new(&home.open(), Caller::root()).stat(b"new").is_ok()));
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    Ok(())
                });
                done.expect("restored");
                assert!(coming.expect("begun").join().expect("opened"), "at step {n}");
            });
            assert!(home.has("new"));
        }
    }
}

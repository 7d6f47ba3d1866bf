//! Save, restore, and images that must be refused.

use std::fs;
use std::path::Path;

use backing::save::{restore, restore_into, save, verify};
use pram::dax::Dax;
use pram::medium::BATTERY;
use pram::memory::HEADERS;
use pram::session::USER_ROOTS;
use pram::{Mapping, MediumKind, Memory, Off, Session, Tag};
use rng::Rng;

use crate::rig::{self, MIB};

/// A session with content that can be recognised: offsets of objects and their bytes.
fn filled(session: &Session) -> Vec<(u64, Vec<u8>)> {
    let mut rng = Rng::new(11);
    let mut objects = Vec::new();
    for i in 0..400u64 {
        let mut op = session.begin().unwrap();
        let mut tx = op.tx().unwrap();
        let size = 1 + if i % 50 == 0 { rng.below(150_000) } else { rng.below(900) };
        let bytes: Vec<u8> = (0..size).map(|_| rng.next() as u8).collect();
        let off = tx.alloc(Tag(1), size).unwrap().off;
        tx.init_bytes(off, &bytes).unwrap();
        tx.set(session.memory().root(1 + i % 100), &off).unwrap();
        tx.commit().unwrap();
        objects.push((off, bytes));
    }
    objects
}

fn assert_holds(session: &Session, objects: &[(u64, Vec<u8>)]) {
    for (off, bytes) in objects {
        let mut found = vec![0; bytes.len()];
        session.memory().read_bytes(*off, &mut found).unwrap();
        assert!(found == *bytes && session.memory().is_allocated(*off).unwrap(), "object {off:#x}");
    }
}

/// A memory in a file of `dir`, a session on it, and its content.
fn filled_file(dir: &Path, size: u64) -> (Session, Vec<(u64, Vec<u8>)>) {
    let memory = dir.join("memory");
    rig::format_file(&memory, size);
    let session = rig::attach(&memory).unwrap();
    let objects = filled(&session);
    (session, objects)
}

fn quiet() -> impl FnMut(u64, u64) {
    |_, _| {}
}

#[test]
fn what_is_saved_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    let (session, objects) = filled_file(dir.path(), 32 * MIB);
    let mut last = (0, 0);
    let info = save(&session, &image, &mut |done, all| {
        assert!(done > last.0 && done <= all);
        last = (done, all);
    })
    .unwrap();
    assert_eq!(last.0, last.1);
    assert_eq!((info.uuid, info.size, info.app_version), (rig::UUID, 32 * MIB, 7));
    assert!(info.bytes < 8 * MIB, "free chunks are left out: {}", info.bytes);
    assert_eq!(verify(&image, &mut quiet()).unwrap(), info);
    drop(session);

    assert_eq!(restore(&image, &copy, MediumKind::Battery, &mut quiet()).unwrap().skip(&mut quiet()).unwrap(), info);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&copy).unwrap());
    assert!(
        blocks * 512 >= info.bytes && blocks * 512 < info.bytes + 5 * MIB,
        "what is in use has memory: {blocks} blocks"
    );
    let restored = rig::attach(&copy).unwrap();
    assert!(!restored.runtime().leaks_pending(), "it opens as a clean memory");
    assert_holds(&restored, &objects);
    let original = rig::attach(&dir.path().join("memory")).unwrap();
    let allocated = |s: &Session| s.memory().allocated_bytes().unwrap();
    assert_eq!(allocated(&restored), allocated(&original));
    // The memory works on: more objects, none over an old one.
    let more = filled(&restored);
    assert_holds(&restored, &objects);
    assert_holds(&restored, &more);
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|n| !n.to_string_lossy().ends_with(".new")), "{left:?}");
}

#[test]
fn a_region_with_references_or_leaks_is_swept_after_restore() {
    let dir = tempfile::tempdir().unwrap();
    let (memory, image) = (dir.path().join("memory"), dir.path().join("image"));
    rig::format_file(&memory, MIB);
    let session = rig::attach(&memory).unwrap();
    let pending = |name: &str| {
        save(&session, &image, &mut quiet()).unwrap();
        let copy = dir.path().join(name);
        restore(&image, &copy, MediumKind::Battery, &mut quiet()).unwrap();
        rig::attach(&copy).unwrap().runtime().leaks_pending()
    };
    assert!(!pending("none"));
    session.retain(rig::KEYS - 1, 1).unwrap();
    assert!(pending("referenced"), "an object may have no name, only this reference");
    session.release(rig::KEYS - 1, 1);
    assert!(!pending("released"));
    session.runtime().set_leaks_pending(true);
    assert!(pending("leaks"));
}

#[test]
fn any_damage_to_an_image_is_refused_and_the_old_region_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (image, bad, target) = (dir.path().join("image"), dir.path().join("bad"), dir.path().join("target"));
    let session = rig::private(MIB);
    filled_small(&session);
    save(&session, &image, &mut quiet()).unwrap();
    let good = fs::read(&image).unwrap();
    fs::write(&target, b"the old memory").unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&bad, bytes).unwrap();
        let from_verify = verify(&bad, &mut quiet()).unwrap_err().to_string();
        let from_restore = restore(&bad, &target, MediumKind::Battery, &mut quiet()).unwrap_err().to_string();
        assert_eq!(from_verify, from_restore);
        assert_eq!(fs::read(&target).unwrap(), b"the old memory");
        from_verify
    };
    // Every byte of the header and of the first chunk's head, then bytes everywhere, then the trailer.
    let mut rng = Rng::new(3);
    let spread: Vec<usize> = (0..150).map(|_| rng.below(good.len() as u64) as usize).collect();
    for at in (0..176).chain(spread).chain(good.len() - 32..good.len()) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(refused(&bytes).contains("cannot be used"), "byte {at}");
    }
    for len in [0, 7, 159, 160, 175, 4096, good.len() / 2, good.len() - 33, good.len() - 32, good.len() - 1] {
        assert!(refused(&good[..len]).contains("truncated"), "length {len}");
    }
    assert!(refused(&[&good[..], b"x"].concat()).contains("follows"));
    assert!(refused(&vec![b'#'; 5000]).contains("not an image"));
    let mut newer = good.clone();
    newer[8] = 4;
    assert!(refused(&newer).contains("version 4"));
    assert!(verify(Path::new("/nonexistent/image"), &mut quiet()).unwrap_err().to_string().contains("opening"));
    restore(&image, &target, MediumKind::Battery, &mut quiet()).unwrap();
}

fn filled_small(session: &Session) {
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let off = tx.alloc(Tag(1), 3000).unwrap().off;
    tx.init_bytes(off, &[0xa5; 3000]).unwrap();
    tx.set(session.memory().root(0), &off).unwrap();
    tx.commit().unwrap();
}

#[test]
fn an_interrupted_save_leaves_the_old_image() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let session = rig::private(4 * MIB);
    filled_small(&session);
    save(&session, &image, &mut quiet()).unwrap();
    let old = fs::read(&image).unwrap();
    // Leftovers of a killed save are no obstacle.
    fs::write(dir.path().join(".image.new"), vec![1; 100_000]).unwrap();
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        save(&session, &image, &mut |_, _| panic!("in the middle of a save"))
    }));
    assert!(died.is_err());
    assert_eq!(fs::read(&image).unwrap(), old);
    // The pool is not left frozen, and the next save is whole.
    filled_small(&session);
    save(&session, &image, &mut quiet()).unwrap();
    verify(&image, &mut quiet()).unwrap();
    assert!(save(&session, dir.path(), &mut quiet()).unwrap_err().to_string().contains("directory"));
}

/// Writers go on while images are made; each image is one instant: the two words are always equal.
#[test]
fn an_image_is_one_instant() {
    let dir = tempfile::tempdir().unwrap();
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    let session = rig::private(4 * MIB);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (a, b) = (session.memory().root(1), session.memory().root(900));
            for i in 1.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                let mut op = session.begin().unwrap();
                op.lock(&[1]).unwrap();
                let mut tx = op.tx().unwrap();
                tx.set(a, &i).unwrap();
                tx.set(b, &i).unwrap();
                tx.commit().unwrap();
            }
        });
        let mut seen = 0;
        for _ in 0..10 {
            save(&session, &image, &mut quiet()).unwrap();
            restore(&image, &copy, MediumKind::Battery, &mut quiet()).unwrap();
            let restored = rig::attach(&copy).unwrap();
            let word = |n| restored.memory().load(Off::new(restored.memory().root(n).raw())).unwrap();
            assert_eq!(word(1), word(900));
            assert!(word(1) >= seen);
            seen = word(1);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(seen > 0, "the writer ran meanwhile");
    });
}

/// An image of a memory on `battery` becomes one on `dax`: in a file that is replaced, and in place.
#[test]
fn an_image_is_restored_to_another_medium() {
    let dir = tempfile::tempdir().unwrap();
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    let (session, objects) = filled_file(dir.path(), 4 * MIB);
    save(&session, &image, &mut quiet()).unwrap();
    restore(&image, &copy, MediumKind::Dax, &mut quiet()).unwrap();
    let in_file = fs::read(&copy).unwrap();
    // The word with the epoch: each memory has its own.
    let epoch = HEADERS + (USER_ROOTS as usize + 2) * 8;
    let Ok(dax) = Dax::of(fs::File::open(&copy).unwrap()) else {
        eprintln!("skipped: no x86-64 processor");
        return;
    };

    let in_place = rig::mapping_of(&vec![9; 4 * MIB as usize]);
    restore_into(&image, &in_place, &dax, &mut |_, _| Ok(None), &mut quiet()).unwrap();
    let after = epoch as u64 + 8;
    let same = in_place.equals(0, &in_file[..epoch]).unwrap() && in_place.equals(after, &in_file[epoch + 8..]).unwrap();
    assert!(same, "both ways make the same memory");
    assert!(!in_place.equals(epoch as u64, &in_file[epoch..epoch + 8]).unwrap(), "an epoch is used twice");
    let small = Mapping::anonymous(2 * MIB).unwrap();
    let refused = restore_into(&image, &small, &dax, &mut |_, _| Ok(None), &mut quiet()).unwrap_err().to_string();
    assert!(refused.contains("there is room for 2097152"), "{refused}");

    let refused = Memory::open(rig::mapping_of(&in_file), Box::new(BATTERY)).err().expect("another medium").to_string();
    assert!(refused.contains("`dax`") && refused.contains("`battery`"), "{refused}");
    let session = Session::private(Memory::open(in_place, Box::new(dax)).unwrap(), rig::KEYS).unwrap();
    assert_holds(&session, &objects);
    let more = filled(&session);
    assert_holds(&session, &more);
}

/// A bad image destroys nothing, and an interrupted restore leaves no valid memory.
#[test]
fn a_restore_in_place_checks_first_and_writes_the_header_last() {
    let dir = tempfile::tempdir().unwrap();
    let (image, bad) = (dir.path().join("image"), dir.path().join("bad"));
    let (session, _) = filled_file(dir.path(), 4 * MIB);
    save(&session, &image, &mut quiet()).unwrap();
    let mut bytes = fs::read(&image).unwrap();
    let last = bytes.len() - 100;
    bytes[last] ^= 1;
    fs::write(&bad, bytes).unwrap();
    let old = rig::bytes_of(&rig::private(4 * MIB));
    let map = rig::mapping_of(&old);
    assert!(restore_into(&bad, &map, &BATTERY, &mut |_, _| Ok(None), &mut quiet()).is_err());
    assert!(map.equals(0, &old).unwrap(), "a bad image has overwritten something");
    let mut seen = false;
    restore_into(&image, &map, &BATTERY, &mut |_, _| Ok(None), &mut |done, all| {
        seen |= done < all;
        assert!(map.is_zero(0, 8192).unwrap(), "there is a header before the content is complete");
    })
    .unwrap();
    assert!(seen, "progress is reported");
    assert!(!map.is_zero(0, 8192).unwrap());
}

/// A save replaced anything at the target's name: `/dev/null`, a pipe, and the link instead of its target.
#[test]
fn only_regular_files_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let session = rig::private(MIB);
    let (pipe, link, file) = (dir.path().join("pipe"), dir.path().join("link"), dir.path().join("file"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let refusal = save(&session, &pipe, &mut quiet()).unwrap_err().to_string();
    assert!(refusal.contains("no regular file"), "{refusal}");
    assert!(!fs::metadata(&pipe).unwrap().is_file());

    fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    save(&session, &link, &mut quiet()).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    verify(&file, &mut quiet()).unwrap();
}

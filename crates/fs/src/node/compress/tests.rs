//! Files that are compressed: readers and changes see nothing of it, and damage costs the damaged part alone.

use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use rng::Rng;

use super::*;
use crate::attr::{Caller, SetAttr};
use crate::compress::{Plan, Walked};
use crate::layout::{root, tag};
use crate::node::{Fallocate, Policy, ReadFlags, Seek, WriteFlags};
use crate::ROOT;

fn file_system() -> Rc<Fs> {
    let session = pram::Session::in_memory(64 << 20).unwrap();
    Fs::format(&session, (0, 0, 0o755), 1).unwrap();
    Rc::new(Fs::over(session, Policy::default()).unwrap())
}

fn text(rng: &mut Rng, len: usize) -> Vec<u8> {
    let words = ["alpha ", "beta ", "gamma\n", "delta=", "epsilon ", "0x7f", "zeta; ", "eta ", "theta ", "#include <"];
    let mut text = Vec::with_capacity(len + 16);
    while text.len() < len {
        text.extend_from_slice(words[rng.below(words.len() as u64) as usize].as_bytes());
    }
    text.truncate(len);
    text
}

/// A file system with one file, and its expected content.
struct Rig {
    fs: Rc<Fs>,
    ino: Ino,
    model: Vec<u8>,
}

impl Rig {
    fn new(content: Vec<u8>) -> Rig {
        let fs = file_system();
        let ino = add(&fs, "f", &content);
        Rig { fs, ino, model: content }
    }

    fn codec(&self) -> Option<Codec> {
        file::codec_of(&self.fs.node(self.ino).unwrap().content())
    }

    fn compress(&self, method: &Method) -> Compressed {
        self.fs.compress(self.ino, method).unwrap()
    }

    fn compare(&self) {
        let attr = self.fs.getattr(self.ino).unwrap();
        assert_eq!(attr.size, self.model.len() as u64);
        assert!(read(&self.fs, self.ino).unwrap() == self.model, "{} bytes", self.model.len());
        check(&self.fs);
    }
}

fn add(fs: &Fs, name: &str, content: &[u8]) -> Ino {
    let ino = fs.create(ROOT, name.as_bytes(), Kind::Regular, 0o644, 0, &Caller::root()).unwrap().ino;
    for (n, piece) in content.chunks(100_000).enumerate() {
        fs.write(ino, n as u64 * 100_000, piece, WriteFlags::default()).unwrap();
    }
    fs.trim(ino).unwrap();
    ino
}

fn read(fs: &Fs, ino: Ino) -> Result<Vec<u8>> {
    let mut bytes = vec![0xaa; fs.getattr(ino)?.size as usize + 10];
    let n = fs.read(ino, 0, &mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// Nothing is wrong, and nothing is left over.
fn check(fs: &Fs) {
    let report = fs.fsck(false, &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.leaked_objects, 0);
}

fn all() -> impl FnMut(u64, u64, &Walked) -> bool {
    |_, _, _| true
}

#[test]
fn files_of_all_lengths_are_read_as_they_were() {
    let mut rng = Rng::new(1);
    for len in [80, 81, 500, 4096, 20_000, 32_768, 32_769, 65_536, 65_537, 300_000, 1 << 20] {
        for method in [Method::Lz4, Method::Zstd(None)] {
            let rig = Rig::new(text(&mut rng, len));
            let blocks = rig.fs.getattr(rig.ino).unwrap().blocks;
            let before = rig.fs.session().memory().allocated().unwrap().iter().sum::<u64>();
            let done = rig.compress(&method);
            if len < 500 {
                continue;
            }
            let Compressed::Done { plain, before: was, after } = done else { panic!("{len}: {done:?}") };
            assert_eq!((plain, rig.codec()), (len as u64, Some(method.codec())));
            let attr = rig.fs.getattr(rig.ino).unwrap();
            assert_eq!((attr.blocks, blocks), (after.div_ceil(512), was.div_ceil(512)));
            let is = rig.fs.session().memory().allocated().unwrap().iter().sum::<u64>();
            assert!(before - is >= was - after, "what was plain is freed, and the index with it");
            rig.compare();
            for _ in 0..40 {
                let from = rng.below(len as u64 + 10) as usize;
                let mut part = vec![0xaa; 1 + rng.below(70_000) as usize];
                let n = rig.fs.read(rig.ino, from as u64, &mut part).unwrap();
                let end = (from + part.len()).min(len);
                assert!(part[..n] == rig.model[from.min(end)..end]);
            }
            assert_eq!(rig.compress(&method), Compressed::AsItIs);
            assert!(rig.fs.expand(rig.ino, Trial::Hot).unwrap() && !rig.fs.expand(rig.ino, Trial::Hot).unwrap());
            assert_eq!(rig.codec(), None);
            assert_eq!(rig.fs.node(rig.ino).unwrap().content().trial(), Trial::Hot);
            rig.compare();
        }
    }
}

#[test]
fn every_change_begins_with_plain_content() {
    let mut rng = Rng::new(2);
    for len in [3000usize, 40_000, 200_000] {
        for round in 0..10 {
            let mut rig = Rig::new(text(&mut rng, len));
            assert!(matches!(rig.compress(&Method::Lz4), Compressed::Done { .. }));
            let (fs, ino) = (rig.fs.clone(), rig.ino);
            let set_size = |size: usize| {
                fs.setattr(ino, &SetAttr { size: Some(size as u64), ..SetAttr::default() }, &Caller::root()).unwrap()
            };
            match round {
                0 => {
                    let at = rng.below(len as u64) as usize;
                    fs.write(ino, at as u64, b"changed", WriteFlags::default()).unwrap();
                    rig.model.resize(len.max(at + 7), 0);
                    rig.model[at..at + 7].copy_from_slice(b"changed");
                }
                1 => {
                    fs.write(ino, 0, b"more", WriteFlags { append: true, ..WriteFlags::default() }).unwrap();
                    rig.model.extend_from_slice(b"more");
                }
                2 => {
                    set_size(len / 2);
                    rig.model.truncate(len / 2);
                }
                3 => {
                    set_size(len + 5000);
                    rig.model.resize(len + 5000, 0);
                }
                4 => {
                    set_size(0);
                    rig.model.clear();
                }
                5 => {
                    set_size(len);
                    assert_eq!(rig.codec(), Some(Codec::Lz4), "nothing has changed");
                }
                6 => {
                    fs.fallocate(ino, Fallocate::PunchHole, 100, 1000).unwrap();
                    rig.model[100..1100].fill(0);
                }
                7 => {
                    fs.fallocate(ino, Fallocate::Allocate { keep_size: false }, len as u64, 4096).unwrap();
                    rig.model.resize(len + 4096, 0);
                }
                8 if len > 8192 => {
                    fs.fallocate(ino, Fallocate::CollapseRange, 4096, 4096).unwrap();
                    rig.model.drain(4096..8192);
                }
                _ => {
                    fs.fallocate(ino, Fallocate::ZeroRange { keep_size: true }, 10, 2000).unwrap();
                    rig.model[10..2010].fill(0);
                }
            }
            if round != 5 {
                assert_eq!(rig.codec(), None, "round {round}");
            }
            rig.compare();
        }
    }
}

#[test]
fn names_and_ends_of_compressed_files() {
    let mut rng = Rng::new(3);
    let fs = file_system();
    let [a, b] = ["a", "b"].map(|name| add(&fs, name, &text(&mut rng, 50_000)));
    for ino in [a, b] {
        assert!(matches!(fs.compress(ino, &Method::Lz4).unwrap(), Compressed::Done { .. }));
    }
    fs.retain(a, 1).unwrap();
    fs.rename((ROOT, b"b"), (ROOT, b"a"), crate::node::Rename::Replace, &Caller::root()).unwrap();
    assert_eq!(read(&fs, a).unwrap().len(), 50_000, "somebody has it open");
    fs.release(a, 1);
    check(&fs);
    fs.unlink(ROOT, b"a", &Caller::root()).unwrap();
    check(&fs);
    assert!(fs.session().memory().allocated().unwrap()[tag::COMPRESSED.0 as usize] == 0);
}

#[test]
fn data_and_holes_are_where_they_are_read() {
    let rig = Rig::new(text(&mut Rng::new(4), 100_000));
    rig.compress(&Method::Lz4);
    assert_eq!(rig.fs.seek(rig.ino, 70_000, Seek::Data).unwrap(), 70_000);
    assert_eq!(rig.fs.seek(rig.ino, 70_000, Seek::Hole).unwrap(), 100_000);
    assert!(rig.fs.seek(rig.ino, 100_000, Seek::Data).is_err());
    let usage = rig.fs.usage(rig.ino).unwrap();
    assert_eq!((usage.plain, usage.compressed), (100_000, usage.content));
    assert!(usage.content < 50_000);
}

#[test]
fn what_is_not_worth_it_is_remembered_until_it_changes() {
    let mut rng = Rng::new(5);
    let rig = Rig::new(rng.bytes(10_000));
    assert_eq!(rig.compress(&Method::Lz4), Compressed::NotWorth);
    let trial = || rig.fs.node(rig.ino).unwrap().content().trial();
    assert_eq!(trial(), Trial::NotQuickly);
    assert_eq!(rig.compress(&Method::Zstd(None)), Compressed::NotWorth);
    assert_eq!(trial(), Trial::NotAtAll);
    rig.compare();
    rig.fs.write(rig.ino, 5, b"x", WriteFlags::default()).unwrap();
    assert_eq!(trial(), Trial::None);
    // Neither holes nor reserved pages are touched.
    for how in [Fallocate::PunchHole, Fallocate::Allocate { keep_size: true }] {
        let rig = Rig::new(text(&mut rng, 100_000));
        rig.fs.fallocate(rig.ino, how, 65_536, 70_000).unwrap();
        assert_eq!(rig.compress(&Method::Lz4), Compressed::AsItIs);
    }
}

#[test]
fn often_read_content_is_plain_again_and_cools_down() {
    let rig = Rig::new(text(&mut Rng::new(6), 10_000));
    rig.compress(&Method::Zstd(None));
    for _ in 0..HOT_READS - 1 {
        read(&rig.fs, rig.ino).unwrap();
        assert_eq!(rig.fs.expand_hot().unwrap(), 0);
    }
    read(&rig.fs, rig.ino).unwrap();
    assert_eq!(rig.fs.expand_hot().unwrap(), 1);
    assert_eq!(rig.codec(), None);
    rig.compare();
    // A forced one stays.
    rig.fs
        .setxattr(rig.ino, b"user.conquest.compression", b"always", crate::node::SetXattr::Any, &Caller::root())
        .unwrap();
    rig.compress(&Method::Zstd(None));
    (0..20).for_each(|_| _ = read(&rig.fs, rig.ino).unwrap());
    assert_eq!(rig.fs.expand_hot().unwrap(), 0);
    let value = rig.fs.getxattr(rig.ino, b"user.conquest.effective.compression").unwrap();
    assert_eq!(value, b"zstd");
}

/// A flipped byte anywhere in compressed content is an error of that file, for any call; repair costs that file alone.
#[test]
fn damage_is_reported_and_costs_one_file() {
    let mut rng = Rng::new(7);
    for len in [2000usize, 120_000] {
        for round in 0..60 {
            let fs = file_system();
            let (first, second) = (text(&mut rng, len), text(&mut rng, 5000));
            let [one, two] = [add(&fs, "one", &first), add(&fs, "two", &second)];
            for ino in [one, two] {
                assert!(matches!(fs.compress(ino, &Method::Zstd(None)).unwrap(), Compressed::Done { .. }));
            }
            let off = crate::layout::Root::unpack(fs.snapshot(one).unwrap().content).off;
            let at = off + if round < 16 { round } else { rng.below(600) };
            let r = fs.memory();
            let is: u8 = r.read(pram::Off::new(at)).unwrap();
            r.commit_byte(pram::Off::new(at), is ^ (1 << rng.below(8))).unwrap();
            let read_back = read(&fs, one);
            let report = fs.fsck(false, &mut |_, _| {}).unwrap();
            if report.problems.is_empty() {
                // Beyond the end of the stored bytes.
                assert!(read_back.unwrap() == first);
                continue;
            }
            if let Ok(bytes) = &read_back {
                assert!(*bytes == first, "wrong content was read, byte {} of it", at - off);
            }
            assert!(report.problems.iter().all(|p| p.starts_with(&format!("inode {one}:"))), "{:?}", report.problems);
            assert!(fs.write(one, 0, b"x", WriteFlags::default()).is_err() || read_back.is_ok());
            let repaired = fs.fsck(true, &mut |_, _| {}).unwrap();
            assert!(repaired.problems.iter().all(|p| !p.starts_with("still")), "{:?}", repaired.problems);
            check(&fs);
            assert!(read(&fs, two).unwrap() == second);
            let left = read(&fs, one).unwrap();
            assert_eq!(left.len(), len);
            assert!(left.iter().zip(&first).all(|(is, was)| is == was || *is == 0), "only zeros are made of it");
        }
    }
}

#[test]
fn dictionaries_are_there_twice_and_as_long_as_they_are_named() {
    let mut rng = Rng::new(8);
    let fs = file_system();
    let small: Vec<(Ino, Vec<u8>)> = (0..1200)
        .map(|n| {
            let content = text(&mut rng, 700 + n % 900);
            (add(&fs, &format!("f{n}"), &content), content)
        })
        .collect();
    let done = fs.compress_due(Plan::now(Codec::Zstd), &mut all()).unwrap();
    let survey = fs.survey_compression().unwrap();
    assert_eq!((survey.dictionaries, survey.cold.files), (1, done.compressed));
    assert!(done.compressed > 1000 && survey.dictionary_memory >= 2000, "{survey:?}");
    check(&fs);
    // A newer one: the old one stays as long as a file names it.
    let bytes = fs.newest_dictionary().unwrap().unwrap().bytes.clone();
    assert_eq!(fs.add_dictionary(&bytes, 7).unwrap(), Some(2));
    assert_eq!(fs.newest_was_of().unwrap(), Some(7));
    assert_eq!(fs.drop_unused_dictionaries().unwrap(), 0);
    check(&fs);
    // One copy is damaged: nothing is lost.
    let again = |fs: &Fs| small.iter().for_each(|(ino, is)| assert!(read(fs, *ino).unwrap() == *is));
    let r = fs.memory();
    let damage = |copy: usize| {
        let listed = crate::node::dictionaries::list(r, copy).unwrap();
        let at = listed.last().unwrap().off + 500;
        let is: u8 = r.read(pram::Off::new(at)).unwrap();
        r.commit_byte(pram::Off::new(at), is ^ 1).unwrap();
    };
    let forget = || fs.dictionaries.forget();
    damage(0);
    forget();
    again(&fs);
    let report = fs.fsck(false, &mut |_, _| {}).unwrap();
    assert!(report.problems.len() == 1 && report.problems[0].contains("copy 1 of 2"), "{:?}", report.problems);
    fs.fsck(true, &mut |_, _| {}).unwrap();
    check(&fs);
    // The list of one copy leads nowhere.
    r.commit_word(r.root(root::DICTIONARIES[1]), 24).unwrap();
    forget();
    again(&fs);
    assert!(!fs.fsck(true, &mut |_, _| {}).unwrap().problems.is_empty());
    check(&fs);
    // No file names it any more.
    small.iter().for_each(|(ino, _)| _ = fs.expand(*ino, Trial::None).unwrap());
    assert_eq!(fs.drop_unused_dictionaries().unwrap(), 1);
    check(&fs);
    again(&fs);
    assert_eq!(fs.survey_compression().unwrap().dictionaries, 1);
    // Both copies of a dictionary that files name are damaged: those files, and no others, say so.
    fs.compress_due(Plan::now(Codec::Zstd), &mut all()).unwrap();
    [0, 1].into_iter().for_each(damage);
    forget();
    assert!(small.iter().any(|(ino, _)| matches!(read(&fs, *ino), Err(Error::Corrupt(_)))));
    let problems = fs.fsck(false, &mut |_, _| {}).unwrap().problems;
    assert!(problems.iter().any(|p| p.contains("inode")) && problems.iter().any(|p| p.contains("dictionary")));
    let repaired = fs.fsck(true, &mut |_, _| {}).unwrap();
    assert!(repaired.problems.iter().all(|p| !p.starts_with("still")), "{:?}", repaired.problems);
    check(&fs);
}

/// Readers and writers see the last write while a thread compresses and expands all the time.
#[test]
fn others_at_work_see_nothing_of_it() {
    use std::sync::Arc;
    let session = pram::Session::in_memory(64 << 20).unwrap();
    Fs::format(&session, (0, 0, 0o755), 1).unwrap();
    let fs = Arc::new(Fs::over(session, Policy::default()).unwrap());
    // Each file holds one repeated line, its version; a reader must see one version, whole.
    let content = |version: u64, len: usize| {
        let line = format!("version {version:08} of the file\n");
        line.bytes().cycle().take(len).collect::<Vec<u8>>()
    };
    let lens = [900usize, 9000, 150_000];
    let inos: Vec<Ino> = lens.iter().map(|len| add(&fs, &format!("f{len}"), &content(0, *len))).collect();
    let stop = AtomicBool::new(false);
    let running = || !stop.load(Ordering::Relaxed);
    // A thread that fails stops the others.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _end = End(&stop);
        scope.spawn(|| {
            let (mut done, _end) = (0, End(&stop));
            while running() {
                for ino in &inos {
                    done += u64::from(matches!(fs.compress(*ino, &Method::Lz4), Ok(Compressed::Done { .. })));
                    fs.compress(*ino, &Method::Zstd(None)).unwrap();
                    fs.expand(*ino, Trial::None).unwrap();
                }
            }
            assert!(done > 10, "{done}");
        });
        for (ino, len) in inos.iter().zip(lens) {
            let (fs, running, content, stop) = (&fs, &running, &content, &stop);
            scope.spawn(move || {
                let (mut buf, mut last, _end) = (vec![0; len + 1], 0, End(stop));
                while running() {
                    let n = fs.read_as(*ino, 0, &mut buf, ReadFlags::default()).unwrap();
                    let version: u64 = std::str::from_utf8(&buf[8..16]).unwrap().parse().unwrap();
                    assert!(version >= last && buf[..n] == content(version, len), "{len}: torn");
                    last = version;
                }
            });
        }
        for version in 1..400u64 {
            for (ino, len) in inos.iter().zip(lens) {
                fs.write(*ino, 0, &content(version, len), WriteFlags::default()).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        stop.store(true, Ordering::Relaxed);
    });
    for (ino, len) in inos.iter().zip(lens) {
        assert!(read(&fs, *ino).unwrap() == content(399, len));
    }
    check(&fs);
}

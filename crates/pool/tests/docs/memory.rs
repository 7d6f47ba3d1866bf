//! The findings of a reader that knows FORMAT.md alone in the memory, against the program's answers.

use std::collections::BTreeMap;

use conquest::{Kind, OpenOptions, Pool};
use pram::{Off, Session};

use crate::content;
use crate::reader::{unpack, Raw, Reader};
use crate::tables::Page;

pub struct Made {
    pub dir: tempfile::TempDir,
    pub pool: Pool,
}

pub fn made() -> Made {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    // Without compression, which would begin after a second: files keep the forms that they were given.
    let compression = conquest::CompressionConfig::of(&[("share".into(), 0)]).unwrap();
    Pool::format(dir.path(), &conquest::FormatOptions { compression, ..content::options() }).unwrap();
    let pool = Pool::open(dir.path(), &OpenOptions { noatime: true, ..OpenOptions::default() }).unwrap();
    content::fill(&pool).unwrap();
    content::fill_settings(&pool).unwrap();
    content::fill_thresholds(&pool).unwrap();
    content::compare(&pool);
    content::compare_settings(&pool);
    Made { dir, pool }
}

pub fn memory_bytes(dir: &std::path::Path) -> Vec<u8> {
    std::fs::read(dir.join("nvram")).unwrap()
}

/// Compares everything from the root down; returns how many inodes of each kind there were.
pub fn compare_with(pool: &Pool, bytes: &[u8], page: &Page) -> BTreeMap<u64, u32> {
    let reader = Reader { page, bytes };
    let header = reader.header();
    assert_eq!(header.get("size"), bytes.len() as u64);
    assert_eq!((header.get("slots"), reader.groups()), (bytes.len() as u64 / 524288, 1));
    assert_eq!(reader.inode(conquest_fs::ROOT).get("extra"), conquest_fs::ROOT);
    let mut kinds = BTreeMap::new();
    compare_inode(pool, &reader, conquest_fs::ROOT, &mut kinds);
    kinds
}

fn compare_inode(pool: &Pool, reader: &Reader, ino: u64, kinds: &mut BTreeMap<u64, u32>) {
    let raw = reader.inode(ino);
    let attr = pool.getattr(ino).unwrap();
    let perm = reader.perm(raw.get("perm"));
    let kind = raw.get("kind");
    *kinds.entry(kind).or_default() += 1;
    assert_eq!(kind, attr.kind as u64);
    assert_eq!(perm.get("mode"), u64::from(attr.mode()), "inode {ino}");
    assert_eq!((perm.get("uid"), perm.get("gid")), (attr.uid.into(), attr.gid.into()), "inode {ino}");
    assert_eq!((raw.get("nlink"), raw.get("generation")), (attr.nlink.into(), attr.generation.into()));
    for (field, time) in [("mtime", attr.mtime), ("ctime", attr.ctime), ("atime", attr.atime), ("btime", attr.btime)] {
        assert_eq!(raw.get(field) as i64, time.0, "inode {ino}, {field}");
    }
    compare_settings(pool, reader, ino, &raw);
    compare_xattrs(pool, reader, ino, &raw);
    match attr.kind {
        Kind::Directory => compare_directory(pool, reader, ino, &raw, kinds),
        Kind::Regular | Kind::Symlink => {
            assert_eq!(raw.get("size"), attr.size);
            compare_content(pool, ino, attr.kind, &reader.extents(ino, &raw));
        }
        _ => assert_eq!((raw.get("extra"), raw.get("content")), (attr.rdev, 0)),
    }
}

fn compare_settings(pool: &Pool, reader: &Reader, ino: u64, raw: &Raw) {
    let durability = ["", "fsync", "strict"][raw.get("settings") as usize & 3];
    let text = |name: &str| String::from_utf8(pool.getxattr(ino, name.as_bytes()).unwrap_or_default()).unwrap();
    assert_eq!(text("user.conquest.durability"), durability, "inode {ino}");
    let c = |name| reader.page.constant(name);
    let threshold = match raw.get("settings") >> c("THRESHOLD_AT") & 31 {
        0 => String::new(),
        none if none == c("THRESHOLD_NONE") => "none".into(),
        code => (1u64 << (code - 1 + c("THRESHOLD_LEAST"))).to_string(),
    };
    assert_eq!(text("user.conquest.threshold"), threshold, "inode {ino}");
    let (minutes, hours) = (c("DELAY_MINUTES"), c("DELAY_HOURS"));
    let delay = match raw.get("delay") {
        0 => String::new(),
        60 => "1m".into(),
        seconds if seconds < minutes => format!("{seconds}s"),
        code if code == hours - 1 => "1h".into(),
        code if code < hours => format!("{}m", code - minutes + 2),
        code if code <= c("DELAY_MOST") => format!("{}h", code - hours + 2),
        code => panic!("inode {ino}: delay {code}"),
    };
    let redundancy = match raw.get("settings") >> c("REDUNDANCY_AT") & 7 {
        0 => String::new(),
        1 => "none".into(),
        2 => "whole".into(),
        n @ 3..=5 => format!("mirror:{}", n - 1),
        6 => format!("lazy:{delay}"),
        n => panic!("inode {ino}: redundancy {n}"),
    };
    assert_eq!(text("user.conquest.redundancy"), redundancy, "inode {ino}");
    let priority = ["", "low", "normal", "high"][(raw.get("settings") >> c("PRIORITY_AT") & 3) as usize];
    assert_eq!(text("user.conquest.priority"), priority, "inode {ino}");
    let compression =
        ["", "auto", "always", "never", "warm", "cold"][(raw.get("settings") >> c("COMPRESSION_AT") & 7) as usize];
    assert_eq!(text("user.conquest.compression"), compression, "inode {ino}");
    let times = ["", "seconds"][(raw.get("settings") >> c("TIMES_AT")) as usize];
    assert_eq!(text("user.conquest.times"), times, "inode {ino}");
    assert_eq!(delay.is_empty(), !redundancy.starts_with("lazy"), "inode {ino}");
}

fn compare_content(pool: &Pool, ino: u64, kind: Kind, extents: &[(u64, Vec<u8>)]) {
    for (offset, bytes) in extents {
        let mut found = vec![0; bytes.len()];
        match kind {
            Kind::Symlink => found = pool.readlink(ino).unwrap(),
            _ => assert_eq!(pool.read(ino, *offset, &mut found).unwrap(), bytes.len()),
        }
        assert!(found == *bytes, "inode {ino} at {offset}");
    }
}

fn compare_directory(pool: &Pool, reader: &Reader, ino: u64, raw: &Raw, kinds: &mut BTreeMap<u64, u32>) {
    let names = reader.names(raw);
    let mut listed = Vec::new();
    pool.readdir(ino, 2, &mut |e| {
        listed.push((e.cookie, e.name.to_vec(), e.ino, e.kind as u64));
        true
    })
    .unwrap();
    let read: Vec<_> = names.iter().map(|n| (n.cookie, n.name.clone(), n.ino, n.kind)).collect();
    assert_eq!(read, listed, "directory {ino}: the same names in the same order");
    for name in names {
        assert_eq!(name.kind, reader.inode(name.ino).get("kind"));
        if name.kind == Kind::Directory as u64 {
            assert_eq!(reader.inode(name.ino).get("extra"), ino);
        }
        compare_inode(pool, reader, name.ino, kinds);
    }
}

fn compare_xattrs(pool: &Pool, reader: &Reader, ino: u64, raw: &Raw) {
    let found = reader.xattrs(raw);
    let mut names: Vec<u8> = found.iter().flat_map(|(name, _)| [name.as_slice(), b"\0"].concat()).collect();
    if matches!(raw.get("kind"), 4 | 8) {
        let settings = raw.get("settings");
        names.extend_from_slice(if settings & 3 != 0 { b"user.conquest.durability\0" } else { b"" });
        names.extend_from_slice(if settings & 31 << 2 != 0 { b"user.conquest.threshold\0" } else { b"" });
        names.extend_from_slice(if settings & 7 << 7 != 0 { b"user.conquest.redundancy\0" } else { b"" });
        names.extend_from_slice(if settings & 3 << 10 != 0 { b"user.conquest.priority\0" } else { b"" });
        names.extend_from_slice(if settings & 7 << 12 != 0 { b"user.conquest.compression\0" } else { b"" });
        names.extend_from_slice(if settings & 1 << 15 != 0 { b"user.conquest.times\0" } else { b"" });
    }
    assert_eq!(names, pool.listxattr(ino).unwrap());
    for (name, value) in found {
        assert_eq!(value, pool.getxattr(ino, &name).unwrap(), "inode {ino}");
    }
}

#[test]
fn a_reader_finds_everything_in_the_memory() {
    let made = made();
    let page = Page::open("FORMAT.md");
    let bytes = memory_bytes(made.dir.path());
    let reader = Reader { page: &page, bytes: &bytes };
    assert_eq!(reader.root_word("ROOT_OPEN"), 1);
    let kinds = compare_with(&made.pool, &bytes, &page);
    assert_eq!(kinds.keys().copied().collect::<Vec<_>>(), [1, 2, 4, 6, 8, 10, 12]);
    drop(made.pool);
    let closed = memory_bytes(made.dir.path());
    assert_eq!(Reader { page: &page, bytes: &closed }.root_word("ROOT_OPEN"), 0);
}

#[test]
fn files_and_directories_take_the_forms_documented() {
    let made = made();
    let page = Page::open("FORMAT.md");
    let bytes = memory_bytes(made.dir.path());
    let reader = Reader { page: &page, bytes: &bytes };
    let form = |name: &[u8]| {
        let attr = made.pool.lookup(conquest_fs::ROOT, name, &conquest_fs::Caller::root()).unwrap();
        let word = reader.inode(attr.ino).get("content");
        (page.structure("Root").bits(word, "form"), page.structure("Root").bits(word, "depth"))
    };
    assert_eq!(form(b"empty"), (0, 0));
    assert_eq!(form(b"block"), (page.constant("FILE_DIRECT"), 0));
    assert_eq!(form(b"tail"), (page.constant("FILE_DIRECT"), 1), "reserved");
    assert_eq!(form(b"pages"), (page.constant("FILE_TREE"), 1));
    assert_eq!(form(b"sparse"), (page.constant("FILE_TREE"), 3));
    assert_eq!(form(b"void"), (0, 0));
    assert_eq!(form(b"special"), (page.constant("DIR_LONE"), 0));
    assert_eq!(form(b"many").0, page.constant("DIR_TABLE"));
}

/// Compressed content and dictionaries, by the page's tables and the two libraries.
#[test]
fn compressed_files_lie_as_documented() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    Pool::format(
        dir.path(),
        &conquest::FormatOptions {
            root_owner: (0, 0),
            ..conquest::FormatOptions::on(conquest::MediumKind::Battery, 16 << 20)
        },
    )
    .unwrap();
    let pool = Pool::open(dir.path(), &OpenOptions { noatime: true, ..OpenOptions::default() }).unwrap();
    let root = conquest_fs::path::View::new(&pool, conquest_fs::Caller::root());
    let (mut rng, page) = (rng::Rng::new(1), Page::open("FORMAT.md"));
    let text = |rng: &mut rng::Rng, len: usize| {
        let words = ["one ", "two ", "three ", "four\n", "five(", "six) ", "seven = ", "eight;\n"];
        let words = std::iter::repeat_with(|| words[rng.below(8) as usize].bytes()).flatten();
        words.take(len).collect::<Vec<u8>>()
    };
    let mut files = Vec::new();
    for n in 0..1500 {
        let content = text(&mut rng, 700 + n % 700);
        let name = format!("small-{n}");
        root.create(name.as_bytes(), 0o600).unwrap().write_all_at(&content, 0).unwrap();
        files.push((name, content));
    }
    for len in [70_000, 400_000] {
        let mut content = text(&mut rng, len);
        content[1000..66_000].copy_from_slice(&rng.bytes(65_000));
        let name = format!("long-{len}");
        root.create(name.as_bytes(), 0o600).unwrap().write_all_at(&content, 0).unwrap();
        files.push((name, content));
    }
    for codec in [conquest_fs::codec::Codec::Lz4, conquest_fs::codec::Codec::Zstd] {
        pool.compress_due(conquest_fs::compress::Plan::now(codec), &mut |_, _, _| true).unwrap();
        let bytes = memory_bytes(dir.path());
        let reader = Reader { page: &page, bytes: &bytes };
        let mut seen = 0;
        for (name, content) in &files {
            let ino = root.stat(name.as_bytes()).unwrap().ino;
            seen += u32::from(reader.compressed(ino, content, codec as u64));
        }
        assert!(seen > 1000, "{seen} files are compressed by {codec:?}");
    }
    let reader_bytes = memory_bytes(dir.path());
    let reader = Reader { page: &page, bytes: &reader_bytes };
    assert_eq!(reader.dictionaries(0).len(), 1);
    assert_eq!(reader.dictionaries(0), reader.dictionaries(1));
}

#[test]
fn an_image_holds_the_memory() {
    let made = made();
    let page = Page::open("FORMAT.md");
    let image = made.dir.path().join("image");
    made.pool.save(&image, &mut |_, _| {}).unwrap();
    let mut memory = unpack(&page, &std::fs::read(&image).unwrap());
    compare_with(&made.pool, &memory, &page);
    assert_eq!(Reader { page: &page, bytes: &memory }.root_word("ROOT_OPEN"), 0, "nothing to sweep");
    let copy = made.dir.path().join("copy");
    Pool::restore(&copy, &image, Some(conquest::MediumKind::Battery), false, &mut |_, _| {}).unwrap();
    let restored = memory_bytes(&copy);
    let (before, after) = (Reader { page: &page, bytes: &memory }, Reader { page: &page, bytes: &restored });
    let (running, begins) = (before.root_word("ROOT_EPOCH"), after.root_word("ROOT_EPOCH"));
    assert!((1 << 40..1 << 41).contains(&(begins - running)), "{running} {begins}");
    assert_eq!(after.root_word("ROOT_RECOVERED"), running.max(1));
    for root in ["ROOT_EPOCH", "ROOT_RECOVERED"] {
        let at = (page.constant("ROOTS_AT") + page.constant(root) * 8) as usize;
        memory[at..at + 8].copy_from_slice(&restored[at..at + 8]);
    }
    assert!(restored == memory, "restored as the page says");
}

#[test]
fn an_open_transaction_is_in_its_slot_as_documented() {
    let page = Page::open("FORMAT.md");
    let session = Session::in_memory(1 << 20).unwrap();
    let mut op = session.begin().unwrap();
    let slot = page.constant("SLOTS_AT") + u64::from(op.slot()) * page.constant("SLOT");
    let bytes = || {
        let mut bytes = vec![0; 1 << 20];
        session.memory().read_bytes(0, &mut bytes).unwrap();
        bytes
    };
    let at = pram::session::user_root(session.memory(), 5);
    let (old, new) = (0u64, 55u64);
    {
        let mut tx = op.tx().unwrap();
        tx.set(at, &new).unwrap();
        tx.set_bytes(at.raw() + 11, b"five5").unwrap();
        let bytes = bytes();
        let reader = Reader { page: &page, bytes: &bytes };
        let number = reader.uint(slot, 8) & 0xffff_ffff;
        let first = reader.at("UndoRecord", slot + page.constant("LOG_AT"));
        assert_eq!((first.get("place"), first.get("number")), (at.raw() | 8 << 48, number));
        assert_eq!(reader.uint(first.off + page.constant("RECORD"), 8), old);
        let second = reader.at("UndoRecord", first.off + page.constant("RECORD") + 8);
        assert_eq!((second.get("place"), second.get("number")), ((at.raw() + 11) | 5 << 48, number));
        let third = reader.at("UndoRecord", second.off + page.constant("RECORD") + 8);
        assert_ne!(third.get("number"), number, "a record that is not valid ends the log");
        tx.commit().unwrap();
    }
    let bytes = bytes();
    let reader = Reader { page: &page, bytes: &bytes };
    let first = reader.at("UndoRecord", slot + page.constant("LOG_AT"));
    assert_eq!(reader.uint(slot, 8), first.get("number") + 1, "committed");
    assert_eq!(session.memory().load(Off::new(page.constant("ROOTS_AT") + 40)).unwrap(), 55);
}

//! Files and directories as `std` has them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use conquest::Error;
use conquest_fs::path::{AsPath, Open};
use rustix::io::Errno;

use crate::rig::{assert_errno, pool, root, MIB};

#[test]
fn a_file_has_a_position() {
    let (_dir, pool) = pool(16 * MIB);
    let view = root(&pool);
    let how = Open::new().read(true).write(true).create_new(true).mode(0o600);
    let mut file = view.open("letter", how).unwrap();
    assert_errno(view.open("letter", how), Errno::EXIST);
    writeln!(file, "Dear reader,").unwrap();
    write!(&file, "yours").unwrap();
    assert_eq!(file.stream_position().unwrap(), 18);
    assert_eq!(file.seek(SeekFrom::End(-5)).unwrap(), 13);
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "yours");
    assert_eq!(file.read(&mut [0; 4]).unwrap(), 0, "the end");
    // A call with an offset leaves the position alone.
    file.rewind().unwrap();
    file.write_all_at(b"Sweet", 0).unwrap();
    let mut word = [0; 5];
    assert_eq!(file.read_at(&mut word, 13).unwrap(), 5);
    assert_eq!(&word, b"yours");
    text.clear();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "Sweetreader,\nyours");
    for wrong in [SeekFrom::Current(-100), SeekFrom::Start(u64::MAX), SeekFrom::End(i64::MIN)] {
        assert_eq!(file.seek(wrong).unwrap_err().kind(), ErrorKind::InvalidInput, "{wrong:?}");
    }
    assert_eq!(file.stream_position().unwrap(), 18, "where it was");
    // Behind the end there is a hole.
    file.seek(SeekFrom::Start(30)).unwrap();
    file.write_all(b"PS").unwrap();
    file.set_len(31).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    assert_eq!(view.read("letter").unwrap()[18..], [&[0; 12][..], b"P"].concat());
}

#[test]
fn what_is_opened_to_append_goes_to_the_end() {
    let (_dir, pool) = pool(16 * MIB);
    let view = root(&pool);
    view.create("log", 0o600).unwrap().write_all(b"one").unwrap();
    let mut file = view.open("log", Open::new().append(true)).unwrap();
    file.write_all(b" two").unwrap();
    assert_eq!(file.append(b" three").unwrap(), 7);
    file.rewind().unwrap();
    file.write_all(b" four").unwrap();
    assert_eq!(file.stream_position().unwrap(), 18);
    assert_eq!(view.read("log").unwrap(), b"one two three four");
    assert_eq!(file.read(&mut [0; 4]).unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
}

/// More entries than are asked for at a time, half of which go meanwhile.
#[test]
fn a_directory_is_gone_through() {
    let (_dir, pool) = pool(16 * MIB);
    let view = root(&pool);
    view.mkdir("d", 0o755).unwrap();
    let names: BTreeSet<OsString> = (0..1000).map(|n| format!("{n}").into()).collect();
    names.iter().for_each(|name| drop(view.create(Path::new("d").join(name), 0o600).unwrap()));
    let all: Vec<OsString> = view.read_dir("d").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!((all.len(), all.into_iter().collect::<BTreeSet<_>>()), (1000, names.clone()));
    let mut entries = view.read_dir("d").unwrap();
    let mut seen: BTreeSet<OsString> = entries.by_ref().take(10).map(|entry| entry.unwrap().file_name()).collect();
    let gone = |name: &OsString| name.to_str().unwrap().parse::<u32>().unwrap() % 2 == 0;
    names.iter().filter(|name| gone(name)).for_each(|name| view.unlink(Path::new("d").join(name)).unwrap());
    seen.extend(entries.map(|entry| entry.unwrap().file_name()));
    assert!(names.iter().filter(|name| !gone(name)).all(|name| seen.contains(name)));
    view.create("file", 0o600).unwrap();
    assert_errno(view.read_dir("file").map(drop), Errno::NOTDIR);
    assert_errno(view.read_dir("nothing").map(drop), Errno::NOENT);
}

#[test]
fn a_path_is_whatever_names_it() {
    let (_dir, pool) = pool(16 * MIB);
    let view = root(&pool);
    view.mkdir("d", 0o755).unwrap();
    let ino = view.create("d/f", 0o600).unwrap().ino();
    fn same(a: impl AsPath, b: impl AsPath) {
        assert_eq!(a.bytes(), b.bytes());
    }
    same("d/f", b"d/f");
    same(String::from("d/f"), vec![b'd', b'/', b'f']);
    same(PathBuf::from("d/f"), OsString::from("d/f"));
    assert_eq!(view.stat(Path::new("d").join("f")).unwrap().ino, ino);
    assert_eq!(view.stat(b"/d/../d/f".as_slice()).unwrap().ino, ino);
}

#[test]
fn an_error_is_one_of_std() {
    let (_dir, pool) = pool(16 * MIB);
    let missing = std::io::Error::from(root(&pool).stat("nobody").unwrap_err());
    assert_eq!((missing.kind(), missing.raw_os_error()), (ErrorKind::NotFound, Some(Errno::NOENT.raw_os_error())));
    let full = std::io::Error::from(Error::DisksFull);
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    let error = std::io::Error::from(Error::Pool("it is elsewhere".into()));
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidInput, "it is elsewhere"));
}

//! Profiles of inodes by what their settings say of times.

use rng::Rng;

use super::*;
use crate::attr::{Caller, Kind, SetAttr, SetTime};
use crate::node::{Policy, SetXattr};
use crate::ROOT;

const EVER: Time = Time(i64::MAX);

/// Times of some years, with all their nanoseconds, of all files.
fn shake(fs: &Fs, files: &[Ino], rng: &mut Rng) {
    for ino in files {
        let mut time = || Time(1_600_000_000_000_000_000 + rng.below(1 << 57) as i64);
        let at = [time(), time()].map(|time| Some(SetTime::At(time)));
        let set = SetAttr { mtime: at[0], atime: at[1], ctime: Some(time()), ..SetAttr::default() };
        fs.setattr(*ino, &set, &Caller::root()).unwrap();
    }
}

#[test]
fn times_in_seconds_get_a_profile_of_their_own_once() {
    let session = pram::Session::in_memory(64 << 20).unwrap();
    Fs::format(&session, (0, 0, 0o755), 1).unwrap();
    let fs = Fs::over(session, Policy::default()).unwrap();
    let (mut rng, root) = (Rng::new(5), Caller::root());
    let make = |n: usize| fs.create(ROOT, format!("f{n}").as_bytes(), Kind::Regular, 0o644, 0, &root).unwrap().ino;
    let files: Vec<Ino> = (0..WORTH_SECONDS + 100).map(make).collect();
    shake(&fs, &files, &mut rng);
    assert_eq!(fs.train_profile().unwrap(), Some(1));
    let exact = fs.pack_inodes(0..fs.inode_blocks(), EVER, &|| true).unwrap();
    assert_eq!(fs.train_profile_of_seconds(EVER).unwrap(), None, "there are none");
    files.iter().for_each(|ino| {
        fs.setxattr(*ino, b"user.conquest.times", b"seconds", SetXattr::Any, &root).unwrap();
    });
    shake(&fs, &files, &mut rng);
    assert_eq!(fs.train_profile_of_seconds(EVER).unwrap(), Some(2));
    assert_eq!(fs.train_profile_of_seconds(EVER).unwrap(), None, "that one is as good");
    let seconds = fs.pack_inodes(0..fs.inode_blocks(), EVER, &|| true).unwrap();
    let each = |packed: Packed| packed.packed_bytes as f64 / packed.inodes as f64;
    assert!(each(seconds) + 8.0 < each(exact), "{} and {} bytes", each(seconds), each(exact));
    assert!(files.iter().all(|ino| fs.getattr(*ino).unwrap().mtime.0 % 1_000_000_000 == 0));
}

//! Directories and files: made, refused, opened without a disk, rebuilt, replaced.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use export::config::{Config, Kind, NewDisk, NewRegion};
use export::volume::members::Replacement;
use export::volume::HowToMake;
use export::{control, BlockDevice, Status, Volume};
use exraid::label::{MemberState, END};
use exraid::{Aligned, Buffers, Request};
use rng::Rng;

use crate::line::{read, write};

const SIZE: u64 = 20 << 20;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir_in("/dev/shm").expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn region(&self, kind: Kind, names: &[&str]) -> NewRegion {
        let disk = |name: &&str| NewDisk { path: self.path(name), size: Some(SIZE) };
        NewRegion { kind, disks: names.iter().map(disk).collect() }
    }

    fn make(&self, regions: &[NewRegion]) -> export::Result<()> {
        Volume::make(&self.path("vol"), regions, HowToMake::default(), &mut |_, _| {})
    }

    fn open(&self) -> Arc<Volume> {
        self.try_open().expect("a volume")
    }

    fn try_open(&self) -> export::Result<Arc<Volume>> {
        Volume::open(&self.path("vol"), &mut |_, _| {})
    }

    fn replace(&self, volume: &Volume, old: &str, new: &str) -> export::Result<bool> {
        let new = NewDisk { path: self.path(new), size: None };
        volume.replace(&Replacement { old: self.path(old), new, force: false }, &mut |_| true)
    }
}

fn states(volume: &Volume) -> Vec<String> {
    volume.status().regions.iter().flat_map(|region| region.disks.iter().map(|disk| disk.state.clone())).collect()
}

fn close(volume: &Arc<Volume>) {
    volume.close().expect("closed");
}

fn is_whole(volume: &Volume) -> bool {
    states(volume).iter().all(|state| state == "whole")
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn regions_follow_one_another_and_content_stays() {
    let place = Place::new();
    let regions = [
        place.region(Kind::Single, &["a"]),
        place.region(Kind::Stripe, &["b", "c"]),
        place.region(Kind::Raid5, &["d", "e", "f"]),
    ];
    place.make(&regions).expect("made");
    let volume = place.open();
    let size = volume.line().size();
    assert_eq!(volume.line().places().len(), 3);
    let content = Rng::new(1).bytes(size as usize);
    for (n, piece) in content.chunks(777_777).enumerate() {
        write(volume.line(), n as u64 * 777_777, piece).expect("a write");
    }
    // No other process gets it meanwhile, by its directory or by its disks.
    let e = place.try_open().err().expect("it is in use").to_string();
    assert!(e.contains("in use") && e.contains("export status"), "{e}");
    fs::create_dir(place.path("copy")).expect("mkdir");
    fs::copy(place.path("vol/volume.toml"), place.path("copy/volume.toml")).expect("copied");
    let e = Volume::open(&place.path("copy"), &mut |_, _| {}).err().expect("its disks are in use").to_string();
    assert!(e.contains("in use"), "{e}");
    close(&volume);
    drop(volume);
    let volume = place.open();
    assert!(read(volume.line(), 0, size as usize).expect("a read") == content);
    assert!(volume.status().is_well());
}

#[test]
fn what_can_be_no_volume_is_refused_and_nothing_is_left() {
    let place = Place::new();
    let refused = |regions: &[NewRegion], words: &[&str]| {
        let e = place.make(regions).expect_err("refused").to_string();
        assert!(words.iter().all(|word| e.contains(word)), "{e}");
        assert!(!place.path("vol").exists());
    };
    refused(&[place.region(Kind::Raid5, &["a", "b"])], &["raid5", "3 to"]);
    refused(&[place.region(Kind::Mirror, &["a"])], &["mirror", "2 to"]);
    let unsized_ = NewRegion { kind: Kind::Single, disks: vec![NewDisk { path: place.path("x"), size: None }] };
    refused(&[unsized_], &["not there", ":10G"]);
    fs::write(place.path("thesis"), "text").expect("written");
    refused(&[place.region(Kind::Mirror, &["a", "thesis"])], &["thesis"]);
    assert!(!place.path("a").exists() && fs::read(place.path("thesis")).expect("read") == b"text");
    refused(&[place.region(Kind::Mirror, &["a", "a"])], &["in use"]);
    assert!(!place.path("a").exists());

    place.make(&[place.region(Kind::Single, &["a"])]).expect("made");
    let e = place.make(&[place.region(Kind::Single, &["b"])]).expect_err("a volume is there").to_string();
    assert!(e.contains("a volume already"), "{e}");
    // The disks of a pool, or of another volume.
    let other = [place.region(Kind::Single, &["a"])];
    let e = Volume::make(&place.path("other"), &other, HowToMake::default(), &mut |_, _| {}).expect_err("taken");
    assert!(e.to_string().contains("never exported"), "{e}");
    // A pool's directory, and an empty one.
    fs::create_dir(place.path("pool")).expect("mkdir");
    let e = control::status(&place.path("pool")).expect_err("nothing").to_string();
    assert!(e.contains("no volume") && e.contains("export make"), "{e}");
    fs::write(place.path("pool/pool.toml"), "version = 1").expect("written");
    let e = control::status(&place.path("pool")).expect_err("a pool").to_string();
    assert!(e.contains("is a pool") && e.contains("never exported"), "{e}");
    assert!(Volume::open(&place.path("pool"), &mut |_, _| {}).is_err());
}

#[test]
fn without_a_disk_it_goes_on_and_catches_up_when_it_is_back() {
    for (kind, names) in [(Kind::Mirror, &["a", "b"][..]), (Kind::Raid5, &["a", "b", "c"][..])] {
        let place = Place::new();
        place.make(&[place.region(kind, names)]).expect("made");
        let volume = place.open();
        let content = Rng::new(2).bytes(3 << 20);
        write(volume.line(), 12345, &content).expect("a write");
        close(&volume);
        drop(volume);
        fs::rename(place.path("b"), place.path("away")).expect("renamed");
        let status = Status::look(&place.path("vol")).expect("an answer");
        assert!(!status.is_well() && status.problems[0].why.contains("is not there"), "{status:?}");
        let volume = place.open();
        assert_eq!(states(&volume)[1], "out");
        assert_eq!(volume.status().regions[0].tolerates, Some(0));
        assert!(read(volume.line(), 12345, content.len()).expect("a read") == content);
        let newer = Rng::new(3).bytes(1 << 20);
        write(volume.line(), 500_000, &newer).expect("a write");
        close(&volume);
        drop(volume);
        fs::rename(place.path("away"), place.path("b")).expect("renamed");
        let volume = place.open();
        assert_eq!(states(&volume)[1], "out", "it has missed something");
        volume.rebuild_in_background();
        until("it is whole", || is_whole(&volume));
        close(&volume);
        drop(volume);
        // Now another can be missing.
        fs::remove_file(place.path("a")).expect("removed");
        let volume = place.open();
        assert!(read(volume.line(), 500_000, newer.len()).expect("a read") == newer, "{kind:?}");
        let before = read(volume.line(), 12345, 400_000).expect("a read");
        assert!(before == content[..400_000], "{kind:?}");
        close(&volume);
    }
}

#[test]
fn a_stripe_does_not_go_on_without_a_disk_and_names_it() {
    let place = Place::new();
    place.make(&[place.region(Kind::Stripe, &["a", "b"])]).expect("made");
    fs::rename(place.path("b"), place.path("away")).expect("renamed");
    let e = place.try_open().err().expect("refused").to_string();
    assert!(e.contains(&place.path("b").display().to_string()) && e.contains("is not there"), "{e}");
    fs::rename(place.path("away"), place.path("b")).expect("renamed");
    let volume = place.open();
    let e = place.replace(&volume, "b", "c").expect_err("nobody has it").to_string();
    assert!(e.contains("stripe") && e.contains("cannot be replaced"), "{e}");
    assert!(!place.path("c").exists());
}

#[test]
fn a_disk_takes_the_place_of_another() {
    for (kind, names) in [(Kind::Mirror, &["a", "b"][..]), (Kind::Raid5, &["a", "b", "c"][..])] {
        let place = Place::new();
        place.make(&[place.region(kind, names)]).expect("made");
        let volume = place.open();
        let content = Rng::new(4).bytes(volume.line().size() as usize);
        write(volume.line(), 0, &content).expect("a write");
        let e = place.replace(&volume, "nowhere", "new").expect_err("no disk").to_string();
        assert!(e.contains("is no disk of"), "{e}");
        let e = place.replace(&volume, "a", "b").expect_err("used").to_string();
        assert!(e.contains("already"), "{e}");
        let e = place.replace(&volume, "a", "a").expect_err("whole").to_string();
        assert!(e.contains("is whole"), "{e}");
        File::create(place.path("small")).and_then(|file| file.set_len(17 << 20)).expect("a file");
        let e = place.replace(&volume, "a", "small").expect_err("too small").to_string();
        assert!(e.contains("small") && e.contains("needed"), "{e}");
        assert!(is_whole(&volume));

        // Stopped in the middle, it goes on when the volume is opened again.
        let mut pieces = 0;
        let new = NewDisk { path: place.path("new"), size: None };
        let how = Replacement { old: place.path("a"), new, force: false };
        let mut stop = |_| {
            pieces += 1;
            pieces < 4
        };
        assert!(!volume.replace(&how, &mut stop).expect("stopped"));
        close(&volume);
        drop(volume);
        let config = Config::read(&place.path("vol")).expect("read").expect("there");
        assert!(config.regions[0].disks.contains(&place.path("new")), "{config:?}");
        assert!(!config.regions[0].disks.contains(&place.path("a")), "{config:?}");
        let volume = place.open();
        let first = &volume.line().regions()[0].members()[0];
        assert!(matches!(first.state, MemberState::Rebuilding { rebuilt: 1.. }), "{first:?}");
        volume.rebuild_in_background();
        until("it is whole", || is_whole(&volume));
        close(&volume);
        drop(volume);
        fs::remove_file(place.path("b")).expect("removed");
        let volume = place.open();
        assert!(read(volume.line(), 0, content.len()).expect("a read") == content, "{kind:?}");
        // A missing disk is replaced by its path.
        assert!(place.replace(&volume, "b", "newer").expect("replaced"));
        assert!(volume.status().is_well(), "{:?}", volume.status());
        close(&volume);
    }
}

/// A power cut while a mirror or a RAID-5 is written leaves copies that differ. They are made equal before the first
/// read, so that no sector reads in two ways.
#[test]
fn copies_that_may_differ_are_made_the_same() {
    for (kind, names) in [(Kind::Mirror, &["a", "b"][..]), (Kind::Raid5, &["a", "b", "c"][..])] {
        let place = Place::new();
        place.make(&[place.region(kind, names)]).expect("made");
        let at = 10 << 20;
        for is_cut in [false, true] {
            let volume = place.open();
            write(volume.line(), at, &[5; 1 << 20]).expect("a write");
            match is_cut {
                true => volume.line().flush().expect("a flush"),
                false => close(&volume),
            }
            drop(volume);
            // The write that was cut short is on one disk.
            let disk = File::options().write(true).open(place.path("a")).expect("a file");
            disk.write_all_at(&vec![6; 2 << 20], END + (5 << 20)).expect("a write");
            drop(disk);
            let volume = place.open();
            let region = volume.line().regions()[0].clone();
            let copy = |copy| {
                let (done, ticket) = exraid::Ticket::new();
                let into = Buffers::whole(&Aligned::zeroed(16 << 20));
                region.read_copy(copy, Request::read(0, into), done);
                let answer = ticket.wait();
                answer.result.map(|()| answer.buffers.unwrap_or_default().to_vec()).expect("a copy")
            };
            assert_eq!(copy(0) == copy(1), is_cut, "{kind:?}");
            close(&volume);
        }
    }
}

#[test]
fn who_serves_it_is_asked() {
    let place = Place::new();
    place.make(&[place.region(Kind::Mirror, &["a", "b"])]).expect("made");
    let dir = place.path("vol");
    assert_eq!(control::status(&dir).expect("an answer").pid, None, "nobody has it");
    let volume = place.open();
    let at: PathBuf = Path::new("/mnt/x").into();
    let server = control::Control::serve(volume.clone(), Some(at.clone())).expect("a server");
    let status = control::status(&dir).expect("an answer");
    assert_eq!(
        (status.pid, status.mounted, status.size),
        (Some(std::process::id()), Some(at), Some(volume.line().size()))
    );
    let how = Replacement { old: place.path("a"), new: NewDisk { path: place.path("c"), size: None }, force: false };
    assert!(control::replace(&dir, &how, &mut |_| {}).expect("replaced"));
    let e = control::replace(&dir, &how, &mut |_| {}).expect_err("no more").to_string();
    assert!(e.contains("is no disk of"), "{e}");
    close(&volume);
    drop((server, volume));
    // And in this process, if no other has it open.
    let how = Replacement { old: place.path("b"), new: NewDisk { path: place.path("d"), size: None }, force: false };
    assert!(control::replace(&dir, &how, &mut |_| {}).expect("replaced"));
    let status = control::status(&dir).expect("an answer");
    let disks: Vec<_> = status.regions[0].disks.iter().filter_map(|disk| disk.path.clone()).collect();
    assert_eq!(disks, [place.path("c"), place.path("d")]);
    assert!(status.is_well());
}

//! Disks of pools: making a pool with a file, a device, the usual disk or none; refusals and messages; and the fate of
//! disks when the pool is destroyed.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::lab::{self, program, require, Lab, NOBODY};
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("disks::a_pool_has_the_usual_disk", usual),
    ("disks::a_pool_without_a_disk_gets_one", none_and_add),
    ("disks::a_mounted_pool_gets_further_disks_and_gives_one_up", grows),
    ("disks::files_that_are_made_go_with_the_pool", files),
    ("disks::a_device_outlives_its_pool", device),
    ("disks::a_device_with_another_name_is_found_by_its_label", renamed_device),
    ("disks::a_device_that_is_mounted_or_holds_something_is_refused", taken_device),
    ("disks::what_can_be_no_disk_is_refused", refused_inputs),
    ("disks::a_disk_that_a_pool_uses_is_nobody_elses", used),
    ("disks::a_disk_that_is_missing_is_reported_and_the_pool_waits_for_it", missing),
    ("disks::mounting_tells_what_it_goes_on_without", without),
    ("disks::a_refusal_names_the_disk", not_permitted),
    ("disks::status_tells_what_is_in_memory_and_on_disk", status_tells),
    ("disks::thresholds_say_what_goes_to_disk", thresholds),
    ("disks::content_is_recovered_from_disks_alone", salvaged),
    ("disks::an_image_finds_the_disks_of_its_pool_and_fills_others", restored),
    ("disks::an_interrupted_restore_leaves_nothing", interrupted_restore),
    ("disks::a_copied_pool_directory_does_not_share_its_disk", copied),
    ("disks::the_only_one_is_deleted_while_it_is_in_use", deleted),
];

fn length(path: &Path) -> u64 {
    fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).len()
}

fn sparse(path: &Path, size: u64) {
    File::create(path).and_then(|file| file.set_len(size)).expect("a file");
}

/// The pool's disks, from `status --json`.
fn disks(lab: &Lab) -> Vec<serde_json::Value> {
    lab.status()["disks"].as_array().expect("disks").clone()
}

/// Mounts the pool, writes, and reads the content back.
fn works(lab: &Lab) {
    lab.mount();
    fs::write(lab.mnt().join("file"), "text").expect("written");
    lab.umount();
    lab.mount();
    assert_eq!(fs::read(lab.mnt().join("file")).expect("read"), b"text");
    lab.umount();
    lab.check();
}

/// A lab with a pool on the default disk.
fn with_usual_disk() -> Lab {
    let lab = Lab::new();
    lab.ok(&["format", &lab.pool(), "--nvram", "64M"]);
    lab
}

/// After `cp -a` of a directory with a disk outside, only one of the two pools has the disk.
fn copied() -> Outcome {
    let lab = Lab::new();
    let (pool, copy, disk) = (lab.pool(), lab.text("copy"), lab.text("given"));
    sparse(&lab.path("given"), 128 << 20);
    lab.ok(&["format", &pool, "--nvram", "64M", "--disk", &disk]);
    works(&lab);
    program("cp", &["-a", &pool, &copy]).status().expect("copied");
    let other = lab.text("other");
    fs::create_dir(&other).expect("mkdir");
    let texts = ["is a copy of that", &disk, "region take"];
    lab.refused(1, &["mount", &copy, &other], &texts);
    // Destroying the copy removes nothing of the original.
    let gone = lab.text("gone");
    program("cp", &["-a", &pool, &gone]).status().expect("copied");
    lab.ok(&["destroy", &gone]);
    works(&lab);
    lab.mount();
    lab.refused(1, &["region", "take", &copy], &["in use", &pool]);
    lab.umount();
    let said = lab.ok(&["region", "take", &copy]);
    assert!(said.contains(&disk), "{said}");
    lab.refused(1, &["mount", &pool, &lab.text("mnt")], &texts);
    lab.ok(&["mount", &copy, &other]);
    assert_eq!(fs::read(Path::new(&other).join("file")).expect("read"), b"text");
    lab.ok(&["umount", &other]);
    // A destroyed copy obstructs nothing.
    lab.ok(&["destroy", &copy]);
    fs::remove_dir_all(&copy).ok();
    Ok(())
}

fn usual() -> Outcome {
    let lab = Lab::new();
    let said = lab.ok(&["format", &lab.pool(), "--nvram", "64M"]);
    let disk = lab.path("pool/disk");
    assert!(said.contains(&lab.text("pool/disk")), "{said}");
    let host = rustix::fs::statvfs(lab.path("pool")).expect("a file system");
    let free = host.f_bavail * host.f_frsize;
    assert!(length(&disk) > free / 2 && length(&disk) < free, "{} of {free}", length(&disk));
    let found = fs::metadata(&disk).expect("a disk");
    assert!(found.blocks() * 512 < 8 << 20, "it is sparse");
    assert_eq!(found.mode() & 0o777, 0o600);
    works(&lab);
    let status = lab.status();
    assert_eq!(status["disks"][0]["path"], lab.text("pool/disk"));
    assert_eq!(status["disks"][0]["given"], false);
    assert_eq!(status["segments"]["size"], 4 << 20);
    assert!(lab.output(&["status", &lab.pool(), "-v"]).contains("disk "));
    // Made anew, the pool has as much space again, not the rest of the one before.
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--force"]);
    works(&lab);
    lab.ok(&["destroy", &lab.pool()]);
    assert!(!lab.path("pool").exists());

    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    lab.ok(&["up", "--pool", &pool, "--size", "64M", &mnt]);
    assert!(length(&disk) > 1 << 20);
    lab.umount();
    Ok(())
}

fn none_and_add() -> Outcome {
    let lab = Lab::new();
    let said = lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", "none"]);
    assert!(said.contains("no disk"), "{said}");
    assert!(!lab.path("pool/disk").exists() && disks(&lab).is_empty());
    assert!(lab.ok(&["region", "list", &lab.pool()]).contains("conquest region add"));
    works(&lab);
    let disk = lab.text("elsewhere");
    lab.mount();
    lab.refused(1, &["region", "add", &lab.pool(), &format!("{disk}:64M")], &["mount"]);
    lab.umount();
    fs::write(&disk, "a thesis").expect("written");
    lab.refused(1, &["region", "add", &lab.pool(), &format!("{disk}:64M")], &["with content", "--force"]);
    assert_eq!(fs::read(&disk).expect("read"), b"a thesis");
    fs::remove_file(&disk).expect("removed");
    let said = lab.ok(&["region", "add", &lab.pool(), &format!("{disk}:64M")]);
    assert!(said.contains(&disk) && said.contains("64 MiB"), "{said}");
    works(&lab);
    assert_eq!(lab.status()["segments"]["segments"], 62);
    lab.refused(
        1,
        &["region", "add", &lab.pool(), &format!("{disk}:64M")],
        &["a disk of the pool already", "region list"],
    );
    Ok(())
}

fn grows() -> Outcome {
    let lab = Lab::new();
    lab.ok(&["format", &lab.pool(), "--nvram", "32M", "--disk", &format!("{}:64M", lab.text("first"))]);
    lab.mount();
    let content = rng::Rng::new(3).bytes(16 << 20);
    let write = |n: u32| fs::write(lab.mnt().join(n.to_string()), &content);
    let fit = (0..20).take_while(|n| write(*n).is_ok()).count() as u32;
    assert!((2..4).contains(&fit), "{fit} files of 16 MiB on a disk of 64");
    let _ = fs::remove_file(lab.mnt().join(fit.to_string()));

    let (second, third) = (lab.text("second"), lab.text("third"));
    let size = || rustix::fs::statvfs(lab.mnt()).map(|found| found.f_blocks * found.f_frsize).expect("mounted");
    let before = size();
    let said = lab.ok(&["region", "add", &lab.pool(), &format!("{second}:128M"), &format!("{third}:128M")]);
    assert!(said.contains(&second) && said.contains(&third), "{said}");
    assert!(size() > before + (200 << 20), "df tells of it at once: {before}, {}", size());
    for n in fit..fit + 10 {
        write(n).unwrap_or_else(|e| panic!("file {n}: {e}"));
    }
    rustix::fs::syncfs(File::open(lab.mnt()).expect("there")).expect("written");
    for file in [&second, &third] {
        let backed = fs::metadata(file).expect("there").blocks() * 512;
        assert!(backed > 16 << 20, "{file} has {backed} bytes of its host");
    }
    // Without an orderly end.
    lab.kill9();
    lab.mount();
    for n in 0..fit + 10 {
        assert!(fs::read(lab.mnt().join(n.to_string())).expect("read") == content, "file {n}");
    }
    assert_eq!(disks(&lab).len(), 3);

    // It also removes regions: first one with too much content for the others, then one whose content fits.
    lab.refused(1, &["region", "remove", &lab.pool(), &second], &["room for", "region add"]);
    lab.refused(1, &["region", "remove", &lab.pool(), &second, "--dry-run"], &["do not fit"]);
    lab.refused(1, &["region", "remove", &lab.pool(), "/nowhere"], &["no disk of the pool", "region list"]);
    (fit..fit + 6).for_each(|n| fs::remove_file(lab.mnt().join(n.to_string())).expect("removed"));
    let printed = lab.ok(&["region", "remove", &lab.pool(), &second, "--dry-run"]);
    assert!(printed.contains("they fit"), "{printed}");
    let printed = lab.ok(&["region", "remove", &lab.pool(), &second]);
    assert!(printed.contains("may be unplugged") && !Path::new(&second).exists(), "{printed}");
    lab.kill9();
    lab.mount();
    for n in (0..fit).chain(fit + 6..fit + 10) {
        assert!(fs::read(lab.mnt().join(n.to_string())).expect("read") == content, "file {n}");
    }
    lab.umount();
    lab.check();
    assert_eq!(disks(&lab).len(), 2);
    lab.ok(&["destroy", &lab.pool()]);
    assert!(!Path::new(&third).exists());
    Ok(())
}

fn status_tells() -> Outcome {
    let lab = Lab::new();
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", &format!("{}:256M", lab.text("disk"))]);
    let empty = lab.output(&["status", &lab.pool(), "-v"]);
    assert!(empty.contains("nothing; files beyond 1 MiB go to disk") && !empty.contains("objects"), "{empty}");
    let heap = lab.output(&["status", &lab.pool(), "--heap"]);
    assert!(heap.contains("\nobjects"), "{heap}");
    lab.mount();
    fs::write(lab.mnt().join("file"), vec![1; 8 << 20]).expect("written");
    File::open(lab.mnt().join("file")).and_then(|file| file.sync_all()).expect("durable");
    let status = lab.status();
    let cache = |what: &str| status["cache"][what].as_u64().expect("a number");
    assert_eq!(cache("memory"), 8 << 20);
    assert_eq!(cache("dirty") + cache("clean"), 8 << 20, "{status}");
    assert!(cache("frozen") <= cache("dirty"));
    assert!(!status["heap"].as_array().expect("classes").is_empty());
    assert!(lab.output(&["status", &lab.pool(), "-v"]).contains("union cache    8 MiB"));
    lab.umount();
    let status = lab.status();
    assert_eq!(status["segments"]["live"], 8 << 20, "a pool with a backing writes everything when it is closed");
    assert_eq!((&status["cache"]["dirty"], &status["segments"]["promised"]), (&0.into(), &0.into()));
    assert!(lab.output(&["status", &lab.pool(), "-v"]).contains("on disk        8 MiB of "));
    Ok(())
}

fn thresholds() -> Outcome {
    require("setfattr")?;
    let lab = Lab::new();
    let disk = format!("{}:256M", lab.text("disk"));
    lab.refused(2, &["format", &lab.pool(), "--threshold", "1K"], &["64 KiB to 1 TiB"]);
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", &disk, "--threshold", "256K"]);
    assert!(lab.output(&["status", &lab.pool(), "-v"]).contains("files beyond 256 KiB go to disk"));
    lab.mount();
    let dir = lab.mnt().join("dir");
    fs::create_dir(&dir).expect("a directory");
    let set = |value: &str| program("setfattr", &["-n", "user.conquest.threshold", "-v", value]).arg(&dir).status();
    assert!(!set("3M").expect("setfattr").success(), "no power of two");
    assert!(set("none").expect("setfattr").success());
    fs::write(dir.join("kept"), vec![1; 2 << 20]).expect("written");

    fs::write(lab.mnt().join("usual"), vec![2; 512 << 10]).expect("written");
    let status = |what: &str| lab.status()[what].clone();
    lab.umount();
    lab.mount();
    assert_eq!(fs::read(dir.join("kept")).expect("read"), vec![1; 2 << 20]);
    lab.umount();
    assert_eq!(status("segments")["live"], 512 << 10);
    assert_eq!(status("cache")["threshold"], 256 << 10);
    lab.check();
    Ok(())
}

/// A pool with nothing left but its disk.
fn salvaged() -> Outcome {
    let lab = Lab::new();
    let (disk, to) = (lab.text("disk"), lab.path("found"));
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", &format!("{disk}:256M")]);
    lab.mount();
    let mut rng = rng::Rng::new(crate::settings::seed());
    let content: Vec<u8> = (0..(5 << 20) + 777).map(|_| rng.below(256) as u8).collect();
    let (whole, sparse) = (lab.mnt().join("whole"), lab.mnt().join("sparse"));
    fs::write(&whole, &content).expect("written");
    fs::write(lab.mnt().join("small"), "in memory").expect("written");
    let file = File::create(&sparse).expect("a file");
    file.write_all_at(&content[..2 << 20], 0).and_then(|()| file.write_all_at(b"far", 8 << 20)).expect("written");
    drop(file);
    // The newest version counts.
    let file = File::options().write(true).open(&whole).expect("a file");
    file.sync_all().and_then(|()| file.write_all_at(&content[100..5000], 4096)).expect("written");
    drop(file);
    let content = fs::read(&whole).expect("read");
    let number = |path: &Path| fs::metadata(path).expect("there").ino();
    let (whole, sparse) = (format!("inode-{}", number(&whole)), format!("inode-{}", number(&sparse)));
    lab.umount();
    lab.ok(&["release", &lab.pool()]);
    fs::remove_dir_all(lab.pool()).expect("the pool is gone");

    let listed = lab.ok(&["salvage", &disk]);
    assert!(
        listed.contains("content of 2 inodes") && listed.contains(&format!("{whole}: 5 MiB in 1281 pages")),
        "{listed}"
    );
    let said = lab.ok(&["salvage", &disk, "--to", &to.display().to_string()]);
    let all = fs::read_dir(&to).expect("a directory").flatten().map(|entry| entry.path()).chain([to.clone()]);
    for path in all {
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).expect("it is there").permissions());
        assert_eq!(mode & 0o077, 0, "nothing tells whose it was: {}", path.display());
    }
    assert!(said.contains("missing: bytes 2097152 to 8388608: not on these disks"), "{said}");
    let found = fs::read(to.join(&whole)).expect("recovered");
    assert!(found[..content.len()] == content && found.len() == content.len().next_multiple_of(4096));
    assert!(!to.join(format!("{whole}.missing")).exists());
    let found = fs::read(to.join(&sparse)).expect("recovered");
    assert_eq!((found.len(), &found[8 << 20..][..3]), ((8 << 20) + 4096, &b"far"[..]));
    let missing = fs::read_to_string(to.join(format!("{sparse}.missing"))).expect("a list");
    assert_eq!(missing, "2097152 8388608 not on these disks\n");
    lab.refused(1, &["salvage", &disk, "--to", &to.display().to_string()], &["inode-", "exists"]);

    // A damaged page is named, and all others are read.
    let raw = fs::read(&disk).expect("read");
    let at =
        raw.windows(4096).step_by(4096).position(|page| *page == content[8192..12288]).expect("it is there") * 4096;
    let file = File::options().write(true).open(&disk).expect("a file");
    file.write_all_at(b"damage", at as u64 + 50).expect("written");
    let again = lab.text("again");
    lab.refused(1, &["salvage", &disk, "--to", &again], &["1 ranges of files"]);
    let found = fs::read(lab.path("again").join(&whole)).expect("recovered");
    assert!(found[..8192] == content[..8192] && found[12288..content.len()] == content[12288..]);
    let missing = fs::read_to_string(lab.path("again").join(format!("{whole}.missing"))).expect("a list");
    assert!(missing.starts_with("8192 12288 ") && missing.contains("checksum"), "{missing}");
    lab.refused(1, &["salvage", &lab.text("nowhere")], &["nowhere"]);
    Ok(())
}

fn files() -> Outcome {
    let lab = Lab::new();
    let (made, given) = (lab.path("made"), lab.path("given"));
    sparse(&given, 100 << 20);
    let number = fs::metadata(&given).expect("a file").ino();
    let (made_arg, given_arg) = (format!("{}:64M", made.display()), given.display().to_string());
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", &made_arg, "--disk", &given_arg]);
    works(&lab);
    let listed = lab.ok(&["region", "list", &lab.pool()]);
    assert!(listed.contains("region 0 (single)") && listed.contains("region 1 (single)"), "{listed}");
    assert_eq!(length(&made), 64 << 20);
    assert_eq!(disks(&lab).len(), 2);
    // Replacing another pool removes the disk made for it; a given disk is the same file.
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--force", "--disk", &given_arg]);
    assert!(!made.exists(), "it went with its pool");
    works(&lab);
    lab.ok(&["destroy", &lab.pool()]);
    assert_eq!((length(&given), fs::metadata(&given).expect("a file").ino()), (100 << 20, number));
    // Its label names no pool any more.
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", &given_arg]);
    Ok(())
}

/// A loop device over a file of the lab.
struct Loop(PathBuf);

impl Loop {
    fn new(lab: &Lab, name: &str, size: u64) -> Result<Loop, Skip> {
        sparse(&lab.path(name), size);
        Loop::again(lab, name)
    }

    fn again(lab: &Lab, name: &str) -> Result<Loop, Skip> {
        require("losetup")?;
        let output = program("losetup", &["--find", "--show"]).arg(lab.path(name)).output();
        let device = output.ok().filter(|output| output.status.success());
        let device = device.ok_or_else(|| Skip("needs a loop device".into()))?;
        Ok(Loop(String::from_utf8_lossy(&device.stdout).trim().into()))
    }

    fn text(&self) -> String {
        self.0.display().to_string()
    }

    /// Gives it another name.
    fn also(&self, name: &str) {
        let number = fs::metadata(&self.0).expect("a device").rdev();
        let [major, minor] = [libc::major(number), libc::minor(number)].map(|number| number.to_string());
        lab::ok(&mut program("mknod", &["-m", "600", name, "b", &major, &minor]));
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = program("losetup", &["--detach"]).arg(&self.0).status();
    }
}

fn device() -> Outcome {
    let lab = Lab::new();
    let device = Loop::new(&lab, "backing", 96 << 20)?;
    let name = device.text();
    lab.refused(1, &["format", &lab.pool(), "--nvram", "64M", "--disk", &format!("{name}:64M")], &["used whole"]);
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", &name]);
    works(&lab);
    let disk = &disks(&lab)[0];
    assert_eq!(
        (&disk["path"], &disk["given"], disk["size"].as_u64()),
        (&name.clone().into(), &true.into(), Some(96 << 20))
    );
    let other = lab.text("other");
    let make =
        |pool: &str, more: &[&str]| lab.run(&[&["format", pool, "--nvram", "64M", "--disk", &name], more].concat());
    make(&other, &[]).is_refusal(1, &["disk 1 of region 0 of the pool", "--force"], "another pool's disk");
    lab.mount();
    make(&other, &["--force"]).is_refusal(1, &["in use"], "one in use");
    lab.umount();
    assert_eq!(make(&lab.pool(), &["--force"]).code, 0);
    works(&lab);
    lab.ok(&["destroy", &lab.pool()]);
    assert!(device.0.exists());
    assert_eq!(make(&lab.pool(), &[]).code, 0, "its label is gone");
    works(&lab);
    lab.ok(&["destroy", &lab.pool()]);
    Ok(())
}

/// As after a reboot: the names of the devices have moved on by one. Commands that only look write no new name, and no
/// name is guessed.
fn renamed_device() -> Outcome {
    let lab = Lab::new();
    let [a, b, c] = ["1", "2", "3"].map(|name| Loop::new(&lab, name, 32 << 20));
    let (a, b, c) = (a?, b?, c?);
    let dev = lab.path("dev");
    fs::create_dir(&dev).expect("made");
    let at = |name: &str| dev.join(name).display().to_string();
    for (device, name) in [(&a, "a"), (&b, "b"), (&c, "c")] {
        device.also(&at(name));
    }
    let mv = |from: &str, to: &str| fs::rename(at(from), at(to)).expect("renamed");
    let column =
        |key: &str| disks(&lab).iter().map(|disk| disk[key].as_str().unwrap_or("").into()).collect::<Vec<String>>();
    let toml = || fs::read_to_string(lab.path("pool/pool.toml")).expect("pool.toml");
    let mirror = format!("mirror:{},{}", at("a"), at("b"));
    lab.ok(&["format", &lab.pool(), "--nvram", "32M", "--disk", &mirror, "--disk", &at("c")]);
    works(&lab);
    let before = toml();
    mv("c", "d");
    mv("b", "c");
    let now = ["a", "d", "c"].map(at).to_vec();
    assert_eq!((column("path"), toml()), (now.clone(), before));
    works(&lab);
    let of = |name: &str, region: u32| format!("path = \"{}\"\ngiven = true\nregion = {region}\n", at(name));
    assert!([of("a", 0), of("c", 0), of("d", 1)].iter().all(|entry| toml().contains(entry)), "{}", toml());
    assert_eq!((column("path"), column("state")), (now, vec!["whole".into(); 3]));

    mv("d", "e");
    fs::copy(lab.path("3"), lab.path("copy")).expect("copied");
    let copy = Loop::again(&lab, "copy")?;
    copy.also(&at("f"));
    let problem = column("problem").concat();
    assert!(problem.contains(&format!("{} and {} have the label of one disk", at("e"), at("f"))), "{problem}");
    fs::remove_file(at("f")).expect("removed");
    std::os::unix::fs::chown(at("e"), Some(1234), Some(0)).expect("given away");
    let problem = column("problem").concat();
    assert!(problem.contains("its label is on") && problem.contains("user 1234"), "{problem}");
    std::os::unix::fs::chown(at("e"), Some(0), Some(0)).expect("given back");
    works(&lab);
    assert_eq!(column("path"), ["a", "e", "c"].map(at));
    lab.ok(&["destroy", &lab.pool()]);
    Ok(())
}

fn taken_device() -> Outcome {
    require("mkfs.ext4")?;
    let lab = Lab::new();
    let device = Loop::new(&lab, "backing", 96 << 20)?;
    let (name, ext4) = (device.text(), lab.path("ext4"));
    fs::create_dir(&ext4).expect("mkdir");
    lab::ok(&mut program("mkfs.ext4", &["-q", &name]));
    lab::ok(program("mount", &[&name]).arg(&ext4));
    let make = |more: &[&str]| lab.run(&[&["format", &lab.pool(), "--nvram", "64M", "--disk", &name], more].concat());
    let place = format!("mounted at {}", ext4.display());
    make(&[]).is_refusal(1, &["in use", &place], "a mounted device");
    make(&["--force"]).is_refusal(1, &["in use", &place], "a mounted device");
    fs::write(ext4.join("file"), "text").expect("written");
    lab::ok(program("umount", &[]).arg(&ext4));
    make(&[]).is_refusal(1, &["an ext file system", "--force"], "a file system");
    lab::ok(program("mount", &[&name]).arg(&ext4));
    assert_eq!(fs::read(ext4.join("file")).expect("read"), b"text", "nothing was written to it");
    lab::ok(program("umount", &[]).arg(&ext4));
    assert_eq!(make(&["--force"]).code, 0);
    works(&lab);
    lab.ok(&["destroy", &lab.pool()]);
    Ok(())
}

fn refused_inputs() -> Outcome {
    let lab = Lab::new();
    sparse(&lab.path("small"), 1 << 20);
    fs::write(lab.path("text"), "a thesis").expect("written");
    let disk = |text: &str| lab.text(text);
    let asked: [(i32, &[String], &[&str]); 8] = [
        (2, &[disk("d:10Q")], &["`10Q` is not a size"]),
        (2, &["none".into(), disk("d:64M")], &["none"]),
        (1, &[disk("small")], &["1 MiB", "16 MiB at least"]),
        (1, &[disk("d:1M")], &["16 MiB at least"]),
        (1, &[disk("text")], &["with content", "--force"]),
        (1, &[disk("mnt")], &["a directory"]),
        (1, &[disk("no/such/disk:64M")], &["directory is not there"]),
        (1, &[disk("d:64M"), disk("d:64M")], &["the same disk"]),
    ];
    for (code, given, words) in asked {
        let pool = lab.pool();
        let mut args = vec!["format", &pool, "--nvram", "64M"];
        given.iter().for_each(|disk| args.extend(["--disk", disk]));
        lab.refused(code, &args, words);
        assert!(!lab.path("pool").exists() && !lab.path("d").exists(), "{given:?}");
    }
    assert_eq!(fs::read(lab.path("text")).expect("read"), b"a thesis");
    Ok(())
}

fn used() -> Outcome {
    let lab = with_usual_disk();
    lab.mount();
    let (other, disk) = (lab.text("other"), lab.text("pool/disk"));
    let args = ["format", &other, "--nvram", "64M", "--disk", &disk];
    lab.refused(1, &args, &["in use"]);
    lab.refused(1, &[&args[..], &["--force"]].concat(), &["in use"]);
    lab.refused(1, &["save", &lab.pool(), &disk], &["a part of the pool itself"]);
    lab.umount();
    works(&lab);
    Ok(())
}

fn missing() -> Outcome {
    let lab = with_usual_disk();
    works(&lab);
    let (disk, away) = (lab.path("pool/disk"), lab.path("away"));
    fs::rename(&disk, &away).expect("away");
    let words = ["pool/disk is not there", "[[disk]]", "pool.toml"];
    lab.refused(1, &["mount", &lab.pool(), &lab.text("mnt")], &words);
    let status = lab.output(&["status", &lab.pool(), "-v"]);
    assert!(status.contains("NOT USED") && status.contains("is not there"), "{status}");
    assert!(lab.ok(&["region", "list", &lab.pool()]).contains("NOT USED"));
    fs::rename(&away, &disk).expect("back");
    works(&lab);
    let whole = length(&disk);
    File::options().write(true).open(&disk).and_then(|file| file.set_len(whole / 2)).expect("cut");
    lab.refused(1, &["mount", &lab.pool(), &lab.text("mnt")], &["when its label was written", "whole"]);
    let other = lab.text("other");
    lab.ok(&["format", &other, "--nvram", "64M", "--disk", &format!("{}:64M", lab.text("foreign"))]);
    fs::rename(&disk, &away).expect("away");
    fs::rename(lab.path("foreign"), &disk).expect("another's");
    lab.refused(1, &["mount", &lab.pool(), &lab.text("mnt")], &["is a disk of the pool", "pool.toml"]);
    // The disk is given up.
    let toml = lab.path("pool/pool.toml");
    let text = fs::read_to_string(&toml).expect("read");
    let (without, _) = text.split_once("[[disk]]").expect("a disk");
    fs::write(&toml, without).expect("written");
    fs::remove_file(&disk).expect("removed");
    works(&lab);
    Ok(())
}

/// Also whole regions, and one whose disk's name now belongs to another device, which is in use.
fn without() -> Outcome {
    let lab = Lab::new();
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    let disk = |name: &str| format!("{}:32M", lab.text(name));
    let mirror = format!("mirror:{},{}", disk("a"), disk("b"));
    lab.ok(&["format", &pool, "--nvram", "32M", "--disk", &mirror, "--disk", &disk("c"), "--disk", &disk("d")]);
    fs::create_dir(lab.path("away")).expect("mkdir");
    fs::rename(lab.path("c"), lab.path("away/c")).expect("renamed");
    let said = lab.ok(&["mount", &pool, &mnt]);
    assert!(
        said.contains("cannot be read") && said.contains(&lab.text("c")) && !said.contains(&lab.text("d")),
        "{said}"
    );
    lab.umount();
    fs::rename(lab.path("away/c"), lab.path("c")).expect("renamed");
    fs::rename(lab.path("b"), lab.path("away/b")).expect("renamed");
    sparse(&lab.path("b"), 32 << 20);
    let other = File::open(lab.path("b")).expect("open");
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).expect("lock");
    let said = lab.ok(&["mount", &pool, &mnt]);
    assert!(
        said.contains(&lab.text("b")) && said.contains("goes on without it") && !said.contains(&lab.text("c")),
        "{said}"
    );
    lab.umount();
    Ok(())
}

fn not_permitted() -> Outcome {
    let lab = Lab::new();
    sparse(&lab.path("roots"), 64 << 20);
    let home = lab.path("home");
    fs::create_dir(&home).and_then(|()| std::os::unix::fs::chown(&home, Some(65534), Some(65534))).expect("a home");
    let pool = lab.text("home/pool");
    let args = ["format", &pool, "--nvram", "16M", "--disk", &lab.text("roots")];
    lab.run_as(&NOBODY, &args).is_refusal(1, &["may not be read and written by this user"], "another's file");
    let disk = lab.text("home/disk:64M");
    let made = lab.run_as(&NOBODY, &["format", &pool, "--nvram", "16M", "--disk", &disk]);
    assert_eq!(made.code, 0, "{}", made.err);
    std::os::unix::fs::chown(lab.path("home/disk"), Some(0), Some(0)).expect("chown");
    let resized = lab.run_as(&NOBODY, &["resize", &pool, "--nvram", "32M"]);
    resized.is_refusal(1, &["may not be read and written", "owner"], "a disk of root's");
    std::os::unix::fs::chown(lab.path("home/disk"), Some(65534), Some(65534)).expect("chown");
    let destroyed = lab.run_as(&NOBODY, &["destroy", &pool]);
    assert_eq!(destroyed.code, 0, "{}", destroyed.err);
    assert!(!lab.path("home/disk").exists());
    Ok(())
}

fn restored() -> Outcome {
    let lab = with_usual_disk();
    works(&lab);
    lab.mount();
    lab::write_seeded(&lab.mnt().join("large"), 7, 6 << 20);
    let (image, memory, away) = (lab.text("image"), lab.text("memory"), lab.text("away"));
    // While it is in use.
    let said = lab.ok(&["save", &lab.pool(), &image]);
    assert!(said.contains("with 6 MiB of content of its disks"), "{said}");
    let said = lab.ok(&["save", "--memory-only", &lab.text("mnt"), &memory]);
    assert!(said.contains("LEFT OUT are 6 MiB"), "{said}");
    lab.umount();
    for image in [&image, &memory] {
        let said = lab.ok(&["restore", &lab.pool(), image, "--force"]);
        assert!(said.contains("pool/disk") && !said.contains("LEFT OUT"), "{said}");
        works(&lab);
    }
    lab.ok(&["destroy", &lab.pool()]);
    // Away from its disks an image of the memory alone has no content of large files, and the last line says so.
    let said = lab.ok(&["restore", &away, &memory]);
    assert!(said.trim_end().lines().last().is_some_and(|last| last.contains("LEFT OUT")), "{said}");
    lab.ok(&["destroy", &away]);
    lab.ok(&["restore", &lab.pool(), &image]);
    works(&lab);
    lab.mount();
    assert!(fs::read(lab.mnt().join("large")).expect("read") == rng::Rng::new(7).bytes(6 << 20));
    lab.umount();
    Ok(())
}

/// A killed restore once left hundreds of MiB.
fn interrupted_restore() -> Outcome {
    let lab = with_usual_disk();
    lab.mount();
    lab::write_seeded(&lab.mnt().join("large"), 7, 40 << 20);
    let (image, away) = (lab.text("image"), lab.path("away"));
    lab.ok(&["save", &lab.pool(), &image]);
    lab.umount();
    let mut restoring = lab.command(&["restore", &lab.text("away"), &image]).spawn().expect("it runs");
    let is_begun = || away.join(".restored").exists() || away.join("pool.toml").exists();
    lab::wait_until(Duration::from_secs(60), "it makes a pool", is_begun);
    rustix::process::kill_process(Pid::from_child(&restoring), Signal::TERM).expect("it is there");
    let done = restoring.wait().expect("its end").success();
    // The restore may have been faster.
    assert_eq!(away.exists(), done, "{:?}", fs::read_dir(&away).map(|left| left.flatten().collect::<Vec<_>>()));
    if done {
        lab.ok(&["destroy", &lab.text("away")]);
    }
    Ok(())
}

/// Writes to a deleted disk were once acknowledged, and lost at unmounting.
fn deleted() -> Outcome {
    use std::io::Write;
    let lab = Lab::new();
    let (pool, disk, other) = (lab.pool(), lab.text("gone"), lab.text("other"));
    lab.ok(&["format", &pool, "--nvram", "64M", "--backing", ".", "--disk", &format!("{disk}:160M")]);
    lab.mount();
    let write = |name: &str, seed| {
        let mut file = fs::File::create(lab.mnt().join(name))?;
        file.write_all(&rng::Rng::new(seed).bytes(80 << 20))?;
        file.sync_all()
    };
    write("one", 1).expect("written");
    fs::remove_file(&disk).expect("deleted");
    let limit = std::time::Duration::from_secs(60);
    crate::lab::wait_until(limit, "it is noticed", || lab.run(&["status", &pool, "-v"]).out.contains("MISSING"));
    let e = write("two", 2).expect_err("more than memory holds, and no disk that stays");
    assert_eq!(e.kind(), std::io::ErrorKind::StorageFull, "{e}");
    let log = fs::read_to_string(lab.path("pool/server.log")).expect("a log");
    assert!(log.contains("was deleted while it was in use"), "{log}");
    lab.ok(&["region", "add", &pool, &format!("{other}:256M")]);
    crate::lab::wait_until(limit, "all of it is moved", || !lab.ok(&["region", "list", &pool]).contains(&disk));
    write("two", 2).expect("there is room");
    lab.umount();
    lab.mount();
    for (name, seed) in [("one", 1), ("two", 2)] {
        assert!(fs::read(lab.mnt().join(name)).expect("read") == rng::Rng::new(seed).bytes(80 << 20), "{name}");
    }
    lab.umount();
    lab.check();
    Ok(())
}

//! A disk that slows down in use is named, with its present and its former speed; it takes no new content, and its
//! recovery is noticed. Heavy load alone makes no disk slow.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{ok, program, Lab};
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] = &[("slow_disk::commands_show_what_the_server_measures", every_command_reports_speed)];
/// A busy machine delays this test as much as a slow disk does; with a simulated clock, the crate `exraid` tests the
/// same.
pub const LONG: &[Test] = &[("long::a_disk_that_slows_down_is_named_and_sits_out_and_one_under_load_is_not", stutters)];

/// The block throttle of cgroup v1: rules of the root group hold for all.
const GROUP: &str = "/sys/fs/cgroup/blkio";
const RATE: u64 = 40_000_000;
const SLOW: u64 = 8_000_000;
const MIB: u64 = 1 << 20;
const FILE: u64 = 120 * MIB;

/// A loop device with limited speed. It lies over another loop device, which has the rule: the throttle counts a
/// request that is too large for its device again after splitting it.
struct SlowLoop {
    devices: Vec<PathBuf>,
    number: String,
}

impl SlowLoop {
    fn over(image: &Path, bytes: u64) -> Result<SlowLoop, Skip> {
        let file = File::create(image).expect("an image");
        file.set_len(bytes).expect("its size");
        let attach = |over: &Path, options: &[&str]| {
            let over = over.to_str().expect("text");
            let out = program("losetup", &["-f", "--show"]).args(options).arg(over).output();
            let out = out.ok().filter(|out| out.status.success());
            out.map(|out| PathBuf::from(String::from_utf8_lossy(&out.stdout).trim()))
                .ok_or_else(|| Skip("needs loop devices".into()))
        };
        let lower = attach(image, &[])?;
        let mut disk = SlowLoop { devices: vec![lower.clone()], number: String::new() };
        disk.devices.push(attach(&lower, &["--direct-io=on"])?);
        let name = lower.file_name().expect("a name").to_string_lossy().into_owned();
        let number = fs::read_to_string(format!("/sys/block/{name}/dev"));
        disk.number = number.map_err(|_| Skip("needs /sys".into()))?.trim().into();
        disk.hold_to(RATE)?;
        Ok(disk)
    }

    fn path(&self) -> String {
        self.devices[1].display().to_string()
    }

    fn hold_to(&self, rate: u64) -> Result<(), Skip> {
        ["read", "write"].into_iter().try_for_each(|kind| {
            let rule = format!("{GROUP}/blkio.throttle.{kind}_bps_device");
            fs::write(rule, format!("{} {rate}\n", self.number))
                .map_err(|e| Skip(format!("needs the block throttle of cgroup v1 at {GROUP}: {e}")))
        })
    }
}

impl Drop for SlowLoop {
    fn drop(&mut self) {
        let _ = self.hold_to(0);
        for device in self.devices.iter().rev() {
            let _ = program("losetup", &["-d", &device.display().to_string()]).status();
        }
    }
}

/// A mounted pool on two such disks. The lab is dropped first: it unmounts before the disks go.
fn lab() -> Result<(Lab, [SlowLoop; 2]), Skip> {
    let lab = Lab::new();
    let disks = [SlowLoop::over(&lab.path("image0"), 600 * MIB)?, SlowLoop::over(&lab.path("image1"), 600 * MIB)?];
    let [one, other] = [disks[0].path(), disks[1].path()];
    // With `regions` the backing goes to both disks at any speed: here only content shall go there.
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--backing", ".", "--disk", &one, "--disk", &other, "--force"]);
    lab.mount();
    Ok((lab, disks))
}

fn list(lab: &Lab) -> Value {
    serde_json::from_str(&lab.ok(&["region", "list", &lab.pool(), "--json"])).expect("JSON")
}

/// The regions that stutter.
fn slow_ones(lab: &Lab) -> Vec<u64> {
    let listing = list(lab);
    let regions = listing["regions"].as_array().expect("regions").iter();
    regions
        .filter(|region| !region["stutter"].is_null())
        .map(|region| region["number"].as_u64().expect("one"))
        .collect()
}

fn written(lab: &Lab, region: usize) -> u64 {
    list(lab)["regions"][region]["write"]["bytes"].as_u64().expect("bytes")
}

/// Overwrites a large file in order, and parts of it at random, and syncs it, repeatedly.
fn write(path: &Path, ended: &AtomicBool) {
    let file = File::options().create(true).truncate(false).write(true).open(path).expect("a file");
    let (data, mut rng) = (rng::Rng::new(1).bytes(MIB as usize), rng::Rng::new(2));
    for n in 0.. {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        file.write_all_at(&data, n % (FILE / MIB) * MIB).expect("written");
        let at = rng.below(FILE / 4096) * 4096;
        file.write_all_at(&data[..4096], at).expect("written");
        if n % 16 == 15 {
            file.sync_data().expect("synced");
        }
    }
}

/// Reads it past the kernel's cache: all of it in order, or small parts at random.
fn read(path: &Path, at_random: Option<u64>, ended: &AtomicBool) {
    let mut rng = rng::Rng::new(at_random.unwrap_or(0));
    while !ended.load(Ordering::Relaxed) {
        let mut file = File::open(path).expect("a file");
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        match at_random {
            Some(_) => _ = file.read_at(&mut [0; 8192], rng.below(FILE / 8192) * 8192).expect("read"),
            None => _ = file.read(&mut vec![0; 4 << 20]).expect("read"),
        }
    }
}

fn stutters() -> Outcome {
    let (lab, disks) = lab()?;
    let (ended, path) = (AtomicBool::new(false), lab.mnt().join("file"));
    let is_slow = |limit: u64, wanted: &[u64]| {
        let until = Instant::now() + Duration::from_secs(limit);
        while slow_ones(&lab) != wanted && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(300));
        }
        assert_eq!(slow_ones(&lab), wanted, "{}", lab.ok(&["region", "list", &lab.pool()]));
    };
    // The threads end after a failure, too.
    struct End<'e>(&'e AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    std::thread::scope(|scope| {
        let _end = End(&ended);
        let (ended, path) = (&ended, &path);
        scope.spawn(move || write(path, ended));
        let until = Instant::now() + Duration::from_secs(14);
        while Instant::now() < until {
            assert_eq!(slow_ones(&lab), [0; 0]);
            std::thread::sleep(Duration::from_millis(300));
        }
        // A much higher load, in small requests and large ones.
        let busy = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (_end, busy) = (End(&busy), &busy);
            for seed in 0..6 {
                scope.spawn(move || read(path, Some(seed), busy));
            }
            scope.spawn(move || read(path, None, busy));
            let until = Instant::now() + Duration::from_secs(10);
            while Instant::now() < until {
                assert_eq!(slow_ones(&lab), [0; 0], "{}", lab.ok(&["region", "list", &lab.pool()]));
                std::thread::sleep(Duration::from_millis(300));
            }
        });

        disks[1].hold_to(SLOW)?;
        is_slow(30, &[1]);
        let listing = list(&lab);
        let region = &listing["regions"][1];
        let [now, before] = ["delivers", "used_to_deliver"].map(|name| region["stutter"][name].as_f64().expect("one"));
        assert!(now < 16e6 && before > 24e6, "{}", region["stutter"]);
        assert_eq!(region["sits_out"], true);
        let said = lab.ok(&["region", "list", &lab.pool()]);
        assert!(said.contains("STUTTERS since") && said.contains("MB/s where it used to deliver"), "{said}");
        assert!(said.contains("region 1: sitting out new content since"), "{said}");
        let said = lab.output(&["status", &lab.pool(), "-v"]);
        assert!(said.contains("sitting out new content since"), "{said}");

        // Writes go elsewhere, except for a segment now and then.
        std::thread::sleep(Duration::from_secs(2));
        let before = [written(&lab, 0), written(&lab, 1)];
        std::thread::sleep(Duration::from_secs(7));
        let [fast, slow] = [written(&lab, 0) - before[0], written(&lab, 1) - before[1]];
        // Three segments, and the writes under way.
        assert!(slow <= 16 * MIB && fast > 2 * slow, "{fast} to the other, {slow} to the one that sits out");

        disks[1].hold_to(RATE)?;
        is_slow(60, &[]);
        let before = written(&lab, 1);
        std::thread::sleep(Duration::from_secs(5));
        assert!(written(&lab, 1) - before > 16 * MIB, "it takes its share again");
        Ok(())
    })?;
    lab.umount();
    lab.check();
    drop(lab);
    Ok(())
}

fn every_command_reports_speed() -> Outcome {
    let lab = Lab::new();
    lab.ok(&["format", &lab.pool(), "--nvram", "64M", "--disk", &format!("{}:200M", lab.text("disk"))]);
    lab.mount();
    let path = lab.mnt().join("file");
    fs::write(&path, rng::Rng::new(1).bytes(100 << 20)).expect("written");
    File::open(&path).expect("there").sync_all().expect("synced");
    let listing = list(&lab);
    for found in [&listing["regions"][0], &listing["disks"][0], &lab.status()["regions"][0]] {
        assert!(found["write"]["bytes"].as_u64().expect("bytes") > 30_000_000, "{found}");
        assert!(found["write"]["speed"].as_f64().expect("a speed") > 0.0, "{found}");
        assert_eq!(
            (found["horizon_seconds"].as_f64(), found["recent_horizon_seconds"].as_f64()),
            (Some(30.0), Some(0.5))
        );
        assert!(found["stutter"].is_null(), "{found}");
    }
    let said = lab.ok(&["region", "list", &lab.pool()]);
    assert!(said.contains("write ") && said.contains("/s in "), "{said}");
    // A killed server leaves its measurements, and no work under way.
    lab.kill9();
    let listing = list(&lab);
    let write = &listing["regions"][0]["write"];
    assert_eq!((write["queue"].as_u64(), write["queued_bytes"].as_u64()), (Some(0), Some(0)), "{write}");
    lab.mount();
    ok(program("cmp", &[&path.display().to_string(), &path.display().to_string()]).arg("--silent"));
    lab.umount();
    lab.check();
    Ok(())
}

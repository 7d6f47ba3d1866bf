//! Files that are larger than their pool's memory: servers killed, and memory lost, under a database and an appending
//! program.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rng::Rng;

use crate::lab::{self, memory_of, wait_until, Lab};
use crate::settings::{number, seed};
use crate::suites::tool;
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("large::fsx_finds_nothing", fsx),
    ("large::a_database_is_whole_after_kills_and_power_cuts", database),
    ("large::what_was_appended_is_there_after_kills_and_power_cuts", appended),
    ("large::a_file_that_is_cut_becomes_small_while_it_is_read", downward),
    ("large::files_follow_a_threshold_that_was_changed", followed),
    ("large::more_small_files_than_memory_holds_go_to_disk", demoted),
];

/// A mounted pool with a disk and `memory` bytes of memory.
fn lab(memory: &str, medium: &str) -> Lab {
    let lab = Lab::new();
    let disk = format!("{}:400M", lab.text("disk"));
    lab.ok(&["format", &lab.pool(), "--nvram", memory, "--medium", medium, "--disk", &disk]);
    lab.mount();
    lab
}

/// A number from `status`.
fn figure(lab: &Lab, of: &str, what: &str) -> u64 {
    lab.status()[of][what].as_u64().unwrap_or_else(|| panic!("no {what} of {of}"))
}

/// Mounts again after the server was killed, and after a power cut if `power_cut`.
fn come_back(lab: &Lab, power_cut: bool) {
    lab.umount();
    if power_cut {
        // A reboot leaves the disk alone.
        let memory = memory_of(Path::new(&lab.pool()));
        assert!(!memory.is_empty());
        memory.iter().for_each(|file| std::fs::remove_file(file).expect("it is there"));
    }
    lab.check();
    lab.mount();
}

/// Each medium, and whether power cuts lose its memory.
const MEDIA: [(&str, bool); 2] = [("logged", true), ("battery", false)];

/// Bytes `at..at + len` of the appended stream.
fn stream(at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|n| ((n / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (8 * (n % 8))) as u8).collect()
}

/// Appends pieces of any length until the server is gone. Waits until some of them are durable, and records that.
fn append(path: PathBuf, seed: u64, durable: Arc<AtomicU64>) -> std::io::Result<()> {
    let mut rng = Rng::new(seed);
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    let mut at = file.metadata()?.len();
    loop {
        let most = if rng.below(4) == 0 { 300_000 } else { 5000 };
        let len = 1 + rng.below(most) as usize;
        file.write_all(&stream(at, len))?;
        at += len as u64;
        if rng.below(3) == 0 {
            file.sync_data()?;
            durable.store(at, Ordering::SeqCst);
            // At the speed of a camera: at the speed of the disk, the disk would be full.
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn appended() -> Outcome {
    let rounds = number("CONQUEST_ROUNDS", 8);
    for (medium, loses) in MEDIA {
        let lab = lab("24M", medium);
        let mut rng = Rng::new(seed());
        let (path, mut whole) = (lab.mnt().join("video"), 0);
        for round in 0..rounds {
            let durable = Arc::new(AtomicU64::new(0));
            let writer = {
                let (path, durable, seed) = (path.clone(), durable.clone(), rng.next());
                std::thread::spawn(move || append(path, seed, durable))
            };
            wait_until(Duration::from_secs(30), "something is durable", || durable.load(Ordering::SeqCst) > 0);
            std::thread::sleep(Duration::from_millis(rng.below(1500)));
            lab.kill9();
            let ended = writer.join().expect("it does not panic").expect_err("the server is gone");
            assert!(lab::is_gone(&ended), "{medium}, round {round}: {ended}");
            come_back(&lab, loses && round % 2 == 0);
            let mut bytes = Vec::new();
            File::open(&path).and_then(|mut file| file.read_to_end(&mut bytes)).expect("it can be read");
            let promised = durable.load(Ordering::SeqCst);
            assert!(bytes.len() as u64 >= promised, "{medium}, round {round}: {} of {promised} bytes", bytes.len());
            let wrong = bytes.iter().zip(stream(0, bytes.len())).position(|(is, should)| *is != should);
            assert_eq!(wrong, None, "{medium}, round {round}: of {} bytes, {promised} promised", bytes.len());
            whole = whole.max(bytes.len());
            if bytes.len() > 120 << 20 {
                std::fs::remove_file(&path).expect("it can be removed");
            }
        }
        assert!(whole > 4 << 20, "{medium}: {whole} bytes");
        lab.umount();
        lab.check();
    }
    Ok(())
}

/// A database with random writes of pages. Each transaction adds 1 to the number in `done`, and reports it when it is
/// durable.
struct Database {
    sqlite: Child,
    acknowledged: PathBuf,
}

/// Rows of 1 KB, together 8 MiB.
const ROWS: u64 = 8000;

impl Database {
    fn make(path: &Path, mode: &str) {
        let script = format!(
            "pragma journal_mode={mode}; create table done(n); insert into done values(0);
             create table data(id integer primary key, n, body);
             with recursive c(i) as (select 1 union all select i + 1 from c where i < {ROWS})
             insert into data select i, 0, randomblob(1000) from c;"
        );
        lab::ok(Command::new("sqlite3").arg(path).arg(script));
    }

    fn work(path: &Path, acknowledged: PathBuf, rng: &mut Rng) -> Database {
        let out = File::create(&acknowledged).expect("a file");
        let mut command = Command::new("sqlite3");
        command.arg("-bail").arg(path).stdin(Stdio::piped()).stdout(out).stderr(Stdio::null());
        let mut sqlite = command.spawn().expect("sqlite3");
        let mut script = String::from("pragma synchronous=extra; pragma wal_autocheckpoint=200;\n");
        for _ in 0..3000 {
            let ids = |rng: &mut Rng| (0..4).map(|_| (1 + rng.below(ROWS)).to_string()).collect::<Vec<_>>().join(",");
            script += &format!(
                "begin; update done set n = n + 1; update data set n = (select n from done), body = randomblob(1000) \
                 where id in ({}); commit; select 'done ' || n from done;\n",
                ids(rng)
            );
        }
        let mut stdin = sqlite.stdin.take().expect("a pipe");
        std::thread::spawn(move || _ = stdin.write_all(script.as_bytes()));
        Database { sqlite, acknowledged }
    }

    /// The number of the last transaction that was acknowledged.
    fn last(&self) -> u64 {
        let text = std::fs::read_to_string(&self.acknowledged).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().filter_map(|line| line.strip_prefix("done ")?.parse().ok()).max().unwrap_or(0)
    }
}

fn database() -> Outcome {
    lab::require("sqlite3")?;
    let rounds = number("CONQUEST_ROUNDS", 8);
    for (medium, loses) in MEDIA {
        let lab = lab("24M", medium);
        let mut rng = Rng::new(seed());
        for mode in ["wal", "delete"] {
            let path = lab.mnt().join(format!("{mode}.db"));
            Database::make(&path, mode);
            for round in 0..rounds.div_ceil(2) {
                let mut database = Database::work(&path, lab.path("acknowledged"), &mut rng);
                let before = database.last();
                wait_until(Duration::from_secs(60), "transactions", || database.last() > before);
                std::thread::sleep(Duration::from_millis(rng.below(1500)));
                lab.kill9();
                let _ = database.sqlite.wait();
                let last = database.last();
                come_back(&lab, loses && round % 2 == 0);
                let ask = "pragma integrity_check; select max(n) from done; select max(n) from data;";
                let said = lab::ok(Command::new("sqlite3").arg(&path).arg(ask));
                let lines: Vec<&str> = said.lines().collect();
                let what = format!("{medium}, {mode}, round {round}: {last} acknowledged: {said}");
                assert_eq!(lines[0], "ok", "{what}");
                let is = |n: usize| lines[n].parse::<u64>().expect("a number");
                assert!(is(1) >= last && is(1) == is(2), "{what}");
            }
        }
        lab.umount();
        lab.check();
    }
    Ok(())
}

/// Its content is on disk while it is large, and in memory once it is small.
fn downward() -> Outcome {
    for (medium, loses) in MEDIA {
        let lab = lab("64M", medium);
        let path = lab.mnt().join("file");
        std::fs::write(&path, stream(0, 12 << 20)).and_then(|()| File::open(&path)?.sync_all()).expect("there is room");
        let stop = Arc::new(AtomicU64::new(0));
        let reader = {
            let (mut file, stop) = (File::open(&path).expect("it is there"), stop.clone());
            std::thread::spawn(move || {
                let (mut bytes, wanted) = (vec![0; 500_000], stream(0, 500_000));
                while stop.load(Ordering::SeqCst) == 0 {
                    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_exact(&mut bytes)).expect("it can be read");
                    assert!(bytes == wanted);
                }
            })
        };
        let writer = OpenOptions::new().write(true).open(&path).expect("it is there");
        for round in 0..3u64 {
            writer.set_len(500_000).expect("it is cut");
            wait_until(Duration::from_secs(30), "it is small", || figure(&lab, "segments", "live") == 0);
            let mut grown = &writer;
            grown.seek(SeekFrom::Start(500_000)).expect("it works");
            grown.write_all(&stream(500_000, 3 << 20)).and_then(|()| grown.sync_all()).expect("there is room");
            assert!(
                std::fs::read(&path).expect("it can be read") == stream(0, 500_000 + (3 << 20)),
                "{medium}, {round}"
            );
        }
        writer.set_len(500_000).expect("it is cut");
        stop.store(1, Ordering::SeqCst);
        reader.join().expect("all that was read was right");
        // During the move, or after it.
        lab.kill9();
        come_back(&lab, loses);
        let bytes = std::fs::read(&path).expect("it can be read");
        assert!(bytes == stream(0, bytes.len()) && bytes.len() >= 500_000, "{medium}: {} bytes", bytes.len());
        lab.umount();
        lab.check();
    }
    Ok(())
}

fn followed() -> Outcome {
    let lab = lab("64M", "battery");
    let files: Vec<(PathBuf, usize)> =
        (0..40).map(|n| (lab.mnt().join(format!("file-{n}")), 50_000 + n * 23_456)).collect();
    for (path, len) in &files {
        std::fs::write(path, stream(0, *len)).expect("there is room");
    }
    let config = lab.path("pool").join("pool.toml");
    let text = std::fs::read_to_string(&config).expect("a configuration");
    let right = || {
        wait_until(Duration::from_secs(60), "files have followed", || figure(&lab, "cache", "left") == 0);
        for (path, len) in &files {
            assert!(std::fs::read(path).expect("it can be read") == stream(0, *len), "{}", path.display());
        }
        figure(&lab, "segments", "live")
    };
    assert_eq!(right(), 0);
    let mut on_disk = Vec::new();
    for threshold in ["threshold = 65536\n", "threshold = 524288\n", ""] {
        lab.umount();
        let kept: String =
            text.lines().filter(|line| !line.starts_with("threshold")).map(|line| format!("{line}\n")).collect();
        // Before the first table.
        std::fs::write(&config, format!("{threshold}{kept}")).expect("it can be written");
        lab.mount();
        on_disk.push(right());
        lab.check();
    }
    assert!(on_disk[0] > on_disk[1] && on_disk[1] > 0 && on_disk[2] == 0, "{on_disk:?}");
    // While it is mounted, and at the next mount.
    for (threshold, bytes, live) in [("64K", 64 << 10, on_disk[0]), ("1M", 1 << 20, 0), ("512K", 512 << 10, on_disk[1])]
    {
        lab.ok(&["resize", &lab.pool(), "--threshold", threshold]);
        assert_eq!((right(), figure(&lab, "cache", "threshold")), (live, bytes));
    }
    lab.umount();
    lab.ok(&["resize", &lab.pool(), "--threshold", "64K"]);
    lab.mount();
    assert_eq!(right(), on_disk[0]);
    lab.refused(2, &["resize", &lab.pool()], &["--nvram"]);
    lab.umount();
    Ok(())
}

fn demoted() -> Outcome {
    const LEN: usize = 64 << 10;
    let count = number("CONQUEST_SMALL_MIB", 1024) * (1 << 20) / LEN as u64;
    let lab = Lab::new();
    let disk = format!("{}:4G", lab.text("disk"));
    lab.ok(&["format", &lab.pool(), "--nvram", "256M", "--medium", "battery", "--disk", &disk]);
    lab.mount();
    let path = |n: u64| lab.mnt().join(format!("dir-{}", n / 256)).join(format!("file-{n}"));
    for n in 0..count {
        if n % 256 == 0 {
            std::fs::create_dir(path(n).parent().expect("a directory")).expect("there is room");
        }
        std::fs::write(path(n), stream(n * 8, LEN)).unwrap_or_else(|e| panic!("file {n} of {count}: {e}"));
    }
    let all_right = || {
        for n in 0..count {
            assert!(std::fs::read(path(n)).expect("it can be read") == stream(n * 8, LEN), "file {n}");
        }
    };
    all_right();
    assert!(figure(&lab, "cache", "demoted_files") > count / 2, "{:?}", lab.status()["cache"]);
    lab.kill9();
    come_back(&lab, false);
    all_right();
    // The remaining files fit in memory, and return to it when they are used.
    for n in count / 16..count {
        std::fs::remove_file(path(n)).expect("it is there");
    }
    (0..count / 16).for_each(|n| assert!(std::fs::read(path(n)).expect("it can be read") == stream(n * 8, LEN)));
    lab.umount();
    lab.mount();
    wait_until(Duration::from_secs(60), "they are back", || {
        (0..count / 16).for_each(|n| assert!(std::fs::read(path(n)).is_ok()));
        figure(&lab, "cache", "demoted_files") == 0
    });
    lab.umount();
    lab.check();
    Ok(())
}

/// A file of several times the threshold, and of most of the memory.
const FSX_CONFIG: &str = "
flen = 12582912
[opsize]
min = 1
max = 262144
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 3
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 3
sendfile = 2
posix_fadvise = 1
copy_file_range = 3
";

fn fsx() -> Outcome {
    let suite = tool("fsx")?;
    let (seeds, ops) = (number("CONQUEST_FSX_SEEDS", 1), number("CONQUEST_FSX_OPS", 4000));
    for (medium, _) in MEDIA {
        let lab = lab("16M", medium);
        let config = lab.path("fsx.toml");
        std::fs::write(&config, FSX_CONFIG).expect("a configuration");
        for n in 0..seeds {
            let seed = (seed() + n).to_string();
            let file = lab.mnt().join(format!("fsx-{seed}"));
            // Its blocks in memory can be evicted.
            let filler = lab.mnt().join("filler");
            let mut other = File::create(&filler).expect("a file");
            other.write_all(&stream(0, 20 << 20)).expect("there is room");
            let mut command = Command::new(&suite);
            command.args(["-q", "-q", "-S", &seed, "-N", &ops.to_string(), "-f"]).arg(&config);
            command.arg("-P").arg(lab.path("")).arg(&file);
            println!("fsx: {medium}, seed {seed}, {ops} operations");
            lab::ok(&mut command);
            let mut bytes = vec![0; 1 << 20];
            let mut other = File::open(&filler).expect("it is there");
            other.seek(SeekFrom::Start(7 << 20)).and_then(|_| other.read_exact(&mut bytes)).expect("it can be read");
            assert!(bytes == stream(7 << 20, 1 << 20));
            std::fs::remove_file(file).expect("the file that fsx left");
        }
        lab.umount();
        lab.check();
    }
    Ok(())
}

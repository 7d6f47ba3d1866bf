//! Details that programs rely on, and that ext4 and others have: times that distinguish changes, cookies for 32-bit
//! programs, truthful free space, and a log without repetition.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{statvfs, SeekFrom};

use crate::lab::{self, program, Lab};
use crate::{Outcome, Skip, Test};

pub const TESTS: &[Test] = &[
    ("details::a_change_after_a_look_has_another_mtime", mtimes),
    ("details::a_32_bit_program_reads_a_directory", cookies),
    ("details::pages_are_data_or_holes_as_a_whole", holes),
    ("details::a_file_can_have_what_df_says", room),
    ("details::calls_that_find_no_room_are_not_logged", quiet),
];

/// 1,991 of 2,000 changes once had the time of the change before, although a program had read that time.
fn mtimes() -> Outcome {
    for transport in ["uring", "dev"] {
        let lab = Lab::with_pool("16M");
        lab.mount_with(&format!("transport={transport}"));
        let (path, dir) = (lab.mnt().join("file"), lab.mnt());
        let file = File::create(&path).expect("create");
        let times = |path: &Path| {
            let now = path.metadata().expect("stat");
            (now.mtime(), now.mtime_nsec())
        };
        for i in 0..200 {
            let before = (times(&path), times(&dir));
            file.write_all_at(b"x", i % 10).expect("write");
            std::fs::create_dir(dir.join(format!("d{i}"))).expect("mkdir");
            let after = (times(&path), times(&dir));
            assert!(after.0 > before.0 && after.1 > before.1, "{transport}: {before:?}, {after:?}");
        }
        drop(file);
        lab.umount();
        lab.check();
    }
    Ok(())
}

/// Lists a directory as a 32-bit program does, and again from the middle on.
const LISTER: &str = r#"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    DIR *dir = opendir(argv[1]);
    int n = 0;
    long middle = 0;
    char next[256] = "";
    struct dirent *entry;
    for (errno = 0; (entry = readdir(dir)); errno = 0) {
        if (n == 101) strcpy(next, entry->d_name);
        if (++n == 101) middle = telldir(dir);
    }
    if (errno) return perror("readdir"), 1;
    seekdir(dir, middle);
    entry = readdir(dir);
    printf("%d %s\n", n, entry && !strcmp(entry->d_name, next) ? "same" : "other");
    return 0;
}
"#;

fn cookies() -> Outcome {
    lab::require("gcc")?;
    let lab = Lab::mounted("16M");
    let (source, dir) = (lab.path("lister.c"), lab.mnt().join("dir"));
    std::fs::write(&source, LISTER).expect("write");
    std::fs::create_dir(&dir).expect("mkdir");
    (0..200).for_each(|i| std::fs::write(dir.join(format!("name{i}")), b"").expect("write"));
    for words in [&["-m32"][..], &["-m32", "-D_FILE_OFFSET_BITS=64"], &[]] {
        let lister = lab.text("lister");
        let built = program("gcc", words).args(["-o", &lister]).arg(&source).output().expect("gcc");
        if !built.status.success() {
            return Err(Skip("gcc makes no 32-bit programs here (gcc-multilib)".into()));
        }
        assert_eq!(lab::ok(program(&lister, &[]).arg(&dir)), "202 same\n", "{words:?}");
    }
    lab.umount();
    lab.check();
    Ok(())
}

/// A small file occupies less than its pages in memory, but `cp` and others count in pages.
fn holes() -> Outcome {
    let lab = Lab::mounted("16M");
    let file = File::create(lab.mnt().join("file")).expect("create");
    file.write_all_at(b"text", 10_000).expect("write");
    file.set_len(20_000).expect("truncate");
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(8192));
    assert_eq!(seek(SeekFrom::Data(9000)), Ok(9000));
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(SeekFrom::Hole(9000)), Ok(12_288));
    assert_eq!(seek(SeekFrom::Data(12_288)), Err(rustix::io::Errno::NXIO));
    assert_eq!(seek(SeekFrom::Hole(20_000)), Err(rustix::io::Errno::NXIO));
    drop(file);
    lab.umount();
    Ok(())
}

/// A pool with a disk, mounted.
fn with_disk(memory: &str, disk: &str) -> Lab {
    let lab = Lab::new();
    let disk = format!("{}:{disk}", lab.text("disk"));
    lab.ok(&["format", &lab.pool(), "--nvram", memory, "--medium", "battery", "--backing", "none", "--disk", &disk]);
    lab.mount();
    lab
}

/// Free memory once counted for large files, which cannot use it: 1,199 MiB were shown, and a file ended at 948.
fn room() -> Outcome {
    const MIB: u64 = 1 << 20;
    let lab = with_disk("64M", "128M");
    let available = || {
        let statvfs_now = statvfs(lab.mnt()).expect("statvfs");
        statvfs_now.f_bavail * statvfs_now.f_frsize
    };
    let promised = available();
    let mut file = File::create(lab.mnt().join("large")).expect("create");
    let mut written = 0;
    // At the end there is no space for large pieces, but some for small ones.
    for piece in [&[7; MIB as usize][..], &[7; 4096]] {
        let full = loop {
            match file.write(piece) {
                Ok(n) => written += n as u64,
                Err(e) => break e,
            }
        };
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    }
    assert!((promised..promised + 4 * MIB).contains(&written), "{promised} promised, {written} written");
    assert!(available() <= 4 * MIB, "{} left for one more", available());
    drop(file);
    lab.umount();
    lab.check();
    Ok(())
}

/// Each of these was once a line in an unbounded log: 51 MB in a stress run.
fn quiet() -> Outcome {
    let lab = with_disk("16M", "16M");
    let file = File::create(lab.mnt().join("large")).expect("create");
    let piece = vec![7; 1 << 20];
    let (mut refused, mut at) = (0, 0);
    while refused < 50 {
        match file.write_all_at(&piece, at) {
            Ok(()) => at += piece.len() as u64,
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC));
                refused += 1;
            }
        }
    }
    let log = std::fs::read_to_string(lab.path("pool/server.log")).expect("the log");
    assert!(!log.contains("ERROR") && log.lines().count() < 5, "{log}");
    drop(file);
    lab.umount();
    lab.check();
    Ok(())
}

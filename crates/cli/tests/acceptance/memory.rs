//! Memory that outlives processes and pools: shown, released, destroyed.

use std::path::Path;

use crate::lab::{self, memory_of, Lab};
use crate::{Outcome, Test};

pub const TESTS: &[Test] = &[
    ("memory::pools_and_memory_that_belongs_to_none_are_listed", listed),
    ("memory::what_was_given_back_is_read_to_look_at_it_and_given_back_again", looked_at),
    ("memory::a_pool_is_destroyed", destroyed),
    ("memory::a_host_without_shared_memory_refuses_and_the_server_lives", host_is_full),
];

fn list(lab: &Lab) -> serde_json::Value {
    serde_json::from_str(&lab.ok(&["list", "--json"])).expect("JSON")
}

fn found<'a>(list: &'a serde_json::Value, kind: &str, key: &str, value: &str) -> Option<&'a serde_json::Value> {
    list[kind].as_array().expect("a list").iter().find(|one| one[key] == value)
}

fn listed() -> Outcome {
    let lab = Lab::mounted("16M");
    let (pool, mnt) = (lab.pool(), lab.text("mnt"));
    let all = list(&lab);
    let ours = found(&all, "pools", "pool", &pool).expect("it is mounted");
    assert_eq!(
        (&ours["mounts"][0], &ours["medium"], &ours["in_use"]),
        (&mnt.as_str().into(), &"logged".into(), &true.into())
    );
    assert!(ours["taken"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{ours}");
    lab.refused(1, &["release", &pool], &["is mounted at", "conquest umount"]);
    lab.refused(1, &["release", &mnt], &["is mounted at", "conquest umount"]);

    // The backing lacks the changes of a killed server: they are written there first.
    std::fs::write(lab.mnt().join("file"), b"only in memory").expect("write");
    lab.kill9();
    lab.ok(&["umount", &mnt]);
    let all = list(&lab);
    assert_eq!(found(&all, "pools", "pool", &pool).expect("it has memory")["in_use"], false);
    assert!(lab.ok(&["list"]).contains("not mounted"));
    lab.ok(&["release", &pool]);
    assert_eq!(memory_of(Path::new(&pool)), Vec::<std::path::PathBuf>::new());
    assert!(found(&list(&lab), "pools", "pool", &pool).is_none());
    lab.mount();
    assert_eq!(std::fs::read(lab.mnt().join("file")).expect("read"), b"only in memory");
    lab.umount();

    let memory =
        memory_of(Path::new(&pool)).iter().map(|path| path.display().to_string()).find(|p| p.ends_with("-region"));
    let memory = memory.expect("it stays");
    std::fs::remove_dir_all(&pool).expect("remove");
    let all = list(&lab);
    assert_eq!(found(&all, "memory", "path", &memory).expect("listed")["belongs"], "gone");
    assert!(lab.ok(&["list"]).contains(&format!("conquest save {memory}")));
    lab.ok(&["release", &memory]);
    assert!(!Path::new(&memory).exists() && found(&list(&lab), "memory", "path", &memory).is_none());
    Ok(())
}

fn looked_at() -> Outcome {
    let lab = Lab::mounted("16M");
    let (pool, image) = (lab.pool(), lab.text("saved"));
    lab.ok(&["umount", &lab.text("mnt"), "--release"]);
    for args in [&["fsck", &pool][..], &["fsck", &pool, "--repair"], &["status", &pool], &["save", &pool, &image]] {
        lab.ok(args);
        assert_eq!(memory_of(Path::new(&pool)), Vec::<std::path::PathBuf>::new(), "{args:?}");
    }
    lab.mount();
    lab.umount();
    lab.ok(&["fsck", &pool]);
    assert!(memory_of(Path::new(&pool)).iter().any(|path| path.exists()), "what was there stays");
    Ok(())
}

fn destroyed() -> Outcome {
    for lab in [Lab::with_pool("16M"), Lab::with_file("16M")] {
        let pool = lab.pool();
        lab.mount();
        lab.refused(1, &["destroy", &pool], &["is mounted at"]);
        lab.refused(1, &["destroy", &lab.text("mnt")], &["is no pool"]);
        lab.umount();
        let memory = memory_of(Path::new(&pool));
        lab.ok(&["destroy", &pool]);
        assert!(!Path::new(&pool).exists() && !memory.iter().any(|path| path.exists()));
        lab.refused(1, &["destroy", &pool], &["no pool", "conquest list"]);
    }
    let lab = Lab::new();
    let other = lab::directory();
    std::fs::write(other.path().join("thesis"), b"text").expect("write");
    let dir = other.path().to_string_lossy().into_owned();
    lab.refused(1, &["format", &dir, "--nvram", "16M"], &["thesis", "--force"]);
    Ok(())
}

/// Uses a pool while another program fills a small /dev/shm. `ls` makes the server reference files for the first time.
const FULL: &str =
    "set -e; mkdir \"$1/shm\"; mount -t tmpfs -o size=96M none \"$1/shm\"; own=\"$1/shm/${1##*/}\"; mkdir \"$own\"
    mount --rbind \"$1\" \"$own\"; mount --rbind \"$1/shm\" /dev/shm; cd \"$1\"
    ./conquest format pool --nvram 64M --disk none; ./conquest mount pool mnt; mkdir mnt/d
    (cd mnt/d; seq 5000 | xargs touch); ./conquest umount mnt; ./conquest mount pool mnt
    dd if=/dev/zero of=/dev/shm/filler bs=4k 2>&1 || true
    ls -l mnt/d >listed 2>&1 || true; stat mnt >/dev/null
    for n in $(seq 2000); do head -c 9000 /dev/zero >mnt/new$n || break; done 2>refused || true
    grep -q 'No space left' refused; stat mnt >/dev/null; rm mnt/d/1
    rm /dev/shm/filler; test \"$(ls -l mnt/d | grep -c ^-)\" = 4999
    ./conquest umount mnt; ./conquest fsck pool; ./conquest destroy pool";

fn host_is_full() -> Outcome {
    lab::require("unshare")?;
    let lab = Lab::new();
    let args = ["--mount", "--propagation", "private", "sh", "-c", FULL, "sh", &lab.text(".")];
    let args = args.map(|arg| arg.trim_end_matches("/."));
    lab::ok(&mut lab::program("unshare", &args));
    Ok(())
}

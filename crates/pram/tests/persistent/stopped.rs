//! Processes that are stopped in the midst of something that others wait for.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pram::session::stopped::{is_asked_to_stop, obey};
use pram::session::Kind;
use pram::Session;
use rustix::process::{getpid, kill_process, Signal};

use crate::player::{part, say, Player};
use crate::rig::{self, KEYS, MIB};

/// Longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const KEY: u64 = 5;
const SLOT: u32 = 1;

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn beside(path: &Path, name: &str) -> std::path::PathBuf {
    path.with_file_name(name)
}

/// The child: takes something, is stopped there, gives it up when it goes on, and stops itself if it is asked to.
fn play(part: &str, path: &Path) {
    let kind = if part == "full" { Kind::Full } else { Kind::Guest };
    if part != "disobeys" {
        obey();
    }
    let session = rig::attach_as(path, kind).unwrap();
    let meanwhile = || {
        say("inside");
        wait_until("it may go on", || beside(path, "go").exists());
    };
    match part {
        "lock" => {
            let mut op = session.begin().unwrap();
            op.lock(&[KEY]).unwrap();
            meanwhile();
        }
        "slot" | "full" | "disobeys" => {
            let _op = session.begin_in(SLOT).unwrap();
            meanwhile();
        }
        "long lock" => {
            let _lock = session.long_lock(KEY).unwrap();
            meanwhile();
        }
        "sweeps" => {
            let _lock = session.without_sweeps().unwrap();
            meanwhile();
        }
        _ => {
            let file = std::fs::File::open(path).unwrap();
            rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
            meanwhile();
        }
    }
    if is_asked_to_stop() {
        say("asked");
        kill_process(getpid(), Signal::STOP).unwrap();
    }
    wait_until("it may end", || beside(path, "end").exists());
    // Once only.
    rig::change(&session);
    assert!(!is_asked_to_stop());
    say("goes on");
}

/// A child that is stopped in the midst of its part.
struct Stopped {
    dir: tempfile::TempDir,
    session: Session,
    child: Player,
}

impl Stopped {
    fn in_part(test: &str, part: &str) -> Stopped {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory");
        rig::format_file(&path, MIB);
        let session = rig::attach(&path).unwrap();
        session.attend().unwrap();
        let mut child = Player::start(&format!("stopped::{test}"), part, &path);
        child.hear("inside");
        child.signal("STOP");
        let stopped = Stopped { dir, session, child };
        stopped.wait();
        std::fs::write(stopped.dir.path().join("go"), "").unwrap();
        stopped
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    }

    fn wait(&self) {
        wait_until("it is stopped", || self.is_stopped());
    }

    /// It goes on at the user's word, and not before.
    fn goes_on(mut self) {
        self.wait();
        std::fs::write(self.dir.path().join("end"), "").unwrap();
        assert!(self.is_stopped());
        self.child.signal("CONT");
        self.child.hear("goes on");
    }
}

/// What the child has is given up; and the child is stopped again.
fn given_up(test: &str, part_of_child: &str, wait: impl FnOnce(&Session)) {
    if let Some((part, path)) = part() {
        return play(&part, &path);
    }
    let mut stopped = Stopped::in_part(test, part_of_child);
    wait(&stopped.session);
    stopped.child.hear("asked");
    stopped.goes_on();
}

#[test]
fn the_lock_of_a_key() {
    given_up("the_lock_of_a_key", "lock", |session| {
        session.begin().unwrap().lock(&[KEY]).unwrap();
    });
}

#[test]
fn the_data_of_a_key_is_read() {
    given_up("the_data_of_a_key_is_read", "lock", |session| session.read(KEY, || Ok::<_, pram::Error>(())).unwrap());
}

#[test]
fn a_slot() {
    given_up("a_slot", "slot", |session| drop(session.begin_in(SLOT).unwrap()));
}

#[test]
fn any_slot() {
    given_up("any_slot", "slot", |session| {
        let others = (0..session.runtime().slots()).filter(|slot| *slot != SLOT);
        let _all: Vec<_> = others.map(|slot| session.begin_in(slot).unwrap()).collect();
        drop(session.begin().unwrap());
    });
}

#[test]
fn a_freeze() {
    given_up("a_freeze", "slot", |session| drop(session.freeze().unwrap()));
}

#[test]
fn a_long_lock() {
    given_up("a_long_lock", "long lock", |session| drop(session.long_lock(KEY).unwrap()));
}

#[test]
fn the_exclusion_of_sweeps() {
    given_up("the_exclusion_of_sweeps", "sweeps", |session| drop(session.without_sweeps().unwrap()));
}

/// A process that attaches or detaches may have no session. The process that waited for the lock stops it again.
#[test]
fn the_lock_of_the_file() {
    if let Some((part, path)) = part() {
        return play(&part, &path);
    }
    let stopped = Stopped::in_part("the_lock_of_the_file", "file");
    drop(rig::attach(&stopped.dir.path().join("memory")).unwrap());
    stopped.goes_on();
}

/// A process that cannot be made to go on holds up the freeze alone.
#[test]
fn others_go_on_while_a_freeze_waits() {
    freeze_waits_alone("others_go_on_while_a_freeze_waits", "full");
}

/// A guest that would not stop itself again stays stopped.
#[test]
fn a_guest_that_does_not_obey_stays_stopped() {
    freeze_waits_alone("a_guest_that_does_not_obey_stays_stopped", "disobeys");
}

fn freeze_waits_alone(test: &str, part_of_child: &str) {
    if let Some((part, path)) = part() {
        return play(&part, &path);
    }
    let stopped = Stopped::in_part(test, part_of_child);
    let (session, is_frozen) = (&stopped.session, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(session.freeze().unwrap());
            is_frozen.store(true, Ordering::SeqCst);
        });
        let stands = || session.runtime().longest_standstill() > Duration::ZERO;
        wait_until("it has tried", stands);
        let start = Instant::now();
        for key in 0..2000 {
            session.begin().unwrap().lock(&[KEY + 1 + key % (KEYS - 10)]).unwrap();
        }
        assert!(start.elapsed() < PATIENCE);
        assert!(!is_frozen.load(Ordering::SeqCst) && stopped.is_stopped());
        stopped.child.signal("CONT");
        wait_until("it is frozen", || is_frozen.load(Ordering::SeqCst));
    });
}

//! Questions to the process that serves a volume: a socket in the volume's directory, JSON by lines.
//!
//! A question is a line. Answers are lines too: any number of progress reports, and a last one.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::NewDisk;
use crate::error::{Error, Result};
use crate::status::Status;
use crate::volume::members::Replacement;
use crate::volume::Volume;

/// The socket's name.
const SOCKET: &str = "control";
/// Bytes of a question, at most.
const LONGEST: u64 = 64 << 10;
/// The time limit for reading a question.
const PATIENCE: Duration = Duration::from_secs(5);
/// The shortest time between two progress reports.
const REPORTING: Duration = Duration::from_millis(100);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Question {
    Status,
    Replace { old: PathBuf, new: PathBuf, size: Option<u64>, force: bool },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// Bytes still to do.
    Left(u64),
    Status(Box<Status>),
    Replaced {
        whole: bool,
    },
    Failed(String),
}

/// The thread that answers questions; it ends when this is dropped.
pub struct Control {
    socket: PathBuf,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The socket's path, short enough for a socket address at any length of the directory's path, while the directory is
/// open.
fn address(dir: &std::fs::File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()))
}

impl Control {
    /// `mounted` is the mount point for the status.
    pub fn serve(volume: Arc<Volume>, mounted: Option<PathBuf>) -> Result<Control> {
        let socket = volume.dir().join(SOCKET);
        // A left-over socket has no owner: this process has the volume's lock.
        let _ = std::fs::remove_file(&socket);
        let fail = |what| Error::host(&socket, what);
        let dir = std::fs::File::open(volume.dir()).map_err(fail("opening its directory"))?;
        let listener = UnixListener::bind(address(&dir)).map_err(fail("making it"))?;
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&socket, private).map_err(fail("making it"))?;
        let stopped = Arc::new(AtomicBool::new(false));
        let ended = stopped.clone();
        let serve = move || {
            for asker in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let (volume, mounted) = (volume.clone(), mounted.clone());
                let answer = move |asker| {
                    if let Err(e) = answer(&volume, mounted, asker) {
                        tracing::debug!("who asked did not wait for the answer: {e}");
                    }
                };
                match asker {
                    // An answer may take as long as a rebuild.
                    Ok(asker) => _ = std::thread::Builder::new().spawn(move || answer(asker)),
                    Err(e) => {
                        tracing::warn!("a question was not heard: {e}");
                        std::thread::sleep(REPORTING);
                    }
                }
            }
        };
        let thread =
            std::thread::Builder::new().name("control".into()).spawn(serve).map_err(fail("starting its thread"))?;
        Ok(Control { socket, stopped, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        let dir = self.socket.parent().and_then(|dir| std::fs::File::open(dir).ok());
        // The thread may be waiting for a connection.
        let is_awake = dir.is_some_and(|dir| UnixStream::connect(address(&dir)).is_ok());
        let _ = std::fs::remove_file(&self.socket);
        if let Some(thread) = self.thread.take().filter(|_| is_awake) {
            let _ = thread.join();
        }
    }
}

fn answer(volume: &Volume, mounted: Option<PathBuf>, mut asker: UnixStream) -> std::io::Result<()> {
    asker.set_read_timeout(Some(PATIENCE))?;
    asker.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&asker).take(LONGEST)).read_line(&mut line)?;
    let last = match serde_json::from_str(&line) {
        Ok(Question::Status) => Answer::Status(Box::new(Status { mounted, ..volume.status() })),
        Ok(Question::Replace { old, new, size, force }) => {
            let how = Replacement { old, new: NewDisk { path: new, size }, force };
            let mut reported = std::time::Instant::now();
            // The replacement goes on if the asking process has gone.
            let mut tell = |left: u64| {
                if reported.elapsed() >= REPORTING {
                    reported = std::time::Instant::now();
                    let _ = say(&mut asker, &Answer::Left(left));
                }
                true
            };
            match volume.replace(&how, &mut tell) {
                Ok(whole) => Answer::Replaced { whole },
                Err(e) => Answer::Failed(e.to_string()),
            }
        }
        Err(e) => Answer::Failed(format!("that is no question: {e}")),
    };
    say(&mut asker, &last)
}

fn say(to: &mut UnixStream, what: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Asks; `None` if no process has the volume open.
fn ask(dir: &Path, question: &Question, left: &mut dyn FnMut(u64)) -> Result<Option<Answer>> {
    let socket = dir.join(SOCKET);
    let opened = std::fs::File::open(dir).map_err(Error::host(dir, "opening it"))?;
    let mut stream = match UnixStream::connect(address(&opened)) {
        Ok(stream) => stream,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => return Ok(None),
        Err(e) => return Err(Error::host(&socket, "asking who serves the volume")(e)),
    };
    let fail = |e| Error::host(&socket, "asking who serves the volume")(e);
    say(&mut stream, question).map_err(fail)?;
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(fail)?;
        match serde_json::from_str(&line) {
            Ok(Answer::Left(bytes)) => left(bytes),
            Ok(answer) => return Ok(Some(answer)),
            Err(e) => return Err(Error::Volume(format!("who serves {} answers strangely: {e}", dir.display()))),
        }
    }
    Err(Error::Volume(format!("who served {} has ended; ask again", dir.display())))
}

/// The status of a volume, from the process that has it open, or else from its disks.
pub fn status(dir: &Path) -> Result<Status> {
    crate::volume::config_of(dir)?;
    match ask(dir, &Question::Status, &mut |_| {})? {
        Some(Answer::Status(status)) => Ok(*status),
        Some(Answer::Failed(why)) => Err(Error::Volume(why)),
        Some(other) => Err(Error::Volume(format!("a strange answer: {other:?}"))),
        None => Status::look(dir),
    }
}

/// Replaces a disk, in the process that has the volume open or else in this one. `left` gets the bytes still to do.
/// True: the new disk is whole.
pub fn replace(dir: &Path, how: &Replacement, left: &mut dyn FnMut(u64)) -> Result<bool> {
    crate::volume::config_of(dir)?;
    let (old, new) = (how.old.clone(), how.new.path.clone());
    let question = Question::Replace { old, new, size: how.new.size, force: how.force };
    match ask(dir, &question, left)? {
        Some(Answer::Replaced { whole }) => Ok(whole),
        Some(Answer::Failed(why)) => Err(Error::Volume(why)),
        Some(other) => Err(Error::Volume(format!("a strange answer: {other:?}"))),
        None => {
            let volume = Volume::open(dir, &mut |_, _| {})?;
            let replaced = volume.replace(how, &mut |bytes| {
                left(bytes);
                true
            });
            volume.close()?;
            replaced
        }
    }
}

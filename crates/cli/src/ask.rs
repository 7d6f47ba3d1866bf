//! Asks the server of a mount: any user may, and nothing of the pool is opened.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use conquest::brief::{self, Brief};
use conquest::operations::{self, Operations};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use crate::failure::{Context, Failure, Result};
use crate::mounts::{self, Mounted};
use crate::{locate, stopped_processes};

/// Bytes that the value of an attribute has at most.
const VALUE: usize = 64 << 10;
/// How long a server has to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The answer of a mount's server.
pub enum Asked<T> {
    Known(Box<T>),
    /// The server is gone.
    Dead,
    /// It does not answer; it may be stopped.
    Silent,
    /// It is not asked, or knows no answer. What another user's server says would have to be believed.
    Unknown,
}

impl<T> Asked<T> {
    pub fn known(self) -> Option<T> {
        match self {
            Asked::Known(known) => Some(*known),
            _ => None,
        }
    }
}

/// The health and the room of its pool.
pub fn brief(mounted: &Mounted) -> Asked<Brief> {
    ask(mounted, brief::ATTRIBUTE)
}

/// The operations that it has served.
pub fn operations(mounted: &Mounted) -> Asked<Operations> {
    ask(mounted, operations::ATTRIBUTE)
}

/// The mounts of the pool at `path`, or the mount there; without a path, all mounts. Of each pool one.
pub fn mounts(path: Option<&Path>) -> Result<Vec<Mounted>> {
    let path = path.map(locate::absolute).transpose()?;
    let mut found: Vec<Mounted> = Vec::new();
    for mounted in mounts::conquest()? {
        let is_meant = path.as_ref().is_none_or(|path| mounted.source == *path || mounted.dir == *path);
        if is_meant && found.iter().all(|other| other.source != mounted.source) {
            found.push(mounted);
        }
    }
    match (found.is_empty(), path) {
        (true, Some(path)) => Err(Failure::new(format!(
            "no pool is mounted at {0}, nor is the pool there mounted: `conquest list` shows the pools and their mounts",
            path.display()
        ))),
        _ => Ok(found),
    }
}

fn ask<T: DeserializeOwned>(mounted: &Mounted, attribute: &'static str) -> Asked<T> {
    if mounted.owner.is_none_or(|owner| owner != 0 && owner != rustix::process::geteuid().as_raw()) {
        return Asked::Unknown;
    }
    if stopped_processes::refuse(mounted).is_err() {
        return Asked::Silent;
    }
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["ask", attribute])
        .arg(&mounted.dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return Asked::Unknown };
    let (sender, answer) = mpsc::channel();
    if let Some(mut out) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut value = Vec::new();
            sender.send(out.read_to_end(&mut value).map(|_| value))
        });
    }
    let Ok(answer) = answer.recv_timeout(PATIENCE) else {
        _ = child.kill();
        return Asked::Silent;
    };
    let code = child.wait().ok().and_then(|status| status.code());
    match (code, answer) {
        (Some(0), Ok(value)) => serde_json::from_slice(&value).map_or(Asked::Unknown, Asked::Known),
        (Some(code), _) if code == i32::from(GONE) => Asked::Dead,
        _ => Asked::Unknown,
    }
}

/// The exit status of the process that asks if the server is gone.
const GONE: u8 = 3;

/// What the process does that asks: a call to a server that does not answer cannot be interrupted, so it is made by a process that nobody
/// waits for.
pub fn print(attribute: &str, dir: &Path) -> Result<()> {
    let mut value = vec![0; VALUE];
    match rustix::fs::getxattr(dir, attribute, &mut value[..]) {
        Ok(len) => std::io::stdout().write_all(&value[..len]).context(|| "cannot write the answer".into()),
        Err(e @ (Errno::NOTCONN | Errno::CONNABORTED)) => Err(Failure::new(e.to_string()).with_status(GONE)),
        Err(e) => Err(Failure::new(format!("{}: {e}", dir.display()))),
    }
}

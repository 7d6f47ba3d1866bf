//! Asks the server of a mount: any user may, and nothing of the pool is opened.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use conquest::brief::{self, Brief};
use conquest::operations::{self, Operations};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use crate::failure::{Failure, Result};
use crate::locate;
use crate::mounts::{self, Mounted};

/// Bytes that the value of an attribute has at most.
const VALUE: usize = 64 << 10;
/// How long a server has to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The answer of a mount's server.
pub enum Asked<T> {
    Told(Box<T>),
    /// The server is gone.
    Dead,
    /// It does not answer; it may be stopped.
    Silent,
    /// It is not asked, or knows no answer. What another user's server says would have to be believed.
    Unknown,
}

impl<T> Asked<T> {
    pub fn told(self) -> Option<T> {
        match self {
            Asked::Told(told) => Some(*told),
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
    let (sender, answer) = mpsc::channel();
    let dir = mounted.dir.clone();
    // It stays behind if there is no answer.
    std::thread::spawn(move || {
        let mut value = vec![0; VALUE];
        sender.send(rustix::fs::getxattr(&dir, attribute, &mut value[..]).map(|len| value[..len].to_vec()))
    });
    match answer.recv_timeout(PATIENCE) {
        Ok(Ok(value)) => serde_json::from_slice(&value).map_or(Asked::Unknown, Asked::Told),
        Ok(Err(Errno::NOTCONN | Errno::CONNABORTED)) => Asked::Dead,
        Ok(Err(_)) => Asked::Unknown,
        Err(_) => Asked::Silent,
    }
}

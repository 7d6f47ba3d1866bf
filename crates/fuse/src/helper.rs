//! `fusermount3` mounts and unmounts for users who may not.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::{
    recvmsg, socketpair, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use crate::error::{Context, Error, Result};
use crate::init::MAX_PAYLOAD;
use crate::mounts::{self, TABLE};
use crate::options::MountOptions;
use crate::sys::Device;

/// Mounts on `dir`; the helper sends the device over a socket.
pub fn mount(source: &Path, dir: &Path, options: &MountOptions) -> Result<Device> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None).context("make a socket")?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).context("make a socket")?;
    let mut command = Command::new("fusermount3");
    command.arg("-o").arg(words(source, options)).arg("--").arg(dir);
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    run(&mut command, "mount", dir)?;
    drop(theirs);
    receive_fd(&ours).map(Device::from).context("receive the device from fusermount3")
}

fn words(source: &Path, options: &MountOptions) -> OsString {
    let mut words = OsString::from("fsname=");
    // A comma or backslash would end the name.
    let name = source.as_os_str().as_bytes().iter().flat_map(|&b| match b {
        b',' | b'\\' => vec![b'\\', b],
        _ => vec![b],
    });
    words.push(OsStr::from_bytes(&name.collect::<Vec<u8>>()));
    words.push(format!(",subtype=conquest,default_permissions,max_read={MAX_PAYLOAD}"));
    if options.allow_other {
        words.push(",allow_other");
    }
    for word in options.flag_words() {
        words.push(",");
        words.push(word);
    }
    words
}

fn receive_fd(socket: &OwnedFd) -> std::io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fd.ok_or_else(|| std::io::Error::other("it sent none"))
}

fn run(command: &mut Command, what: &str, dir: &Path) -> Result<()> {
    let output = command.output().map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            Error::Unavailable(format!("to {what} without being root takes `fusermount3`: apt install fuse3"))
        }
        _ => Error::System { what: "run fusermount3".into(), source: e },
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Target(format!("cannot {what} {}: {}", dir.display(), said.trim())))
}

/// `fusermount3` would say that nothing is mounted there.
fn refuse_not_ours(dir: &Path) -> Result<()> {
    let mounted = mounts::at(dir).context(TABLE)?;
    match mounted.and_then(|mounted| mounted.owner) {
        Some(owner) if owner != rustix::process::getuid().as_raw() => Err(Error::Target(format!(
            "{}: not permitted; only root or who mounted it (user {owner}) may unmount it",
            dir.display()
        ))),
        _ => Ok(()),
    }
}

/// Unmounts `dir`; if `lazily`, also while it is in use.
pub fn unmount(dir: &Path, lazily: bool) -> Result<()> {
    refuse_not_ours(dir)?;
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(dir);
    run(&mut command, "unmount", dir)
}

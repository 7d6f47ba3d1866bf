//! The `conquest` command: pools, mounts, checks and images from a shell.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`verb`] | one file per command: its arguments, its help, its action |
//! | [`mount_helper`] | the same program called as `mount.conquest` by mount(8) |
//! | [`serve`] | the server process of a mount; all use of the crate `fuse` |
//! | [`options`] | the options of `-o` |
//! | [`outcome`] | how a server ended, for the command that unmounts |
//! | [`mount_request`] | the request for a mount |
//! | [`effective_options`] | the options that a mount has |
//! | [`remount`] | `mount -o remount`, and the server's side of it |
//! | [`save_option`] | the file of `-o save=`, as far as it can be checked early |
//! | [`background`] | leaves the server in the background, and reports when it is ready |
//! | [`guard`] | the second process of a mount, for notifications and the end of a killed server |
//! | [`killed_servers`] | waits for servers that are being killed |
//! | [`servers`] | the processes that serve a pool |
//! | [`mount_points`] | the directories at which a pool's one file system is mounted |
//! | [`other_mounts`] | other mounts of a file system, in other mount namespaces too |
//! | [`stopped_processes`] | reports that a server is stopped, instead of waiting for it |
//! | [`proc`] | lists of /proc |
//! | [`stall`] | work that may have to wait for other processes, but not for stopped ones |
//! | [`locate`] | default paths, absolute paths, the pool that a path belongs to |
//! | [`log`] | the log, which does not wait for a full disk beneath it |
//! | [`paths_in_pools`] | paths in mounted pools, their attributes, and the files below them |
//! | [`libc_text`] | the C library's text with jumps where it makes calls that direct access answers |
//! | [`inspect`] | opens a pool to save or mend it, its memory alone if need be |
//! | [`mounts`] | which pools are mounted where |
//! | [`ask`] | asks the server of a mount |
//! | [`glance`] | a pool on one screen: its health, and what is wrong |
//! | [`disks`] | shows disks and regions |
//! | [`damage`] | shows damage |
//! | [`regions`] | regions as users write them |
//! | [`lost_content`] | shows lost content, and continues without it |
//! | [`size`] | sizes as users write them, and default sizes |
//! | [`progress`] | progress bars on a terminal |
//! | [`failure`] | one error type: the text, and the exit status |
//!
//! Exit status: 0 done, 1 failed, 2 wrong usage; for `fsck` 0 clean, 1 problems, 2 could not check; for `status` 0 well, 1
//! not, 2 could not tell.

#![forbid(unsafe_code)]

mod ask;
mod background;
mod damage;
mod disks;
mod effective_options;
mod failure;
mod glance;
mod guard;
mod inspect;
mod killed_servers;
mod libc_text;
mod locate;
mod log;
mod lost_content;
mod mount_helper;
mod mount_points;
mod mount_request;
mod mounts;
mod options;
mod other_mounts;
mod outcome;
mod paths_in_pools;
mod proc;
mod progress;
mod regions;
mod remount;
mod save_option;
mod serve;
mod servers;
mod size;
mod stall;
mod stopped_processes;
mod verb;

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use failure::{Failure, Result};

/// A file system that lives in persistent RAM.
#[derive(Parser)]
#[command(name = "conquest", version, about, long_about = LONG_ABOUT, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    verb: verb::Verb,
}

const LONG_ABOUT: &str = "A file system that lives in persistent RAM.\n\n\
    A pool is a directory that names the persistent RAM which holds a file system. `conquest up` makes \
    the default pool and mounts it; the other commands work on any pool.";

const AFTER_HELP: &str = "Examples:\n  \
    conquest up                               make the default pool if there is none, and mount it\n  \
    conquest format /srv/pool --nvram 2G      make a pool of 2 GiB\n  \
    conquest mount /srv/pool /mnt/fast        mount it\n  \
    conquest status /srv/pool                 what it holds and who uses it\n  \
    conquest umount /mnt/fast                 unmount it\n\n\
    Environment:\n  \
    CONQUEST_POOL   the default pool of `conquest up`\n  \
    CONQUEST_LOG    what the log tells, e.g. `debug` or `fuse=trace,info`";

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    log::start(is_server(&args));
    let done = match mount_helper::recognise(&args) {
        Some(request) => request.and_then(|r| r.run()),
        None => Cli::parse_from(&args).verb.run(),
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "conquest: {}", plain(&failure.to_string()));
            failure.exit_code()
        }
    }
}

/// Is this a process of a mount, whose messages go to a log?
fn is_server(args: &[OsString]) -> bool {
    args.iter().any(|arg| ["--detached", "--foreground", "--guard"].iter().any(|server| arg == server))
}

/// The text without control characters: a terminal would obey them in a file name.
fn plain(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(is_obeyed) {
        return text.into();
    }
    let escaped = |c: char| if is_obeyed(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect::<String>().into()
}

/// A name without line breaks.
fn in_line(name: &str) -> String {
    name.replace('\n', "\\n")
}

/// Prints a result. A reader that is gone (`conquest status | head`) is no failure.
fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", plain(text)).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write the answer: {e}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod examples;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        assert_eq!(plain("a\x1b[2Jb\rc\u{9b}d\te\nf"), "a\\u{1b}[2Jb\\rc\\u{9b}d\te\nf");
        assert_eq!(in_line("one\ntwo"), "one\\ntwo");
        assert!(matches!(plain("ünïcode"), Cow::Borrowed(_)));
    }
}

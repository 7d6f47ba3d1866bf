//! The log, on the standard error output: a terminal, or the server's log file. A full or dead disk beneath it must not
//! hold up the program: messages that cannot be written are dropped. Its length is bounded: see [`repeats`] and
//! [`bound`](mod@bound).

mod bound;
mod repeats;

use std::io::{self, Stderr, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tracing_subscriber::EnvFilter;

use repeats::Repeats;

/// Starts the log. Messages of a `server` carry the time; those of a command are read at once.
pub fn start(is_server: bool) {
    let asked = EnvFilter::try_from_env("CONQUEST_LOG");
    // A user who sets a level gets all messages.
    let repeats: Option<&Mutex<Repeats>> = match asked {
        Ok(_) => None,
        Err(_) => Some(Box::leak(Box::new(Mutex::new(Repeats::new(Instant::now()))))),
    };
    let filter = asked.unwrap_or_else(|_| EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    // Errors of the log itself would go to the same output, by a macro that panics if that fails.
    let writer = move || Unrepeated { repeats, to: Lossy::over(io::stderr(), &LOST) };
    let log = log.log_internal_errors(false).with_writer(writer);
    match is_server {
        true => log.init(),
        false => log.without_time().with_target(false).init(),
    }
}

/// Bounds the length of the log, for a standard error output that is a log file of ours.
pub fn bound() {
    BOUND.store(true, Ordering::Relaxed);
}

static BOUND: AtomicBool = AtomicBool::new(false);

/// Messages lost since the last one was written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Writes each message, or a count where it repeats.
struct Unrepeated {
    repeats: Option<&'static Mutex<Repeats>>,
    to: Lossy<'static>,
}

impl Write for Unrepeated {
    /// `message`: one whole message.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        match self.repeats {
            Some(repeats) => {
                let mut repeats = repeats.lock().unwrap_or_else(PoisonError::into_inner);
                let text = repeats.said(&String::from_utf8_lossy(message), Instant::now());
                if !text.is_empty() {
                    self.to.write_all(text.as_bytes())?;
                }
            }
            None => self.to.write_all(message)?,
        }
        if BOUND.load(Ordering::Relaxed) {
            // A log that cannot be shortened goes on growing; nobody can be told.
            _ = bound::shorten(io::stderr());
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes as much as it can, and never fails.
struct Lossy<'a, W = Stderr> {
    to: W,
    lost: &'a AtomicU64,
}

impl<'a, W: Write> Lossy<'a, W> {
    fn over(to: W, lost: &'a AtomicU64) -> Lossy<'a, W> {
        Lossy { to, lost }
    }
}

impl<W: Write> Write for Lossy<'_, W> {
    /// `message`: one whole message.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let written = match lost {
            0 => Ok(()),
            _ => writeln!(self.to, "({lost} messages before this could not be written)"),
        };
        if written.is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        } else if self.to.write_all(message).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `room` bytes and no more.
    struct Disk {
        text: Vec<u8>,
        room: usize,
    }

    impl Write for &mut Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.len() > self.room {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= bytes.len();
            self.text.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_cannot_be_written_is_dropped_and_counted() {
        let (mut disk, lost) = (Disk { text: Vec::new(), room: 6 }, AtomicU64::new(0));
        for message in ["first\n", "second\n", "third\n"] {
            Lossy::over(&mut disk, &lost).write_all(message.as_bytes()).expect("never fails");
        }
        disk.room = 1000;
        Lossy::over(&mut disk, &lost).write_all(b"fourth\n").expect("never fails");
        Lossy::over(&mut disk, &lost).write_all(b"fifth\n").expect("never fails");
        let text = String::from_utf8(disk.text).expect("text");
        assert_eq!(text, "first\n(2 messages before this could not be written)\nfourth\nfifth\n");
    }
}

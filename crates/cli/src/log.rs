//! The log, on the standard error output: a terminal, or the server's log file. A disk that is full or dead beneath it
//! must not hold up what is logged: whatever cannot be written is dropped.

use std::io::{self, Stderr, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_subscriber::EnvFilter;

pub fn start() {
    let filter = EnvFilter::try_from_env("CONQUEST_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    // Errors of the log itself would go where it goes, by a macro that panics if that fails.
    log.log_internal_errors(false).with_writer(|| Lossy::over(io::stderr(), &LOST)).init();
}

/// Messages lost since one was written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Writes what it can, and never fails.
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
    /// One message.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let told = match lost {
            0 => Ok(()),
            _ => writeln!(self.to, "({lost} messages before this could not be written)"),
        };
        if told.is_err() {
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

    /// Takes so many bytes and no more.
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

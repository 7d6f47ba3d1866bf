//! Bounds the length of a log file: a file that is too long is cut down to its newest part.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{fstat, ftruncate, FileType};

/// The greatest length of a log, and the length of the part that is left then.
const LIMIT: u64 = 1 << 20;
const TAIL: u64 = LIMIT / 4;

/// Shortens the log `file`, which is open for appending, if it is too long.
pub fn shorten(file: impl AsFd) -> io::Result<()> {
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size as u64 <= LIMIT {
        return Ok(());
    }
    let mut newer = Vec::new();
    // `file` may be open for writing alone, and have no name any more.
    let mut read = File::open(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))?;
    read.seek(SeekFrom::End(-(TAIL as i64)))?;
    read.take(TAIL).read_to_end(&mut newer)?;
    let first = newer.iter().position(|byte| *byte == b'\n').map_or(newer.len(), |end| end + 1);
    ftruncate(&file, 0)?;
    let newer = [b"(what was said before was dropped)\n", &newer[first..]].concat();
    let mut rest = &newer[..];
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_log_that_is_too_long_keeps_its_newer_part() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("server.log");
        let mut log = File::options().append(true).create(true).open(&path).expect("a file");
        let (mut line, mut longest) = (0, 0);
        while line < 50_000 {
            writeln!(log, "2026 ERROR message {line}, which takes room").expect("write");
            shorten(&log).expect("shorten");
            longest = longest.max(log.metadata().expect("stat").len());
            line += 1;
        }
        assert!(longest <= LIMIT + 100);
        let text = std::fs::read_to_string(&path).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "(what was said before was dropped)");
        assert!(lines[1].starts_with("2026 ERROR message "), "a whole line: {}", lines[1]);
        assert_eq!(lines.last(), Some(&"2026 ERROR message 49999, which takes room"));
        assert!(lines.len() as u64 > TAIL / 50);
    }
}

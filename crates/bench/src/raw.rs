//! A disk by itself: fio reads and writes a file past the page cache, with as many requests under way as make it fast.
//! This is the possible speed of the disk.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::command;
use crate::error::Error;

/// The name in the tables.
pub const RAW: &str = "raw disk";
const PROGRAM: &str = "fio";
/// Bytes of a request in the order of the disk, and the number of requests under way.
const PIECE: &str = "1m";
const PIECES: usize = 16;

/// A file on a disk; dropping it removes it.
pub struct Raw {
    path: PathBuf,
    bytes: u64,
}

impl Raw {
    /// A file of `bytes`, a multiple of a MiB, at an unused path. It is not written yet.
    pub fn at(path: PathBuf, bytes: u64) -> Result<Raw, Error> {
        command::require(PROGRAM)?;
        Ok(Raw { path, bytes })
    }

    /// Makes the file anew, writes all of it in order, and syncs it; returns bytes per second. New, because content is
    /// written to free space too.
    pub fn write(&self) -> Result<f64, Error> {
        if self.path.exists() {
            std::fs::remove_file(&self.path).map_err(Error::file(&self.path))?;
        }
        self.fio("write", PIECE, PIECES, &["--end_fsync=1"], ["write", "bw_bytes"])
    }

    /// Writes all of it in the order `how`, in calls of 4 KiB through the page cache of the file system beneath, and
    /// syncs it; returns bytes per second.
    pub fn write_buffered(&self, how: &str) -> Result<f64, Error> {
        // The last one of repeated options counts.
        let buffered = ["--direct=0", "--ioengine=psync", "--fallocate=none", "--create_on_open=1", "--end_fsync=1"];
        self.fio(how, "4k", 1, &buffered, ["write", "bw_bytes"])
    }

    /// Reads all of it in order, after it was written; returns bytes per second.
    pub fn read(&self) -> Result<f64, Error> {
        self.fio("read", PIECE, PIECES, &[], ["read", "bw_bytes"])
    }

    /// Reads `count` blocks of 4 KiB at random, `depth` at a time, after it was written; returns reads per second.
    pub fn read_at_random(&self, count: usize, depth: usize) -> Result<f64, Error> {
        let count = format!("--number_ios={count}");
        // Without these it would end at the size of the file.
        let (repeat, many) = (["--norandommap", "--io_size=1024g"], count.as_str());
        self.fio("randread", "4k", depth, &[repeat[0], repeat[1], many], ["read", "iops"])
    }

    fn fio(
        &self,
        how: &str,
        piece: &str,
        depth: usize,
        more: &[&str],
        [kind, figure]: [&str; 2],
    ) -> Result<f64, Error> {
        let mut fio = Command::new(PROGRAM);
        fio.args(["--name=raw", "--direct=1", "--ioengine=io_uring", "--thread", "--output-format=json"]);
        fio.arg(format!("--filename={}", self.path.display())).arg(format!("--size={}", self.bytes));
        fio.args([format!("--rw={how}"), format!("--bs={piece}"), format!("--iodepth={depth}")]).args(more);
        let said = command::output(&mut fio)?;
        // A remark may precede the report.
        let report = said.find('{').map_or("", |at| &said[at..]);
        let failed = |said: &str| Error::Program { program: PROGRAM.into(), said: said.trim().replace('\n', "; ") };
        let report: Value = serde_json::from_str(report).map_err(|_| failed(&said))?;
        let found = report["jobs"][0][kind][figure].as_f64().filter(|&found| found > 0.0);
        found.ok_or_else(|| failed("no figures in the report"))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // At the latest the run removes the directory.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The name of the raw disk in the table when it was measured beside one of several subjects, in the same rounds.
pub fn beside(name: &str) -> String {
    format!("{RAW}, beside {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_written_and_read_and_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let raw = match Raw::at(dir.path().join("raw"), 8 << 20) {
            Ok(raw) => raw,
            Err(e) => return eprintln!("skipped: {e}"),
        };
        for _ in 0..2 {
            assert!(raw.write().expect("written") > 0.0);
        }
        assert!(raw.read().expect("read") > 0.0);
        assert!(raw.read_at_random(5_000, 32).expect("read") > 0.0);
        drop(raw);
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }
}

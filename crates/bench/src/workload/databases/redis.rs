//! SET by 20 clients to a redis that answers after syncing its append-only file. The file has tens of megabytes before
//! the first round.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::server::Server;
use super::{Database, Load, Options};
use crate::command::{output, require};
use crate::prelude::*;

/// Requests before the first round, many of which share a sync.
const BEFORE: usize = 200_000;

/// redis, or the reason why it cannot be measured.
pub fn load(context: &Context, args: &Options) -> Result<Load, Error> {
    require("redis-server")?;
    require("redis-benchmark")?;
    let (requests, before) = (context.size(args.requests, 1_000), context.size(BEFORE, 20_000));
    Ok(Load {
        title: format!("redis, appendfsync always: {requests} SET of 100 bytes by 20 clients: requests"),
        measures: &["redis SET, 20 clients"],
        goals: [Goal::factor(1.0, 1.3), Goal::factor(4.0, 8.0)],
        bytes: 1024 * MIB,
        database: Box::new(Redis { requests, before, socket: context.base.join("redis.sock") }),
    })
}

struct Redis {
    requests: usize,
    before: usize,
    socket: PathBuf,
}

impl Redis {
    fn start(&self, dir: &Path) -> Result<Server, Error> {
        let mut server = Command::new("redis-server");
        server.args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always", "--dir"]).arg(dir);
        // Rewriting the file would disturb one round, and not another.
        server.args(["--auto-aof-rewrite-percentage", "0", "--unixsocket"]).arg(&self.socket);
        let answers = || UnixStream::connect(&self.socket).is_ok() && self.benchmark(&["-n", "1", "-c", "1"]).is_ok();
        Server::start(&mut server, &self.socket.with_extension("said"), Signal::TERM, answers)
    }

    /// Requests per second.
    fn benchmark(&self, how: &[&str]) -> Result<f64, Error> {
        let mut benchmark = Command::new("redis-benchmark");
        benchmark.arg("-s").arg(&self.socket).args(["-t", "set", "-d", "100", "-r", "100000", "--csv"]).args(how);
        let said = output(&mut benchmark)?;
        rate(&said).ok_or_else(|| Error::Program { program: "redis-benchmark".into(), said: said.trim().into() })
    }
}

impl Database for Redis {
    fn prepare(&self, dir: &Path) -> Result<(), Error> {
        let _server = self.start(dir)?;
        self.benchmark(&["-n", &self.before.to_string(), "-c", "20", "-P", "50"]).map(drop)
    }

    fn measure(&self, dir: &Path, _: &str, _: u64) -> Result<f64, Error> {
        let _server = self.start(dir)?;
        self.benchmark(&["-n", &self.requests.to_string(), "-c", "20"])
    }
}

/// Parses the line `"SET","1234.5",...`.
fn rate(report: &str) -> Option<f64> {
    let line = report.lines().find_map(|line| line.strip_prefix("\"SET\",\""))?;
    line.split('"').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_read() {
        let report = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"1234.5\",\"0.1\"\n";
        assert_eq!(rate(report), Some(1234.5));
        assert_eq!(rate("Could not connect"), None);
    }
}

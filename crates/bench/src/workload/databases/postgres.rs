//! pgbench's transactions with 4 clients, on a server with its default settings that is started for each round.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::server::Server;
use super::{Database, Load, Options};
use crate::command::{output, require};
use crate::prelude::*;

const NOT_INSTALLED: &str = "PostgreSQL is not installed (Debian package: postgresql)";
/// Users to run it as: it refuses to run as root.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// The directory of distributions for programs outside the path.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Bytes of a base for each unit of its scale, and most bytes of its log.
const UNIT: u64 = 16 * MIB;
const LOG: u64 = 1280 * MIB;

/// PostgreSQL, or the reason why it cannot be measured.
pub fn load(context: &Context, args: &Options) -> Result<Load, Error> {
    let programs = programs().ok_or_else(|| Error::Usage(NOT_INSTALLED.into()))?;
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = USERS.iter().find_map(|user| found(&passwd, user));
    let user = user.ok_or_else(|| Error::Usage("no user to run PostgreSQL as".into()))?;
    let (scale, seconds) = (context.size(args.scale, 1), context.size(args.seconds, 1));
    Ok(Load {
        title: format!("PostgreSQL: pgbench -s {scale}, 4 clients, {seconds} s a round: transactions"),
        measures: &["pgbench, 4 clients"],
        goals: [Goal::factor(1.5, 2.5), Goal::factor(3.0, 5.0)],
        bytes: 2 * scale as u64 * UNIT + LOG,
        database: Box::new(Postgres { programs, user, scale, seconds, sockets: context.base.join("postgres") }),
    })
}

struct Postgres {
    /// The directory of its programs.
    programs: PathBuf,
    /// User and group.
    user: (u32, u32),
    scale: usize,
    seconds: usize,
    /// The directory of the server's socket.
    sockets: PathBuf,
}

/// The directory of the newest version's programs.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, dir)| ["postgres", "initdb", "pgbench"].iter().all(|program| require(dir.join(program)).is_ok()))
        .collect();
    found.sort();
    found.pop().map(|(_, dir)| dir)
}

/// The numbers of a user, from /etc/passwd.
fn found(passwd: &str, user: &str) -> Option<(u32, u32)> {
    let line = passwd.lines().find_map(|line| line.strip_prefix(user)?.strip_prefix(':'))?;
    let mut fields = line.split(':').skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

impl Postgres {
    /// One of its programs, run as its user.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.uid(self.user.0).gid(self.user.1).current_dir("/");
        command
    }

    fn client(&self, name: &str) -> Command {
        let mut command = self.program(name);
        command.arg("--host").arg(&self.sockets).args(["--username", "postgres"]);
        command
    }

    fn start(&self, dir: &Path) -> Result<Server, Error> {
        let mut server = self.program("postgres");
        server.arg("-D").arg(dir).args(["-c", "listen_addresses=", "-c"]);
        server.arg(format!("unix_socket_directories={}", self.sockets.display()));
        let answers = || output(&mut self.client("pg_isready")).is_ok();
        // An interrupt makes it end the transactions, and write a checkpoint.
        Server::start(&mut server, &self.sockets.join("said"), Signal::INT, answers)
    }
}

impl Database for Postgres {
    fn prepare(&self, dir: &Path) -> Result<(), Error> {
        std::fs::create_dir_all(&self.sockets).map_err(Error::file(&self.sockets))?;
        for dir in [dir, &self.sockets] {
            chown(dir, Some(self.user.0), Some(self.user.1)).map_err(Error::file(dir))?;
        }
        let mut initdb = self.program("initdb");
        initdb.args(["--auth=trust", "--username=postgres", "--no-instructions", "--encoding=UTF8", "--locale=C"]);
        output(initdb.arg("-D").arg(dir))?;
        let _server = self.start(dir)?;
        let scale = self.scale.to_string();
        output(self.client("pgbench").args(["--initialize", "--quiet", "--scale", &scale, "postgres"]))?;
        Ok(())
    }

    fn measure(&self, dir: &Path, _: &str, round: u64) -> Result<f64, Error> {
        let _server = self.start(dir)?;
        let (seconds, seed) = (self.seconds.to_string(), format!("--random-seed={round}"));
        let run = ["--client=4", "--jobs=2", "--no-vacuum", &seed, "--time", &seconds, "postgres"];
        let said = output(self.client("pgbench").args(run))?;
        rate(&said).ok_or_else(|| Error::Program { program: "pgbench".into(), said: "no rate in its report".into() })
    }
}

/// Parses the line `tps = 1234.5 (without initial connection time)`.
fn rate(report: &str) -> Option<f64> {
    let line = report.lines().find_map(|line| line.strip_prefix("tps = "))?;
    line.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_and_users_are_read() {
        assert_eq!(rate("latency average = 1 ms\ntps = 1234.5 (without initial connection time)\n"), Some(1234.5));
        assert_eq!(rate("no"), None);
        let passwd = "root:x:0:0::/root:/bin/sh\npostgresql:x:1:2::/:/bin/sh\npostgres:x:101:104:,,,:/var:/bin/sh\n";
        assert_eq!(found(passwd, "postgres"), Some((101, 104)));
        assert_eq!(found(passwd, "nobody"), None);
    }
}

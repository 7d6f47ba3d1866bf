//! Leaves the server in the background.
//!
//! The command runs itself again in a session of its own. That process reports on its standard output, which is a pipe
//! to us, that the mount can be used, or why not; then it closes the pipe and serves.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use conquest::owner;
use conquest::LOG;
use rustix::fs::OFlags;

use crate::failure::{Context, Failure, Result};
use crate::mount_request::Request;
use crate::say;
use crate::serve;

/// The background process reports this when the file system can be used.
const READY: &str = "ready";

/// Starts the server of a pool and returns when the file system can be used.
pub fn start(request: &Request) -> Result<()> {
    let mut args: Vec<OsString> = vec!["mount".into(), "--detached".into()];
    if !request.options.words.is_empty() {
        args.push(format!("-o{}", request.options.words).into());
    }
    args.extend([request.pool.clone().into(), request.dir.clone().into()]);
    launch(&args, &request.pool)
}

/// Starts this program with these arguments; its messages go to a log in `home`. Returns when it reports that it is
/// ready.
pub fn launch(args: &[OsString], home: &Path) -> Result<()> {
    let mut server = spawn(args, home)?;
    let mut answer = String::new();
    if let Some(pipe) = server.stdout.take() {
        let mut pipe = BufReader::new(pipe);
        let _ = pipe.read_line(&mut answer);
        if answer.trim_end() == READY {
            return Ok(());
        }
        let _ = pipe.read_to_string(&mut answer);
    }
    Err(failed(server, answer.trim_end(), home))
}

fn spawn(args: &[OsString], home: &Path) -> Result<Child> {
    let program = std::env::current_exe().context(|| "cannot find this program".into())?;
    let mut command = Command::new(program);
    command.arg0("conquest").args(args).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log(home));
    command.spawn().context(|| "cannot start the server".into())
}

/// The server's log; none if the directory cannot be written.
fn log(home: &Path) -> Stdio {
    let how = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let file = owner::refuse_foreign_dir(home).ok().and_then(|()| owner::open_within(home, LOG.as_ref(), how).ok());
    file.map_or_else(Stdio::null, Stdio::from)
}

fn failed(mut server: Child, answer: &str, home: &Path) -> Failure {
    let status = server.wait();
    if !answer.is_empty() {
        return Failure::new(answer);
    }
    let how = status.map_or_else(|e| e.to_string(), |s| s.to_string());
    let log = home.join(LOG);
    Failure::new(format!("the server ended before the mount was ready ({how}); see {}", log.display()))
}

/// The background half for a pool.
pub fn serve(request: &Request) -> Result<()> {
    detached(|ready| serve::serve(request, ready))
}

/// The background half: `serve` calls its argument when it is ready.
pub fn detached(serve: impl FnOnce(&dyn Fn()) -> Result<()>) -> Result<()> {
    crate::log::bound();
    // Fails only for a process that leads a session already, which is as good.
    let _ = rustix::process::setsid();
    let served = serve(&|| {
        let _ = say(READY);
        let_go_of_stdout();
    });
    if let Err(failure) = &served {
        let _ = say(&failure.to_string());
    }
    served
}

fn let_go_of_stdout() {
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

//! The second process of a mount, which sends notifications and ends the connection of a killed server: see [`fuse::guard`].

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use crate::failure::{Context, Result};
use crate::serve::Request;

/// A guard over this process. Dropped, it is there no more: a server that ends by itself needs none.
pub struct Guard(Child);

/// Starts it. A mount works without, too.
pub fn start(mount: &fuse::Mount, request: &Request) -> Option<Guard> {
    match mount.guarded().context(|| "no duty".into()).and_then(|duty| spawn(request, duty)) {
        Ok(guard) => Some(Guard(guard)),
        Err(e) => {
            tracing::warn!("without a guard, a server that is killed at the wrong moment may hang: {e}");
            None
        }
    }
}

/// In a process group of its own, so that what is sent to ours, as from a terminal, does not reach it.
fn spawn(request: &Request, duty: fuse::Duty) -> Result<Child> {
    let program = std::env::current_exe().context(|| "cannot find this program".into())?;
    let mut command = Command::new(program);
    command.arg0("conquest").args(["mount", "--guard", &std::process::id().to_string()]);
    command.arg(&request.pool).arg(&request.dir).current_dir("/").process_group(0);
    command.stdin(duty.device).stdout(duty.server);
    command.spawn().context(|| "cannot start the guard".into())
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The guard itself.
pub fn run(server: u32, request: &Request) -> Result<()> {
    let cannot = || format!("cannot guard the server of {}", request.dir.display());
    fuse::guard(server, &request.dir, fuse::Duty::inherited().context(cannot)?).context(cannot)
}

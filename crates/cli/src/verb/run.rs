//! `conquest run`: a program whose file calls in a pool are answered in its own process.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use direct::{calls, counts};

use crate::failure::{Context, Failure, Result};
use crate::mounts::Mounted;
use crate::{libc_text, locate, mounts};

/// The file of the library that the loader loads into programs.
pub const LIBRARY: &str = "libconquest_preload.so";

/// Run a program with direct access to pools: much faster than through the mount.
///
/// The program's calls on files of a mounted pool are answered in its own process, on the pool's memory. All other calls go to
/// the kernel. The same holds for all programs that it starts, but statically linked ones and some others use the mount. The
/// caller must be allowed to open the pool's memory; otherwise all calls use the mount.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  conquest run -- make -j2\n  conquest run -- git status\n  conquest run --pool /srv/pool -- tar xf linux.tar"
)]
pub struct Args {
    /// Only this pool, or the pool mounted there [default: all that are mounted]
    #[arg(long, value_name = "POOL")]
    pool: Option<PathBuf>,
    /// Count the calls on files of pools, and say at the end how many were direct
    #[arg(long)]
    check: bool,
    /// The program and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mounts = match &args.pool {
        Some(pool) => {
            let pool = locate::pool(pool)?;
            let mounts = mounts::of(&pool)?;
            if mounts.is_empty() {
                let pool = pool.display();
                return Err(Failure::new(format!(
                    "{pool} is not mounted; mount it first with `conquest mount {pool} DIR`"
                )));
            }
            mounts
        }
        // None is asked anything: its server may be stopped.
        None => mounts::conquest()?,
    };
    let [program, arguments @ ..] = &args.command[..] else { return Err(Failure::new("name a program to run")) };
    let mut command = Command::new(program);
    command.args(arguments);
    prepare(&mut command, &mounts)?;
    let failed = |error: std::io::Error| Failure::new(format!("cannot run {}: {error}", Path::new(program).display()));
    if !args.check {
        return Err(failed(command.exec()));
    }
    let counters = counters()?;
    let status =
        command.env(OsStr::from_bytes(counts::VARIABLE.to_bytes()), counters.as_os_str()).status().map_err(failed)?;
    report(&std::fs::read(&counters).context(|| "cannot read the counters".into())?)?;
    Ok(u8::try_from(status.code().unwrap_or(128)).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The file that all processes of the command count in.
fn counters() -> Result<tempfile::TempPath> {
    let made = tempfile::Builder::new().prefix("conquest-counts-").tempfile_in("/dev/shm");
    let sized = made.and_then(|file| file.as_file().set_len(counts::BYTES as u64).map(|()| file.into_temp_path()));
    sized.context(|| "cannot make a file in /dev/shm".into())
}

/// Says how many calls were direct, and which were not.
fn report(bytes: &[u8]) -> Result<()> {
    let (mut direct, mut others) = (0, Vec::new());
    for (nr, here, mount) in counts::read(bytes) {
        direct += here;
        others.extend((mount > 0).then_some((mount, nr)));
    }
    let mount: u64 = others.iter().map(|(count, _)| count).sum();
    let share = 100.0 * direct as f64 / (direct + mount).max(1) as f64;
    let mut text = format!("{direct} of {} calls on pools were direct ({share:.1} %)", direct + mount);
    others.sort_unstable_by(|a, b| b.cmp(a));
    for (count, nr) in others.iter().take(10) {
        _ = write!(text, "\n{count:>10} by the mount: {}", calls::name(*nr));
    }
    _ = writeln!(std::io::stderr(), "{text}");
    Ok(())
}

/// Has the loader give direct access to the command.
fn prepare(command: &mut Command, mounts: &[Mounted]) -> Result<()> {
    let library = library()?;
    let text = libc_text::file()?;
    let mut lines = String::new();
    for mount in mounts {
        if let Some(dev) = device(&mount.number) {
            _ = writeln!(lines, "{dev:x} {} {}", escape(&mount.dir), escape(&mount.source));
        }
    }
    let others = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty());
    let mut preload = library.into_os_string();
    if let Some(others) = others {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload).env("CONQUEST_TEXT", text).env("CONQUEST_MOUNTS", lines);
    Ok(())
}

/// `st_dev` of a file system with this number, `major:minor`.
fn device(number: &str) -> Option<u64> {
    let (major, minor) = number.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Where the library is installed that belongs to an installed program.
pub fn installed(program: &Path) -> PathBuf {
    let prefix = program.parent().and_then(Path::parent).unwrap_or(Path::new("/usr/local"));
    prefix.join("lib/conquest").join(LIBRARY)
}

/// Beside the program, as it is built, or as it is installed.
fn library() -> Result<PathBuf> {
    let this = std::env::current_exe().context(|| "cannot find this program".into())?;
    [this.with_file_name(LIBRARY), installed(&this)].into_iter().find(|path| path.is_file()).ok_or_else(|| {
        Failure::new(format!("{LIBRARY} is not installed: build it with `cargo build --release -p conquest-preload`, then `conquest install`"))
    })
}

/// A path without spaces and other bytes that separate.
fn escape(path: &Path) -> String {
    let escaped = |byte: &u8| match byte {
        b'!'..=b'~' if *byte != b'%' => char::from(*byte).to_string(),
        byte => format!("%{byte:02x}"),
    };
    OsStr::as_bytes(path.as_os_str()).iter().map(escaped).collect()
}

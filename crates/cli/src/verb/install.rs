//! `conquest install`: puts the program where shells and mount(8) find it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap_complete::Shell;

use crate::failure::{Context, Result};
use crate::verb::{bench, completions, man, run};
use crate::{locate, say};

/// The names under which the program is a helper of mount(8).
pub const NAMES: [&str; 3] = ["mount.conquest", "mount.fuse.conquest", "mount.fuseblk.conquest"];

/// Install the program, its mount helpers, completions and manual pages.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  conquest install                        (as root: /usr/local, and helpers in /sbin)\n  \
    conquest install --prefix ~/.local      (for one user; without mount helpers)"
)]
pub struct Args {
    /// The directory of bin and share [default: /usr/local, or ~/.local without root]
    #[arg(long)]
    prefix: Option<PathBuf>,
    /// The directory where mount(8) looks for its helpers [default: /sbin as root, none otherwise]
    #[arg(long)]
    helpers: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let prefix = match &args.prefix {
        Some(prefix) => locate::absolute(prefix)?,
        None if locate::is_root() => "/usr/local".into(),
        None => locate::home()?.join(".local"),
    };
    let program = prefix.join("bin/conquest");
    install_program(&program)?;
    install_share(&prefix.join("share"))?;
    let helpers = args.helpers.clone().or_else(|| locate::is_root().then(|| "/sbin".into()));
    match helpers {
        Some(dir) => {
            NAMES.iter().try_for_each(|name| link(&program, &dir.join(name)))?;
            say(&format!("installed: {}, with mount helpers in {}", program.display(), dir.display()))
        }
        None => say(&format!("installed: {}; `mount -t conquest` needs `sudo conquest install`", program.display())),
    }
}

/// Writes a file beside it and renames that, so that a running program is no obstacle.
fn install_program(program: &Path) -> Result<()> {
    let this = std::env::current_exe().context(|| "cannot find this program".into())?;
    if this == *program {
        return Ok(());
    }
    let bytes = std::fs::read(&this).context(|| format!("cannot read {}", this.display()))?;
    put(program, &bytes, 0o755)?;
    // Not everybody builds the benchmarks and direct access.
    let others = [
        (bench::PROGRAM, program.with_file_name(bench::PROGRAM), 0o755),
        (run::LIBRARY, run::installed(program), 0o644),
    ];
    for (name, file, mode) in others {
        if let Ok(bytes) = std::fs::read(this.with_file_name(name)) {
            put(&file, &bytes, mode)?;
        }
    }
    Ok(())
}

fn install_share(share: &Path) -> Result<()> {
    let shells = [
        (Shell::Bash, "bash-completion/completions/conquest"),
        (Shell::Zsh, "zsh/site-functions/_conquest"),
        (Shell::Fish, "fish/vendor_completions.d/conquest.fish"),
    ];
    for (shell, file) in shells {
        put(&share.join(file), &completions::text(shell), 0o644)?;
    }
    man::write_to(&share.join("man/man1"))
}

fn put(file: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir).context(|| format!("cannot make {}", dir.display()))?;
    }
    let new = file.with_extension("new");
    std::fs::write(&new, bytes)
        .and_then(|()| std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode)))
        .and_then(|()| std::fs::rename(&new, file))
        .context(|| format!("cannot write {}", file.display()))
}

fn link(program: &Path, link: &Path) -> Result<()> {
    if let Some(dir) = link.parent() {
        std::fs::create_dir_all(dir).context(|| format!("cannot make {}", dir.display()))?;
    }
    match std::fs::remove_file(link) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => std::os::unix::fs::symlink(program, link),
    }
    .context(|| format!("cannot make the link {}", link.display()))
}

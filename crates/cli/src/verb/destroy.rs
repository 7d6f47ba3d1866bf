//! `conquest destroy`: destroys a pool.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use conquest::Pool;

use crate::failure::{Context, Failure, Result};
use crate::{locate, mounts, say};

/// Destroy an unused pool and everything in it: its memory, its backing, its disks and its directory. A disk that
/// existed before the pool loses only its label.
#[derive(clap::Args)]
#[command(
    after_help = "Other files in the directory stay, and it with them. Nothing brings the pool back but an image \
    that `conquest save` wrote.\n\n\
    Examples:\n  conquest destroy /srv/pool\n  \
    conquest destroy /dev/shm/conquest-...-region      (memory that belongs to no pool, as `conquest list` shows it)"
)]
pub struct Args {
    /// The pool directory, or a memory file that belongs to no pool
    pool: PathBuf,
    /// Do not ask for confirmation, which happens on a terminal alone
    #[arg(long)]
    yes: bool,
}

/// Asks for confirmation on the terminal.
fn is_wanted(pool: &Path) -> Result<bool> {
    let mut err = std::io::stderr();
    let shown = pool.display();
    let disks = Pool::disks(pool).map(|(_, disks)| disks).unwrap_or_default();
    let disks: String = disks.iter().map(|disk| format!(", {}", disk.path.display())).collect();
    let asked = write!(err, "Destroy {shown}{disks}, with all that is in it? Nothing brings it back. Type `yes`: ");
    let mut answer = String::new();
    asked
        .and_then(|()| err.flush())
        .and_then(|()| std::io::stdin().read_line(&mut answer))
        .context(|| "cannot ask".into())?;
    Ok(answer.trim() == "yes")
}

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::absolute(&args.pool)?;
    mounts::refuse_mounted(&pool)?;
    if !args.yes && std::io::stdin().is_terminal() && !is_wanted(&pool)? {
        return Err(Failure::new(format!("{} stays as it is", pool.display())));
    }
    Pool::destroy(&pool).context(|| format!("cannot destroy {}", pool.display()))?;
    say(&format!("{} is destroyed", pool.display()))
}

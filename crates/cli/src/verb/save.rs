//! `conquest save`: write an image of a pool.

use std::io::Write;
use std::path::PathBuf;

use fs::{OpenOptions, Pool};

use crate::failure::{Context, Failure, Result};
use crate::{locate, patient, progress, say, size};

/// Write an image of a pool to a file, also while it is in use.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  conquest save /srv/pool /var/backups/pool.img\n  \
    conquest restore /srv/pool /var/backups/pool.img     (here or on another machine)")]
pub struct Args {
    /// The pool directory, or where it is mounted
    pool: PathBuf,
    /// The image; an older one stays whole until the new one is complete
    file: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let pool = locate::pool(&args.pool)?;
    let file = locate::absolute(&args.file)?;
    let (path, image) = (pool.clone(), file.clone());
    patient::work(&pool, move |steps| {
        let (shown, to) = (path.display(), image.display());
        let opened = Pool::open(&path, &OpenOptions::default());
        let mut bar = steps.alone(progress::bytes("saving"));
        let saved = match &opened {
            Ok(pool) => pool.save(&image, &mut bar),
            Err(e) if Pool::has_memory(&path) => {
                let _ = writeln!(std::io::stderr(), "conquest: saving what the memory of {shown} holds: {e}");
                Pool::save_memory(&path, &image, &mut bar)
            }
            Err(e) => return Err(Failure::new(format!("cannot open the pool at {shown}: {e}"))),
        };
        saved.context(|| format!("cannot save {shown} to {to}"))
    })?;
    let bytes = std::fs::metadata(&file).map(|m| m.len()).unwrap_or(0);
    let (pool, file) = (pool.display(), file.display());
    say(&format!("{pool} is saved in {file} ({}). `conquest restore POOL {file}` brings it back.", size::show(bytes)))
}

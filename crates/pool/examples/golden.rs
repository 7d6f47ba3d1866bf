//! Writes the golden image of this version of the format:
//! `cargo run -p conquest-pool --example golden -- crates/pool/tests/golden/vN.image`, once, when a version is
//! released.

#[path = "../tests/docs/content.rs"]
mod content;

use conquest::{OpenOptions, Pool};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args_os().nth(1).ok_or("name the image's file")?;
    let dir = tempfile::tempdir_in("/dev/shm")?;
    Pool::format(dir.path(), &content::options())?;
    let pool = Pool::open(dir.path(), &OpenOptions::default())?;
    content::fill(&pool)?;
    content::fill_settings(&pool)?;
    pool.save(file, &mut |_, _| {})?;
    Ok(())
}

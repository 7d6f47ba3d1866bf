//! Who is compared, each empty and as large as the others; and the backlog that one of them works off.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use conquest::FormatOptions;

use crate::prelude::*;
use crate::program::{compressing, NOTHING, SOON};

/// Bytes of a file of the backlog, and how many are in a directory.
const FILE: usize = 8 << 10;
const PER_DIR: usize = 500;
/// Maintenance begins to compress within this, and it is looked so often.
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(100);

/// Compresses a backlog meanwhile.
const COMPRESSING: Who = BATTERY_MOUNTED.called("conquest, compressing");

pub const WHOS: [Who; 7] =
    [TMPFS, EXT2, XFS, BTRFS, BATTERY.called("conquest in process"), BATTERY_MOUNTED.called("conquest"), COMPRESSING];

pub fn make(who: Who, context: &Context) -> Result<Peer, Error> {
    let compression = compressing(if who == COMPRESSING { SOON } else { NOTHING });
    let options = |how| FormatOptions { compression, ..how };
    Peer::in_ram(who, &context.base, &context.program, context.bytes(), options)
}

/// Does `work` while maintenance of the peer compresses a backlog of so many bytes, if this is who does that; `end` is to be called by it
/// when its clock has been stopped, and then the backlog is gone. Bytes of the backlog, and those that had been compressed.
pub fn beside_backlog<T>(
    peer: &Peer,
    bytes: u64,
    work: impl FnOnce(&dyn Fn() -> Result<(), Error>) -> Result<T, Error>,
) -> Result<(T, Option<[u64; 2]>), Error> {
    if peer.who != COMPRESSING {
        return Ok((work(&|| Ok(()))?, None));
    }
    let dir = peer.dir()?.join("backlog");
    fill(&dir, bytes)?;
    let compressed = || {
        let found = peer
            .see_pool(|pool| Ok(pool.survey_compression()?))
            .unwrap_or_else(|| Err(Error::Wrong("no pool".into())))?;
        Ok::<u64, Error>(found.warm.content + found.cold.content)
    };
    let filled = Instant::now();
    while compressed()? == 0 {
        if filled.elapsed() > PATIENCE {
            return Err(Error::Wrong(format!("nothing of {} is compressed", dir.display())));
        }
        std::thread::sleep(GLANCE);
    }
    let ended = Cell::new(None);
    let end = || {
        ended.set(Some([bytes, compressed()?]));
        std::fs::remove_dir_all(&dir).map_err(Error::file(&dir))
    };
    Ok((work(&end)?, ended.take()))
}

/// Text that compresses as text does, no two files alike.
fn fill(dir: &Path, bytes: u64) -> Result<(), Error> {
    let files = (bytes as usize).div_ceil(FILE);
    for n in 0..files {
        let of = dir.join(format!("d{}", n / PER_DIR));
        if n % PER_DIR == 0 {
            std::fs::create_dir_all(&of).map_err(Error::file(&of))?;
        }
        let path = of.join(format!("f{n}"));
        std::fs::write(&path, text(n)).map_err(Error::file(&path))?;
    }
    Ok(())
}

fn text(n: usize) -> String {
    let mut rng = Rng::new(n as u64);
    let mut text = String::with_capacity(FILE + 64);
    while text.len() < FILE {
        text += &format!("file {n}: the value of record {} is {}\n", rng.below(1000), rng.below(1_000_000));
    }
    text.truncate(FILE);
    text
}

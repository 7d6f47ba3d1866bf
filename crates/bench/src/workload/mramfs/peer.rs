//! The peers, each empty and of the same size; and the backlog that one of them compresses.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use conquest::FormatOptions;

use crate::prelude::*;
use crate::program::{compressing, NOTHING, SOON};

/// Bytes of a file of the backlog, and the number in a directory.
const FILE: usize = 8 << 10;
const PER_DIR: usize = 500;
/// The longest time until maintenance begins to compress, and the interval of the checks.
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(100);

/// This peer compresses a backlog meanwhile.
const COMPRESSING: Who = BATTERY_MOUNTED.called("conquest, compressing");

pub const WHOS: [Who; 7] =
    [TMPFS, EXT2, XFS, BTRFS, BATTERY.called("conquest in process"), BATTERY_MOUNTED.called("conquest"), COMPRESSING];

pub fn make(who: Who, context: &Context) -> Result<Peer, Error> {
    let compression = compressing(if who == COMPRESSING { SOON } else { NOTHING });
    let options = |how| FormatOptions { compression, ..how };
    Peer::in_ram(who, &context.base, &context.program, context.bytes(), options)
}

/// Does `work` while maintenance of the peer compresses a backlog of `bytes`, if this is the peer that does so. `work`
/// calls its argument after stopping its clock, which removes the backlog. Returns the bytes of the backlog, and those
/// compressed by then.
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

/// Writes text that compresses like text, no two files alike.
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

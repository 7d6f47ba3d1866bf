//! Who is compared, each empty and as large as the others; and the backlog that one of them works off.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conquest::{OpenOptions, Pool};

use crate::args::Kind;
use crate::context::Context;
use crate::error::Error;
use crate::hosts::Host;
use crate::place::{InProcess, Mounted};
use crate::program::{self, Mount};
use crate::subject::AnyPlace;

/// Bytes of a file of the backlog, and how many are in a directory.
const FILE: usize = 8 << 10;
const PER_DIR: usize = 500;
/// Maintenance begins to compress within this, and it is looked so often.
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(100);

/// A file system to be made.
#[derive(Clone, Copy)]
pub struct Who {
    pub kind: Kind,
    pub name: &'static str,
    /// Compresses a backlog meanwhile.
    pub compresses: bool,
}

const fn who(kind: Kind, name: &'static str, compresses: bool) -> Who {
    Who { kind, name, compresses }
}

pub const EXT2: &str = "ext2";
pub const TMPFS: &str = "tmpfs";
pub const PLAIN: &str = "conquest";
const COMPRESSING: &str = "conquest, compressing";

pub const PEERS: [Who; 7] = [
    who(Kind::Tmpfs, TMPFS, false),
    who(Kind::Ext2, EXT2, false),
    who(Kind::Xfs, "xfs", false),
    who(Kind::Btrfs, "btrfs", false),
    who(Kind::BatteryInproc, "conquest in process", false),
    who(Kind::BatteryUring, PLAIN, false),
    who(Kind::BatteryUring, COMPRESSING, true),
];

/// One of them, mounted or open; dropping it takes it away.
pub struct Peer {
    pub who: Who,
    // Before what keeps it: a descriptor into a file system must be closed before that can be unmounted.
    pub place: AnyPlace,
    keeper: Keeper,
}

enum Keeper {
    Host(Host),
    // Before the pool that it lies on.
    Mount { mount: Mount, pool: Own },
    Pool(Own),
}

/// A pool of the run's own.
struct Own(PathBuf);

impl Drop for Own {
    fn drop(&mut self) {
        program::remove(&self.0);
    }
}

impl Peer {
    pub fn make(who: Who, context: &Context) -> Result<Peer, Error> {
        let (base, bytes, program) = (&context.base, context.bytes(), &context.program);
        if !matches!(who.kind, Kind::BatteryInproc | Kind::BatteryUring) {
            let host = Host::make(who.kind, base, bytes)?;
            let place = AnyPlace::Mounted(Mounted::new(&host.dir)?);
            return Ok(Peer { who, place, keeper: Keeper::Host(host) });
        }
        let pool = Own(base.join("mramfs.pool"));
        match who.compresses {
            true => program::format_compressing(&pool.0, bytes)?,
            false => program::format_without_compression(&pool.0, bytes)?,
        }
        if who.kind == Kind::BatteryInproc {
            let place = AnyPlace::InProcess(Box::new(InProcess::open(&pool.0)?));
            return Ok(Peer { who, place, keeper: Keeper::Pool(pool) });
        }
        let mount = Mount::of(&pool.0, base.join("mramfs.mnt"), program)?;
        let place = AnyPlace::Mounted(Mounted::new(&mount.dir)?);
        Ok(Peer { who, place, keeper: Keeper::Mount { mount, pool } })
    }

    /// Where it is mounted, if it is.
    pub fn dir(&self) -> Option<&Path> {
        match &self.keeper {
            Keeper::Host(host) => Some(&host.dir),
            Keeper::Mount { mount, .. } => Some(&mount.dir),
            Keeper::Pool(_) => None,
        }
    }

    /// Bytes in use. What is on its way is written first.
    pub fn used(&self) -> Result<u64, Error> {
        match (&self.keeper, &self.place) {
            (Keeper::Host(host), _) => {
                rustix::fs::syncfs(std::fs::File::open(&host.dir).map_err(Error::file(&host.dir))?)?;
                let told = rustix::fs::statvfs(&host.dir)?;
                Ok((told.f_blocks - told.f_bfree) * told.f_frsize)
            }
            (Keeper::Mount { pool, .. }, _) => Ok(Pool::open(&pool.0, &OpenOptions::default())?.status()?.used),
            (Keeper::Pool(_), AnyPlace::InProcess(place)) => Ok(place.pool.status()?.used),
            (Keeper::Pool(pool), _) => Ok(Pool::open(&pool.0, &OpenOptions::default())?.status()?.used),
        }
    }

    /// Does `work` while maintenance compresses a backlog of so many bytes, if this is who does that; `end` is to be called by it when
    /// its clock has been stopped, and then the backlog is gone. Bytes of the backlog, and those that had been compressed.
    pub fn beside_backlog<T>(
        &self,
        bytes: u64,
        work: impl FnOnce(&dyn Fn() -> Result<(), Error>) -> Result<T, Error>,
    ) -> Result<(T, Option<[u64; 2]>), Error> {
        let (Keeper::Mount { mount, pool }, true) = (&self.keeper, self.who.compresses) else {
            return Ok((work(&|| Ok(()))?, None));
        };
        let dir = mount.dir.join("backlog");
        fill(&dir, bytes)?;
        let compressed = || -> Result<u64, Error> {
            let found = Pool::open(&pool.0, &OpenOptions::default())?.survey_compression()?;
            Ok(found.warm.content + found.cold.content)
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
    let mut rng = rng::Rng::new(n as u64);
    let mut text = String::with_capacity(FILE + 64);
    while text.len() < FILE {
        text += &format!("file {n}: the value of record {} is {}\n", rng.below(1000), rng.below(1_000_000));
    }
    text.truncate(FILE);
    text
}

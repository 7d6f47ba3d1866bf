//! The list of file systems under test.

use report::Skipped;

use crate::args::Kind;
use crate::context::Context;
use crate::error::Error;
use crate::hosts::Host;
use crate::place::{InProcess, Mounted};
use crate::program::{self, Logged, Mount};

/// One file system under test, ready to be worked on.
pub struct Subject {
    pub kind: Kind,
    // Before `_keeper`: a descriptor into a file system must be closed before that can be unmounted.
    pub place: AnyPlace,
    _keeper: Keeper,
}

pub enum AnyPlace {
    Mounted(Mounted),
    InProcess(Box<InProcess>),
}

/// What keeps the file system there.
enum Keeper {
    Host(Host),
    Mount(Mount),
    Pool { _pool: Logged },
    Nothing,
}

impl Subject {
    fn make(kind: Kind, context: &Context) -> Result<Subject, Error> {
        let (base, bytes) = (&context.base, context.bytes());
        let (place, keeper) = match kind {
            Kind::Tmpfs | Kind::Ext2 | Kind::Ext4 | Kind::Xfs | Kind::Btrfs => {
                let host = Host::make(kind, base, bytes)?;
                (AnyPlace::Mounted(Mounted::new(&host.dir)?), Keeper::Host(host))
            }
            Kind::LoggedUring | Kind::BatteryUring | Kind::BatteryDev => {
                let mount = Mount::make(kind, base, bytes, &context.program)?;
                (AnyPlace::Mounted(Mounted::new(&mount.dir)?), Keeper::Mount(mount))
            }
            Kind::LoggedInproc => {
                let pool = Logged::make(base.join(kind.file_name() + ".pool"), bytes)?;
                (AnyPlace::InProcess(Box::new(InProcess::open(&pool.dir)?)), Keeper::Pool { _pool: pool })
            }
            Kind::BatteryInproc => {
                let pool = base.join(kind.file_name() + ".pool");
                program::format(&pool, bytes)?;
                (AnyPlace::InProcess(Box::new(InProcess::open(&pool)?)), Keeper::Nothing)
            }
        };
        Ok(Subject { kind, place, _keeper: keeper })
    }

    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Where it is mounted, if it is.
    pub fn dir(&self) -> Option<&std::path::Path> {
        match &self._keeper {
            Keeper::Host(host) => Some(&host.dir),
            Keeper::Mount(mount) => Some(&mount.dir),
            Keeper::Pool { .. } | Keeper::Nothing => None,
        }
    }
}

/// Makes those of `kinds` that the command line does not exclude; the others come back with the reason.
pub fn make(kinds: &[Kind], context: &Context) -> (Vec<Subject>, Vec<Skipped>) {
    let (mut subjects, mut skipped) = (Vec::new(), Vec::new());
    for &kind in kinds {
        if !context.wants(kind) {
            skipped.push(Skipped { subject: kind.name().into(), reason: "not asked for with --on".into() });
            continue;
        }
        context.progress.say(format!("making {}", kind.name()));
        match Subject::make(kind, context) {
            Ok(subject) => subjects.push(subject),
            Err(e) => skipped.push(Skipped { subject: kind.name().into(), reason: e.to_string() }),
        }
    }
    (subjects, skipped)
}

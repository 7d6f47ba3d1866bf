//! The losses that removing a region, or one of its disks, would cause.

use std::path::{Path, PathBuf};

use super::disks_status::RegionStatus;
use super::leave;
use crate::config::DiskEntry;
use crate::paths::real;
use crate::rescue::absent::read_config;
use crate::Pool;
use conquest_fs::error::{Error, Result};
use ilfs::live::Held;

/// A region or disk to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    Region(u32),
    /// A disk, by its path.
    Disk(PathBuf),
}

/// Whether it may be stopped, or destroyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// All content can be read without it.
    pub may_stop: bool,
    pub why: String,
}

impl Pool {
    /// Whether all content of the pool can be read without a region, or without a disk. Content in memory counts as readable.
    pub fn may_stop(&self, what: &Stop) -> Result<Verdict> {
        let regions = self.disks_status().regions;
        match what {
            Stop::Region(number) => self.may_stop_region(*number, &regions),
            Stop::Disk(path) => self.may_stop_disk(path, &regions),
        }
    }

    fn may_stop_region(&self, number: u32, regions: &[RegionStatus]) -> Result<Verdict> {
        let shown = regions.iter().find(|region| region.number == number);
        let name =
            shown.map_or_else(|| format!("region {number}"), |region| format!("region {number} ({})", region.layout));
        let (held, alone) = match self.fs.union() {
            Some(union) => {
                let (log, session) = (union.log(), self.fs.session());
                let held = log.held_in(session, number).map_err(|_| self.no_region(&name))?;
                let leaving = log.leaving(session, &[number])?;
                (held, leaving.alone)
            }
            None if shown.is_some() => (Held::default(), 0),
            None => return Err(self.no_region(&name)),
        };
        if let Some(is) = self.away(number) {
            return Ok(verdict_on_missing(&format!("{name} {is}"), held, alone));
        }
        let backing = self.backing_in(number);
        if let Some((false, why)) = &backing {
            return Ok(Verdict { may_stop: false, why: format!("{name} has the pool's only backing{why}") });
        }
        let kept = match (&backing, self.fs.union()) {
            (Some(_), Some(union)) => union.log().backing_in_region(self.fs.session(), number)?,
            _ => 0,
        };
        let held = Held { segments: held.segments.saturating_sub(kept), ..held };
        Ok(match backing {
            Some((true, why)) if held.segments == 0 => {
                Verdict { may_stop: true, why: format!("{name} holds no content, and the pool's backing{why}") }
            }
            _ => verdict_on_region(&name, held, alone),
        })
    }

    /// For a region that is not there: that it is missing, and since when.
    fn away(&self, number: u32) -> Option<String> {
        let log = self.fs.union()?.log();
        if log.regions().iter().any(|region| region.number() == number) {
            return None;
        }
        let fenced = log.out_of_use(self.fs.session()).ok()?.into_iter().find(|fenced| fenced.number == number);
        let now = pram::clock::seconds();
        Some(match fenced.filter(|fenced| fenced.since > 0) {
            Some(fenced) => format!("has been missing for {}", span(now.saturating_sub(fenced.since))),
            None => "is missing".into(),
        })
    }

    /// If the backing lies in this region: whether another whole backing exists, and where, in words.
    fn backing_in(&self, number: u32) -> Option<(bool, String)> {
        let members = self.duplex.as_ref()?.members();
        let own = members.iter().find(|member| member.region == number)?;
        let other = members.iter().find(|member| member.region != number && member.is_whole());
        Some(match (own.is_whole(), other) {
            (_, Some(other)) => (true, format!(", which is in region {} too", other.region)),
            (true, None) => (false, String::new()),
            (false, None) => (true, ", which lacks something".into()),
        })
    }

    fn may_stop_disk(&self, path: &Path, regions: &[RegionStatus]) -> Result<Verdict> {
        let is_it = |there: &PathBuf| there == path || exraid::disk::are_same(there, path);
        let found = regions.iter().find_map(|region| {
            let member = region.members.iter().find(|member| member.path.as_ref().is_some_and(is_it))?;
            Some((region, member))
        });
        let shown = path.display();
        let Some((region, member)) = found else {
            // A region without any of its disks is known by its number alone.
            return match self.number_of_missing(path) {
                Some(number) => {
                    let verdict = self.may_stop_region(number, regions)?;
                    Ok(Verdict { why: format!("{shown} cannot be used: {}", verdict.why), ..verdict })
                }
                None => Err(self.no_region(&shown.to_string())),
            };
        };
        let name = format!("region {} ({})", region.number, region.layout);
        let go_on = |why: String| Ok(Verdict { may_stop: true, why });
        if region.problem.is_none() && !member.is_whole() {
            return go_on(format!("{shown} is {}: {name} does not rely on it", member.state));
        }
        match region.tolerated {
            Some(left @ 1..) => {
                go_on(format!("{name} goes on without {shown}, and can do without {} more disks then", left - 1))
            }
            _ => self.may_stop_region(region.number, regions),
        }
    }

    fn number_of_missing(&self, path: &Path) -> Option<u32> {
        let config = read_config(&self.dir).ok()?;
        let is_it = |entry: &&DiskEntry| real(&entry.at(&self.dir)) == real(path);
        let entry = config.disks.iter().find(is_it)?;
        leave::number_of(&self.dir, &config, self.fs.union()?.log(), entry)
    }

    pub(super) fn no_region(&self, name: &str) -> Error {
        let dir = self.dir.display();
        Error::Pool(format!("{dir} has no {name}; `conquest region list {dir}` tells its regions and disks"))
    }
}

/// For a region that is there.
fn verdict_on_region(name: &str, held: Held, alone: u64) -> Verdict {
    match held {
        Held { segments: 0, .. } => {
            Verdict { may_stop: true, why: format!("{name} holds nothing: all content can be read without it") }
        }
        Held { live: 0, segments } => Verdict {
            may_stop: false,
            why: format!(
                "{name} holds no content that is in use, but {segments} segments of it are not free yet: the backing \
                 may lead there; ask again when the pool has been mounted for some seconds"
            ),
        },
        Held { live, .. } if alone == 0 => Verdict {
            may_stop: true,
            why: format!("all {} KiB of content that {name} holds have replicas elsewhere", live >> 10),
        },
        Held { segments, .. } => Verdict {
            may_stop: false,
            why: format!("{name} holds {} KiB of content, in {segments} segments, that are nowhere else", alone >> 10),
        },
    }
}

/// For a region that is missing: the cost of that.
fn verdict_on_missing(name: &str, held: Held, alone: u64) -> Verdict {
    match (held.live, alone) {
        (0, _) => Verdict { may_stop: true, why: format!("{name}, and held nothing that is in use") },
        (live, 0) => Verdict {
            may_stop: true,
            why: format!("{name}; all {} KiB of content that it holds have replicas elsewhere", live >> 10),
        },
        (_, alone) => Verdict {
            may_stop: false,
            why: format!(
                "{name}, and {} KiB of content that are nowhere else cannot be read without it, and would be lost with it; \
                 `conquest region remove POOL REGION --force --dry-run` names the files",
                alone >> 10
            ),
        },
    }
}

/// A time in words.
fn span(seconds: u64) -> String {
    match seconds {
        s @ 0..=99 => format!("{s} s"),
        s @ 100..=5999 => format!("{} min", s / 60),
        s @ 6000..=172_799 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

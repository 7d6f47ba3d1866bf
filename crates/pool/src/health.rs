//! A pool's health: what is wrong, how bad that is, and the command that mends it.
//!
//! | health | what it says |
//! | --- | --- |
//! | `ok` | nothing is wrong; notices may be there all the same, such as a slow disk |
//! | `recovering` | something that had failed is being made whole, and nothing has to be done |
//! | `copy-late` | the copy of the memory is older than the pool's interval promises |
//! | `full` | the host has no more memory for it |
//! | `degraded` | a disk or a region is missing, has failed or is not used, or background work has ended |
//! | `read-only` | nothing can be changed, since changes could not be made durable |
//! | `damaged` | scrubbing has found damage that nobody has acknowledged |
//! | `lost` | content has no replica that can be read |
//! | `silent` | the server of a mount does not answer within two seconds; it may be stopped |
//! | `dead` | the server of a mount is gone: programs that ask the mount get errors |

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::disks::disks_status::{DiskStatus, MemberStatus, RegionStatus};
use super::disks::work::{OutOfUse, WorkStatus};
use super::maintenance::report::Activity;
use super::status::{BackingRegion, BackingStatus, SessionStatus, Status};
use super::MediumKind;

/// From well to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    Ok,
    Recovering,
    CopyLate,
    Full,
    Degraded,
    ReadOnly,
    Damaged,
    Lost,
    Silent,
    Dead,
}

impl Health {
    /// From well to worst.
    pub const ALL: [Health; 10] = [
        Health::Ok,
        Health::Recovering,
        Health::CopyLate,
        Health::Full,
        Health::Degraded,
        Health::ReadOnly,
        Health::Damaged,
        Health::Lost,
        Health::Silent,
        Health::Dead,
    ];

    /// As JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            Health::Ok => "ok",
            Health::Recovering => "recovering",
            Health::CopyLate => "copy-late",
            Health::Full => "full",
            Health::Degraded => "degraded",
            Health::ReadOnly => "read-only",
            Health::Damaged => "damaged",
            Health::Lost => "lost",
            Health::Silent => "silent",
            Health::Dead => "dead",
        }
    }

    /// For people: capitals for all that is not well.
    pub fn shown(self) -> &'static str {
        match self {
            Health::Ok => "ok",
            Health::Recovering => "RECOVERING",
            Health::CopyLate => "COPY LATE",
            Health::Full => "FULL",
            Health::Degraded => "DEGRADED",
            Health::ReadOnly => "READ-ONLY",
            Health::Damaged => "DAMAGED",
            Health::Lost => "LOST CONTENT",
            Health::Silent => "NO ANSWER",
            Health::Dead => "DEAD",
        }
    }
}

/// Something that is wrong, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The health of the pool for this alone.
    pub health: Health,
    pub what: String,
    /// The command that mends it, or what to do.
    pub remedy: Option<String>,
}

/// The health of a pool with these findings.
pub fn of(findings: &[Finding]) -> Health {
    findings.iter().map(|finding| finding.health).max().unwrap_or(Health::Ok)
}

/// A copy is late if its age is more than this many times its interval, and a grace.
const LATE: f64 = 3.0;
/// In seconds: a commit of much takes a while.
const GRACE: f64 = 5.0;

/// What the health of an open pool follows from.
pub(super) struct Facts<'s> {
    pub pool: &'s Path,
    pub uuid: &'s str,
    pub medium: MediumKind,
    pub backing: Option<&'s BackingStatus>,
    pub sessions: &'s [SessionStatus],
    pub regions: &'s [RegionStatus],
    pub disks: &'s [DiskStatus],
    pub work: Option<&'s WorkStatus>,
    pub host_full: bool,
}

impl Status {
    /// What is wrong with the pool, the worst first. Mounts are not looked at.
    pub fn findings(&self) -> Vec<Finding> {
        self.facts().findings()
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        let Status { pool, uuid, medium, backing, sessions, regions, disks, work, host_full, .. } = self;
        let (backing, work, medium, host_full) = (backing.as_ref(), work.as_ref(), *medium, *host_full);
        Facts { pool, uuid, medium, backing, sessions, regions, disks, work, host_full }
    }
}

impl Facts<'_> {
    pub fn findings(&self) -> Vec<Finding> {
        let pool = self.pool;
        let mut found = Vec::new();
        if let Some(backing) = self.backing {
            let is_used = self.sessions.iter().any(|session| !session.gone && session.commit.is_some());
            found.extend(of_backing(backing, self.medium, is_used));
        }
        found.extend(of_disks(pool, self.regions, self.disks));
        self.work.iter().for_each(|work| found.extend(of_work(pool, work)));
        if self.host_full {
            let what = "the host has no more memory for it: nothing can be added until it has".into();
            let remedy = Some("free memory of the host, or files of the pool".into());
            found.push(Finding { health: Health::Full, what, remedy });
        }
        found.extend(self.sessions.iter().filter_map(of_session));
        sorted(found)
    }
}

/// What is wrong with the disks of a pool that is not open.
pub fn of_closed(pool: &Path, failure: Option<&str>, regions: &[RegionStatus], disks: &[DiskStatus]) -> Vec<Finding> {
    let mut found = of_disks(pool, regions, disks);
    if let Some(why) = failure {
        found.push(Finding { health: Health::Lost, what: format!("it cannot be opened: {why}"), remedy: None });
    }
    sorted(found)
}

/// The worst first.
pub fn sorted(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.health));
    findings
}

fn of_backing(backing: &BackingStatus, medium: MediumKind, is_used: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut find = |health, what| found.push(Finding { health, what, remedy: None });
    if let Some(why) = &backing.failure {
        let health = match medium {
            MediumKind::Logged => Health::ReadOnly,
            _ => Health::Degraded,
        };
        find(health, format!("the copy on disk takes no more writes: {why}"));
    } else if let (Some(why), 0) = (&backing.damage, backing.made_anew) {
        find(Health::Recovering, format!("the copy is being made anew from memory: {why}"));
    } else if is_used && backing.as_of > 0.0 && backing.pending > 0 && backing.age > LATE * backing.interval + GRACE {
        let (age, interval) = (backing.age, backing.interval);
        find(Health::CopyLate, format!("the copy is {age:.0} s old, and is to be {interval} s at most"));
    }
    for BackingRegion { region, state, .. } in &backing.regions {
        match *state {
            "whole" => {}
            "filling" => find(Health::Recovering, format!("the copy on region {region} is being completed")),
            "missing" => find(Health::Degraded, format!("the copy on region {region} is missing with it")),
            _ => find(Health::Degraded, format!("the copy on region {region} lacks recent changes")),
        }
    }
    found
}

fn of_disks(pool: &Path, regions: &[RegionStatus], disks: &[DiskStatus]) -> Vec<Finding> {
    let mut found = Vec::new();
    for region in regions {
        let number = region.number;
        if let Some(problem) = &region.problem {
            let what = format!("region {number} is not used: {problem}");
            found.push(Finding { health: Health::Degraded, what, remedy: None });
        } else if region.tolerated.is_none() {
            let what = format!("region {number} has lost content: too many of its disks are missing");
            found.push(Finding {
                health: Health::Lost,
                what,
                remedy: Some(format!("conquest fsck {}", pool.display())),
            });
        }
        if region.members.len() > 1 {
            let members = region.members.iter().enumerate();
            found.extend(members.filter_map(|(role, member)| of_member(pool, region, role, member)));
        }
        if let Some(stutter) = &region.performance.stutter {
            let what = format!("region {number} is slow: {stutter}");
            found.push(Finding { health: Health::Ok, what, remedy: None });
        }
    }
    // Each member of a region of several has been told.
    let is_known = |disk: &&DiskStatus| {
        let same = |region: &&RegionStatus| Some(region.number) == disk.region;
        regions.iter().find(same).is_some_and(|region| region.members.len() > 1 || region.problem.is_some())
    };
    for disk in disks.iter().filter(|disk| !is_known(disk)) {
        if let Some(problem) = &disk.problem {
            let what = format!("disk {} is not used: {problem}", disk.path.display());
            found.push(Finding { health: Health::Degraded, what, remedy: None });
        }
    }
    found
}

fn of_member(pool: &Path, region: &RegionStatus, role: usize, member: &MemberStatus) -> Option<Finding> {
    let number = format!("{}.{}", region.number, role + 1);
    let path = member.path.as_ref().map_or_else(|| member.uuid.clone(), |path| path.display().to_string());
    let replace = format!("conquest region replace {} {number}", pool.display());
    let (is, remedy) = match member.state {
        "whole" => return None,
        "rebuilding" => ("is not rebuilt yet", replace),
        "out" => ("missed something and is not used", replace),
        _ => ("is missing", format!("{replace} NEW")),
    };
    Some(Finding { health: Health::Degraded, what: format!("disk {number} {path} {is}"), remedy: Some(remedy) })
}

fn of_work(pool: &Path, work: &WorkStatus) -> Vec<Finding> {
    let pool = pool.display();
    let mut found: Vec<Finding> = work.out_of_use.iter().map(|out| of_fenced(&pool.to_string(), out)).collect();
    if work.lost > 0 {
        let what = format!("{} bytes of content have no replica that can be read", work.lost);
        found.push(Finding { health: Health::Lost, what, remedy: Some(format!("conquest fsck {pool}")) });
    }
    let unrepaired = work.damage.iter().filter(|damage| !damage.repaired).count();
    let all = work.damage.len() as u64 + work.more_damage;
    if all > 0 {
        let what = format!("{all} places were found damaged, {unrepaired} of them could not be mended");
        let remedy = Some(format!("conquest status -v {pool}; once seen: conquest scrub {pool} --forget"));
        found.push(Finding { health: Health::Damaged, what, remedy });
    }
    found
}

/// A region that takes no content.
fn of_fenced(pool: &str, out: &OutOfUse) -> Finding {
    let region = out.region;
    let since = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + std::time::Duration::from_secs(out.since));
    let (health, is, remedy) = match (out.why, out.is_there) {
        ("missing", true) => (Health::Recovering, "was missing and is there again", None),
        ("missing", false) => {
            let remedy = format!("attach it, or give it up: conquest region remove {pool} {region} --force");
            (Health::Degraded, "is missing", Some(remedy))
        }
        ("late", _) => {
            let remedy = format!("wait, or give it up: conquest region remove {pool} {region} --force");
            (Health::Degraded, "does not answer, and what only it has is waited for", Some(remedy))
        }
        _ => {
            let remedy = format!(
                "conquest region remove {pool} {region}, or to use it again: conquest region readmit {pool} {region}"
            );
            (Health::Degraded, "has failed and takes nothing", Some(remedy))
        }
    };
    Finding { health, what: format!("region {region} {is}, since {since}"), remedy }
}

fn of_session(session: &SessionStatus) -> Option<Finding> {
    let ended = session.tasks.iter().find(|task| task.state == Activity::Ended)?;
    let what = format!("{} of process {} has ended by a defect", ended.name, session.pid);
    let remedy = Some("mount the pool again, and report what its server.log says".into());
    Some(Finding { health: Health::Degraded, what, remedy })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(health: Health) -> Finding {
        Finding { health, what: String::new(), remedy: None }
    }

    #[test]
    fn names_are_those_of_json() {
        for pair in Health::ALL.windows(2) {
            assert!(pair[0] < pair[1]);
        }
        assert!(Health::ALL.iter().all(|health| serde_json::json!(health) == health.name()));
    }

    #[test]
    fn the_worst_finding_is_the_health_and_comes_first() {
        assert_eq!(of(&[]), Health::Ok);
        let all = sorted(vec![finding(Health::Degraded), finding(Health::Lost), finding(Health::Ok)]);
        assert_eq!(of(&all), Health::Lost);
        assert_eq!(all.iter().map(|one| one.health).collect::<Vec<_>>(), [Health::Lost, Health::Degraded, Health::Ok]);
    }

    #[test]
    fn a_region_out_of_use_is_told_with_what_mends_it() {
        let out = |why, is_there| of_fenced("/srv/p", &OutOfUse { region: 2, since: 1_790_000_000, why, is_there });
        assert_eq!(out("missing", true).health, Health::Recovering);
        for (why, remedy) in
            [("missing", "region remove /srv/p 2 --force"), ("late", "--force"), ("failed", "region readmit /srv/p 2")]
        {
            let found = out(why, false);
            assert_eq!(found.health, Health::Degraded);
            assert!(found.remedy.is_some_and(|text| text.contains(remedy)) && found.what.contains("2026-"), "{why}");
        }
    }

    #[test]
    fn a_copy_is_late_only_where_somebody_changes_the_pool() {
        let late = BackingStatus {
            age: 60.0,
            pending: 1,
            as_of: 1.0,
            failure: None,
            ..BackingStatus::unused("/p".into(), 5.0, None, String::new())
        };
        let health = |backing: &BackingStatus, used| of(&of_backing(backing, MediumKind::Logged, used));
        assert_eq!(health(&late, true), Health::CopyLate);
        assert_eq!(health(&late, false), Health::Ok);
        assert_eq!(health(&BackingStatus { pending: 0, ..late.clone() }, true), Health::Ok);
        assert_eq!(health(&BackingStatus { failure: Some("EIO".into()), ..late.clone() }, true), Health::ReadOnly);
        assert_eq!(health(&BackingStatus { damage: Some("a log".into()), ..late }, true), Health::Recovering);
    }
}

//! The status of a volume, for people and programs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use exraid::label::MemberState;
use exraid::meter::Flow;
use exraid::{Disk, Label, OpenError, Options, Region, Uuid};
use serde::{Deserialize, Serialize};

use crate::device::BlockDevice;
use crate::error::{Error, Result};
use crate::volume::{config_of, label_of, Volume};

/// Milliseconds between tries for a disk that is in use.
const PAUSES: [u64; 4] = [1, 10, 100, 500];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub volume: PathBuf,
    pub uuid: String,
    /// Bytes, if it is open.
    pub size: Option<u64>,
    pub discards: Option<bool>,
    pub regions: Vec<RegionStatus>,
    /// Disks that `volume.toml` names and that are not used.
    pub problems: Vec<ProblemStatus>,
    /// The process that has it open.
    pub pid: Option<u32>,
    pub mounted: Option<PathBuf>,
    /// Bytes that are left of a rebuild.
    pub rebuild_left: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegionStatus {
    pub number: u32,
    pub kind: String,
    pub size: Option<u64>,
    /// Disks that it can still lose; none: content is lost.
    pub tolerates: Option<usize>,
    pub disks: Vec<DiskStatus>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskStatus {
    pub path: Option<PathBuf>,
    pub uuid: String,
    /// `whole`, `out` or `rebuilding`.
    pub state: String,
    /// Bytes of it that can be read, if it is being rebuilt.
    pub rebuilt: Option<u64>,
    pub read: FlowStatus,
    pub write: FlowStatus,
    pub errors: u64,
}

/// Recent measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowStatus {
    pub requests: u64,
    /// Bytes per second of work.
    pub speed: f64,
    /// Seconds.
    pub median: f64,
    pub p99: f64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemStatus {
    pub region: u32,
    pub path: PathBuf,
    pub why: String,
}

impl From<&Flow> for FlowStatus {
    fn from(flow: &Flow) -> FlowStatus {
        FlowStatus {
            requests: flow.requests,
            speed: flow.speed,
            median: flow.median.as_secs_f64(),
            p99: flow.p99.as_secs_f64(),
        }
    }
}

fn state_of(state: MemberState) -> (String, Option<u64>) {
    match state {
        MemberState::Whole => ("whole".into(), None),
        MemberState::Out => ("out".into(), None),
        MemberState::Rebuilding { rebuilt } => ("rebuilding".into(), Some(rebuilt)),
    }
}

impl Status {
    /// Are all disks used and whole?
    pub fn is_well(&self) -> bool {
        let well = |region: &RegionStatus| region.disks.iter().all(|disk| disk.state == "whole");
        self.problems.is_empty() && self.regions.iter().all(well)
    }

    /// The status of a volume that is not open, from the labels of its disks.
    pub fn look(dir: &Path) -> Result<Status> {
        let config = config_of(dir)?;
        let uuid = config.uuid().ok_or_else(|| Error::Volume("a volume has a uuid".into()))?;
        let mut problems = Vec::new();
        let mut regions = Vec::new();
        for (number, entry) in config.regions.iter().enumerate() {
            let mut labels = Vec::new();
            for path in entry.disks.iter().map(|path| dir.join(path)) {
                match read_label(&path, uuid, number as u32) {
                    Ok(label) => labels.push((path, label)),
                    Err(e) => problems.push(ProblemStatus { region: number as u32, path, why: e.to_string() }),
                }
            }
            regions.push(region_by_labels(number as u32, &format!("{}", entry.kind.layout()), &labels));
        }
        Ok(Status {
            volume: dir.into(),
            uuid: config.uuid,
            size: None,
            discards: None,
            regions,
            problems,
            pid: None,
            mounted: None,
            rebuild_left: 0,
        })
    }
}

fn read_label(path: &Path, uuid: Uuid, number: u32) -> Result<Label, OpenError> {
    let read = || {
        let disk = Disk::open(path, &Options { read_only: true, ..Options::default() })?;
        label_of(&disk, uuid, number)
    };
    // A process that has it alone may be about to close it.
    for pause in PAUSES {
        match read() {
            Err(OpenError::Busy { .. }) => std::thread::sleep(Duration::from_millis(pause)),
            done => return done,
        }
    }
    read()
}

fn region_by_labels(number: u32, kind: &str, labels: &[(PathBuf, Label)]) -> RegionStatus {
    let newest = labels.iter().map(|(_, label)| label).max_by_key(|label| (label.epoch.number(), label.generation));
    let members = newest.map(|label| label.members.clone()).unwrap_or_default();
    let disk = |member: &exraid::label::Member| {
        let found = labels.iter().find(|(_, label)| label.device == member.device);
        let (state, rebuilt) = state_of(if found.is_some() { member.state } else { MemberState::Out });
        DiskStatus {
            path: found.map(|(path, _)| path.clone()),
            uuid: member.device.to_string(),
            state,
            rebuilt,
            read: FlowStatus::default(),
            write: FlowStatus::default(),
            errors: 0,
        }
    };
    let disks: Vec<DiskStatus> = members.iter().map(disk).collect();
    let missing = disks.iter().filter(|disk| disk.state != "whole").count();
    let tolerates = newest.and_then(|label| label.layout.tolerates(disks.len()).checked_sub(missing));
    RegionStatus { number, kind: kind.into(), size: None, tolerates, disks }
}

fn region_status(region: &dyn Region) -> RegionStatus {
    let disk = |member: exraid::MemberStatus| {
        let (state, rebuilt) = state_of(member.state);
        DiskStatus {
            path: member.name.map(|name| PathBuf::from(&*name)),
            uuid: member.device.to_string(),
            state,
            rebuilt,
            read: (&member.performance.read).into(),
            write: (&member.performance.write).into(),
            errors: member.performance.errors.iter().sum(),
        }
    };
    RegionStatus {
        number: region.number(),
        kind: region.layout().to_string(),
        size: Some(region.properties().size),
        tolerates: region.tolerated(),
        disks: region.members().into_iter().map(disk).collect(),
    }
}

impl Volume {
    pub fn status(&self) -> Status {
        let status = |problem: crate::volume::Problem| ProblemStatus {
            region: problem.region,
            path: problem.path,
            why: problem.why,
        };
        Status {
            volume: self.dir.clone(),
            uuid: self.uuid.to_string(),
            size: Some(self.line().size()),
            discards: Some(self.line().discards()),
            regions: self.line().regions().iter().map(|region| region_status(&**region)).collect(),
            problems: self.problems().into_iter().map(status).collect(),
            pid: Some(std::process::id()),
            mounted: None,
            rebuild_left: self.rebuilds.left(),
        }
    }
}

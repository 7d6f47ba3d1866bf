//! `volume.toml`: the description of a volume in its directory.
//!
//! The disks' labels tell their places and which are newer; the file only names their paths. So while a disk takes
//! another's place the file names both, until the labels record the change.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use exraid::{owner, Layout, Uuid};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

pub const CONFIG: &str = "volume.toml";
pub const VERSION: u32 = 1;

/// The default bytes of content per chunk on each disk.
pub const CHUNK: u32 = 65536;

/// The content of `volume.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The version of this file.
    pub version: u32,
    /// The UUID, which is also in its disks' labels.
    pub uuid: String,
    /// Storage of its disks is allocated in advance, and never freed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reserved: bool,
    /// In the order of their addresses.
    #[serde(rename = "region")]
    pub regions: Vec<RegionEntry>,
}

/// A region in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionEntry {
    pub kind: Kind,
    /// Files or block devices; relative to the volume's directory or absolute.
    pub disks: Vec<PathBuf>,
}

/// The layout of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Single,
    Stripe,
    Mirror,
    Raid5,
}

impl Kind {
    pub const ALL: [(&'static str, Kind); 4] =
        [("single", Kind::Single), ("stripe", Kind::Stripe), ("mirror", Kind::Mirror), ("raid5", Kind::Raid5)];

    pub fn layout(self) -> Layout {
        match self {
            Kind::Single => Layout::Single,
            Kind::Stripe => Layout::Stripe { chunk: CHUNK },
            Kind::Mirror => Layout::Mirror,
            Kind::Raid5 => Layout::Raid5 { chunk: CHUNK },
        }
    }

    pub fn of(layout: Layout) -> Kind {
        match layout {
            Layout::Single => Kind::Single,
            Layout::Stripe { .. } => Kind::Stripe,
            Layout::Mirror => Kind::Mirror,
            Layout::Raid5 { .. } => Kind::Raid5,
        }
    }
}

/// A disk to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDisk {
    pub path: PathBuf,
    /// Bytes; needed for a new file, by default all of an existing one.
    pub size: Option<u64>,
}

/// A region to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRegion {
    pub kind: Kind,
    pub disks: Vec<NewDisk>,
}

impl Config {
    /// The configuration of the volume in `dir`; `None` if there is none.
    pub fn read(dir: &Path) -> Result<Option<Config>> {
        let path = dir.join(CONFIG);
        let mut file = match owner::open_within(dir, CONFIG.as_ref(), OFlags::RDONLY) {
            Ok(file) => file,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(e) => return Err(Error::host(&path, "reading it")(e)),
        };
        let foreign = |e: owner::Foreign| Error::Volume(e.to_string());
        owner::refuse_foreign_dir(dir).and_then(|()| owner::refuse_foreign_open(&file, &path)).map_err(foreign)?;
        if file.metadata().is_ok_and(|found| !found.is_file()) {
            return Err(Error::Volume(format!("{} is no file", path.display())));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(Error::host(&path, "reading it"))?;
        let damaged = |why: &str| Error::Volume(format!("{} is damaged: {why}", path.display()));
        let config: Config = toml::from_str(&text).map_err(|e| damaged(e.message()))?;
        if config.version != VERSION {
            let (path, found) = (path.display(), config.version);
            return Err(Error::Volume(format!("{path} has version {found}, this program reads version {VERSION}")));
        }
        config.uuid().ok_or_else(|| damaged("its uuid is none"))?;
        let disks = config.regions.iter().flat_map(|region| &region.disks);
        disks.map(|disk| dir.join(disk)).try_for_each(|disk| owner::refuse_foreign_file(&disk)).map_err(foreign)?;
        match config.regions.is_empty() || config.regions.iter().any(|region| region.disks.is_empty()) {
            true => Err(damaged("it names no disks")),
            false => Ok(Some(config)),
        }
    }

    pub fn uuid(&self) -> Option<Uuid> {
        let digits: String = self.uuid.chars().filter(|c| *c != '-').collect();
        let mut bytes = [0; 16];
        if digits.len() != 32 || !digits.is_ascii() {
            return None;
        }
        for (n, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).ok()?;
        }
        Some(Uuid(bytes))
    }

    /// Replaces the file, atomically and durably.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let text = toml::to_string(self).map_err(|e| Error::Volume(e.to_string()))?;
        let text = format!("# An exported volume; see `conquest export status`.\n{text}");
        owner::replace_within(dir, CONFIG, text.as_bytes()).map_err(Error::host(&dir.join(CONFIG), "writing it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(Config::read(dir.path()).expect("read"), None);
        let regions = vec![RegionEntry { kind: Kind::Raid5, disks: vec!["/dev/a".into(), "b".into()] }];
        let config = Config { version: VERSION, uuid: Uuid([7; 16]).to_string(), reserved: false, regions };
        config.write(dir.path()).expect("written");
        assert_eq!(Config::read(dir.path()).expect("read"), Some(config.clone()));
        assert_eq!(config.uuid(), Some(Uuid([7; 16])));
        for (text, why) in
            [("version = 1", "missing field"), ("nonsense", "damaged"), ("version = 9\nuuid = ''\nregion = []", "9")]
        {
            std::fs::write(dir.path().join(CONFIG), text).expect("written");
            let e = Config::read(dir.path()).expect_err(text).to_string();
            assert!(e.contains(why), "{e}");
        }
    }
}

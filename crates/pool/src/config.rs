//! `pool.toml`: the settings and media of a pool.

mod cache;
mod compression;

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use exraid::owner;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::medium::MediumKind;
use super::memory::shared;
use super::paths::{self, DEFAULT_NVRAM, IMAGE};
use conquest_fs::error::{Error, Result};
use conquest_fs::ubj;

pub use cache::CacheConfig;
pub use compression::CompressionConfig;

pub const VERSION: u32 = 1;

/// The content of `pool.toml`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Version of this file.
    pub version: u32,
    /// The UUID of the pool; its media carry it too.
    pub uuid: String,
    pub medium: MediumKind,
    /// The memory's file or device, relative to the pool directory or absolute. Not on `logged`, where the memory
    /// is shared memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvram: Option<PathBuf>,
    /// On `battery` and `dax`: the directory of the backing, relative to the pool directory or absolute. None: no backing.
    /// On `logged` the backing is in the pool directory.
    #[serde(default, alias = "copy", skip_serializing_if = "Option::is_none")]
    pub backing: Option<PathBuf>,
    /// The backing lies in regions of the pool, in two that fail apart where there are two.
    #[serde(default, alias = "copy_in_regions", skip_serializing_if = "std::ops::Not::not")]
    pub backing_in_regions: bool,
    /// The backing is mirrored: it has every change when the call returns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mirror: bool,
    /// The commit interval in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_interval: Option<CommitInterval>,
    /// Most bytes per second that background work writes to the backing.
    #[serde(default, alias = "copy_rate", skip_serializing_if = "Option::is_none")]
    pub backing_rate: Option<Rate>,
    /// Bytes beyond which a file's content goes to disk, if the file has no threshold of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<Threshold>,
    /// The memory of the union cache, and the times of its writes.
    #[serde(default, skip_serializing_if = "CacheConfig::is_usual")]
    pub cache: CacheConfig,
    /// When small files that are not in use are compressed.
    #[serde(default, skip_serializing_if = "CompressionConfig::is_usual")]
    pub compression: CompressionConfig,
    /// Names of domains of regions that fail together, and their numbers in the segment table.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub domains: BTreeMap<String, u32>,
    /// Its disks. None: all content is in persistent RAM.
    #[serde(default, rename = "disk", skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskEntry>,
}

/// A disk of the pool, as `pool.toml` names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskEntry {
    /// The file or block device, relative to the pool directory or absolute.
    pub path: PathBuf,
    /// Bytes of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// It existed before the pool, a device or a file outside of the pool directory: it outlives the pool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub given: bool,
    /// The number of its region, from its label when it was made: for the case that the label is unreadable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<u32>,
}

impl DiskEntry {
    /// Its path.
    pub fn at(&self, dir: &Path) -> PathBuf {
        dir.join(&self.path)
    }
}

/// The commit interval in seconds, between [`MIN`](CommitInterval::MIN) and
/// [`MAX`](CommitInterval::MAX).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct CommitInterval(f64);

impl CommitInterval {
    pub const MIN: f64 = 0.01;
    pub const MAX: f64 = 86_400.0;
    pub(crate) const SHORTEST: CommitInterval = CommitInterval(Self::MIN);
}

impl TryFrom<f64> for CommitInterval {
    type Error = String;

    fn try_from(seconds: f64) -> std::result::Result<Self, String> {
        match (Self::MIN..=Self::MAX).contains(&seconds) {
            true => Ok(CommitInterval(seconds)),
            false => Err(format!(
                "a commit interval of {seconds} s: give {} to {} seconds; where nothing may be lost, choose \
                 durability=strict",
                Self::MIN,
                Self::MAX
            )),
        }
    }
}

impl std::str::FromStr for CommitInterval {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
        seconds.try_into()
    }
}

impl From<CommitInterval> for f64 {
    fn from(interval: CommitInterval) -> f64 {
        interval.0
    }
}

impl From<CommitInterval> for Duration {
    fn from(interval: CommitInterval) -> Duration {
        Duration::from_secs_f64(interval.0)
    }
}

/// Bytes per second that background work writes to the backing, between [`MIN`](Rate::MIN) and
/// [`MAX`](Rate::MAX).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Rate(u64);

impl Rate {
    pub const MIN: u64 = 64 << 10;
    pub const MAX: u64 = 1 << 40;
}

impl TryFrom<u64> for Rate {
    type Error = String;

    fn try_from(bytes: u64) -> std::result::Result<Self, String> {
        match (Self::MIN..=Self::MAX).contains(&bytes) {
            true => Ok(Rate(bytes)),
            false => Err(format!(
                "a rate of {bytes} bytes a second: give 64 KiB to 1 TiB a second; without a rate there is no limit"
            )),
        }
    }
}

impl From<Rate> for u64 {
    fn from(rate: Rate) -> u64 {
        rate.0
    }
}

/// Bytes beyond which a file's content goes to disk, between [`MIN`](Threshold::MIN) and [`MAX`](Threshold::MAX).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Threshold(u64);

impl Threshold {
    pub const MIN: u64 = 64 << 10;
    pub const MAX: u64 = 1 << 40;
}

impl TryFrom<u64> for Threshold {
    type Error = String;

    fn try_from(bytes: u64) -> std::result::Result<Self, String> {
        match (Self::MIN..=Self::MAX).contains(&bytes) {
            true => Ok(Threshold(bytes)),
            false => Err(format!(
                "a threshold of {bytes} bytes: give 64 KiB to 1 TiB; where all content shall stay in memory, choose \
                 `--disk none`"
            )),
        }
    }
}

impl From<Threshold> for u64 {
    fn from(threshold: Threshold) -> u64 {
        threshold.0
    }
}

impl Config {
    /// The default configuration.
    pub fn new(medium: MediumKind, uuid: String) -> Config {
        let in_pool = |what: &str| (medium != MediumKind::Logged).then(|| PathBuf::from(what));
        Config {
            version: VERSION,
            uuid,
            medium,
            nvram: in_pool(DEFAULT_NVRAM),
            backing: in_pool("."),
            backing_in_regions: false,
            mirror: false,
            commit_interval: None,
            backing_rate: None,
            threshold: None,
            cache: CacheConfig::default(),
            domains: BTreeMap::new(),
            compression: CompressionConfig::default(),
            disks: Vec::new(),
        }
    }

    /// The pool's configuration, `None` if there is no pool at `dir`. Fails if it, or anything that it names, is [not ours](owner).
    pub fn read(dir: &Path) -> Result<Option<Config>> {
        Config::read_for(dir, &dir.join(paths::CONFIG))
    }

    /// The same for a process that opens nothing of what it names, or looks at that itself.
    pub fn read_alone(dir: &Path) -> Result<Option<Config>> {
        Config::read_file(&dir.join(paths::CONFIG))
    }

    /// The same from another file in `dir`.
    pub fn read_for(dir: &Path, file: &Path) -> Result<Option<Config>> {
        let Some(config) = Config::read_file(file)? else { return Ok(None) };
        config.refuse_foreign_media(dir)?;
        Ok(Some(config))
    }

    /// The content of such a file, which must be ours. The files that it names need not be.
    fn read_file(path: &Path) -> Result<Option<Config>> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(mut file) = paths::open_own(dir, name, OFlags::RDONLY)? else { return Ok(None) };
        owner::refuse_foreign_dir(dir)?;
        let mut text = String::new();
        match file.read_to_string(&mut text) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::InvalidData => return Err(damaged(path, &"it is not text")),
            Err(e) => return Err(Error::host(path, &e)),
        }
        let config: Config = toml::from_str(&text).map_err(|e| damaged(path, &e.message()))?;
        if config.version != VERSION {
            return Err(Error::Pool(format!(
                "{} has version {}, this program reads version {VERSION}",
                path.display(),
                config.version
            )));
        }
        config.uuid_bytes()?;
        Ok(Some(config))
    }

    /// Fails unless the memory, the directory of the backing and the disks of the pool in `dir` are ours, as far as they are there.
    pub fn refuse_foreign_media(&self, dir: &Path) -> Result<()> {
        if self.medium != MediumKind::Logged {
            owner::refuse_foreign_file(&self.nvram_path(dir))?;
        }
        if let Some(backing) = self.backing_dir(dir) {
            owner::refuse_foreign_dir(&backing)?;
            paths::backing_files(&backing).iter().try_for_each(|file| owner::refuse_foreign_file(file))?;
        }
        Ok(self.disks.iter().try_for_each(|disk| owner::refuse_foreign_file(&disk.at(dir)))?)
    }

    /// Replaces `pool.toml`, atomically and durably.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let text = self.to_text()?;
        let text = format!("# Conquest pool; see `conquest status`.\n{text}");
        owner::replace_within(dir, paths::CONFIG, text.as_bytes())
            .map_err(|e| Error::host(&dir.join(paths::CONFIG), &e))
    }

    /// The text of the file.
    pub fn to_text(&self) -> Result<String> {
        toml::to_string(self).map_err(|e| Error::Pool(e.to_string()))
    }

    /// Reads such text.
    pub fn from_text(text: &str) -> Option<Config> {
        let config: Config = toml::from_str(text).ok()?;
        (config.version == VERSION && config.uuid_bytes().is_ok()).then_some(config)
    }

    /// From here on there is no pool.
    pub fn remove(dir: &Path) -> Result<()> {
        match fs::remove_file(dir.join(paths::CONFIG)) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::host(&dir.join(paths::CONFIG), &e)),
            _ => Ok(()),
        }
    }

    pub fn nvram_path(&self, dir: &Path) -> PathBuf {
        match (self.medium, self.uuid_bytes()) {
            (MediumKind::Logged, Ok(uuid)) => shared::memory_path(dir, &uuid),
            _ => dir.join(self.nvram.as_deref().unwrap_or(DEFAULT_NVRAM.as_ref())),
        }
    }

    /// The file whose locks tell which processes have the pool open.
    pub fn lock_path(&self, dir: &Path) -> PathBuf {
        match self.medium {
            MediumKind::Logged => dir.join(IMAGE),
            _ => self.nvram_path(dir),
        }
    }

    /// The directory of the backing, if it lies in one; on `logged` always the pool directory, whose `image` tells of a backing in regions.
    pub fn backing_dir(&self, dir: &Path) -> Option<PathBuf> {
        match self.medium {
            MediumKind::Logged => Some(dir.into()),
            _ if self.backing_in_regions => None,
            _ => self.backing.as_ref().map(|backing| dir.join(backing)),
        }
    }

    /// The longest time until a change is in a commit.
    pub fn interval(&self) -> CommitInterval {
        self.commit_interval.unwrap_or(match self.medium {
            MediumKind::Logged => CommitInterval(5.0),
            // The memory itself survives a power cut.
            MediumKind::Battery | MediumKind::Dax => CommitInterval(30.0),
        })
    }

    /// Bytes beyond which a file's content goes to disk, if the file has no threshold of its own.
    pub fn threshold(&self) -> u64 {
        self.threshold.map_or(ubj::THRESHOLD, u64::from)
    }

    /// Whether it is the memory of this pool.
    pub fn is_of(&self, memory: &pram::Memory) -> bool {
        self.uuid_bytes().is_ok_and(|uuid| uuid == memory.info.uuid)
    }

    pub fn uuid_bytes(&self) -> Result<[u8; 16]> {
        let digits: Vec<u8> = self.uuid.bytes().filter(|b| *b != b'-').collect();
        let bad = || Error::Pool(format!("`{}` in {} is not a UUID", self.uuid, paths::CONFIG));
        if digits.len() != 32 {
            return Err(bad());
        }
        let mut bytes = [0; 16];
        for (i, pair) in digits.chunks(2).enumerate() {
            let text = std::str::from_utf8(pair).map_err(|_| bad())?;
            bytes[i] = u8::from_str_radix(text, 16).map_err(|_| bad())?;
        }
        Ok(bytes)
    }
}

fn damaged(path: &Path, why: &dyn std::fmt::Display) -> Error {
    let dir = path.parent().filter(|dir| paths::has_backing_files(dir)).map(Path::display);
    let or = dir.map(|dir| {
        format!(
            "; or, on `logged`, keep what its memory holds with `conquest save {dir} FILE`, move {} away, and make it \
             anew with `conquest import {dir}`",
            paths::CONFIG
        )
    });
    let or = or.unwrap_or_default();
    Error::Pool(format!("{} is damaged: {why}; mend it by hand or restore the pool from an image{or}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Earlier names of the backing's keys.
    #[test]
    fn older_names_of_keys_are_read_and_newer_ones_written() {
        let old =
            "version = 1\nuuid = \"00000000-0000-0000-0000-000000000000\"\nmedium = \"battery\"\ncopy = \"there\"\n\
                   copy_in_regions = true\ncopy_rate = 65536\n";
        let config: Config = toml::from_str(old).expect("it is read");
        assert_eq!((config.backing.as_deref(), config.backing_in_regions), (Some(Path::new("there")), true));
        assert_eq!(config.backing_rate.map(u64::from), Some(65536));
        let new = toml::to_string(&config).expect("it is written");
        for key in ["backing =", "backing_in_regions =", "backing_rate ="] {
            assert!(new.contains(key) && !new.contains("copy"), "{new}");
        }
    }
}

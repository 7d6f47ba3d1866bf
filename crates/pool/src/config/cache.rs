//! The settings of the union cache in `pool.toml`, its table `cache`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use conquest_fs::ubj;
use ilfs::SEGMENTS;

/// The values that are set; others are the usual ones. A value out of its bounds is refused when `pool.toml` is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct CacheConfig(Raw);

/// The table in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    /// Percent of the memory that making memory free ahead of need leaves to the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    floor: Option<u64>,
    /// Most percent of the memory that the cache takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ceiling: Option<u64>,
    /// Percent of the memory that may be dirty before write-back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dirty: Option<u64>,
    /// Seconds after which dirty blocks are written in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    age: Option<u64>,
    /// Dirty bytes at which writing begins where commits to a backing are waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    behind: Option<u64>,
    /// Bytes of a segment. Counts when the log is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    segment: Option<u64>,
}

const NAMES: &str = "floor, ceiling, dirty (percent of the memory), age (seconds), behind, segment (bytes)";

impl TryFrom<Raw> for CacheConfig {
    type Error = String;

    fn try_from(raw: Raw) -> Result<CacheConfig, String> {
        let within = |what: &str, value: Option<u64>, range: std::ops::RangeInclusive<u64>, unit: &str| match value {
            Some(value) if !range.contains(&value) => {
                Err(format!("cache {what}={value}: give {} to {} {unit}", range.start(), range.end()))
            }
            _ => Ok(()),
        };
        within("floor", raw.floor, 0..=90, "percent of the memory")?;
        within("ceiling", raw.ceiling, 5..=100, "percent of the memory")?;
        within("dirty", raw.dirty, 1..=90, "percent of the memory")?;
        within("age", raw.age, 1..=86_400, "seconds")?;
        within("behind", raw.behind, 1 << 20..=1 << 40, "bytes, 1 MiB to 1 TiB")?;
        if let Some(segment) = raw.segment.filter(|bytes| !SEGMENTS.contains(bytes) || !bytes.is_power_of_two()) {
            return Err(format!("cache segment={segment}: a segment has 1, 2, 4 or 8 MiB; give one of these"));
        }
        let usual = ubj::Options::default();
        let (floor, ceiling) = (raw.floor.unwrap_or(usual.floor), raw.ceiling.unwrap_or(usual.ceiling));
        match floor <= ceiling {
            true => Ok(CacheConfig(raw)),
            false => Err(format!("cache floor={floor} is above ceiling={ceiling}; give a ceiling that is no lower")),
        }
    }
}

impl From<CacheConfig> for Raw {
    fn from(config: CacheConfig) -> Raw {
        config.0
    }
}

impl CacheConfig {
    /// From names and values, as users give them.
    ///
    /// # Errors
    /// The fault, and the values that would be accepted.
    pub fn of(settings: &[(String, u64)]) -> Result<CacheConfig, String> {
        let mut raw = Raw::default();
        for (name, value) in settings {
            let setting = match &name[..] {
                "floor" => &mut raw.floor,
                "ceiling" => &mut raw.ceiling,
                "dirty" => &mut raw.dirty,
                "age" => &mut raw.age,
                "behind" => &mut raw.behind,
                "segment" => &mut raw.segment,
                _ => return Err(format!("the cache has no setting `{name}`; it has {NAMES}")),
            };
            if setting.replace(*value).is_some() {
                return Err(format!("cache {name} is given twice"));
            }
        }
        raw.try_into()
    }

    pub fn is_usual(&self) -> bool {
        *self == CacheConfig::default()
    }

    /// Bytes of a segment, if that is set.
    pub fn segment(&self) -> Option<u64> {
        self.0.segment
    }

    /// The options of a process, with this threshold.
    pub fn options(&self, threshold: u64) -> ubj::Options {
        let (raw, usual) = (self.0, ubj::Options::default());
        ubj::Options {
            threshold,
            floor: raw.floor.unwrap_or(usual.floor),
            ceiling: raw.ceiling.unwrap_or(usual.ceiling),
            dirty: raw.dirty.unwrap_or(usual.dirty),
            behind: raw.behind.unwrap_or(usual.behind),
            age: raw.age.map_or(usual.age, Duration::from_secs),
            ..usual
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(settings: &[(&str, u64)]) -> Result<CacheConfig, String> {
        CacheConfig::of(&settings.iter().map(|(name, value)| (name.to_string(), *value)).collect::<Vec<_>>())
    }

    #[test]
    fn settings_count_and_have_bounds() {
        let set = of(&[("floor", 10), ("ceiling", 50), ("dirty", 5), ("age", 7), ("segment", 2 << 20)]).expect("good");
        let options = set.options(4096);
        assert_eq!((options.floor, options.ceiling, options.dirty), (10, 50, 5));
        assert_eq!((options.age, options.threshold, set.segment()), (Duration::from_secs(7), 4096, Some(2 << 20)));
        for (bad, word) in [
            (&[("floor", 91)][..], "0 to 90 percent"),
            (&[("floor", 60), ("ceiling", 50)], "above ceiling"),
            (&[("dirty", 0)], "1 to 90"),
            (&[("age", 0)], "seconds"),
            (&[("behind", 1)], "1 MiB"),
            (&[("segment", 3 << 20)], "1, 2, 4 or 8 MiB"),
            (&[("roof", 1)], "no setting `roof`; it has floor"),
            (&[("age", 1), ("age", 2)], "twice"),
        ] {
            let why = of(bad).expect_err(word);
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn they_are_read_as_they_were_written() {
        let set = of(&[("ceiling", 50), ("behind", 4 << 20)]).expect("good");
        let text = toml::to_string(&set).expect("text");
        assert_eq!(text, "ceiling = 50\nbehind = 4194304\n");
        assert_eq!(toml::from_str::<CacheConfig>(&text).expect("read"), set);
        for (bad, word) in [("ceiling = 4", "5 to 100"), ("roof = 1", "roof"), ("age = \"x\"", "invalid type")] {
            let why = toml::from_str::<CacheConfig>(bad).expect_err(word).to_string();
            assert!(why.contains(word), "{why}");
        }
    }
}

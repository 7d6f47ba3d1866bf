//! The settings of compression in `pool.toml`, its table `compression`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use conquest_fs::compress::Plan;

/// The values that are set; others are the usual ones. A value out of its bounds is refused when `pool.toml` is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct CompressionConfig(Raw);

/// The table in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    /// Seconds after which a file that is not in use is compressed quickly, and well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    warm: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cold: Option<u64>,
    /// Seconds after which inodes that do not change are packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    packed: Option<u64>,
    /// Percent of the memory in use from which on younger files are compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pressure: Option<u64>,
    /// Percent of one processor that compression may take; 0: only commands compress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    share: Option<u64>,
}

const NAMES: &str =
    "warm, cold, packed (seconds), pressure (percent of the memory), share (percent of one processor; 0: off)";
const USUAL_PACKED: u64 = 600;
const USUAL_PRESSURE: u64 = 85;
const USUAL_SHARE: u64 = 25;
/// A hundred years.
const LONGEST: u64 = 100 * 366 * 86_400;

impl TryFrom<Raw> for CompressionConfig {
    type Error = String;

    fn try_from(raw: Raw) -> Result<CompressionConfig, String> {
        let within = |what: &str, value: Option<u64>, range: std::ops::RangeInclusive<u64>, unit: &str| match value {
            Some(value) if !range.contains(&value) => {
                Err(format!("compression {what}={value}: give {} to {} {unit}", range.start(), range.end()))
            }
            _ => Ok(()),
        };
        within("warm", raw.warm, 1..=LONGEST, "seconds")?;
        within("cold", raw.cold, 1..=LONGEST, "seconds")?;
        within("packed", raw.packed, 1..=LONGEST, "seconds")?;
        within("pressure", raw.pressure, 1..=100, "percent of the memory")?;
        within("share", raw.share, 0..=100, "percent of one processor")?;
        let config = CompressionConfig(raw);
        let plan = config.plan();
        match plan.warm <= plan.cold {
            true => Ok(config),
            false => Err(format!(
                "compression warm={} is longer than cold={}; give a cold that is no shorter",
                plan.warm.as_secs(),
                plan.cold.as_secs()
            )),
        }
    }
}

impl From<CompressionConfig> for Raw {
    fn from(config: CompressionConfig) -> Raw {
        config.0
    }
}

impl CompressionConfig {
    /// From names and values, as users give them.
    ///
    /// # Errors
    /// The fault, and the values that would be accepted.
    pub fn of(settings: &[(String, u64)]) -> Result<CompressionConfig, String> {
        let mut raw = Raw::default();
        for (name, value) in settings {
            let setting = match &name[..] {
                "warm" => &mut raw.warm,
                "cold" => &mut raw.cold,
                "packed" => &mut raw.packed,
                "pressure" => &mut raw.pressure,
                "share" => &mut raw.share,
                _ => return Err(format!("compression has no setting `{name}`; it has {NAMES}")),
            };
            if setting.replace(*value).is_some() {
                return Err(format!("compression {name} is given twice"));
            }
        }
        raw.try_into()
    }

    pub fn is_usual(&self) -> bool {
        *self == CompressionConfig::default()
    }

    /// The ages at which files are compressed.
    pub fn plan(&self) -> Plan {
        let usual = Plan::default();
        Plan {
            warm: self.0.warm.map_or(usual.warm, Duration::from_secs),
            cold: self.0.cold.map_or(usual.cold, Duration::from_secs),
            ..usual
        }
    }

    /// The time without a change after which inodes are packed.
    pub fn packed(&self) -> Duration {
        Duration::from_secs(self.0.packed.unwrap_or(USUAL_PACKED))
    }

    /// Percent of the memory in use from which on memory is short.
    pub fn pressure(&self) -> u64 {
        self.0.pressure.unwrap_or(USUAL_PRESSURE)
    }

    /// Percent of one processor; 0: maintenance compresses nothing.
    pub fn share(&self) -> u32 {
        self.0.share.unwrap_or(USUAL_SHARE) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(settings: &[(&str, u64)]) -> Result<CompressionConfig, String> {
        CompressionConfig::of(&settings.iter().map(|(name, value)| (name.to_string(), *value)).collect::<Vec<_>>())
    }

    #[test]
    fn settings_count_and_have_bounds() {
        let set = of(&[("warm", 5), ("cold", 60), ("packed", 7), ("pressure", 70), ("share", 0)]).expect("good");
        assert_eq!(set.packed(), Duration::from_secs(7));
        assert_eq!((set.plan().warm, set.plan().cold), (Duration::from_secs(5), Duration::from_secs(60)));
        assert_eq!((set.pressure(), set.share()), (70, 0));
        assert!(of(&[]).expect("none").is_usual() && !set.is_usual());
        for (bad, word) in [
            (&[("warm", 0)][..], "seconds"),
            (&[("warm", 100_000)], "no shorter"),
            (&[("pressure", 101)], "1 to 100 percent"),
            (&[("share", 101)], "0 to 100 percent"),
            (&[("hot", 1)], "no setting `hot`; it has warm"),
            (&[("share", 1), ("share", 2)], "twice"),
        ] {
            let why = of(bad).expect_err(word);
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn they_stand_in_a_table_of_their_own() {
        let text = toml::to_string(&of(&[("warm", 7), ("share", 5)]).expect("good")).expect("text");
        let again: CompressionConfig = toml::from_str(&text).expect("it reads what it wrote");
        assert_eq!((again.plan().warm.as_secs(), again.share()), (7, 5));
        assert!(toml::from_str::<CompressionConfig>("warm = 0").is_err());
    }
}

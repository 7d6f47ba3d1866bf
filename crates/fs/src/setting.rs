//! Settings of inodes: policy that is decided once, inherited from the parent directory at creation, and stored
//! with the inode.
//!
//! Each has a name among the extended attributes, `user.conquest.NAME`, which sets it, reads it back as set, and
//! unsets it, so that setfattr, `cp -a` and `rsync -X` carry it. `user.conquest.effective.NAME` has the value
//! in effect and cannot be set. None takes room beside the inode. Some facts are shown in the same way: [`Fact`].
//!
//! | setting | values |
//! | --- | --- |
//! | `durability` | `strict`, `fsync` |
//! | `threshold` | bytes, a power of two from 64 KiB to 1 TiB, also like `4M`; `none` |
//! | `redundancy` | `none`, `whole`, `mirror:N`, `lazy:DELAY`; see [`Redundancy`] |
//! | `priority` | `low`, `normal`, `high` |
//! | `compression` | `auto`, `always`, `never`, `warm`, `cold`; see [`Compression`] |
//! | `times` | `exact`, which is as if it were not set, `seconds`; see [`Times`] |

mod compression;
mod redundancy;
mod threshold;
mod times;

use rustix::io::Errno;

use crate::attr::Kind;
use crate::error::Result;
use crate::layout::RawInode;

pub use compression::Compression;
pub use redundancy::{Priority, Redundancy};
pub use times::Times;

use threshold::Threshold;

/// The attributes of the settings.
const DURABILITY: &[u8] = b"user.conquest.durability";
const THRESHOLD: &[u8] = b"user.conquest.threshold";
const REDUNDANCY: &[u8] = b"user.conquest.redundancy";
const PRIORITY: &[u8] = b"user.conquest.priority";
const COMPRESSION: &[u8] = b"user.conquest.compression";
const TIMES: &[u8] = b"user.conquest.times";
/// Bytes that all of them take in a list of names, each with the zero behind it.
pub(crate) const LISTED: u64 = (DURABILITY.len()
    + THRESHOLD.len()
    + REDUNDANCY.len()
    + PRIORITY.len()
    + COMPRESSION.len()
    + TIMES.len()
    + Setting::ALL.len()) as u64;
const EFFECTIVE: &[u8] = b"user.conquest.effective.";

/// Bits of `RawInode::settings` that say a [`Durability`]; 0: not set.
const DURABILITY_BITS: u16 = 0b11;
/// Those that say a [`Threshold`]; 0: not set.
const THRESHOLD_BITS: u16 = 0b11111 << THRESHOLD_AT;
/// The first of them.
pub const THRESHOLD_AT: u32 = 2;
/// The value for a file whose content never goes to disk by its size.
pub const THRESHOLD_NONE: u16 = 31;
/// The power of two, in bytes, that 1 means there.
pub const THRESHOLD_LEAST: u32 = 16;
/// Their largest value for others.
const THRESHOLD_MOST: u16 = 25;
/// Those that say a [`Redundancy`], together with `RawInode::delay`; 0: not set.
const REDUNDANCY_BITS: u16 = 0b111 << REDUNDANCY_AT;
/// The first of them.
pub const REDUNDANCY_AT: u32 = 7;
/// The first delay that counts minutes, and the first that counts hours: 2 each.
pub const DELAY_MINUTES: u8 = 61;
pub const DELAY_HOURS: u8 = 120;
/// The last one: a day.
pub const DELAY_MOST: u8 = 142;
/// Those that say a [`Priority`]; 0: not set.
const PRIORITY_BITS: u16 = 0b11 << PRIORITY_AT;
/// The first of them.
pub const PRIORITY_AT: u32 = 10;
/// Those that say a [`Compression`]; 0: not set.
const COMPRESSION_BITS: u16 = 0b111 << COMPRESSION_AT;
/// The first of them.
pub const COMPRESSION_AT: u32 = 12;
/// That which says [`Times`].
const TIMES_BITS: u16 = 0b1 << TIMES_AT;
/// Which one it is.
pub const TIMES_AT: u32 = 15;

/// When a change is durable on a medium where that takes waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Durability {
    /// When `fsync` and the like have returned, or with the next commit.
    #[default]
    Fsync = 1,
    /// When the call that made it returns.
    Strict = 2,
}

impl Durability {
    /// As it is written in attributes and options.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Fsync => "fsync",
            Durability::Strict => "strict",
        }
    }

    /// From its name.
    pub fn from_name(name: &[u8]) -> Option<Durability> {
        [Durability::Fsync, Durability::Strict].into_iter().find(|d| d.name().as_bytes() == name)
    }
}

/// How a threshold is written: in bytes.
pub(crate) fn threshold_text(bytes: u64) -> Vec<u8> {
    match bytes {
        u64::MAX => b"none".into(),
        bytes => bytes.to_string().into(),
    }
}

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Durability,
    Threshold,
    Redundancy,
    Priority,
    Compression,
    Times,
}

/// The bits of an inode for a setting that is set, or of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set {
    /// Bits of `RawInode::settings`.
    pub bits: u16,
    /// `RawInode::delay`.
    pub delay: u8,
}

impl Set {
    /// The value that unsets a setting.
    pub const NOTHING: Set = Set { bits: 0, delay: 0 };

    /// All that is set for an inode, which others made in it take over.
    #[inline(always)]
    pub fn of(raw: &RawInode) -> Set {
        Set { bits: raw.settings, delay: raw.delay }
    }

    fn bits(bits: u16) -> Set {
        Set { bits, delay: 0 }
    }
}

impl Setting {
    pub const ALL: [Setting; 6] = [
        Setting::Durability,
        Setting::Threshold,
        Setting::Redundancy,
        Setting::Priority,
        Setting::Compression,
        Setting::Times,
    ];

    /// The attribute that sets it.
    pub fn attribute(self) -> &'static [u8] {
        match self {
            Setting::Durability => DURABILITY,
            Setting::Threshold => THRESHOLD,
            Setting::Redundancy => REDUNDANCY,
            Setting::Priority => PRIORITY,
            Setting::Compression => COMPRESSION,
            Setting::Times => TIMES,
        }
    }

    /// The attribute with the value in effect.
    fn effective(self) -> &'static [u8] {
        match self {
            Setting::Durability => b"user.conquest.effective.durability",
            Setting::Threshold => b"user.conquest.effective.threshold",
            Setting::Redundancy => b"user.conquest.effective.redundancy",
            Setting::Priority => b"user.conquest.effective.priority",
            Setting::Compression => b"user.conquest.effective.compression",
            Setting::Times => b"user.conquest.effective.times",
        }
    }

    /// Which one this attribute sets.
    pub fn set_by(name: &[u8]) -> Option<Setting> {
        Setting::ALL.into_iter().find(|setting| setting.attribute() == name)
    }

    /// The setting whose value in effect this attribute shows.
    pub fn of_name(name: &[u8]) -> Option<Setting> {
        Setting::ALL.into_iter().find(|setting| setting.effective() == name)
    }

    fn bits(self) -> u16 {
        match self {
            Setting::Durability => DURABILITY_BITS,
            Setting::Threshold => THRESHOLD_BITS,
            Setting::Redundancy => REDUNDANCY_BITS,
            Setting::Priority => PRIORITY_BITS,
            Setting::Compression => COMPRESSION_BITS,
            Setting::Times => TIMES_BITS,
        }
    }

    pub fn is_set(self, raw: &RawInode) -> bool {
        raw.settings & self.bits() != 0
    }

    /// Its value, if it is set.
    pub fn value(self, raw: &RawInode) -> Option<Vec<u8>> {
        match self {
            Setting::Durability => raw.durability().map(|durability| durability.name().into()),
            Setting::Threshold => raw.set_threshold().map(|threshold| threshold_text(threshold.bytes())),
            Setting::Redundancy => raw.set_redundancy().map(|redundancy| redundancy.to_string().into()),
            Setting::Priority => raw.set_priority().map(|priority| priority.name().into()),
            Setting::Compression => raw.set_compression().map(|compression| compression.name().into()),
            Setting::Times => self.is_set(raw).then(|| raw.times().name().into()),
        }
    }

    /// The bits of an inode for this value: EINVAL for other values than it has.
    pub fn parse(self, value: &[u8]) -> Result<Set> {
        let set = match self {
            Setting::Durability => Durability::from_name(value).map(|durability| Set::bits(durability as u16)),
            Setting::Threshold => {
                Threshold::from_text(value).map(|threshold| Set::bits(threshold.code() << THRESHOLD_AT))
            }
            Setting::Redundancy => Redundancy::from_text(value)
                .and_then(Redundancy::codes)
                .map(|(code, delay)| Set { bits: code << REDUNDANCY_AT, delay }),
            Setting::Priority => Priority::from_name(value).map(|priority| Set::bits((priority as u16) << PRIORITY_AT)),
            Setting::Compression => {
                Compression::from_name(value).map(|compression| Set::bits((compression as u16) << COMPRESSION_AT))
            }
            Setting::Times => Times::from_name(value).map(|times| Set::bits((times as u16) << TIMES_AT)),
        };
        set.ok_or_else(|| Errno::INVAL.into())
    }

    /// Sets it to this; [`Set::NOTHING`] unsets it.
    pub fn set(self, raw: &mut RawInode, set: Set) {
        raw.settings = raw.settings & !self.bits() | set.bits;
        if self == Setting::Redundancy {
            raw.delay = set.delay;
        }
    }
}

/// Facts that attributes show, beside settings. They are not listed, so that no copy takes them along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// The room of the inode: see [`Usage`](crate::node::Usage).
    Usage,
    /// The most replicas that are possible: regions that take content and fail apart.
    Regions,
    /// The pool in brief, and what its mount has served. A file system knows neither: its mount answers.
    Status,
    Operations,
}

impl Fact {
    const ALL: [Fact; 4] = [Fact::Usage, Fact::Regions, Fact::Status, Fact::Operations];

    fn attribute(self) -> &'static [u8] {
        match self {
            Fact::Usage => b"user.conquest.usage",
            Fact::Regions => b"user.conquest.regions",
            Fact::Status => b"user.conquest.status",
            Fact::Operations => b"user.conquest.operations",
        }
    }

    /// Which one this attribute tells.
    pub fn of_name(name: &[u8]) -> Option<Fact> {
        Fact::ALL.into_iter().find(|fact| fact.attribute() == name)
    }
}

/// Is `name` one that only tells, and cannot be set?
pub(crate) fn is_read_only_name(name: &[u8]) -> bool {
    name.starts_with(EFFECTIVE) || Fact::of_name(name).is_some()
}

/// Inodes of which attributes in `user.` can be seen.
pub(crate) fn has_names(raw: &RawInode) -> bool {
    raw.kind == Kind::Regular as u8 || raw.kind == Kind::Directory as u8
}

impl RawInode {
    /// The durability that is set, if any is.
    fn durability(&self) -> Option<Durability> {
        match self.settings & DURABILITY_BITS {
            n if n == Durability::Fsync as u16 => Some(Durability::Fsync),
            n if n == Durability::Strict as u16 => Some(Durability::Strict),
            _ => None,
        }
    }

    #[inline(always)]
    pub(crate) fn is_strict(&self) -> bool {
        self.settings & DURABILITY_BITS == Durability::Strict as u16
    }

    fn set_threshold(&self) -> Option<Threshold> {
        match (self.settings & THRESHOLD_BITS) >> THRESHOLD_AT {
            0 => None,
            code => Threshold::of(code),
        }
    }

    /// Bytes beyond which its content goes to disk, where the pool's `usual` is so many; `u64::MAX`: it never does.
    #[inline(always)]
    pub(crate) fn threshold_or(&self, usual: u64) -> u64 {
        match self.settings & THRESHOLD_BITS {
            0 => usual,
            _ => self.set_threshold().map_or(usual, Threshold::bytes),
        }
    }

    fn set_redundancy(&self) -> Option<Redundancy> {
        Redundancy::from_codes((self.settings & REDUNDANCY_BITS) >> REDUNDANCY_AT, self.delay)
    }

    /// The number of replicas of its content on disks.
    pub(crate) fn redundancy(&self) -> Redundancy {
        self.set_redundancy().unwrap_or_default()
    }

    fn set_priority(&self) -> Option<Priority> {
        Priority::from_code((self.settings & PRIORITY_BITS) >> PRIORITY_AT)
    }

    /// When it is put right, compared with others.
    pub(crate) fn priority(&self) -> Priority {
        self.set_priority().unwrap_or_default()
    }

    fn set_compression(&self) -> Option<Compression> {
        Compression::from_code((self.settings & COMPRESSION_BITS) >> COMPRESSION_AT)
    }

    /// Whether its content is compressed when it is quiet.
    pub(crate) fn compression(&self) -> Compression {
        self.set_compression().unwrap_or_default()
    }

    /// How finely its times are kept when it is packed.
    #[inline(always)]
    pub(crate) fn times(&self) -> Times {
        match self.settings & TIMES_BITS {
            0 => Times::Exact,
            _ => Times::Seconds,
        }
    }

    /// Is everything set to a value that exists?
    pub(crate) fn settings_are_known(&self) -> bool {
        let durability = self.settings & DURABILITY_BITS;
        let threshold = (self.settings & THRESHOLD_BITS) >> THRESHOLD_AT;
        let is_redundancy = match self.settings & REDUNDANCY_BITS {
            0 => self.delay == 0,
            _ => self.set_redundancy().is_some(),
        };
        let is_compression = self.settings & COMPRESSION_BITS == 0 || self.set_compression().is_some();
        is_compression && durability <= Durability::Strict as u16 && Threshold::is_known(threshold) && is_redundancy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Option<String> {
        let threshold = Threshold::from_text(text.as_bytes())?;
        String::from_utf8(threshold_text(threshold.bytes())).ok()
    }

    #[test]
    fn thresholds_are_powers_of_two_within_bounds() {
        for (text, bytes) in [
            ("65536", 1u64 << 16),
            ("64K", 1 << 16),
            ("1m", 1 << 20),
            ("4M", 4 << 20),
            ("1024K", 1 << 20),
            ("1G", 1 << 30),
            ("1T", 1 << 40),
            ("1099511627776", 1 << 40),
        ] {
            assert_eq!(shown(text), Some(bytes.to_string()), "{text}");
        }
        assert_eq!(shown("none").as_deref(), Some("none"));
        for wrong in [
            "",
            "0",
            "K",
            "32K",
            "65535",
            "65537",
            "3M",
            "2T",
            "-1",
            "+1M",
            "1.5M",
            " 1M",
            "1M ",
            "1MB",
            "99999999999999T",
        ] {
            assert_eq!(shown(wrong), None, "{wrong}");
        }
    }

    /// For all values of the bits: the value of each field, and whether it is a known one.
    #[test]
    fn all_bits_are_distinguished() {
        use zerocopy::FromZeros;
        let mut raw = RawInode::new_zeroed();
        for (bits, delay) in
            (0..=u16::MAX).flat_map(|bits| [0, 1, 60, 61, 120, 142, 143, 255].map(|delay| (bits, delay)))
        {
            (raw.settings, raw.delay) = (bits, delay);
            let (durability, threshold, redundancy) = (bits & 3, bits >> 2 & 31, bits >> 7 & 7);
            let is_redundancy = match redundancy {
                0..=5 => delay == 0,
                6 => (1..=142).contains(&delay),
                _ => false,
            };
            let known = durability < 3 && (threshold <= 25 || threshold == 31) && is_redundancy && bits >> 12 & 7 <= 5;
            assert_eq!(raw.settings_are_known(), known, "{bits:#x}, {delay}");
            for setting in Setting::ALL.into_iter().filter(|_| known) {
                let mut other = raw;
                let value = setting.value(&raw).map(|value| setting.parse(&value).expect("what is shown can be set"));
                assert_eq!(value.is_some(), setting.is_set(&raw));
                setting.set(&mut other, Set::NOTHING);
                assert!(!setting.is_set(&other) && other.settings_are_known());
                setting.set(&mut other, value.unwrap_or_default());
                assert_eq!(Set::of(&other), Set::of(&raw));
            }
        }
    }

    #[test]
    fn what_is_not_set_is_the_usual() {
        use zerocopy::FromZeros;
        let raw = RawInode::new_zeroed();
        assert_eq!((raw.redundancy(), raw.priority()), (Redundancy::None, Priority::Normal));
        assert_eq!((raw.compression(), raw.times()), (Compression::Auto, Times::Exact));
    }

    /// There is one bit for it: the usual value does not set it.
    #[test]
    fn exact_times_are_not_set() {
        assert_eq!(Setting::Times.parse(b"exact").unwrap(), Set::NOTHING);
        assert_ne!(Setting::Times.parse(b"seconds").unwrap(), Set::NOTHING);
        assert!(["", "second", "minutes", "seconds "].iter().all(|it| Setting::Times.parse(it.as_bytes()).is_err()));
    }
}

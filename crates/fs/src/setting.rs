//! Settings of inodes: policy that is decided once, inherited from the parent directory at creation, and stored
//! with the inode.
//!
//! Each has a name among the extended attributes, `user.conquest.NAME`, by which it is set, read back as set, and
//! unset, so that setfattr, `cp -a` and `rsync -X` carry it; and `user.conquest.effective.NAME`, which says what
//! is in effect and cannot be set. None takes room beside the inode.
//!
//! | setting | values |
//! | --- | --- |
//! | `durability` | `strict`, `fsync` |
//! | `threshold` | bytes, a power of two from 64 KiB to 1 TiB, also like `4M`; `none` |

use rustix::io::Errno;

use crate::attr::Kind;
use crate::error::Result;
use crate::layout::RawInode;

/// The attributes that set what can be set.
const DURABILITY: &[u8] = b"user.conquest.durability";
const THRESHOLD: &[u8] = b"user.conquest.threshold";
/// Bytes that all of them take in a list of names, each with the zero behind it.
pub(crate) const LISTED: u64 = (DURABILITY.len() + THRESHOLD.len() + 2) as u64;
const EFFECTIVE: &[u8] = b"user.conquest.effective.";

/// Bits of `RawInode::settings` that say a [`Durability`]; 0: not set.
const DURABILITY_BITS: u16 = 0b11;
/// Those that say a [`Threshold`]; 0: not set.
const THRESHOLD_BITS: u16 = 0b11111 << THRESHOLD_AT;
/// The first of them.
pub const THRESHOLD_AT: u32 = 2;
/// What they say of a file whose content never goes to disk by its size.
pub const THRESHOLD_NONE: u16 = 31;
/// The power of two, in bytes, that 1 means there.
pub const THRESHOLD_LEAST: u32 = 16;
/// What they say at most of others.
const THRESHOLD_MOST: u16 = 25;

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

/// How far files may reach whose content stays in memory: what its bits in `RawInode::settings` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Threshold(u16);

impl Threshold {
    const NONE: Threshold = Threshold(THRESHOLD_NONE);

    /// From a value like `none`, `1048576`, `64K`, `4M`, `1G`, `1T`.
    fn from_text(text: &[u8]) -> Option<Threshold> {
        if text == b"none" {
            return Some(Threshold::NONE);
        }
        let (last, digits) = text.split_last()?;
        let (digits, shift) = match last.to_ascii_uppercase() {
            b'K' => (digits, 10),
            b'M' => (digits, 20),
            b'G' => (digits, 30),
            b'T' => (digits, 40),
            _ => (text, 0),
        };
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let bytes = number.checked_mul(1 << shift)?;
        let code = bytes.trailing_zeros().checked_sub(THRESHOLD_LEAST)? as u16 + 1;
        (bytes.is_power_of_two() && code <= THRESHOLD_MOST).then_some(Threshold(code))
    }

    /// Bytes beyond which content goes to disk.
    fn bytes(self) -> u64 {
        match self.0 {
            THRESHOLD_NONE => u64::MAX,
            code => 1 << (u32::from(code) - 1 + THRESHOLD_LEAST),
        }
    }

    fn is_known(code: u16) -> bool {
        code <= THRESHOLD_MOST || code == THRESHOLD_NONE
    }
}

/// How a threshold is told: in bytes.
pub(crate) fn threshold_text(bytes: u64) -> Vec<u8> {
    match bytes {
        u64::MAX => b"none".into(),
        bytes => bytes.to_string().into(),
    }
}

/// What can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Durability,
    Threshold,
}

impl Setting {
    pub const ALL: [Setting; 2] = [Setting::Durability, Setting::Threshold];

    /// The attribute that sets it.
    pub fn attribute(self) -> &'static [u8] {
        match self {
            Setting::Durability => DURABILITY,
            Setting::Threshold => THRESHOLD,
        }
    }

    /// The attribute that tells what is in effect.
    fn effective(self) -> &'static [u8] {
        match self {
            Setting::Durability => b"user.conquest.effective.durability",
            Setting::Threshold => b"user.conquest.effective.threshold",
        }
    }

    /// Which one this attribute sets.
    pub fn set_by(name: &[u8]) -> Option<Setting> {
        Setting::ALL.into_iter().find(|setting| setting.attribute() == name)
    }

    /// Of which one this attribute tells what is in effect.
    pub fn told_by(name: &[u8]) -> Option<Setting> {
        Setting::ALL.into_iter().find(|setting| setting.effective() == name)
    }

    fn bits(self) -> u16 {
        match self {
            Setting::Durability => DURABILITY_BITS,
            Setting::Threshold => THRESHOLD_BITS,
        }
    }

    pub fn is_set(self, raw: &RawInode) -> bool {
        raw.settings & self.bits() != 0
    }

    /// What it is set to, if it is.
    pub fn value(self, raw: &RawInode) -> Option<Vec<u8>> {
        match self {
            Setting::Durability => raw.durability().map(|durability| durability.name().into()),
            Setting::Threshold => raw.set_threshold().map(|threshold| threshold_text(threshold.bytes())),
        }
    }

    /// The bits of what it shall be set to: EINVAL for other values than it has.
    pub fn parse(self, value: &[u8]) -> Result<u16> {
        let bits = match self {
            Setting::Durability => Durability::from_name(value).map(|durability| durability as u16),
            Setting::Threshold => Threshold::from_text(value).map(|threshold| threshold.0 << THRESHOLD_AT),
        };
        bits.ok_or_else(|| Errno::INVAL.into())
    }

    /// Sets it to what these bits say; 0 unsets it.
    pub fn set(self, raw: &mut RawInode, bits: u16) {
        raw.settings = raw.settings & !self.bits() | bits;
    }
}

/// Is `name` one that tells what is in effect?
pub(crate) fn is_effective(name: &[u8]) -> bool {
    name.starts_with(EFFECTIVE)
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
            code if Threshold::is_known(code) => Some(Threshold(code)),
            _ => None,
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

    /// Is everything set to a value that exists?
    pub(crate) fn settings_are_known(&self) -> bool {
        let durability = self.settings & DURABILITY_BITS;
        let threshold = (self.settings & THRESHOLD_BITS) >> THRESHOLD_AT;
        self.reserved == 0
            && self.settings & !(DURABILITY_BITS | THRESHOLD_BITS) == 0
            && durability <= Durability::Strict as u16
            && Threshold::is_known(threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Option<String> {
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
            assert_eq!(told(text), Some(bytes.to_string()), "{text}");
        }
        assert_eq!(told("none").as_deref(), Some("none"));
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
            assert_eq!(told(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn all_bits_are_told_apart() {
        use zerocopy::FromZeros;
        let mut raw = RawInode::new_zeroed();
        for bits in 0..=u16::MAX {
            raw.settings = bits;
            let (durability, threshold) = (bits & 3, bits >> 2);
            let known = durability < 3 && (threshold <= 25 || threshold == 31);
            assert_eq!(raw.settings_are_known(), known, "{bits:#x}");
            for setting in Setting::ALL.into_iter().filter(|_| known) {
                let mut other = raw;
                let value = setting.value(&raw).map(|value| setting.parse(&value).expect("what is told can be set"));
                setting.set(&mut other, 0);
                assert!(!setting.is_set(&other));
                setting.set(&mut other, value.unwrap_or(0));
                assert_eq!(other.settings, bits);
            }
        }
    }
}

//! Beyond which size a file is large, and its content goes to disk.

use super::{THRESHOLD_LEAST, THRESHOLD_MOST, THRESHOLD_NONE};

/// The greatest size of files whose content stays in memory: its bits in `RawInode::settings`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Threshold(u16);

impl Threshold {
    pub const NONE: Threshold = Threshold(THRESHOLD_NONE);

    /// From a value like `none`, `1048576`, `64K`, `4M`, `1G`, `1T`.
    pub fn from_text(text: &[u8]) -> Option<Threshold> {
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

    /// From the code that stands in `RawInode::settings`, if there is such a one.
    pub fn of(code: u16) -> Option<Threshold> {
        Threshold::is_known(code).then_some(Threshold(code))
    }

    pub fn code(self) -> u16 {
        self.0
    }

    /// Bytes beyond which content goes to disk.
    pub fn bytes(self) -> u64 {
        match self.0 {
            THRESHOLD_NONE => u64::MAX,
            code => 1 << (u32::from(code) - 1 + THRESHOLD_LEAST),
        }
    }

    pub fn is_known(code: u16) -> bool {
        code <= THRESHOLD_MOST || code == THRESHOLD_NONE
    }
}

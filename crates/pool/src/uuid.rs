//! UUIDs of pools, and other numbers that are hard to guess.

use pram::random;

use conquest_fs::error::Result;

/// A UUID as text.
pub fn text(bytes: &[u8; 16]) -> String {
    let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    [&hex[0..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..16]].map(|part| part.concat()).join("-")
}

/// A version 4 UUID.
pub fn random() -> Result<String> {
    let mut bytes = random::bytes::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(text(&bytes))
}

pub fn random_key() -> Result<u64> {
    Ok(u64::from_le_bytes(random::bytes()?))
}

//! Names and paths, a word at a time: they are too short for methods that search long strings fast.

use pram::sip::short_word;

/// The low bit of each byte of a word.
const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = LOW_BITS << 7;

/// Where `wanted` is first.
#[inline(always)]
pub fn position(bytes: &[u8], wanted: u8) -> Option<usize> {
    let found = |hits: u64, at: usize| at + hits.trailing_zeros() as usize / 8;
    let mut rest = bytes;
    while let Some((word, after)) = rest.split_first_chunk() {
        let hits = hits(u64::from_le_bytes(*word), wanted);
        if hits != 0 {
            return Some(found(hits, bytes.len() - rest.len()));
        }
        rest = after;
    }
    if rest.is_empty() {
        return None;
    }
    // Bytes behind the end are ignored.
    let hits = hits(short_word(rest), wanted) & (u64::MAX >> (64 - rest.len() * 8));
    (hits != 0).then(|| found(hits, bytes.len() - rest.len()))
}

/// Is `wanted` among them?
#[inline(always)]
pub fn contains(bytes: &[u8], wanted: u8) -> bool {
    position(bytes, wanted).is_some()
}

/// The high bit of each byte that is `wanted`; above the lowest of these, other bytes may have it too.
#[inline(always)]
fn hits(word: u64, wanted: u8) -> u64 {
    let differs = word ^ (LOW_BITS * u64::from(wanted));
    differs.wrapping_sub(LOW_BITS) & !differs & HIGH_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also bytes that differ from the wanted ones by a bit: a search by words could confuse those.
    #[test]
    fn bytes_are_found_where_they_are() {
        let letters = [b'/', b'.', b'0', 0x2f ^ 0x80, 0xff, 0, 1, 0x80];
        for n in 0..50_000usize {
            let text: Vec<u8> = (0..n % 23).map(|i| letters[(n >> (i % 13)) * 7 % 31 % letters.len()]).collect();
            for wanted in [b'/', 0] {
                let there = text.iter().position(|b| *b == wanted);
                assert_eq!((position(&text, wanted), contains(&text, wanted)), (there, there.is_some()), "{text:?}");
            }
        }
    }
}

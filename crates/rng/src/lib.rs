//! For tests and benchmarks: seeded numbers, so that a failure repeats and every run gets the same workload.
//!
//! The generator is SplitMix64. What a seed gives never changes: seeds stand in reports of failures. Nothing
//! here is fit for keys.

#![forbid(unsafe_code)]

/// A generator with 64 bits of state.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub const fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Any number.
    #[expect(clippy::should_implement_trait, reason = "it has no end: an iterator's `next` would need unwrapping")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `n`, which is not 0. Low numbers are likelier by less than `n` in 2⁶⁴.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Within `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Puts the items in any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }

    /// `len` bytes that no file system can compress away.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference's numbers: what a seed gives never changes.
    #[test]
    fn it_is_splitmix64() {
        let mut rng = Rng::new(1_234_567);
        let numbers: [u64; 3] = std::array::from_fn(|_| rng.next());
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        let mut rng = Rng::new(1_234_567);
        let bytes = rng.bytes(9);
        assert_eq!(bytes[..8], 6_457_827_717_110_365_317_u64.to_le_bytes());
        assert_eq!(bytes[8], 3_203_168_211_198_807_973_u64.to_le_bytes()[0]);
    }

    #[test]
    fn within_reaches_both_ends_and_no_further() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 4];
        for _ in 0..200 {
            seen[(rng.within(10, 13) - 10) as usize] = true;
        }
        assert_eq!(seen, [true; 4]);
    }

    #[test]
    fn shuffle_keeps_every_item_and_moves_them() {
        let mut items: Vec<u32> = (0..100).collect();
        Rng::new(7).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}

//! Seeded numbers (SplitMix64): the same seed gives the same exploration everywhere.

#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
    }

    /// `len` bytes that a seed stands for.
    pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(rng.draw().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

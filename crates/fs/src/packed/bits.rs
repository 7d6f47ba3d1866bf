//! Streams of bits, lowest first.

/// Longest stream that is read, in bytes: a longer one is no coded inode.
pub const LONGEST: usize = 96;

/// Bits one after the other into bytes. Bits that do not fit are counted and not written.
pub struct Writer<'a> {
    out: &'a mut [u8],
    /// Whole bytes.
    at: usize,
    /// The bits after these, `held` of them, below 8.
    bits: u64,
    held: u32,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut [u8]) -> Writer<'a> {
        Writer { out, at: 0, bits: 0, held: 0 }
    }

    /// The low `count` bits of `value`, at most 64.
    #[inline(always)]
    pub fn put(&mut self, value: u64, count: u32) {
        if count > 32 {
            self.put_few(value & u64::from(u32::MAX), 32);
            self.put_few(value >> 32, count - 32);
        } else {
            self.put_few(value, count);
        }
    }

    /// At most 32.
    #[inline(always)]
    fn put_few(&mut self, value: u64, count: u32) {
        self.bits |= (value & ((1 << count) - 1)) << self.held;
        self.held += count;
        let bytes = (self.held / 8) as usize;
        let word = self.bits.to_le_bytes();
        match self.out.get_mut(self.at..self.at + 8) {
            Some(to) => to.copy_from_slice(&word),
            None => {
                let room = self.out.get_mut(self.at..).unwrap_or(&mut []);
                let len = room.len().min(bytes);
                room[..len].copy_from_slice(&word[..len]);
            }
        }
        self.at += bytes;
        self.bits >>= bytes * 8;
        self.held %= 8;
    }

    /// Ends the stream; its bytes, `None` if they had no room.
    pub fn finish(mut self) -> Option<usize> {
        if self.held > 0 {
            *self.out.get_mut(self.at)? = self.bits as u8;
            self.at += 1;
        }
        (self.at <= self.out.len()).then_some(self.at)
    }
}

/// A stream, and a word behind the longest one.
pub type Padded = [u8; LONGEST + 8];

/// A stream that lies by itself. `None` if it has more than [`LONGEST`] bytes.
#[inline(always)]
pub fn padded(from: &[u8]) -> Option<Padded> {
    let mut bytes = [0; LONGEST + 8];
    bytes.get_mut(..from.len()).filter(|_| from.len() <= LONGEST)?.copy_from_slice(from);
    Some(bytes)
}

/// Reads bits. Beyond the end it reads any bytes that lie there; [`is_whole`](Reader::is_whole) tells afterwards whether
/// it read any of them.
pub struct Reader<'a> {
    bytes: &'a Padded,
    len: usize,
    at: usize,
}

impl<'a> Reader<'a> {
    /// Of the first `len` of these bytes.
    #[inline(always)]
    pub fn of(bytes: &'a Padded, len: usize) -> Option<Reader<'a>> {
        (len <= LONGEST).then_some(Reader { bytes, len, at: 0 })
    }

    /// The next bits, 57 at least.
    #[inline(always)]
    pub fn peek(&self) -> u64 {
        let at = (self.at / 8).min(LONGEST);
        let word: [u8; 8] = self.bytes[at..at + 8].try_into().unwrap_or_default();
        u64::from_le_bytes(word) >> (self.at % 8)
    }

    #[inline(always)]
    pub fn skip(&mut self, count: u32) {
        self.at += count as usize;
    }

    /// The next `count` bits, at most 64.
    #[inline(always)]
    pub fn take(&mut self, count: u32) -> u64 {
        if count <= 56 {
            let value = self.peek() & ((1 << count) - 1);
            self.skip(count);
            return value;
        }
        let low = self.take(32);
        let rest = count.min(64) - 32;
        low | self.take(rest) << 32
    }

    /// Were all the bytes read, and nothing beyond them?
    #[inline(always)]
    pub fn is_whole(&self) -> bool {
        self.at.div_ceil(8) == self.len
    }
}

/// A signed difference as a number that is small if the difference is.
#[inline(always)]
pub fn zigzag(d: i64) -> u64 {
    (d << 1 ^ d >> 63) as u64
}

#[inline(always)]
pub fn unzigzag(v: u64) -> i64 {
    (v >> 1) as i64 ^ -((v & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_taken() {
        let mut rng = rng::Rng::new(1);
        for _ in 0..2000 {
            let parts: Vec<(u64, u32)> = (0..rng.below(8)).map(|_| (rng.next(), rng.below(65) as u32)).collect();
            let mut out = [0; LONGEST];
            let mut w = Writer::new(&mut out);
            parts.iter().for_each(|(v, n)| w.put(*v, *n));
            let len = w.finish().expect("room");
            assert_eq!(len, parts.iter().map(|(_, n)| *n as usize).sum::<usize>().div_ceil(8));
            let bytes = padded(&out[..len]).expect("short");
            let mut r = Reader::of(&bytes, len).expect("short");
            for (v, n) in &parts {
                assert_eq!(r.take(*n), if *n == 64 { *v } else { v & ((1 << n) - 1) });
            }
            assert!(r.is_whole());
            r.take(64);
            assert!(!r.is_whole());
        }
    }

    #[test]
    fn what_has_no_room_is_reported() {
        let mut out = [0; 9];
        for bits in [72, 73, 200] {
            let mut w = Writer::new(&mut out);
            (0..bits).for_each(|_| w.put(1, 1));
            assert_eq!(w.finish().is_some(), bits == 72);
        }
    }

    #[test]
    fn small_differences_are_small_numbers() {
        for d in [0, 1, -1, 2, i64::MIN, i64::MAX] {
            assert_eq!(unzigzag(zigzag(d)), d);
        }
        assert_eq!((zigzag(-1), zigzag(1)), (1, 2));
    }
}

//! Size classes: how objects divide a chunk.

use super::geometry::{BLOCK, CHUNK, PER_CHUNK};

#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Bytes per object.
    pub size: u32,
    /// Objects per chunk.
    pub count: u32,
    /// Bytes before the first object: the bitmap, where it is in the chunk.
    pub base: u32,
    /// 2^32 / `size`, rounded up.
    inverse: u32,
}

impl Class {
    /// The number of the object that begins at `off`, in its chunk, if one does.
    #[inline(always)]
    pub(super) fn index_of(&self, off: u64) -> Option<u32> {
        // Chunks are aligned to their size.
        let within = (off as u32 & (CHUNK as u32 - 1)).checked_sub(self.base)?;
        let index = self.divide(within);
        (index < self.count && index * self.size == within).then_some(index)
    }

    /// How many objects fit in `bytes`, fewer than a chunk has: by a multiplication, exact since neither `bytes`
    /// nor the error of the inverse, less than `size`, has more than 16 bits.
    #[inline(always)]
    fn divide(&self, bytes: u32) -> u32 {
        ((u64::from(bytes) * u64::from(self.inverse)) >> 32) as u32
    }
}

const fn class(size: u32) -> Class {
    let seg = CHUNK as u32;
    let inverse = (1u64 << 32).div_ceil(size as u64) as u32;
    if size >= 1024 {
        return Class { size, count: seg / size, base: 0, inverse };
    }
    // The largest count whose bitmap, in whole words and rounded to 16 bytes, fits before the objects.
    let mut count = seg / size;
    loop {
        let base = (count.div_ceil(64) * 8).next_multiple_of(16);
        if base + count * size <= seg {
            return Class { size, count, base, inverse };
        }
        count -= 1;
    }
}

const COUNT: usize = 62;

/// All size classes, ascending: eight to a power of two from 128 bytes on. So an object of 129 bytes or more wastes at
/// most an eighth of its room below 12 KiB, and a tenth below 1 KiB. From 1 KiB on each is the largest size of which
/// its number fits in a chunk, with less than 16 bytes left for each; beyond 4 KiB there is one class for each number.
pub const CLASSES: [Class; COUNT] = {
    const SIZES: [u32; COUNT] = [
        16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 352, 384, 416, 448, 480,
        512, 576, 640, 704, 768, 832, 896, 960, 1024, 1104, 1200, 1296, 1424, 1552, 1712, 1872, 2048, 2256, 2416, 2608,
        2848, 3120, 3440, 3840, 4096, 4368, 4672, 5040, 5456, 5952, 6544, 7280, 8192, 9360, 10912, 13104, 16384, 21840,
        32768,
    ];
    let mut table = [class(16); COUNT];
    let mut i = 0;
    while i < COUNT {
        table[i] = class(SIZES[i]);
        i += 1;
    }
    table
};

/// Largest object that shares a chunk.
pub const MAX_SMALL: u64 = 32768;

const CLASS_OF: [u8; MAX_SMALL as usize / 16 + 1] = {
    let mut table = [0u8; MAX_SMALL as usize / 16 + 1];
    let (mut i, mut c) = (0, 0);
    while i < table.len() {
        while (CLASSES[c].size as usize) < i * 16 {
            c += 1;
        }
        table[i] = c as u8;
        i += 1;
    }
    table
};

/// The class of objects of `size` bytes, up to [`MAX_SMALL`].
#[inline(always)]
pub const fn class_of(size: u64) -> usize {
    let size = if size < MAX_SMALL { size } else { MAX_SMALL };
    CLASS_OF[(size as usize).div_ceil(16)] as usize
}

/// The class of objects as large as a block.
pub(crate) const BLOCK_CLASS: usize = class_of(BLOCK);
const _: () = {
    let class = &CLASSES[BLOCK_CLASS];
    assert!(class.size as u64 == BLOCK && class.count as u64 == PER_CHUNK && class.base == 0);
};

/// The largest class of objects that `size` bytes fill, at least 16; that of [`MAX_SMALL`] where they fill more.
#[inline]
pub const fn class_within(size: u64) -> usize {
    let class = class_of(size);
    match CLASSES[class].size as u64 > size {
        true => class - 1,
        false => class,
    }
}

/// The bytes that an allocation of `size` bytes occupies.
pub fn capacity_of(size: u64) -> u64 {
    if size <= MAX_SMALL {
        u64::from(CLASSES[class_of(size)].size)
    } else {
        size.next_multiple_of(CHUNK)
    }
}

/// The bits of bitmap word `w` that stand for objects.
#[inline(always)]
pub(crate) fn valid_bits(count: u32, w: u32) -> u64 {
    match count.saturating_sub(w.saturating_mul(64)) {
        0 => 0,
        n if n >= 64 => u64::MAX,
        n => (1 << n) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_by_the_inverse_is_exact() {
        for class in CLASSES {
            assert!((0..CHUNK as u32).all(|bytes| class.divide(bytes) == bytes / class.size), "{class:?}");
        }
    }

    #[test]
    fn classes_ascend_and_divide_a_chunk() {
        for class in &CLASSES {
            let used = class.base + class.count * class.size;
            assert!(class.size % 16 == 0 && CHUNK as u32 - used < class.size, "{class:?}");
            // Classes without a bitmap there leave too little for each object to be 16 bytes larger.
            assert!(class.base > 0 || class.count <= 64 && CHUNK as u32 - used < class.count * 16, "{class:?}");
        }
        assert!(CLASSES.windows(2).all(|two| two[0].size < two[1].size));
    }

    #[test]
    fn the_class_within_is_filled() {
        for size in 16..=MAX_SMALL {
            let (within, of) = (class_within(size), class_of(size));
            assert!(u64::from(CLASSES[within].size) <= size && within + 1 >= of);
            assert_eq!(within == of, u64::from(CLASSES[of].size) == size);
        }
        assert_eq!(class_within(MAX_SMALL + 1), class_of(MAX_SMALL));
    }
}

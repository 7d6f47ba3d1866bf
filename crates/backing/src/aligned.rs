//! Aligned buffers, which reads and writes past the host's page cache need.

/// An alignment that suffices for any disk.
pub const ALIGNED: usize = 4096;

/// A buffer that begins at a multiple of [`ALIGNED`] in memory.
#[derive(Default)]
pub struct Aligned {
    memory: Vec<u8>,
    len: usize,
}

impl Aligned {
    /// Makes the buffer `len` bytes long, and returns them; their values are unspecified.
    pub fn resized(&mut self, len: usize) -> &mut [u8] {
        if self.memory.len() < len + ALIGNED {
            self.memory = vec![0; len + ALIGNED];
        }
        self.len = len;
        self.bytes()
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        let start = self.memory.as_ptr().align_offset(ALIGNED).min(self.memory.len() - self.len);
        &mut self.memory[start..start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_where_it_should_at_any_length() {
        let mut buffer = Aligned::default();
        assert!(buffer.bytes().is_empty());
        for len in [1, 512, 5000, 1 << 20, 3] {
            let bytes = buffer.resized(len);
            assert_eq!((bytes.len(), bytes.as_ptr() as usize % ALIGNED), (len, 0));
            bytes.fill(len as u8);
            assert!(buffer.bytes().iter().all(|byte| *byte == len as u8));
        }
    }
}

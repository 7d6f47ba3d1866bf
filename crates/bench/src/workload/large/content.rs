//! Files of blocks, and the check of their content: each piece begins with its number.

use crate::prelude::*;

/// Bytes of a read or write in the order of the file.
pub const PIECE: usize = 1 << 20;
/// Bytes of a block, which is overwritten and read at random.
pub const BLOCK: usize = 4096;

/// Writes a new file of `bytes` in order, and syncs it; returns bytes per second until it is durable.
pub fn write(place: &impl Place, path: &Name, bytes: u64) -> Result<f64, Error> {
    let mut data = Rng::new(9).bytes(PIECE);
    let start = now();
    let file = place.create(path)?;
    for at in (0..bytes).step_by(PIECE) {
        data[..8].copy_from_slice(&at.to_le_bytes());
        place.write(&file, at, &data)?;
    }
    place.fsync(&file)?;
    Ok(per_second(bytes, start))
}

/// Reads such a file in order; returns bytes per second.
pub fn read(place: &impl Place, path: &Name, bytes: u64) -> Result<f64, Error> {
    let file = place.open_read(path)?;
    let mut buf = vec![0; PIECE];
    let start = now();
    for at in (0..bytes).step_by(PIECE) {
        let n = place.read(&file, at, &mut buf)?;
        if n != PIECE || buf[..8] != at.to_le_bytes() {
            return Err(Error::Wrong(format!("{n} bytes of {PIECE} at {at}, beginning with {:?}", &buf[..8])));
        }
    }
    Ok(per_second(bytes, start))
}

/// Reads any one block, which must be whole.
#[inline]
pub fn read_block<P: Place>(place: &P, file: &P::Handle<'_>, at: u64, buf: &mut [u8; BLOCK]) -> Result<(), Error> {
    match place.read(file, at, buf)? {
        BLOCK => Ok(()),
        n => Err(Error::Wrong(format!("{n} bytes of {BLOCK} at {at}"))),
    }
}

/// Overwrites of blocks of a file, in an order drawn from a seed.
pub struct Overwrites {
    random: Rng,
    blocks: u64,
    data: Vec<u8>,
}

impl Overwrites {
    pub fn new(seed: u64, bytes: u64) -> Overwrites {
        Overwrites { random: Rng::new(seed), blocks: bytes / BLOCK as u64, data: Rng::new(seed).bytes(BLOCK) }
    }

    /// Overwrites any one block. The number at the beginning of a piece stays.
    #[inline]
    pub fn one<P: Place>(&mut self, place: &P, file: &P::Handle<'_>) -> Result<(), Error> {
        let block = self.random.below(self.blocks);
        self.block(place, file, block)
    }

    /// Overwrites each block once.
    pub fn all<P: Place>(&mut self, place: &P, file: &P::Handle<'_>) -> Result<(), Error> {
        let mut order: Vec<u64> = (0..self.blocks).collect();
        self.random.shuffle(&mut order);
        order.into_iter().try_for_each(|block| self.block(place, file, block))
    }

    #[inline]
    fn block<P: Place>(&mut self, place: &P, file: &P::Handle<'_>, block: u64) -> Result<(), Error> {
        let at = block * BLOCK as u64;
        let piece = at / PIECE as u64 * PIECE as u64;
        let first = if at == piece { piece } else { self.random.next() };
        self.data[..8].copy_from_slice(&first.to_le_bytes());
        place.write(file, at, &self.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 3 << 20;

    #[test]
    fn what_is_written_is_read_also_after_all_was_overwritten() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let path = name("large".into());
        assert!(write(&place, &path, BYTES).expect("written") > 0.0);
        assert!(read(&place, &path, BYTES).expect("read") > 0.0);
        let before = std::fs::read(dir.path().join("large")).expect("read");
        let file = place.open_update(&path).expect("open");
        let mut writes = Overwrites::new(1, BYTES);
        writes.one(&place, &file).expect("overwritten");
        writes.all(&place, &file).expect("overwritten");
        assert!(read(&place, &path, BYTES).expect("read") > 0.0);
        let after = std::fs::read(dir.path().join("large")).expect("read");
        let pairs = before.chunks(BLOCK).zip(after.chunks(BLOCK));
        assert!(pairs.clone().all(|(a, b)| a != b) && pairs.count() == BYTES as usize / BLOCK);
        read_block(&place, &file, 8192, &mut [0; BLOCK]).expect("a block");
    }

    #[test]
    fn another_content_and_a_short_file_are_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let path = name("large".into());
        write(&place, &path, BYTES).expect("written");
        assert!(matches!(read(&place, &path, BYTES + 1), Err(Error::Wrong(_))));
        let file = place.open_update(&path).expect("open");
        assert!(matches!(read_block(&place, &file, BYTES, &mut [0; BLOCK]), Err(Error::Wrong(_))));
        place.write(&file, PIECE as u64, &[7; 8]).expect("written");
        assert!(matches!(read(&place, &path, BYTES), Err(Error::Wrong(_))));
    }
}

//! Parity: the sum, bit by bit and without carry, of memory of one length.

use crate::sys::memory::Buffers;

/// Bytes that are summed at a time: so the pieces of all sources stay in the processor's first cache.
const PIECE: usize = 8 << 10;

pub fn add(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from);
}

/// The sum of all sources, each as long as `to`.
pub fn sum(of: &[Buffers], to: &mut [u8]) {
    let mut piece = [0; PIECE];
    for (n, to) in to.chunks_mut(PIECE).enumerate() {
        let range = (n * PIECE) as u64..(n * PIECE + to.len()) as u64;
        let piece = &mut piece[..to.len()];
        for (which, one) in of.iter().enumerate() {
            let one = one.slice(range.clone());
            match which {
                0 => one.copy_to(to),
                _ => {
                    one.copy_to(piece);
                    add(to, piece);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memory::Aligned;

    #[test]
    fn any_of_them_is_the_sum_of_the_others() {
        let of = |seed: u8| (0..20_000u32).map(|n| (n.wrapping_mul(31) >> 3) as u8 ^ seed).collect::<Vec<u8>>();
        let columns: Vec<Vec<u8>> = [3, 7, 99, 250].into_iter().map(of).collect();
        let mut all: Vec<Buffers> = columns.iter().map(|column| Buffers::whole(&Aligned::of(column))).collect();
        let mut parity = vec![1; 20_000];
        sum(&all, &mut parity);
        all[2] = Buffers::whole(&Aligned::of(&parity));
        let mut found = vec![0; 20_000];
        sum(&all, &mut found);
        assert!(found == columns[2]);
    }
}

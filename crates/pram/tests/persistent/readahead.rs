//! Reading ahead: the same bytes and the same errors as without.

use backing::log::{Disk, SECTOR};
use backing::readahead::{read, stream, Piece};
use rng::Rng;

use crate::rig::MIB;
use crate::tape::Tape;

fn noise(len: usize) -> Tape {
    Tape::of(Rng::new(1).bytes(len))
}

/// Reads small and large, forward and a little back, beyond the stream and beyond the end of the disk.
#[test]
fn a_stream_gives_what_the_disk_holds() {
    let tape = noise(9 * MIB as usize + 100);
    for seed in 0..40 {
        let (mut rng, bad) = (Rng::new(seed), (seed % 2 == 0).then_some(5 * MIB + seed * SECTOR));
        tape.with(|s| s.bad_sector = bad);
        let ahead = tape.read_at_once();
        let range = rng.below(MIB)..8 * MIB + rng.below(2 * MIB);
        let (mut at, mut failed) = (range.start, 0);
        stream(&ahead, range, |source| {
            while at < 11 * MIB {
                let len = [1, 600, 100_000, 3 * MIB][rng.below(4) as usize].min(1 + rng.below(3 * MIB)) as usize;
                let (mut found, mut right) = (vec![0; len], vec![0; len]);
                let (streamed, plain) = (source.read_exact_at(&mut found, at), tape.read_exact_at(&mut right, at));
                assert_eq!(streamed.map_err(|e| e.kind()), plain.as_ref().copied().map_err(|e| e.kind()), "at {at}");
                match plain {
                    Ok(()) => assert!(found == right, "at {at}"),
                    Err(_) => failed += 1,
                }
                at = (at + len as u64).saturating_sub(rng.below(4) / 3 * rng.below(MIB));
            }
            Ok(())
        })
        .unwrap();
        assert!(failed > 0, "the end of the disk was not met");
    }
}

#[test]
fn pieces_come_in_order_and_an_error_ends_all() {
    let tape = noise(MIB as usize);
    let bytes = tape.bytes();
    let pieces: Vec<Piece> = (0..100).map(|n| n * 9_000 % 1_000_000..n * 9_000 % 1_000_000 + 1 + n * 7).collect();
    for disk in [tape.clone(), tape.read_at_once()] {
        let mut seen = 0;
        read(&disk, pieces.iter().cloned(), |ahead| {
            while let Some((piece, done, found)) = ahead.take_next() {
                done.unwrap();
                assert_eq!(piece, pieces[seen]);
                assert!(found == &bytes[piece.start as usize..piece.end as usize]);
                seen += 1;
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, 100);
        let ended = read(&disk, pieces.iter().cloned(), |ahead| {
            ahead.take_next();
            Err::<(), _>(pram::Error::RedoFull)
        });
        assert!(ended.is_err());
    }
}

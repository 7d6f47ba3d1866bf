//! Every inode comes back as it was packed; no bytes make a reader panic.

use rng::Rng;

use super::block::{self, MAX};
use super::fit::{self, Tally};
use super::profile::Codec;
use super::seen::Seen;
use super::PER_BLOCK;
use super::*;
use crate::layout::{RawInode, Root};

/// An inode as there are.
fn usual(rng: &mut Rng, n: u64) -> RawInode {
    let second = 1_700_000_000 + rng.below(1000) as i64 * i64::from(rng.below(4) == 0) * 86_400;
    let mtime = second * 1_000_000_000 + rng.below(1_000_000_000) as i64 * i64::from(rng.below(2) == 0);
    let btime = 1_790_000_000_000_000_000 + n as i64 * 100_000 + rng.below(50_000) as i64;
    let is_dir = rng.below(10) == 0;
    let bits = rng.below(18);
    let size = rng.below(1 << bits);
    RawInode {
        content: Root { off: 0x12_3000 + n * 4096 + 16 * rng.below(200), form: 1 + u8::from(is_dir), depth: 0 }.pack(),
        size,
        extra: if is_dir { 77 } else { 0 },
        mtime,
        ctime: if rng.below(3) > 0 { btime } else { mtime },
        atime: if rng.below(3) > 0 { btime } else { mtime + rng.below(1 << 50) as i64 },
        btime,
        xattr: if rng.below(20) == 0 { 0x5000 + 32 * rng.below(100) } else { 0 },
        perm: 3 + u32::from(rng.below(5) == 0),
        nlink: 1 + u32::from(is_dir),
        generation: 99 + rng.below(3) as u32,
        kind: if is_dir { 4 } else { 8 },
        delay: 0,
        settings: 0,
    }
}

/// Any inode: each field random, extreme or usual.
fn any(rng: &mut Rng, n: u64) -> RawInode {
    let mut raw = usual(rng, n);
    let mut word = |was: u64| match rng.below(4) {
        0 => rng.next(),
        1 => [0, 1, u64::MAX, 1 << 63, u64::MAX >> 1, 15][rng.below(6) as usize],
        _ => was,
    };
    raw.content = word(raw.content);
    raw.size = word(raw.size);
    raw.extra = word(raw.extra);
    raw.mtime = word(raw.mtime as u64) as i64;
    raw.ctime = word(raw.ctime as u64) as i64;
    raw.atime = word(raw.atime as u64) as i64;
    raw.btime = word(raw.btime as u64) as i64;
    raw.xattr = word(raw.xattr);
    raw.perm = word(u64::from(raw.perm)) as u32;
    raw.nlink = word(u64::from(raw.nlink)) as u32;
    raw.generation = word(u64::from(raw.generation)) as u32;
    raw.kind = word(u64::from(raw.kind)) as u8;
    raw.delay = word(u64::from(raw.delay)) as u8;
    raw.settings = word(u64::from(raw.settings)) as u16;
    raw
}

fn many(rng: &mut Rng, count: u64, one: impl Fn(&mut Rng, u64) -> RawInode) -> Vec<RawInode> {
    (0..count).map(|n| one(rng, n)).collect()
}

/// A profile of each codec, of usual inodes.
fn profiles(rng: &mut Rng) -> Vec<Profile> {
    let inodes = many(rng, 4000, usual);
    let seen = Seen::of(&inodes);
    Codec::ALL.iter().map(|codec| seen.profile(*codec)).collect()
}

fn some_block(rng: &mut Rng, one: impl Fn(&mut Rng, u64) -> RawInode) -> [Option<RawInode>; PER_BLOCK] {
    std::array::from_fn(|n| (rng.below(8) > 0).then(|| one(rng, n as u64)))
}

#[test]
fn every_inode_comes_back() {
    let mut rng = Rng::new(7);
    for profile in profiles(&mut rng) {
        for round in 0..4000 {
            let inodes = match round % 2 {
                0 => some_block(&mut rng, usual),
                _ => some_block(&mut rng, any),
            };
            let mut out = [0xee; MAX];
            let len = pack(&profile, 5, &inodes, &mut out);
            let header = Header::read(&out[..len]).expect("a block");
            assert_eq!((header.profile, header.bytes()), (5, len));
            for (n, inode) in inodes.iter().enumerate() {
                assert!(usize::from(header.lengths[n]) <= 80);
                assert_eq!(unpack(&profile, &out[..len], n), *inode, "{round} {n}");
            }
        }
    }
}

#[test]
fn what_is_usual_is_small() {
    let mut rng = Rng::new(8);
    let inodes = many(&mut rng, 8000, usual);
    let profile = Profile::of(&inodes);
    let mut bytes = 0;
    for chunk in inodes.chunks(PER_BLOCK) {
        bytes += pack(&profile, 0, &std::array::from_fn(|n| chunk.get(n).copied()), &mut [0; MAX]);
    }
    let each = bytes as f64 / inodes.len() as f64;
    assert!(each < 28.0, "{each} bytes for each");
}

/// The fewest bits of ascending ranges with unary prefixes, by trying all.
fn fewest(values: &[(u64, u64)], k: u64, width: u64) -> u64 {
    let left: u64 = values.iter().map(|(_, n)| n).sum();
    let other = left * (k.max(1) + width);
    if k == 10 || values.is_empty() {
        return other;
    }
    let ranges = (0..width).map(|extra| {
        let end = values.partition_point(|(v, _)| v - values[0].0 < 1 << extra);
        let held: u64 = values[..end].iter().map(|(_, n)| n).sum();
        held * (k + 1 + extra) + fewest(&values[end..], k + 1, width)
    });
    ranges.min().unwrap_or(other).min(other)
}

#[test]
fn gamma_ranges_are_the_best_there_are() {
    let mut rng = Rng::new(12);
    for _ in 0..60 {
        let mut tally = Tally::default();
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..rng.below(7) + 1 {
            let scale = rng.below(8);
            let (value, n) = (rng.below(2 << scale), 1 + rng.below(40));
            (0..n).for_each(|_| tally.add(value));
            *counts.entry(value).or_insert(0) += n;
        }
        let values: Vec<(u64, u64)> = counts.into_iter().collect();
        let bits = tally.bits(&fit::gamma(&tally, 9));
        assert_eq!(bits, fewest(&values, 0, 9), "{values:?}");
    }
}

#[test]
fn a_foreign_inode_costs_little_more_than_itself() {
    let mut rng = Rng::new(13);
    let inodes = many(&mut rng, 4000, usual);
    let profile = Profile::of(&inodes);
    // The same ones, three years later, of other owners and in another place.
    let other = |mut inode: RawInode| {
        for time in [&mut inode.mtime, &mut inode.btime, &mut inode.ctime, &mut inode.atime] {
            *time += 1 << 56;
        }
        inode.perm += 77;
        inode.content += 1 << 30;
        inode.generation += 5;
        inode
    };
    let bytes = |one: &dyn Fn(RawInode) -> RawInode| -> usize {
        let packed = inodes.chunks(PER_BLOCK).map(|chunk| {
            let block = std::array::from_fn(|n| chunk.get(n).map(|inode| one(*inode)));
            pack(&profile, 0, &block, &mut [0; MAX])
        });
        packed.sum()
    };
    let (own, foreign) = (bytes(&|inode| inode), bytes(&other));
    assert!(foreign < own + 4 * inodes.len(), "{foreign} bytes against {own}");
    for codec in Codec::ALL {
        let none = Seen::default().profile(codec);
        let block = std::array::from_fn(|n| inodes.get(n).copied());
        let mut out = [0; MAX];
        let len = pack(&none, 0, &block, &mut out);
        (0..PER_BLOCK).for_each(|n| assert_eq!(unpack(&none, &out[..len], n), block[n]));
    }
}

#[test]
fn a_profile_comes_back_or_is_refused() {
    let mut rng = Rng::new(9);
    for profile in profiles(&mut rng) {
        let bytes = profile.to_bytes();
        let again = Profile::from_bytes(&bytes).expect("a profile");
        assert_eq!(again.to_bytes(), bytes);
        for _ in 0..300 {
            let mut damaged = bytes.clone();
            let at = rng.below(bytes.len() as u64) as usize;
            damaged[at] ^= 1 << rng.below(8);
            assert!(Profile::from_bytes(&damaged).is_none(), "byte {at}");
        }
        for len in 0..bytes.len() {
            assert!(Profile::from_bytes(&bytes[..len]).is_none());
        }
    }
}

/// Anyone who makes a profile may give it a right checksum.
#[test]
fn a_made_up_profile_is_refused_or_packs_every_inode() {
    let mut rng = Rng::new(14);
    let (mut taken, mut refused) = (0, 0);
    for profile in profiles(&mut rng) {
        let bytes = profile.to_bytes();
        for _ in 0..400 {
            let mut made = bytes.clone();
            for _ in 0..=rng.below(3) {
                let at = 9 + rng.below(made.len() as u64 - 9) as usize;
                made[at] = rng.next() as u8;
            }
            let check = pram::mem::crc32c(&made[9..]).to_le_bytes();
            made[5..9].copy_from_slice(&check);
            let Some(profile) = Profile::from_bytes(&made) else {
                refused += 1;
                continue;
            };
            taken += 1;
            let inodes = some_block(&mut rng, any);
            let mut out = [0; MAX];
            let len = pack(&profile, 0, &inodes, &mut out);
            for (n, inode) in inodes.iter().enumerate() {
                assert_eq!(unpack(&profile, &out[..len], n), *inode);
            }
        }
    }
    assert!(taken > 20 && refused > 20, "{taken} {refused}");
}

#[test]
fn any_bytes_are_refused_or_read() {
    let mut rng = Rng::new(10);
    for profile in profiles(&mut rng) {
        for _ in 0..20_000 {
            let len = rng.below(300) as usize;
            let mut bytes = rng.bytes(len);
            // Lengths that may be.
            bytes.iter_mut().take(PER_BLOCK).for_each(|b| *b %= 90);
            (0..PER_BLOCK).for_each(|n| _ = unpack(&profile, &bytes, n));
        }
    }
}

#[test]
fn flipped_bytes_are_refused_or_read() {
    let mut rng = Rng::new(11);
    for profile in profiles(&mut rng) {
        for _ in 0..2000 {
            let mut out = [0; MAX];
            let len = pack(&profile, 0, &some_block(&mut rng, any), &mut out);
            let at = rng.below(len as u64) as usize;
            out[at] ^= rng.next() as u8;
            (0..PER_BLOCK).for_each(|n| _ = block::unpack(&profile, &out[..len], n));
            (0..PER_BLOCK).for_each(|n| _ = block::unpack(&profile, &out[..len.min(at)], n));
        }
    }
}

/// Names of this machine's, and any others.
fn names() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(4);
    let mut names: Vec<Vec<u8>> = (0..500).map(|n| format!("lib{n:03}_module.cpython-311.pyc").into_bytes()).collect();
    names.extend((0..500).map(|_| (0..1 + rng.below(255)).map(|_| 1 + rng.below(255) as u8).collect::<Vec<u8>>()));
    names.extend([vec![b'a'; 255], vec![255; 255], b"\xff".to_vec(), "\u{4f60}\u{597d}.txt".into()]);
    names
}

#[test]
fn names_come_back() {
    let mut sample = names::Sample::default();
    names().iter().for_each(|name| sample.add(name));
    for symbols in [sample.symbols(), names::Sample::default().symbols(), builtin().symbols().clone()] {
        let mut bytes = Vec::new();
        symbols.to_bytes(&mut bytes);
        let mut rest = &bytes[..];
        assert_eq!(names::Symbols::from_bytes(&mut rest).as_ref(), Some(&symbols));
        assert!(rest.is_empty());
        for name in names() {
            let coded = symbols.encode(&name);
            assert!(coded.len() <= names::CODED_MAX);
            assert_eq!(symbols.decode(&coded, &mut [0; 255]), Some(&name[..]));
        }
    }
}

/// The names of a pool by its own symbols take half, and are the same, also names that the sample left out.
#[test]
fn names_of_a_kind_take_half() {
    let names: Vec<Vec<u8>> = (0..40_000).map(|n| format!("lib{n:03}_module.cpython-311.pyc").into_bytes()).collect();
    let mut sample = names::Sample::default();
    names.iter().for_each(|name| sample.add(name));
    let symbols = sample.symbols();
    let (plain, coded) = names.iter().fold((0, 0), |(p, c), name| (p + name.len(), c + symbols.encode(name).len()));
    assert!(coded * 3 < plain, "{coded} of {plain}");
}

#[test]
fn any_bytes_are_read_as_symbols_and_names() {
    let mut rng = Rng::new(8);
    let symbols = builtin().symbols();
    for _ in 0..20_000 {
        let any: Vec<u8> = (0..rng.below(300)).map(|_| rng.next() as u8).collect();
        if let Some(name) = symbols.decode(&any, &mut [0; 255]) {
            assert!(name.len() <= 255);
        }
        names::Symbols::from_bytes(&mut &any[..]);
        let few: Vec<u8> = any.iter().map(|byte| byte % 10).collect();
        names::Symbols::from_bytes(&mut &few[..]);
    }
}

//! Sizes, limits, full regions, concurrent readers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pram::memory::capacity_of;
use pram::{Off, Tag};

use super::*;
use crate::layout::Root;

/// Bytes of all objects of a file.
fn occupied(r: &Memory, c: &Content) -> u64 {
    let mut sum = 0;
    visit(r, c, &mut |off, tag| sum += r.resolve(off, tag).unwrap()).unwrap();
    sum
}

#[test]
fn a_file_of_100_bytes_takes_112() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let mut c = Content::default();
    put(&s, &mut c, 0, &[1; 100]).unwrap();
    assert_eq!((occupied(s.memory(), &c), allocated(s.memory(), &c)), (112, 112));
}

/// A file that was cut while its blocks were being written or evicted has no tree any more: that is no damage.
#[test]
fn what_is_not_large_has_nothing_to_compact() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let mut c = Content::default();
    for bytes in [0, 100, 40 << 10] {
        put(&s, &mut c, 0, &vec![1; bytes]).unwrap();
        commit(&s, &mut c, |tx, c| compact(tx, c, 0..3)).unwrap();
        assert!(whole(s.memory(), &c) == vec![1; bytes]);
    }
}

#[test]
fn a_file_of_40_kb_pays_little_for_its_index() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let mut c = Content::default();
    put(&s, &mut c, 0, &[1; 40 << 10]).unwrap();
    assert_eq!(occupied(s.memory(), &c), (40 << 10) + 128);
    assert_eq!(allocated(s.memory(), &c), 40 << 10);
}

#[test]
fn a_sparse_write_takes_only_its_path() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let mut c = Content::default();
    put(&s, &mut c, 1 << 50, b"far").unwrap();
    assert!(occupied(s.memory(), &c) <= PAGE + 5 * 4096);
    assert_eq!(file_objects(s.memory(), &c).len(), 6);
}

#[test]
fn appends_move_a_small_file_rarely_and_trimming_gives_the_slack_back() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let (mut c, mut moves) = (Content::default(), 0);
    for i in 0..3000u64 {
        let before = c.root;
        put(&s, &mut c, i * 10, &[i as u8; 10]).unwrap();
        moves += u32::from(c.root != before);
    }
    assert!(moves <= 13, "{moves} moves");
    let before = whole(s.memory(), &c);
    commit(&s, &mut c, |tx, c| truncate(tx, c, 500)).unwrap();
    assert!(has_slack(s.memory(), &c));
    commit(&s, &mut c, |tx, c| trim(tx, c).map(|changed| assert!(changed))).unwrap();
    assert_eq!(occupied(s.memory(), &c), capacity_of(500));
    assert_eq!(whole(s.memory(), &c), before[..500]);
    assert!(!has_slack(s.memory(), &c));
}

#[test]
fn a_tree_that_became_small_turns_direct() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let mut c = Content::default();
    let data: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    put(&s, &mut c, 0, &data).unwrap();
    commit(&s, &mut c, |tx, c| truncate(tx, c, 9000)).unwrap();
    assert!(has_slack(s.memory(), &c));
    commit(&s, &mut c, |tx, c| trim(tx, c).map(|changed| assert!(changed))).unwrap();
    assert_eq!((occupied(s.memory(), &c), c.pages), (capacity_of(9000), 0));
    assert_eq!(whole(s.memory(), &c), data[..9000]);
}

/// As many pages as the size wants, but one of them is beyond it.
#[test]
fn a_small_tree_with_a_hole_stays_one() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let mut c = Content::default();
    put(&s, &mut c, 0, &[1; 100_000]).unwrap();
    commit(&s, &mut c, |tx, c| truncate(tx, c, 9000)).unwrap();
    punch_all(&s, &mut c, PAGE, 2 * PAGE);
    commit(&s, &mut c, |tx, c| allocate(tx, c, 20_000, 1, true).map(|_| ())).unwrap();
    assert_eq!(c.pages, 3);
    commit(&s, &mut c, |tx, c| trim(tx, c).map(|changed| assert!(!changed))).unwrap();
    assert!(whole(s.memory(), &c)[4096..8192].iter().all(|b| *b == 0));
}

#[test]
fn growth_takes_what_is_left() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let (mut c, mut other) = (Content::default(), Content::default());
    put(&s, &mut c, 0, &[1; 4672]).unwrap();
    put(&s, &mut other, 0, &[2; 5456]).unwrap();
    // Larger blocks there are none left, and of 5456 bytes one.
    let mut rest = Vec::new();
    for size in [32_768, 5456] {
        let mut more = Content::default();
        while put(&s, &mut more, 0, &vec![3; size]).is_ok() {
            rest.push(std::mem::take(&mut more));
        }
    }
    commit(&s, &mut other, free).unwrap();
    put(&s, &mut c, 4672, &[4; 300]).unwrap();
    assert_eq!(occupied(s.memory(), &c), 5456);
}

#[test]
fn what_fallocate_reserved_stays_until_truncation() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let mut c = Content::default();
    put(&s, &mut c, 0, &[1; 100]).unwrap();
    commit(&s, &mut c, |tx, c| allocate(tx, c, 0, 5000, true).map(|_| ())).unwrap();
    assert_eq!(c.size, 100);
    assert!(allocated(s.memory(), &c) >= 5000 && !has_slack(s.memory(), &c));
    commit(&s, &mut c, |tx, c| truncate(tx, c, 100)).unwrap();
    assert!(has_slack(s.memory(), &c));
}

#[test]
fn truncation_to_the_same_size_gives_reserved_memory_back() {
    let s = pram::Session::in_memory(4 << 20).unwrap();
    for size in [0, 1, 4096, 100_000] {
        let mut c = Content::default();
        put(&s, &mut c, 0, &vec![1; size as usize]).unwrap();
        let reserved = FILLED * PAGE;
        commit(&s, &mut c, |tx, c| allocate(tx, c, 0, reserved, true).map(|_| ())).unwrap();
        assert_eq!((c.size, allocated(s.memory(), &c)), (size, reserved));
        commit(&s, &mut c, |tx, c| truncate(tx, c, size)).unwrap();
        assert_eq!((c.size, allocated(s.memory(), &c)), (size, size.next_multiple_of(PAGE)));
        assert_eq!(whole(s.memory(), &c), vec![1; size as usize]);
        commit(&s, &mut c, free).unwrap();
    }
    assert!(heap_objects(s.memory()).is_empty());
}

/// All pages beyond the size go, in transactions that each free at most so many; the pages below stay.
#[test]
fn truncation_of_much_takes_several_transactions() {
    let s = pram::Session::in_memory(16 << 20).unwrap();
    for (size, left) in [(0, 0), (1, 1), (5000, 2), (3 << 20, 3 << 8)] {
        let mut c = Content::default();
        let bytes: Vec<u8> = (0..9u32 << 20).map(|i| (i / 7) as u8).collect();
        bytes.chunks(1 << 20).zip(0..).for_each(|(part, i)| put(&s, &mut c, i << 20, part).unwrap());
        commit(&s, &mut c, |tx, c| truncate(tx, c, size)).unwrap();
        assert!(c.is_cut() && c.pages == 9 << 8, "at first only the size changes");
        let mut pieces = 0;
        while c.is_cut() {
            assert_eq!(whole(s.memory(), &c), bytes[..size as usize]);
            let before = c.pages;
            commit(&s, &mut c, cut).unwrap();
            assert!((1..=FREED).contains(&(before - c.pages)), "{before} to {}", c.pages);
            check(s.memory(), &c, &mut |p| panic!("{p}"));
            pieces += 1;
        }
        assert_eq!((c.pages, pieces), (left, (9u64 << 8).div_ceil(FREED) - left / FREED));
        assert_eq!(whole(s.memory(), &c), bytes[..size as usize]);
        commit(&s, &mut c, |tx, c| truncate(tx, c, size + 10_000)).unwrap();
        assert!(whole(s.memory(), &c)[size as usize..].iter().all(|b| *b == 0));
        while c.root != 0 {
            match c.is_cut() {
                true => commit(&s, &mut c, cut).unwrap(),
                false => commit(&s, &mut c, |tx, c| truncate(tx, c, 0)).unwrap(),
            }
        }
    }
    assert!(heap_objects(s.memory()).is_empty());
}

/// Of a file with few pages, however far apart, one transaction frees all.
#[test]
fn what_is_cut_and_sparse_is_freed_where_it_is() {
    let s = pram::Session::in_memory(16 << 20).unwrap();
    let mut c = Content::default();
    for i in 0..FREED + 10 {
        put(&s, &mut c, i << 30, b"x").unwrap();
    }
    commit(&s, &mut c, |tx, c| truncate(tx, c, 3 << 30)).unwrap();
    while c.is_cut() {
        commit(&s, &mut c, cut).unwrap();
    }
    assert_eq!(c.pages, 3);
    put(&s, &mut c, 5 << 30, b"y").unwrap();
    check(s.memory(), &c, &mut |p| panic!("{p}"));
    commit(&s, &mut c, |tx, c| truncate(tx, c, 0)).unwrap();
    assert!(heap_objects(s.memory()).is_empty());
}

#[test]
fn large_reservations_take_several_transactions() {
    let s = pram::Session::in_memory(16 << 20).unwrap();
    let mut c = Content::default();
    let (mut at, mut steps) = (0, 0);
    while at < 9 << 20 {
        commit(&s, &mut c, |tx, c| allocate(tx, c, at, (9 << 20) - at, false).map(|reached| at = reached)).unwrap();
        assert_eq!(c.size, at);
        steps += 1;
    }
    assert_eq!((steps, c.pages), ((9 << 8) / FILLED, 9 << 8));
    assert!(whole(s.memory(), &c).iter().all(|b| *b == 0));
    // Zeroing keeps the memory.
    put(&s, &mut c, 5 << 20, &[1; 1 << 20]).unwrap();
    let mut at = 0;
    while at < 9 << 20 {
        commit(&s, &mut c, |tx, c| zero(tx, c, at, (9 << 20) - at, true).map(|reached| at = reached)).unwrap();
    }
    assert_eq!(c.pages, 9 << 8);
    assert!(whole(s.memory(), &c).iter().all(|b| *b == 0));
}

#[test]
fn the_largest_file_and_no_larger() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let mut c = Content::default();
    let fbig = |done: Result<()>| assert_eq!(done.unwrap_err().errno(), Errno::FBIG);
    put(&s, &mut c, MAX_SIZE - 3, b"end").unwrap();
    assert_eq!(c.size, MAX_SIZE);
    fbig(put(&s, &mut c, MAX_SIZE - 2, b"end"));
    fbig(put(&s, &mut c, u64::MAX - 1, b"end"));
    fbig(commit(&s, &mut c, |tx, c| truncate(tx, c, MAX_SIZE + 1)));
    fbig(commit(&s, &mut c, |tx, c| insert(tx, c, 0, PAGE)));
    let mut buf = [9; 10];
    assert_eq!(read(s.memory(), &c, MAX_SIZE - 5, &mut buf).unwrap(), 5);
    assert_eq!(&buf[..5], b"\0\0end");
    assert_eq!(data_at(s.memory(), &c, 0), Some((MAX_SIZE - 3) / PAGE * PAGE));
    assert_eq!(hole_at(s.memory(), &c, MAX_SIZE - 1), Some(MAX_SIZE));
}

/// Would take years if it looked at every offset.
#[test]
fn huge_sparse_files_are_cut_and_freed_at_once() {
    let s = pram::Session::in_memory(4 << 20).unwrap();
    let mut c = Content::default();
    for bit in 0..62 {
        put(&s, &mut c, 1 << bit, &[bit as u8 + 1; 2]).unwrap();
    }
    commit(&s, &mut c, |tx, c| truncate(tx, c, MAX_SIZE)).unwrap();
    let end = (1 << 61) + 1;
    assert_eq!(punch_all(&s, &mut c, (1 << 30) + 1, end), [end]);
    let mut buf = [9; 2];
    read(s.memory(), &c, 1 << 30, &mut buf).unwrap();
    assert_eq!(buf, [31, 0]);
    read(s.memory(), &c, 1 << 61, &mut buf).unwrap();
    assert_eq!(buf, [0, 62]);
    assert_eq!(data_at(s.memory(), &c, (1 << 30) + PAGE), Some(1 << 61));
    commit(&s, &mut c, |tx, c| truncate(tx, c, 1 << 40)).unwrap();
    assert_eq!(Root::unpack(c.root).depth, 3, "the tree is as high as its last page wants");
    assert_eq!(heap_objects(s.memory()), file_objects(s.memory(), &c));
    commit(&s, &mut c, free).unwrap();
    assert!(heap_objects(s.memory()).is_empty());
}

/// Its content is more than the undo log takes, and there is no memory for a copy.
#[test]
fn a_full_region_allows_a_hole_in_the_largest_direct_file() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let mut c = Content::default();
    put(&s, &mut c, 0, &[5; 32_768]).unwrap();
    let mut more = Vec::new();
    for size in [32_768, 16_384, 4096] {
        let mut other = Content::default();
        while put(&s, &mut other, 0, &vec![5; size]).is_ok() {
            more.push(std::mem::take(&mut other));
        }
    }
    let ends = punch_all(&s, &mut c, 7, 32_768);
    assert_eq!((ends.len(), c.size), (2, 32_768));
    let bytes = whole(s.memory(), &c);
    assert!(bytes[..7].iter().all(|b| *b == 5) && bytes[7..].iter().all(|b| *b == 0));
}

#[test]
fn a_full_region_refuses_growth_and_allows_everything_else() {
    let s = pram::Session::in_memory(1 << 20).unwrap();
    let (mut c, mut small) = (Content::default(), Content::default());
    put(&s, &mut small, 0, &[5; 12_000]).unwrap();
    // Its neighbours, so that there is no block left for a copy.
    let mut more = [Content::default(); 4];
    more.iter_mut().for_each(|c| put(&s, c, 0, &[5; 12_000]).unwrap());
    let mut n = 0u64;
    while put(&s, &mut c, n * PAGE, &[n as u8; PAGE as usize]).is_ok() {
        n += 1;
    }
    assert!(n > 50);
    let nospc = |done: Result<()>| assert_eq!(done.unwrap_err().errno(), Errno::NOSPC);
    let before = (c, heap_objects(s.memory()));
    nospc(put(&s, &mut c, n * PAGE, &[1; 1]));
    nospc(put(&s, &mut c, 3, &[1; 1 << 20]));
    assert_eq!((c, heap_objects(s.memory())), before);
    // Overwriting a page, a piece, a small file.
    put(&s, &mut c, PAGE, &[0xaa; PAGE as usize]).unwrap();
    put(&s, &mut c, 10, &[0xbb; 100]).unwrap();
    put(&s, &mut small, 0, &[6; 12_000]).unwrap();
    assert!(whole(s.memory(), &small).iter().all(|b| *b == 6));
    let bytes = whole(s.memory(), &c);
    assert!(bytes[..10].iter().all(|b| *b == 0) && bytes[10..110].iter().all(|b| *b == 0xbb));
    assert!(bytes[4096..8192].iter().all(|b| *b == 0xaa) && bytes[8192..12288].iter().all(|b| *b == 2));
    // Cutting off, making holes, freeing.
    commit(&s, &mut c, |tx, c| truncate(tx, c, (n - 10) * PAGE + 77)).unwrap();
    punch_all(&s, &mut c, 5000, 25_000);
    assert!(whole(s.memory(), &c)[5000..25_000].iter().all(|b| *b == 0));
    commit(&s, &mut c, free).unwrap();
    commit(&s, &mut small, free).unwrap();
    more.iter_mut().for_each(|c| commit(&s, c, free).unwrap());
    assert!(heap_objects(s.memory()).is_empty());
}

#[test]
fn one_megabyte_is_overwritten_in_one_transaction_or_not_at_all() {
    let s = pram::Session::in_memory(8 << 20).unwrap();
    let mut c = Content::default();
    for i in 0..3 {
        put(&s, &mut c, i << 20, &[1; 1 << 20]).unwrap();
    }
    let (before, objects) = (whole(s.memory(), &c), heap_objects(s.memory()));
    let mut op = s.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let mut new = c;
    write(&mut Edit::in_memory(&mut tx), &mut new, 1_000_001, &[2; 1 << 20]).unwrap();
    assert!(tx.room() > RESERVE);
    drop(tx);
    drop(op);
    assert!(whole(s.memory(), &c) == before && heap_objects(s.memory()) == objects);
    put(&s, &mut c, 1_000_001, &[2; 1 << 20]).unwrap();
    let after = whole(s.memory(), &c);
    assert!(after[1_000_001..1_000_001 + (1 << 20)].iter().all(|b| *b == 2));
    assert!(
        after[..1_000_001] == before[..1_000_001] && after[1_000_001 + (1 << 20)..] == before[1_000_001 + (1 << 20)..]
    );
}

/// A reader without a lock sees each version whole: here all bytes of a version are the same.
#[test]
fn readers_never_see_a_mixture() {
    const KEY: u64 = 5;
    let s = pram::Session::in_memory(4 << 20).unwrap();
    // The file's root and size lie in the memory, as in an inode.
    let mut inode = 0;
    commit(&s, &mut Content::default(), |tx, _| {
        inode = tx.alloc(Tag(3), 24)?.off;
        Ok(tx.init_zero(inode, 24)?)
    })
    .unwrap();
    let at = Off::<[u64; 3]>::new(inode);
    let load = || -> Result<Content> {
        let [root, size, pages] = s.memory().read(at)?;
        Ok(Content { root, size, pages, owner: 0 })
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0u64.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let mut op = s.begin().unwrap();
                op.lock(&[KEY]).unwrap();
                let mut c = load().unwrap();
                let mut tx = op.tx().unwrap();
                match round % 4 {
                    3 => truncate(&mut Edit::in_memory(&mut tx), &mut c, 0).unwrap(),
                    n => {
                        let len = [700, 20_000, 150_000][n as usize].max(c.size);
                        write(&mut Edit::in_memory(&mut tx), &mut c, 0, &vec![round as u8; len as usize]).unwrap();
                    }
                }
                tx.set(at, &[c.root, c.size, c.pages]).unwrap();
                tx.commit().unwrap();
            }
        });
        let mut versions = BTreeSet::new();
        let mut buf = vec![0; 200_000];
        let start = Instant::now();
        while versions.len() < 100 && start.elapsed() < Duration::from_secs(60) && !writer.is_finished() {
            let n = s.read(KEY, || read(s.memory(), &load()?, 0, &mut buf)).unwrap();
            let mixture = buf[..n].iter().any(|b| *b != buf[0]);
            if mixture {
                done.store(true, Ordering::Relaxed);
            }
            assert!(!mixture, "{n} bytes of several versions");
            versions.insert((n, buf[0]));
        }
        done.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert_eq!(versions.len(), 100, "the reader has seen too few versions");
    });
}

/// A search goes on later, where there is much to pass over.
#[test]
fn a_search_is_cut() {
    let s = pram::Session::in_memory(4 << 20).unwrap();
    let mut c = Content::default();
    for i in 0..300u64 {
        put(&s, &mut c, i << 21, b"x").unwrap();
    }
    assert!(matches!(seek_hole(s.memory(), &c, 0), Ok(Sought::At(PAGE))));
    commit(&s, &mut c, |tx, c| truncate(tx, c, MAX_SIZE)).unwrap();
    let from = (299 << 21) + PAGE;
    assert_eq!(seek_data(s.memory(), &c, from).unwrap(), Sought::Nowhere);
    put(&s, &mut c, MAX_SIZE - 1, b"y").unwrap();
    assert!(matches!(seek_data(s.memory(), &c, from), Ok(Sought::After(at)) if at > from));
    assert_eq!(data_at(s.memory(), &c, from), Some(MAX_SIZE / PAGE * PAGE));
}

/// A reserved page is a hole with memory: it reads as zeros without having been zeroed, the size moves over any amount of
/// it at once, and writing there takes no further memory.
#[test]
fn reserved_pages_are_zeros_with_memory() {
    let s = pram::Session::in_memory(8 << 20).unwrap();
    // Garbage, in memory that is free then.
    let mut other = Content::default();
    for i in 0..6 {
        put(&s, &mut other, i << 20, &vec![0xee; 1 << 20]).unwrap();
    }
    commit(&s, &mut other, free_all).unwrap();
    let (mut c, mut m) = (Content::default(), Model::default());
    put(&s, &mut c, 0, &[1; 50_000]).unwrap();
    m.put(0, &[1; 50_000]);
    let mut at = 0;
    while at < 4 << 20 {
        commit(&s, &mut c, |tx, c| allocate(tx, c, at, (4 << 20) - at, true).map(|to| at = to)).unwrap();
    }
    assert_eq!((c.size, c.pages), (50_000, 1024));
    assert_eq!(data_at(s.memory(), &c, 50_000), None);
    // Undone, it leaves bytes beyond the end.
    let mut op = s.begin().unwrap();
    let mut tx = op.tx().unwrap();
    write(&mut Edit::in_memory(&mut tx), &mut c.clone(), 60_000, &[0xdd; 200_000]).unwrap();
    drop(tx);
    drop(op);
    let before = heap_objects(s.memory());
    commit(&s, &mut c, |tx, c| truncate(tx, c, 3 << 20)).unwrap();
    m.truncate(3 << 20);
    consistent(&s, &c, &m, "grown");
    assert!(whole(s.memory(), &c)[50_000..].iter().all(|b| *b == 0));
    assert_eq!((hole_at(s.memory(), &c, 0), data_at(s.memory(), &c, 53_248)), (Some(53_248), None));
    assert!(has_memory(s.memory(), &c, 0, 4 << 20).unwrap());
    for (off, len) in [(1 << 20, 5), ((1 << 20) + 9000, 10_000), ((4 << 20) - 5000, 4000), (2 << 20, 1 << 20)] {
        put(&s, &mut c, off, &vec![7; len]).unwrap();
        m.put(off, &vec![7; len]);
        consistent(&s, &c, &m, &format!("written at {off}"));
    }
    assert_eq!(heap_objects(s.memory()), before, "in its own memory");
    assert_eq!(data_at(s.memory(), &c, 53_248), Some(1 << 20));
    commit(&s, &mut c, |tx, c| collapse(tx, c, 0, 2 << 20)).unwrap();
    commit(&s, &mut c, |tx, c| insert(tx, c, 4096, 8192)).unwrap();
    check(s.memory(), &c, &mut |p| panic!("{p}"));
    // Shrinking gives back pages beyond the end, reserved or not.
    commit(&s, &mut c, |tx, c| truncate(tx, c, 4097)).unwrap();
    assert_eq!(c.pages, 1);
}

/// The new index of a large file is built beside the old, and given up at any point or switched to.
#[test]
fn a_long_shift_is_made_in_pieces() {
    let s = pram::Session::in_memory(32 << 20).unwrap();
    type Begin = fn(&Content) -> Result<Shift>;
    type Change = fn(&mut Vec<u8>);
    let shifts: [(&str, Begin, Change); 4] = [
        ("collapse", |c| Shift::collapse(c, 300 * PAGE, 700 * PAGE), |m| drop(m.drain(300 << 12..1000 << 12))),
        ("collapse from the start", |c| Shift::collapse(c, 0, PAGE), |m| drop(m.drain(..4096))),
        ("insert", |c| Shift::insert(c, 700 * PAGE, 3 * PAGE), |m| drop(m.splice(700 << 12..700 << 12, [0; 3 << 12]))),
        ("insert much", |c| Shift::insert(c, 0, 600 * PAGE), |m| drop(m.splice(..0, vec![0; 600 << 12]))),
    ];
    for (what, begin, change) in shifts {
        let mut c = Content { owner: 5, ..Content::default() };
        let mut model: Vec<u8> = (0..5u32 << 20).map(|i| (i / 11) as u8).collect();
        model.chunks(1 << 20).zip(0..).for_each(|(part, i)| put(&s, &mut c, i << 20, part).unwrap());
        punch_all(&s, &mut c, 900 << 12, 950 << 12);
        model[900 << 12..950 << 12].fill(0);
        commit(&s, &mut c, |tx, c| allocate(tx, c, 5 << 20, 100_000, true).map(|_| ())).unwrap();
        assert!(is_long(&c));
        let (before, objects) = (c, heap_objects(s.memory()));
        let free_all = |mut left: Leftover| {
            let mut done = false;
            while !done {
                commit(&s, &mut Content::default(), |tx, _| left.free(tx).map(|last| done = last)).unwrap();
            }
        };
        let build = |most: u32| {
            let (mut shift, mut pieces, mut done) = (begin(&c).unwrap(), 0, false);
            while !done && pieces < most {
                // Undone, and again.
                let mut op = s.begin().unwrap();
                let mut tx = op.tx().unwrap();
                shift.clone().build(&mut Edit::in_memory(&mut tx), &c).unwrap();
                drop(tx);
                drop(op);
                commit(&s, &mut c.clone(), |tx, c| shift.build(tx, c).map(|last| done = last)).unwrap();
                pieces += 1;
            }
            (shift, pieces)
        };
        for most in [1, 2, 3] {
            free_all(build(most).0.give_up(s.memory()).unwrap());
            assert_eq!((c, heap_objects(s.memory())), (before, objects.clone()), "{what}: given up");
        }
        let (shift, pieces) = build(u32::MAX);
        assert!(pieces >= 3, "{what}: {pieces} pieces");
        assert!(whole(s.memory(), &c) == model, "{what}: nothing is seen of it");
        let (new, left) = shift.switch(s.memory(), &c).unwrap();
        free_all(left);
        c = new;
        change(&mut model);
        assert!(whole(s.memory(), &c) == model, "{what}");
        check(s.memory(), &c, &mut |p| panic!("{what}: {p}"));
        assert_eq!(heap_objects(s.memory()), file_objects(s.memory(), &c), "{what}");
        while c.root != 0 {
            match c.is_cut() {
                true => commit(&s, &mut c, cut).unwrap(),
                false => commit(&s, &mut c, |tx, c| truncate(tx, c, 0)).unwrap(),
            }
        }
    }
    assert!(heap_objects(s.memory()).is_empty());
}

//! High trees, whose cuts take as much undo log as there is.

use super::*;

/// A file where a cut at page `low`, in all its nodes at entry 1, and one at page `high`, at entry 510, each take as much
/// undo log as they can: of each node on the way the first and the last entry that goes. The higher node of both has
/// height `top`.
fn cut_dearly(s: &Session, top: u32) -> (Content, Model, u64, u64) {
    let shift = |height: u32| 9 * (height - 1);
    let last = if top == 6 { 62 } else { 510 };
    let low = (1..top).fold(1 << shift(top), |page, h| page | 1 << shift(h));
    let high = (1..top).fold(last << shift(top), |page, h| page | 510 << shift(h));
    let mut pages = vec![low - 1, low, high, high + 1];
    for h in 1..=top {
        let above = |page: u64| page >> (shift(h) + 9) << (shift(h) + 9);
        pages.extend([2, 511].map(|i| above(low) | i << shift(h)).iter().filter(|_| h < top));
        pages.extend([0, 509].map(|i| above(high) | i << shift(h)).iter().filter(|_| h < top));
    }
    pages.extend([2, last - 1, last + 1].map(|i| i << shift(top)).iter().filter(|page| **page <= MAX_SIZE / PAGE));
    let (mut c, mut m) = (Content::default(), Model::default());
    for page in pages {
        let len = PAGE.min(MAX_SIZE - page * PAGE) as usize;
        put(s, &mut c, page * PAGE, &vec![7; len]).unwrap();
        m.put(page * PAGE, &vec![7; len]);
    }
    (c, m, low, high)
}

/// The undo log takes one end of the range at a time: one transaction for each, and between them the first part is a
/// hole and the rest as it was.
#[test]
fn a_hole_in_a_high_tree_takes_two_transactions_where_the_log_cannot_take_both_ends() {
    for (top, times) in [(1, 1), (2, 1), (3, 1), (5, 2), (6, 2)] {
        let s = pram::Session::in_memory(4 << 20).unwrap();
        let (mut c, mut m, low, high) = cut_dearly(&s, top);
        let (off, end) = (low * PAGE + 1, high * PAGE + PAGE - 1);
        consistent(&s, &c, &m, &format!("height {top}"));
        let mut at = off;
        for time in 1..=times {
            let what = format!("height {top}, time {time} of {times}");
            let mut undone = c;
            let mut op = s.begin().unwrap();
            let mut tx = op.tx().unwrap();
            let reached = punch(&mut Edit::in_memory(&mut tx), &mut undone, at, end - at).unwrap();
            assert!(tx.room() >= RESERVE, "{what}");
            drop(tx);
            drop(op);
            consistent(&s, &c, &m, &format!("undone {what}"));
            commit(&s, &mut c, |tx, c| punch(tx, c, at, end - at).map(|to| assert_eq!(to, reached))).unwrap();
            m.zero(at, reached);
            consistent(&s, &c, &m, &what);
            assert_eq!(reached == end, time == times, "{what}");
            at = reached;
        }
        assert_eq!(c.pages, if top == 1 { 4 } else { 5 }, "the pages that the ends lie in, and those outside");
    }
}

/// Any size: it has one end.
#[test]
fn any_tree_is_truncated_in_one_transaction() {
    for (top, with) in [(6, true), (6, false), (5, true), (5, false)] {
        let s = pram::Session::in_memory(4 << 20).unwrap();
        let (mut c, mut m, low, high) = cut_dearly(&s, top);
        let size = if with { low } else { high } * PAGE + 1;
        commit(&s, &mut c, |tx, c| {
            truncate(tx, c, size)?;
            assert!(tx.room() >= RESERVE);
            Ok(())
        })
        .unwrap();
        m.truncate(size);
        consistent(&s, &c, &m, &format!("height {top} cut to {size}"));
    }
}

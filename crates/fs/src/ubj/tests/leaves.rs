//! Compact leaves: pages that are written in order take little memory, and keep their content in every form.

use rng::Rng;

use super::rig::Rig;
use crate::node::Fallocate;
use crate::{Caller, SetAttr};

const PAGE: u64 = 4096;
/// Pages of a leaf.
const LEAF: u64 = 512;

#[test]
fn a_file_that_was_written_in_order_takes_a_word_for_each_run() {
    let rig = Rig::new(64 << 20, 64, 8 << 10);
    let file = rig.create("file");
    let mut bytes = Rng::new(1).bytes((6 * LEAF * PAGE + 100 * PAGE + 7) as usize);
    rig.write(file, 0, &bytes);
    let index = || {
        let by_tag = rig.fs.session().memory().allocated().expect("it can be read");
        by_tag[usize::from(crate::layout::tag::INDEX.0)]
    };
    let before = index();
    assert!(rig.union().write_back(&*rig.fs, usize::MAX, None).expect("there is room") > 0);
    rig.evict_all();
    assert!(index() <= before / 8, "{} bytes of index nodes, {before} before", index());
    rig.check(&[file], true, "compact");
    assert!(rig.read(file) == bytes);

    let mut rng = Rng::new(2);
    for round in 0..60 {
        let at = rng.below(bytes.len() as u64);
        let what = match rng.below(5) {
            0 => {
                let size = bytes.len() as u64 - rng.below(3 * PAGE).min(bytes.len() as u64 / 2);
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                rig.fs.setattr(file, &set, &Caller::root()).expect("there is room");
                bytes.truncate(size as usize);
                format!("cut to {size}")
            }
            1 => {
                let len = (1 + rng.below(600 * PAGE)).min(bytes.len() as u64 - at);
                rig.fs.fallocate(file, Fallocate::PunchHole, at, len).expect("it needs nothing");
                bytes[at as usize..(at + len) as usize].fill(0);
                format!("a hole of {len} at {at}")
            }
            2 => {
                assert!(rig.union().write_back(&*rig.fs, usize::MAX, None).is_ok());
                rig.evict_all();
                "eviction".into()
            }
            _ => {
                let len = (1 + rng.below(20 * PAGE)).min(bytes.len() as u64 - at) as usize;
                let new = rng.bytes(len);
                rig.write(file, at, &new);
                bytes[at as usize..at as usize + len].copy_from_slice(&new);
                format!("{len} bytes at {at}")
            }
        };
        assert!(rig.read(file) == bytes, "round {round}: {what}");
        rig.check(&[file], true, &what);
    }
}

//! A region that is one disk.

use std::sync::Arc;

use super::set::{Manner, Set};
use super::Map;
use crate::device::{Done, Op};

pub struct Single;

impl Map for Single {
    fn size(&self, set: &Set) -> u64 {
        set.share
    }

    fn submit(&self, set: &Arc<Set>, op: Op, manner: Manner, done: Done) {
        set.send(0, op, manner, done);
    }
}

//! The plan of a PostMark run, drawn before the clock runs. It is the same for every file system, and the timed loops
//! make no random numbers or names.
//!
//! As in PostMark 1.5: a transaction is a pair, a read or an append, then a creation or a deletion.

use std::ops::RangeInclusive;

use crate::prelude::*;

/// Sizes of files, bytes.
pub const SIZES: RangeInclusive<u64> = 512..=16_384;
/// Sizes of large files, in bytes, if there are some.
pub const LARGE: RangeInclusive<u64> = 2_000_000..=5_000_000;
/// The number of ten draws that create rather than delete.
const CREATES_IN_TEN: u64 = 5;
const SEED: u64 = 42;

/// The unit of the part of large files.
const PARTS: u64 = 1 << 20;

/// One half of a transaction. Files are numbers into [`Plan::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Create {
        file: usize,
        size: usize,
    },
    Delete {
        file: usize,
    },
    /// Reads the whole file.
    Read {
        file: usize,
        size: usize,
    },
    Append {
        file: usize,
        len: usize,
    },
}

/// A run.
pub struct Plan {
    pub dirs: Vec<Name>,
    /// Every file that ever exists.
    pub files: Vec<Name>,
    /// The creations of the phase of creation alone.
    pub create: Vec<Op>,
    pub transactions: Vec<Op>,
    pub transaction_count: usize,
    /// The deletions of the phase of deletion alone.
    pub delete: Vec<Op>,
}

/// The parameters of a plan.
pub struct Shape {
    pub files: usize,
    pub transactions: usize,
    /// Percent of the files that are large ones.
    pub percent: f64,
    /// Bytes of the small files.
    pub sizes: RangeInclusive<u64>,
    /// The number of ten draws that read rather than append.
    pub reads_in_ten: u64,
    pub dirs: usize,
}

impl Shape {
    /// The parameters of the Conquest paper: four times as many reads as appends.
    pub fn of_paper(files: usize, transactions: usize) -> Shape {
        // "One subdirectory level … the number of directories equal to the square root of the file set size."
        let dirs = (files as f64).sqrt().round().max(1.0) as usize;
        Shape { files, transactions, percent: 0.0, sizes: SIZES, reads_in_ten: 8, dirs }
    }

    /// With files of other sizes, and as many reads as appends.
    pub fn sized(self, sizes: RangeInclusive<u64>) -> Shape {
        Shape { sizes, reads_in_ten: 5, ..self }
    }

    /// Bytes of the longest file.
    pub fn longest(&self) -> u64 {
        *if self.percent > 0.0 { LARGE.end() } else { self.sizes.end() }
    }
}

impl Plan {
    pub fn new(shape: &Shape) -> Plan {
        let &Shape { files, transactions, percent, ref sizes, reads_in_ten, dirs } = shape;
        let mut draw = Draw {
            rng: Rng::new(SEED),
            dirs,
            large: (percent * PARTS as f64 / 100.0) as u64,
            small: sizes.clone(),
            reads_in_ten,
            files: Vec::new(),
            sizes: Vec::new(),
            live: Vec::new(),
        };
        let create = (0..files).map(|_| draw.create()).collect();
        let mut ops = Vec::with_capacity(2 * transactions);
        for _ in 0..transactions {
            ops.extend(draw.read_or_append());
            ops.extend(draw.create_or_delete());
        }
        let delete = std::iter::from_fn(|| draw.delete()).collect();
        Plan {
            dirs: (0..dirs).map(|d| name(format!("s{d}"))).collect(),
            files: draw.files,
            create,
            transactions: ops,
            transaction_count: transactions,
            delete,
        }
    }

    /// The number of creations among the transactions.
    pub fn mixed_creations(&self) -> usize {
        self.transactions.iter().filter(|op| matches!(op, Op::Create { .. })).count()
    }
}

impl Op {
    /// The bytes that it reads and writes.
    pub fn bytes(&self) -> [usize; 2] {
        match *self {
            Op::Create { size, .. } => [0, size],
            Op::Read { size, .. } => [size, 0],
            Op::Append { len, .. } => [0, len],
            Op::Delete { .. } => [0, 0],
        }
    }
}

/// The state of the file set while the plan is drawn.
struct Draw {
    rng: Rng,
    dirs: usize,
    /// The number of files in [`PARTS`] that are large.
    large: u64,
    small: RangeInclusive<u64>,
    reads_in_ten: u64,
    files: Vec<Name>,
    sizes: Vec<u64>,
    live: Vec<usize>,
}

impl Draw {
    fn create(&mut self) -> Op {
        let file = self.files.len();
        let is_large = self.large > 0 && self.rng.below(PARTS) < self.large;
        let sizes = if is_large { &LARGE } else { &self.small };
        let size = self.rng.within(*sizes.start(), *sizes.end());
        self.files.push(name(format!("s{}/{file}", self.rng.below(self.dirs as u64))));
        self.sizes.push(size);
        self.live.push(file);
        Op::Create { file, size: size as usize }
    }

    fn delete(&mut self) -> Option<Op> {
        let at = self.any()?;
        Some(Op::Delete { file: self.live.swap_remove(at) })
    }

    fn create_or_delete(&mut self) -> Option<Op> {
        if self.rng.below(10) < CREATES_IN_TEN || self.live.is_empty() {
            Some(self.create())
        } else {
            self.delete()
        }
    }

    /// `None` if there is no file, or if an append is drawn for a file of the largest size.
    fn read_or_append(&mut self) -> Option<Op> {
        let at = self.any()?;
        let file = self.live[at];
        let size = self.sizes[file];
        if self.rng.below(10) < self.reads_in_ten {
            return Some(Op::Read { file, size: size as usize });
        }
        let most = if size > *self.small.end() { *LARGE.end() } else { *self.small.end() };
        let room = most - size;
        let len = (room > 0).then(|| self.rng.within(1, room))?;
        self.sizes[file] += len;
        Some(Op::Append { file, len: len as usize })
    }

    fn any(&mut self) -> Option<usize> {
        (!self.live.is_empty()).then(|| self.rng.below(self.live.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Applies the operations to a model; each must be possible.
    fn apply(ops: &[Op], model: &mut HashMap<usize, usize>) {
        for op in ops {
            match *op {
                Op::Create { file, size } => assert_eq!(model.insert(file, size), None),
                Op::Delete { file } => assert!(model.remove(&file).is_some()),
                Op::Read { file, size } => assert_eq!(model[&file], size),
                Op::Append { file, len } => *model.get_mut(&file).expect("a live file") += len,
            }
        }
    }

    #[test]
    fn a_plan_is_consistent_bounded_and_leaves_nothing() {
        let plan = Plan::new(&Shape::of_paper(400, 2_000));
        let mut model = HashMap::new();
        apply(&plan.create, &mut model);
        assert_eq!(model.len(), 400);
        apply(&plan.transactions, &mut model);
        assert!(model.values().all(|&size| SIZES.contains(&(size as u64))));
        apply(&plan.delete, &mut model);
        assert!(model.is_empty());
        assert_eq!(plan.dirs.len(), 20);
    }

    #[test]
    fn so_many_percent_are_large() {
        let plan = Plan::new(&Shape { percent: 5.0, ..Shape::of_paper(20_000, 5_000) });
        let is_large = |op: &&Op| matches!(op, Op::Create { size, .. } if LARGE.contains(&(*size as u64)));
        let large = plan.create.iter().filter(is_large).count() as f64;
        assert!((large / 20_000.0 - 0.05).abs() < 0.01, "{large} large files");
        let mut model = HashMap::new();
        apply(&plan.create, &mut model);
        apply(&plan.transactions, &mut model);
        assert!(model.values().all(|&size| SIZES.contains(&(size as u64)) || LARGE.contains(&(size as u64))));
    }

    #[test]
    fn the_mix_is_that_of_the_paper() {
        let plan = Plan::new(&Shape::of_paper(1_000, 20_000));
        let count = |f: fn(&Op) -> bool| plan.transactions.iter().filter(|op| f(op)).count() as f64;
        let reads = count(|op| matches!(op, Op::Read { .. }));
        let creates = count(|op| matches!(op, Op::Create { .. }));
        assert!((reads / 20_000.0 - 0.8).abs() < 0.02, "{reads} reads");
        assert!((creates / 20_000.0 - 0.5).abs() < 0.02, "{creates} creations");
    }
}

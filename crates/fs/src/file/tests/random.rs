//! Random operations against the model, each also undone, in regions large and nearly full.

use super::*;

#[derive(Clone, Debug)]
pub(super) enum Op {
    Write(u64, Vec<u8>),
    Truncate(u64),
    Punch(u64, u64),
    Zero(u64, u64, bool),
    Collapse(u64, u64),
    Insert(u64, u64),
    Allocate(u64, u64, bool),
    Trim,
}

impl Op {
    pub fn random(d: &mut Dice, size: u64, far: bool) -> Op {
        let off = d.offset(size, far);
        match d.below(20) {
            0..=9 => {
                let (len, seed) = (d.length(), d.0.next() | 1);
                Op::Write(off, (0..len).map(|i| (i.wrapping_mul(seed) >> 7) as u8 | 1).collect())
            }
            10 | 11 => Op::Truncate(off),
            12 => Op::Truncate(d.below(size + 1)),
            13 => Op::Punch(off, d.length()),
            14 => Op::Zero(off, d.length(), d.below(2) == 0),
            15 => Op::Collapse(off & !(PAGE - 1), PAGE * (1 + d.below(5))),
            16 => Op::Insert(off & !(PAGE - 1), PAGE * (1 + d.below(5))),
            17 => Op::Allocate(off, d.length(), d.below(2) == 0),
            18 => Op::Truncate(0),
            _ => Op::Trim,
        }
    }

    fn run(&self, tx: &mut Edit, c: &mut Content) -> Result<()> {
        match self {
            Op::Write(off, data) => write(tx, c, *off, data),
            Op::Truncate(size) => truncate(tx, c, *size),
            // In a full memory it may take two transactions.
            Op::Punch(off, len) if punch(tx, c, *off, *len)? < off + len => Err(Errno::NOSPC.into()),
            Op::Punch(..) => Ok(()),
            Op::Zero(off, len, keep_size) => {
                assert_eq!(zero(tx, c, *off, *len, *keep_size)?, off + len);
                Ok(())
            }
            Op::Collapse(off, len) => collapse(tx, c, *off, *len),
            Op::Insert(off, len) => insert(tx, c, *off, *len),
            Op::Allocate(off, len, keep_size) => {
                assert_eq!(allocate(tx, c, *off, *len, *keep_size)?, off + len);
                Ok(())
            }
            Op::Trim => trim(tx, c).map(|_| ()),
        }
    }

    /// The effect of the operation on the model; the errors that fallocate(2) demands.
    pub fn model(&self, m: &mut Model) -> std::result::Result<(), Errno> {
        match self {
            Op::Write(off, data) => m.put(*off, data),
            Op::Truncate(size) => m.truncate(*size),
            Op::Punch(off, len) => m.zero(*off, (off + len).min(m.size.max(*off))),
            Op::Zero(off, len, keep_size) => {
                m.zero(*off, off + len);
                m.size = if *keep_size { m.size } else { m.size.max(off + len) };
            }
            Op::Collapse(off, len) => {
                if off + len >= m.size {
                    return Err(Errno::INVAL);
                }
                let (a, b) = (off / PAGE, (off + len) / PAGE);
                m.renumber(|p| if p < a { Some(p) } else { (p >= b).then(|| p - (b - a)) });
                m.size -= len;
            }
            Op::Insert(off, len) => {
                if *off >= m.size {
                    return Err(Errno::INVAL);
                }
                if m.size + len > MAX_SIZE {
                    return Err(Errno::FBIG);
                }
                m.renumber(|p| Some(if p < off / PAGE { p } else { p + len / PAGE }));
                m.size += len;
            }
            Op::Allocate(off, len, keep_size) => m.size = if *keep_size { m.size } else { m.size.max(off + len) },
            Op::Trim => {}
        }
        Ok(())
    }

    /// The range that it changes.
    fn range(&self) -> (u64, u64) {
        match self {
            Op::Write(off, data) => (*off, off + data.len() as u64),
            Op::Truncate(size) => (*size, *size),
            Op::Punch(off, len) | Op::Zero(off, len, _) | Op::Allocate(off, len, _) => (*off, off + len),
            Op::Collapse(..) | Op::Insert(..) | Op::Trim => (0, 0),
        }
    }

    pub fn short(&self) -> String {
        match self {
            Op::Write(off, data) => format!("Write({off}, {} bytes)", data.len()),
            other => format!("{other:?}"),
        }
    }
}

/// Runs `op`; if it finds content on disk, fetches the content that it asks for.
fn run_prepared(s: &Session, c: &mut Content, op: &Op) -> Result<()> {
    let (off, end) = op.range();
    let before = *c;
    match commit(s, c, |tx, c| op.run(tx, c)) {
        Err(Error::Elsewhere) => {}
        done => return done,
    }
    assert_eq!(*c, before);
    let (needed, mut fetched) = (needed(s.memory(), c, off, end)?, Fetched::default());
    fetched.fetch(&disk::Map, &needed.iter().map(|(_, place)| *place).collect::<Missing>());
    commit(s, c, |tx, c| enter(tx, c, &needed, &fetched))?;
    commit(s, c, |tx, c| op.run(tx, c))
}

fn evict_some(s: &Session, c: &mut Content, d: &mut Dice) {
    for _ in 0..d.below(20) {
        let page = d.offset(c.size, false) / PAGE;
        commit(s, c, |tx, c| disk::evict(tx, c, page).map(|_| ())).unwrap();
    }
}

fn random_run(seed: u64, steps: u32, far: bool, memory: u64) {
    random_run_with(seed, steps, far, memory, false);
}

fn random_run_with(seed: u64, steps: u32, far: bool, memory: u64, evicting: bool) {
    let s = pram::Session::in_memory(memory).unwrap();
    let r = s.memory();
    let mut d = Dice(Rng::new(seed));
    let (mut c, mut m) = (Content::default(), Model::default());
    for step in 0..steps {
        let op = Op::random(&mut d, c.size, far);
        let what = format!("seed {seed} step {step}: {}", op.short());
        let mut after = m.clone();
        let expected = op.model(&mut after);
        // Undone: as if it had not been.
        if d.below(3) == 0 {
            let mut holder = s.begin().unwrap();
            let mut tx = holder.tx().unwrap();
            let mut dropped = c;
            let _ = op.run(&mut Edit::in_memory(&mut tx), &mut dropped);
            drop(tx);
            drop(holder);
            m.compare(r, &c, &format!("undone {what}"));
            assert_eq!(heap_objects(r), file_objects(r, &c), "objects after undone {what}");
        }
        let done = run_prepared(&s, &mut c, &op);
        match (done, expected) {
            (Ok(()), Ok(())) => m = after,
            (Err(e), Err(want)) => assert_eq!(e.errno(), want, "{what}"),
            // Full: nothing has changed.
            (Err(e), Ok(())) if e.errno() == Errno::NOSPC => {}
            (got, want) => panic!("{what}: {got:?}, should be {want:?}"),
        }
        m.compare(r, &c, &what);
        if evicting {
            evict_some(&s, &mut c, &mut d);
            m.compare(r, &c, &format!("evictions after {what}"));
        }
        let from = d.offset(c.size, far);
        m.compare_seek(r, &c, from, &what);
        assert_eq!(heap_objects(r), file_objects(r, &c), "objects after {what}");
        check(r, &c, &mut |p| panic!("{what}: {p}"));
    }
    commit(&s, &mut c, free).unwrap();
    assert!(heap_objects(r).is_empty(), "seed {seed}: objects are left after free");
    assert_eq!(c, Content::default());
}

#[test]
fn random_operations_match_the_model() {
    for seed in 0..60 {
        random_run(seed, 120, false, 8 << 20);
    }
}

#[test]
fn random_sparse_operations_match_the_model() {
    for seed in 1000..1060 {
        random_run(seed, 120, true, 8 << 20);
    }
}

#[test]
fn random_operations_in_a_region_that_fills_up() {
    for seed in 2000..2040 {
        random_run(seed, 200, seed % 2 == 0, 1 << 20);
    }
}

#[test]
fn random_operations_on_files_that_lie_on_disk() {
    for seed in 3000..3060 {
        random_run_with(seed, 120, seed % 2 == 0, if seed % 3 == 0 { 1 << 20 } else { 8 << 20 }, true);
    }
}

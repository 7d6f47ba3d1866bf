//! SEMANTICS.md: the costs of operations on `dax`, in cache lines written back and fences, counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use conquest_fs::node::{Policy, Rename};
use conquest_fs::path::View;
use conquest_fs::{Caller, Fs, SetAttr};
use pram::{Mapping, Medium, MediumKind, Memory, Needs, Session};

use crate::tables::{number, Page};

#[derive(Default)]
struct Counts {
    lines: AtomicU64,
    fences: AtomicU64,
}

/// `dax`, counted instead of done.
struct Counting(Arc<Counts>);

impl Medium for Counting {
    fn kind(&self) -> MediumKind {
        MediumKind::Dax
    }
    fn needs(&self) -> Needs {
        Needs { flush: true, stores: false }
    }
    fn flush(&self, _: &Mapping, off: u64, len: u64) {
        self.0.lines.fetch_add(pram::mem::lines(off, len).count() as u64, Ordering::Relaxed);
    }
    fn fence(&self, _: &Mapping) {
        self.0.fences.fetch_add(1, Ordering::Relaxed);
    }
    fn stored(&self, _: u64, _: &[u8]) {}
}

const NAMES: usize = 40;

/// The operations of the table, each on the `i`th of the files `f` or directories `d`.
type Operation = (&'static str, fn(&View, usize));

const OPERATIONS: &[Operation] = &[
    ("create", |v, i| drop(v.create(name("f", i), 0o644).unwrap())),
    ("write 1 KB to a new file", |v, i| write(v, i, 0)),
    ("overwrite 1 KB", |v, i| write(v, i, 0)),
    ("append 1 KB", |v, i| write(v, i, 1024)),
    ("setattr (chmod)", |v, i| {
        v.setattr(name("f", i), &SetAttr { mode: Some(0o600), ..Default::default() }).map(drop).unwrap()
    }),
    ("rename", |v, i| v.rename(name("f", i), name("g", i), Rename::Replace).unwrap()),
    ("unlink", |v, i| v.unlink(name("g", i)).unwrap()),
    ("mkdir", |v, i| v.mkdir(name("d", i), 0o755).map(drop).unwrap()),
    ("rmdir", |v, i| v.rmdir(name("d", i)).unwrap()),
];

fn name(letter: &str, i: usize) -> Vec<u8> {
    format!("{letter}{i:02}").into_bytes()
}

fn write(v: &View, i: usize, at: u64) {
    let how = conquest_fs::path::Open::new().write(true);
    v.open(name("f", i), how).unwrap().write_all_at(&[7; 1024], at).unwrap();
}

fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all[all.len() / 2]
}

#[test]
fn operations_cost_on_dax_what_is_documented() {
    let counts = Arc::<Counts>::default();
    let map = Mapping::anonymous(16 << 20).unwrap();
    let memory =
        Memory::format(map, Box::new(Counting(counts.clone())), [7; 16], conquest_fs::layout::VERSION, 0).unwrap();
    let session = Session::private(memory, 1 << 16).unwrap();
    Fs::format(&session, (0, 0, 0o755), 7).unwrap();
    let fs = Fs::over(session, Policy::default()).unwrap();
    let view = View::new(&fs, Caller::root());
    let mut measured = Vec::new();
    for (what, run) in OPERATIONS {
        let (mut lines, mut fences) = (Vec::new(), Vec::new());
        for i in 0..NAMES {
            let before = (counts.lines.load(Ordering::Relaxed), counts.fences.load(Ordering::Relaxed));
            run(&view, i);
            lines.push(counts.lines.load(Ordering::Relaxed) - before.0);
            fences.push(counts.fences.load(Ordering::Relaxed) - before.1);
        }
        measured.push((what.to_string(), median(lines), median(fences)));
    }
    let page = Page::open("SEMANTICS.md");
    let rows = page.rows(&["operation", "lines written back", "fences"]);
    let documented: Vec<_> = rows.iter().map(|row| (row[0].clone(), number(&row[1]), number(&row[2]))).collect();
    assert_eq!(measured, documented);
}

//! Memories of this process and in files, seeded numbers.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::{Arc, Mutex};

use pram::medium::{Medium, MediumKind, Needs, BATTERY};
use pram::session::{Attach, Exclusive, Kind};
use pram::{Mapping, Memory, Session};

pub const MIB: u64 = 1 << 20;
pub const KEYS: u64 = 4096;
pub const UUID: [u8; 16] = *b"0123456789abcdef";

/// A fresh memory in this process's memory.
pub fn private(size: u64) -> Session {
    Session::private(format(Mapping::anonymous(size).unwrap()), KEYS).unwrap()
}

pub fn format(map: Mapping) -> Memory {
    Memory::format(map, Box::new(BATTERY), UUID, 7, 42).unwrap()
}

/// A mapping that holds `bytes`.
pub fn mapping_of(bytes: &[u8]) -> Mapping {
    let map = Mapping::anonymous(bytes.len() as u64).unwrap();
    map.write(0, bytes).unwrap();
    map
}

/// All bytes of a session's memory.
pub fn bytes_of(session: &Session) -> Vec<u8> {
    let mut bytes = vec![0; session.memory().size() as usize];
    session.memory().read_bytes(0, &mut bytes).unwrap();
    bytes
}

/// Attaches privately to the memory in `bytes`.
pub fn reopen(bytes: &[u8]) -> pram::Result<Session> {
    Session::private(Memory::open(mapping_of(bytes), Box::new(BATTERY))?, KEYS)
}

/// A memory file, formatted.
pub fn format_file(path: &Path, size: u64) {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(size).unwrap();
    format(Mapping::file(&file, size).unwrap());
}

/// Attaches to a memory file; its directory also holds the runtime file.
pub fn attach(path: &Path) -> pram::Result<Session> {
    attach_as(path, Kind::Full)
}

pub fn attach_as(path: &Path, kind: Kind) -> pram::Result<Session> {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let memory = Memory::open(map(&file), Box::new(BATTERY))?;
    let how =
        Attach { runtime_dir: path.parent().unwrap(), keys: KEYS, role: 1, label: b"test", kind, is_inherited: false };
    Session::attach(memory, Exclusive::over(file.into())?, &how, None::<backing::Backing>)
}

fn map(file: &File) -> Mapping {
    Mapping::file(file, file.metadata().unwrap().len()).unwrap()
}

/// Memory of which only flushed and fenced stores survive.
#[derive(Clone, Default)]
pub struct Lossy(pub Arc<Mutex<Durable>>);

/// The durable bytes, and the ranges that are flushed and not fenced.
pub type Durable = (Vec<u8>, Vec<(u64, u64)>);

impl Medium for Lossy {
    fn kind(&self) -> MediumKind {
        MediumKind::Dax
    }
    fn needs(&self) -> Needs {
        Needs { flush: true, stores: false }
    }
    fn flush(&self, _: &Mapping, off: u64, len: u64) {
        self.0.lock().unwrap().1.push((off, len));
    }
    fn fence(&self, map: &Mapping) {
        let (durable, pending) = &mut *self.0.lock().unwrap();
        durable.resize(map.len() as usize, 0);
        for (off, len) in pending.drain(..) {
            let (start, end) = (off / 64 * 64, (off + len).next_multiple_of(64));
            map.copy_out(start, &mut durable[start as usize..end as usize]).unwrap();
        }
    }
    fn stored(&self, _: u64, _: &[u8]) {}
}

/// Counts a root word up.
pub fn change(session: &Session) {
    let mut op = session.begin().unwrap();
    let mut tx = op.tx().unwrap();
    let word = session.memory().root(3);
    let next = session.memory().load(word).unwrap() + 1;
    tx.set(pram::Off::new(word.raw()), &next).unwrap();
    tx.commit().unwrap();
}

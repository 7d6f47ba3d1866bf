//! A disk that fails at one call.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use backing::log::Disk;
use backing::{Disks, SharedDisk};
use rustix::io::Errno;

use crate::disk::{disks_of, FILES, LEDGER};
use crate::tape::Tape;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Read,
    Write,
    Flush,
}

/// The `nth` call of a kind to a file fails; later ones succeed.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub file: usize,
    pub call: Call,
    pub nth: u64,
    pub errno: Errno,
}

/// How many calls there were, by file and kind.
pub type Calls = BTreeMap<(usize, Call), u64>;

/// Counts calls, and fails one of them.
#[derive(Default)]
pub struct Faults {
    fault: Option<Fault>,
    calls: Mutex<Calls>,
}

impl Faults {
    /// Does the fault make a write fail for lack of room?
    pub fn is_no_room(&self) -> bool {
        self.fault.as_ref().is_some_and(|fault| fault.call == Call::Write && fault.errno == Errno::NOSPC)
    }

    pub fn with(fault: Option<Fault>) -> Arc<Faults> {
        Arc::new(Faults { fault, ..Faults::default() })
    }

    /// The calls until now.
    pub fn calls(&self) -> Calls {
        self.calls.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Counts a call; returns the error if it is to fail.
    fn call(&self, file: usize, call: Call) -> Option<Errno> {
        let mut calls = self.calls.lock().unwrap_or_else(|e| e.into_inner());
        let n = calls.entry((file, call)).or_default();
        *n += 1;
        self.fault.filter(|f| (f.file, f.call, f.nth) == (file, call, *n - 1)).map(|f| f.errno)
    }

    /// The disks of `tape` with faults: those of a backing, and the fourth.
    pub fn over(self: &Arc<Self>, tape: &Arc<Tape>) -> (Disks, SharedDisk) {
        let mut files = 0..FILES;
        let all = tape.disks().map(|inner| {
            let file = files.next().expect("as many as disks");
            Arc::new(FaultDisk { inner, tape: tape.clone(), file, faults: self.clone() }) as SharedDisk
        });
        let other = all[LEDGER].clone();
        (disks_of(all), other)
    }
}

struct FaultDisk {
    inner: SharedDisk,
    tape: Arc<Tape>,
    file: usize,
    faults: Arc<Faults>,
}

impl Disk for FaultDisk {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        match self.faults.call(self.file, Call::Read) {
            None => self.inner.read_exact_at(buf, at),
            Some(errno) => Err(errno.into()),
        }
    }

    /// A write that fails is half done.
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        match self.faults.call(self.file, Call::Write) {
            None => self.inner.write_all_at(bytes, at),
            Some(errno) => {
                self.inner.write_all_at(&bytes[..bytes.len() / 2], at)?;
                Err(errno.into())
            }
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self.faults.call(self.file, Call::Flush) {
            None => self.inner.flush(),
            Some(errno) => {
                self.tape.fail_flush(self.file);
                Err(errno.into())
            }
        }
    }
}

//! The one way to change anything on a caller's behalf: no change can forget the steps after it.
//!
//! Ordered steps of an update:
//! 1. It is refused where nothing may change.
//! 2. The work, in an operation. Where content changes, and with it perhaps a size, that is announced before it can be
//!    seen, and until 4 is done: a mount must not have its kernel believe a size that it has not got. So are names: whoever
//!    changes the same name next must not be done first.
//! 3. The operation ends, with all its locks. (Before 5: a commit waits until no operation is under way.)
//! 4. The process that caches gets a notification, also if 5 fails: the change is visible. It gets none of what it does not
//!    have or has [given up](pram::delegation).
//! 5. If the change is to be durable when the call returns, the wait for a commit.
//!
//! Step 5 depends on an inode's setting, which [`Node::save`](super::Node) passes on to the operation
//! with each inode that changes, or on the policy of the process.

use pram::{Op, Session};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::watch::{self, Part};
use super::Fs;
use crate::attr::Ino;
use crate::error::{Error, Lack, Result};
use crate::inode::packing::Purpose;
use crate::retry::{self, Provides};

/// How often a call tries again after room was made by compressing.
const RELIEVED: u32 = 64;
/// How often it unpacks an inode: in a pool that is full, others may pack it again.
const UNPACKED: usize = 64;

/// An update under way: an operation, and the notifications after it.
pub(crate) struct Update<'u, 'f, 'n> {
    op: &'u mut Op<'f>,
    tells: &'u mut Tells<'f, 'n>,
}

/// The notifications to others. Changes that were announced end with it.
struct Tells<'f, 'n> {
    fs: &'f Fs,
    list: SmallVec<[Tell<'n>; 4]>,
    announced: SmallVec<[u64; 4]>,
}

impl Drop for Tells<'_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.announced.iter().for_each(|key| self.fs.session().end_change(*key));
    }
}

/// The parts that others may have cached.
enum Tell<'n> {
    /// A name in a directory, and the inode that it led to.
    Entry(Ino, &'n [u8], Option<Ino>),
    Inode(Ino, Part),
}

impl<'f> std::ops::Deref for Update<'_, 'f, '_> {
    type Target = Op<'f>;
    #[inline(always)]
    fn deref(&self) -> &Op<'f> {
        self.op
    }
}

impl std::ops::DerefMut for Update<'_, '_, '_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.op
    }
}

impl<'n> Update<'_, '_, 'n> {
    /// The binding of `name` in `parent` has changed, which led to `old`. Call it while the directory is locked.
    #[inline(always)]
    pub fn tell_entry(&mut self, parent: Ino, name: &'n [u8], old: Option<Ino>) {
        self.tells.list.push(Tell::Entry(parent, name, old));
        if self.tells.fs.session().is_watched() {
            self.announce(watch::name_key(parent, name));
        }
    }

    fn announce(&mut self, key: u64) {
        self.tells.fs.session().begin_change(key);
        self.tells.announced.push(key);
    }

    /// An inode has changed, or is about to. Call it while it is locked.
    #[inline(always)]
    pub fn tell_inode(&mut self, ino: Ino, part: Part) {
        self.tells.list.push(Tell::Inode(ino, part));
        if part.is_content() && self.tells.fs.session().is_watched() {
            self.announce(ino);
        }
    }
}

/// How often an operation may run again after files were compressed for it.
pub(super) struct Relieved<'f> {
    pub fs: &'f Fs,
    times: u32,
    /// The room that was made free before it ran last.
    freed: u64,
}

impl<'f> Relieved<'f> {
    pub fn of(fs: &'f Fs) -> Relieved<'f> {
        Relieved { fs, times: 0, freed: 0 }
    }

    /// An operation is about to run.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.freed = self.fs.shortage.freed();
    }

    /// Compresses unused files, so that the operation need not fail; false if there are none left to compress.
    #[cold]
    pub fn again(&mut self) -> Result<bool> {
        let again = self.times < RELIEVED && self.fs.above.free_memory(self.fs, self.freed)?;
        self.times += u32::from(again);
        Ok(again)
    }
}

/// Provides a caller's operation with everything.
struct Provided<'f> {
    shortage: Relieved<'f>,
    purpose: Purpose,
    /// Has the operation changed anything?
    changed: bool,
    unpacked: SmallVec<[Ino; 4]>,
}

impl Provides for Provided<'_> {
    fn session(&self) -> &Session {
        self.shortage.fs.session()
    }

    #[cold]
    #[inline(never)]
    fn memory(&mut self) -> Result<()> {
        self.session().supply_needed()?;
        Ok(())
    }

    #[cold]
    fn plain(&mut self, ino: Ino) -> Result<()> {
        if self.unpacked.len() == UNPACKED {
            return Err(Errno::NOSPC.into());
        }
        match self.shortage.fs.unpack_block_for(ino, self.purpose, &self.unpacked) {
            Err(e) if e.is_full() && self.shortage.again()? => {}
            done => {
                done?;
                self.unpacked.push(ino);
            }
        }
        Ok(())
    }

    #[cold]
    fn triples(&mut self) -> Result<()> {
        self.shortage.fs.make_triples()
    }

    fn room(&mut self, lack: Lack) -> Result<()> {
        self.shortage.fs.make_room(lack)
    }

    #[cold]
    fn more(&mut self, failed: &Error) -> Result<bool> {
        if self.changed {
            return Ok(false);
        }
        match self.shortage.fs.lack(failed) {
            Some(lack) => self.room(lack).map(|()| true),
            None => self.shortage.again(),
        }
    }
}

/// Provides an operation that no caller waits for with memory and plain inodes.
pub(crate) struct Aside<'f> {
    pub fs: &'f Fs,
    pub purpose: Purpose,
    /// Is room made for unpacking?
    pub makes_room: bool,
}

impl Provides for Aside<'_> {
    fn session(&self) -> &Session {
        self.fs.session()
    }

    fn plain(&mut self, ino: Ino) -> Result<()> {
        match self.makes_room {
            true => self.fs.unpack_block_for(ino, self.purpose, &[]),
            false => self.fs.unpack_if_room(ino, self.purpose),
        }
    }
}

impl Fs {
    /// Runs `work` as a change that a caller waits for; steps 1 to 5. Where memory has to be taken for it, unused triples
    /// have to be freed, or an inode has to be unpacked, it begins anew after that: it changes nothing before it knows that there is enough, or
    /// nothing that it would not repeat.
    #[inline(always)]
    pub(super) fn update<'n, T>(&self, work: impl FnMut(&mut Update<'_, '_, 'n>) -> Result<T>) -> Result<T> {
        self.update_for(Purpose::Change, work)
    }

    /// [`update`](Self::update) for this purpose.
    #[inline(always)]
    pub(super) fn update_for<'n, T>(
        &self,
        purpose: Purpose,
        mut work: impl FnMut(&mut Update<'_, '_, 'n>) -> Result<T>,
    ) -> Result<T> {
        // Before anything has changed: a caller that may not wait for it is called again.
        if self.is_nearly_full() {
            self.above.free_memory_ahead(self)?;
        }
        let (shortage, unpacked) = (Relieved::of(self), SmallVec::new());
        retry::run(&mut Provided { shortage, purpose, changed: false, unpacked }, |provided| {
            provided.shortage.begin();
            provided.changed = false;
            self.update_once(&mut work, &mut provided.changed)
        })
    }

    /// Runs `work` as an operation that no caller waits for and whose effect no caller sees; again once memory was taken or an inode
    /// unpacked for it.
    pub(super) fn beside<T>(&self, purpose: Purpose, mut work: impl FnMut(&mut Op) -> Result<T>) -> Result<T> {
        let mut provides = Aside { fs: self, purpose, makes_room: false };
        retry::run(&mut provides, |_| work(&mut self.session().begin()?))
    }

    /// The same for work that gives memory back: to unpack an inode for it, room is made where there is none.
    pub(super) fn removing(&self, mut work: impl FnMut(&mut Op) -> Result<()>) -> Result<()> {
        let mut provides = Aside { fs: self, purpose: Purpose::Removal, makes_room: true };
        retry::run(&mut provides, |_| work(&mut self.session().begin()?))
    }

    /// The resource that was short for the operation that has failed, if there may be enough after [`make_room`](Self::make_room).
    pub(super) fn lack(&self, e: &Error) -> Option<Lack> {
        let lack = e.lack()?;
        self.union().is_some_and(|union| union.may_make_room(self.session(), lack)).then_some(lack)
    }

    /// Makes room, outside of operations.
    #[cold]
    #[inline(never)]
    pub(super) fn make_room(&self, lack: Lack) -> Result<()> {
        self.before_waiting()?;
        self.above.make_room(self, lack)
    }

    #[inline(always)]
    fn update_once<'n, T>(
        &self,
        work: impl FnOnce(&mut Update<'_, '_, 'n>) -> Result<T>,
        changed: &mut bool,
    ) -> Result<T> {
        self.writable()?;
        let (done, urgent);
        let mut tells = Tells { fs: self, list: SmallVec::new(), announced: SmallVec::new() };
        {
            let mut op = self.session().begin()?;
            done = work(&mut Update { op: &mut op, tells: &mut tells });
            (*changed, urgent) = (op.has_changed(), op.is_urgent());
        }
        if self.session().is_watched() {
            self.tell_all(&tells);
        }
        drop(tells);
        if urgent || (*changed && self.policy.is_strict()) {
            return self.after_commit(done);
        }
        done
    }

    #[cold]
    #[inline(never)]
    fn tell_all(&self, tells: &Tells) {
        let mut known: SmallVec<[Ino; 2]> = SmallVec::new();
        for tell in &tells.list {
            match *tell {
                Tell::Entry(parent, name, old) => {
                    let with_old = self.tell_entry(parent, name, old, &tells.announced);
                    known.extend(old.filter(|_| with_old));
                }
                Tell::Inode(ino, Part::Attributes) if known.contains(&ino) => {}
                Tell::Inode(ino, part) => self.tell_inode(ino, part),
            }
        }
    }

    /// The result of the work, once it is durable; a call that failed may have changed something too.
    #[cold]
    fn after_commit<T>(&self, done: Result<T>) -> Result<T> {
        let synced = self.sync();
        let done = done?;
        synced.map(|()| done)
    }

    /// An operation that no caller has to wait for: access times, room that is given back, the end of inodes
    /// without a reference, unpacking; and looking under lock.
    #[inline(always)]
    pub(super) fn aside(&self) -> Result<Op<'_>> {
        Ok(self.session().begin()?)
    }
}

#[cfg(test)]
mod tests {
    /// Changes on a caller's behalf pass [`update`](super::Fs::update): functions that begin an operation
    /// otherwise are named here, with the reason in the words of [`aside`](super::Fs::aside).
    #[test]
    fn nothing_is_changed_beside_it() {
        let aside = ["attrs.rs store_atime_in", "lookup.rs lookup_locked", "packing.rs unpack_in"];
        let mut found = Vec::new();
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/node")).unwrap() {
            let path = entry.unwrap().path();
            // Tests of a module.
            if path.is_dir() {
                continue;
            }
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            let (text, mut function) = (std::fs::read_to_string(&path).unwrap(), String::new());
            for line in text.lines().filter(|_| file != "update.rs") {
                if let Some((_, rest)) = line.split_once("fn ") {
                    function = rest.split(['(', '<']).next().unwrap().into();
                }
                assert!(!line.contains("session().begin()"), "{file}, {function}: an operation without an update");
                if line.contains(".aside()") {
                    found.push(format!("{file} {function}"));
                }
            }
        }
        found.sort();
        assert_eq!(found, aside);
    }
}

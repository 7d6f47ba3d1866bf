//! Files move between memory and disk, piece by piece, while others use them.
//!
//! To disk, some files at a time:
//!
//! | step | action | otherwise |
//! | --- | --- | --- |
//! | 1 | pages are copied to memory of this process | a disk would read pages that others change |
//! | 2 | the copies are written to segments; durable | a page would lead to an empty place |
//! | 3 | under the locks of file and log, each page that still has the content of its copy leads to it, and gives its memory back | writes since the copy would be lost |
//! | 4 | places to which nothing leads are given up | they count as live until their segment is cleaned |
//!
//! It takes no memory of the pool but for the index of a file that had none, so that it works where there is next to nothing left. A
//! compressed file is decoded in memory of this process, and lies plain on disk: all of it in one transaction, if it is still compressed
//! to the same bytes.
//!
//! Into memory, one file at a time:
//!
//! | step | action | otherwise |
//! | --- | --- | --- |
//! | 1 | some pages that lie elsewhere are listed, and those on disk fetched | a thread would wait for a disk with locks held |
//! | 2 | under the locks of file and log, those that still lie there become memory pages; their places are given up | a page that was written since would get its old content |
//! | 3 | where none lies elsewhere any more, the same transaction makes the file a small one | writes in place would not reach its disk |
//!
//! Writes to a file meanwhile go to blocks, as it is large before its first piece towards disk is there and until after its
//! last one towards memory. A copy that cannot be read leaves the file as it is.

use std::sync::{Arc, PoisonError};

use exraid::{Aligned, Buffers};
use pram::memory::BLOCK;
use pram::session::assert_may_wait;
use pram::Session;
use rustix::io::Errno;

use crate::attr::{Ino, Kind};
use crate::codec;
use crate::error::{Error, Result};
use crate::file::{self, Fate, Fetched, Missing, Sent, PAGE};
use crate::inode::packing::Purpose;

use crate::node::{content_of, Aside, Fs};
use crate::retry::{self, if_there_is_room};
use crate::ubj::inodes::regular;
use crate::ubj::room::HIGH;
use crate::ubj::threshold_side::Side;
use crate::ubj::{all_memory, count, free_memory, usage, Count, Union};
use ilfs::part::Owner;
use ilfs::table::ORDERING;
use ilfs::write::Block;
use ilfs::{Head, Place};

/// Pages that one transaction lets lead to disk.
const SENT: usize = 256;
/// Pages that one transaction brings into memory.
const BROUGHT: usize = file::FILLED as usize;
/// Of memory one part in so many is to be free, or clean, when files come from disk: more than when they go there, so that none comes
/// and goes.
const PLENTY: u64 = 8;
/// Pieces that are brought of a file before others have their turn.
const PIECES: u32 = 64;

/// A page, and its entry when it was copied; none: it is reserved. A page of a compressed file has the form that it was decoded from: of
/// such a file all pages go, or none.
struct Copied {
    owner: Owner,
    content: Option<Buffers>,
    packed: Option<Arc<file::Copied>>,
}

/// All pages of a compressed file go in one transaction.
const _: () = assert!(codec::MOST.div_ceil(PAGE) as usize <= SENT);

/// The result of bringing a file into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brought {
    /// It is a small one, or is no more.
    All,
    /// There is more of it, and room.
    Part,
    /// There is no room for more of it, or another thread is moving it.
    Stopped,
}

/// The files that this thread is sending.
struct Claim<'u> {
    union: &'u Union,
    files: Vec<Ino>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut sending = self.union.sending.lock().unwrap_or_else(PoisonError::into_inner);
        self.files.iter().for_each(|ino| _ = sending.remove(ino));
    }
}

/// Runs `work` once memory was taken for it, or an inode unpacked; `None` where there is no room for that, or for the work.
fn if_room<T>(fs: &Fs, purpose: Purpose, mut work: impl FnMut() -> Result<T>) -> Result<Option<T>> {
    if_there_is_room(retry::run(&mut Aside { fs, purpose, makes_room: false }, |_| work()))
}

impl Union {
    /// Claims those of these files that no other thread of this process is sending.
    fn claim(&self, fs: &Fs, files: &[Ino]) -> Claim<'_> {
        let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let claimed: Vec<Ino> = files.iter().copied().filter(|ino| sending.insert(*ino)).collect();
        if claimed.len() < files.len() {
            count(fs.session(), Count::Elsewhere, 1);
        }
        Claim { union: self, files: claimed }
    }

    /// Moves up to `most` pages of these files from memory to disk, as far as there is room; how many.
    pub(super) fn send(&self, fs: &Fs, files: &[Ino], most: usize) -> Result<u64> {
        assert_may_wait();
        let claim = self.claim(fs, files);
        let is_full = |e: &Error| e.errno() == Errno::NOSPC;
        match self.send_some(fs, &claim.files, most) {
            Err(e) if is_full(&e) => {
                self.free(fs, true)?;
                self.send_some(fs, &claim.files, most).or_else(|e| if is_full(&e) { Ok(0) } else { Err(e) })
            }
            done => done,
        }
    }

    fn send_some(&self, fs: &Fs, files: &[Ino], most: usize) -> Result<u64> {
        let session = fs.session();
        let most = most.min(self.log().room(session)? as usize);
        // Dirty blocks have been promised their room.
        if most == 0 || !self.admits(session, most as u64 * BLOCK)? {
            return Err(ilfs::Error::NoSpace.into());
        }
        // 1.
        let mut copied = Vec::new();
        for ino in files {
            if copied.len() < most {
                copy(fs, *ino, most - copied.len(), &mut copied);
            }
        }
        // 2.
        let mut writer = self.log().sorted(session, Head::Hot, None);
        for one in &copied {
            if let Some(content) = &one.content {
                let kind = self.kind_of(fs, one.owner.ino)?;
                writer.push(kind, Block { owner: one.owner, content: content.clone(), moved: None })?;
            }
        }
        let mut places = writer.finish()?.into_iter();
        let placed: Vec<(Copied, Option<Place>)> = copied
            .into_iter()
            .map(|one| (one.content.is_some(), one))
            .map(|(is, one)| (one, if is { places.next() } else { None }))
            .collect();
        // 3 and 4.
        let (mut moved, mut rest) = (0, Vec::new());
        for some in placed.chunk_by(|a, b| a.0.owner.ino == b.0.owner.ino).flat_map(|of_one| of_one.chunks(SENT)) {
            moved += self.lead_to_copies(fs, some, &mut rest)?;
        }
        self.log().give_up(session, &rest)?;
        count(session, Count::Sent, moved);
        if moved > 0 {
            self.room.note_progress();
        }
        Ok(moved)
    }

    /// Step 3, for pages of one file; places that nothing leads to go to `rest`.
    fn lead_to_copies(&self, fs: &Fs, some: &[(Copied, Option<Place>)], rest: &mut Vec<Place>) -> Result<u64> {
        // No memory for an index or to unpack an inode, or no room that could be promised.
        let fates =
            if_room(fs, Purpose::Removal, || self.try_lead(fs, some))?.unwrap_or(vec![Fate::Changed; some.len()]);
        if fates.contains(&Fate::Gone) {
            count(fs.session(), Count::Elsewhere, 1);
        }
        let unused = some.iter().zip(&fates).filter(|(_, fate)| **fate != Fate::Moved);
        rest.extend(unused.filter_map(|((_, place), _)| *place));
        Ok(fates.iter().filter(|fate| **fate == Fate::Moved).count() as u64)
    }

    fn try_lead(&self, fs: &Fs, some: &[(Copied, Option<Place>)]) -> Result<Vec<Fate>> {
        let owner = some[0].0.owner;
        let mut op = fs.session().begin()?;
        op.lock(&[owner.ino, ilfs::KEY])?;
        let node = regular(fs, owner.ino)?.filter(|node| node.raw.generation == owner.generation);
        let Some(mut node) = node.filter(|node| !node.content().is_cut()) else {
            return Ok(vec![Fate::Gone; some.len()]);
        };
        // Another operation is in the midst of a change of it, or gives pages of a file other numbers.
        if op.is_long_locked(owner.ino) || op.is_long_locked(ORDERING) {
            return Ok(vec![Fate::Changed; some.len()]);
        }
        let (mut c, mut tx) = (node.content(), op.tx()?);
        let mut sent = Vec::with_capacity(some.len());
        for (copied, place) in some {
            // Else its segment is being cleaned.
            if let Some(place) = place {
                if !self.log().can_link(&mut tx, *place)? {
                    return Ok(vec![Fate::Changed; some.len()]);
                }
            }
            sent.push(Sent { page: copied.owner.page, copy: copied.content.clone().zip(*place) });
        }
        let mut edit = fs.edit(&mut tx);
        let fates = match &some[0].0.packed {
            Some(packed) => file::send_compressed(&mut edit, &mut c, packed, &sent)?,
            None => file::send(&mut edit, &mut c, &sent)?,
        };
        if !fates.contains(&Fate::Moved) {
            return Ok(fates);
        }
        file::compact(&mut edit, &c, sent.iter().map(|one| one.page))?;
        edit.finish()?;
        node.set_content(&c);
        node.save_hot(&mut tx)?;
        tx.commit()?;
        Ok(fates)
    }

    /// Brings a large file into memory, or a part of it.
    pub(super) fn bring(&self, fs: &Fs, ino: Ino, go_on: &dyn Fn() -> bool) -> Result<Brought> {
        assert_may_wait();
        for _ in 0..PIECES {
            if !go_on() {
                break;
            }
            if !self.make_room_to_bring(fs, BROUGHT as u64)? {
                return Ok(Brought::Stopped);
            }
            // 1.
            let Some((generation, pages)) = list(fs, ino)? else { return Ok(Brought::All) };
            let (mut fetched, mut places) = (Fetched::default(), Missing::new());
            places.extend(pages.iter().filter_map(|(_, place)| *place));
            fetched.fetch(fs, &places);
            // 2 and 3.
            let pages: Vec<u64> = pages.into_iter().map(|(page, _)| page).collect();
            match if_room(fs, Purpose::Change, || self.try_bring(fs, ino, generation, &pages, &fetched))? {
                Some(Brought::Part) => {}
                brought => return Ok(brought.unwrap_or(Brought::Stopped)),
            }
            count(fs.session(), Count::Brought, pages.len() as u64);
        }
        Ok(Brought::Part)
    }

    fn try_bring(&self, fs: &Fs, ino: Ino, generation: u32, pages: &[u64], fetched: &Fetched) -> Result<Brought> {
        let mut op = fs.session().begin()?;
        op.lock(&[ino, ilfs::KEY])?;
        let node = regular(fs, ino)?.filter(|node| node.raw.generation == generation && node.content().is_large());
        let Some(mut node) = node else { return Ok(Brought::All) };
        let in_use = node.content().is_cut() || op.is_long_locked(ino) || op.is_long_locked(ORDERING);
        if in_use || self.side_of(&node.raw, &node.content()) != Side::Memory {
            return Ok(Brought::Stopped);
        }
        let (mut c, mut tx) = (node.content(), op.tx()?);
        let mut edit = fs.edit(&mut tx);
        let all = file::bring(&mut edit, &mut c, pages, fetched)?;
        edit.finish()?;
        node.set_content(&c);
        node.save_hot(&mut tx)?;
        tx.commit()?;
        drop(op);
        if all {
            count(fs.session(), Count::Brought, pages.len() as u64);
            fs.note_tail_of(&node);
        }
        Ok(if all { Brought::All } else { Brought::Part })
    }

    /// Is there memory for so many pages of small files, beside what is kept free, once clean blocks have gone for them?
    fn make_room_to_bring(&self, fs: &Fs, pages: u64) -> Result<bool> {
        if !self.has_plenty(fs.session(), pages * PAGE)? {
            return Ok(false);
        }
        if free_memory(fs.session()) < all_memory(fs.session()) / HIGH + pages * PAGE {
            self.evict(fs, pages, None)?;
        }
        Ok(free_memory(fs.session()) > pages * PAGE)
    }

    /// Is so much memory free, or clean, that small files have room for so many bytes more?
    pub(super) fn has_plenty(&self, session: &Session, bytes: u64) -> Result<bool> {
        let (free, least) = (free_memory(session), all_memory(session) / PLENTY + bytes);
        if free >= least {
            return Ok(true);
        }
        Ok(free + usage(session).placed() * BLOCK >= least)
    }
}

/// Step 1 of sending: adds up to `most` pages of a file. Unreadable pages stay, and are for fsck to report.
fn copy(fs: &Fs, ino: Ino, most: usize, copied: &mut Vec<Copied>) {
    let (mut found, mut bytes, mut generation) = (Vec::new(), Vec::new(), 0);
    let (mut packed, mut is_packed) = (file::Copied::default(), false);
    let look = || {
        found.clear();
        bytes.clear();
        let raw = fs.raw(ino)?;
        let c = content_of(ino, &raw);
        generation = raw.generation;
        is_packed = false;
        if raw.kind != Kind::Regular as u8 || c.is_cut() {
            return Ok(());
        }
        is_packed = file::is_compressed(&c);
        if is_packed {
            return file::copy_out(fs.memory(), &c, 0, c.size, &mut packed);
        }
        file::resident(fs.memory(), &c, 0, most, &mut found)?;
        bytes.resize(found.len() * PAGE as usize, 0);
        for (is, to) in found.iter().zip(bytes.chunks_mut(PAGE as usize)) {
            if let Some((at, len)) = is.bytes {
                fs.memory().read_bytes(at, &mut to[..len as usize])?;
            }
        }
        Ok(())
    };
    if let Err::<(), Error>(e) = fs.session().read(ino, look) {
        return tracing::debug!("inode {ino}: copying its content: {e}");
    }
    if is_packed {
        return copy_packed(fs, (ino, generation), packed, most, copied);
    }
    let memory = Aligned::of(&bytes);
    for (n, is) in found.iter().enumerate() {
        let range = n * PAGE as usize..(n + 1) * PAGE as usize;
        let content = is.bytes.map(|_| Buffers::part(&memory, range));
        copied.push(Copied { owner: Owner { ino, generation, page: is.page }, content, packed: None });
    }
}

/// The same of a compressed file, decoded: all of its pages, or none where there are more.
fn copy_packed(fs: &Fs, of: (Ino, u32), packed: file::Copied, most: usize, copied: &mut Vec<Copied>) {
    let (ino, generation) = of;
    let pages = packed.size().div_ceil(PAGE);
    if pages > most as u64 {
        return;
    }
    let mut plain = match fs.decode_all(&packed) {
        Ok(plain) => plain,
        Err(e) => return tracing::debug!("inode {ino}: decoding its content: {e}"),
    };
    plain.resize((pages * PAGE) as usize, 0);
    let (memory, packed) = (Aligned::of(&plain), Arc::new(packed));
    for page in 0..pages {
        let content = Some(Buffers::part(&memory, (page * PAGE) as usize..((page + 1) * PAGE) as usize));
        copied.push(Copied { owner: Owner { ino, generation, page }, content, packed: Some(packed.clone()) });
    }
}

/// The generation of a large file, and some of its pages that do not lie in memory pages; none: it is no large file.
#[allow(clippy::type_complexity)]
fn list(fs: &Fs, ino: Ino) -> Result<Option<(u32, Vec<(u64, Option<Place>)>)>> {
    let mut pages = Vec::new();
    let found = fs.session().read(ino, || {
        pages.clear();
        let raw = fs.raw(ino)?;
        let c = content_of(ino, &raw);
        if raw.kind != Kind::Regular as u8 || !c.is_large() {
            return Ok(None);
        }
        file::elsewhere(fs.memory(), &c, BROUGHT, &mut pages)?;
        Ok(Some(raw.generation))
    });
    match found {
        Err::<_, Error>(e) if matches!(e.errno(), Errno::STALE | Errno::NOENT) => Ok(None),
        found => Ok(found?.map(|generation| (generation, pages))),
    }
}

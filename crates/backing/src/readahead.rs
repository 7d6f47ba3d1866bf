//! Reading much of a disk in order, as fast as the disk can: while a piece is used, the next ones are being read.
//!
//! This is done only on a disk that gains by it ([`Disk::reads_at_once`]). On others the caller reads each piece when
//! it needs it.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender};
use std::thread::{Builder, Scope};

use crate::aligned::Aligned;
use crate::disk::{read_copy, Disk};
use pram::error::Result;

/// Bytes of a piece of a [`stream`].
const PIECE: u64 = 1 << 20;

/// A stretch of a disk.
pub type Piece = Range<u64>;

/// The pieces as they come.
pub struct Ahead<'d, D, P> {
    disk: &'d D,
    /// The pieces that have not been taken, and the number of those that have.
    pieces: P,
    taken: usize,
    /// Lane `n` of `m` reads the pieces `n`, `n + m`, `n + 2m`, ...; none: nothing is read ahead.
    lanes: Vec<Lane>,
    /// The bytes of the piece that was taken last.
    last: Aligned,
}

/// A thread that reads.
struct Lane {
    read: Receiver<(Aligned, io::Result<()>)>,
    /// Buffers to be used again.
    spare: Sender<Aligned>,
}

/// Lets `work` have the pieces of a disk.
pub fn read<D: Disk, P: Iterator<Item = Piece> + Clone + Send, R>(
    disk: &D,
    pieces: P,
    work: impl FnOnce(&mut Ahead<D, P>) -> Result<R>,
) -> Result<R> {
    let most = pieces.clone().take(disk.reads_at_once()).count();
    let mut ahead = Ahead { disk, pieces: pieces.clone(), taken: 0, lanes: Vec::new(), last: Aligned::default() };
    if most < 2 {
        return work(&mut ahead);
    }
    std::thread::scope(|scope| {
        for n in 0..most {
            match Lane::start(scope, disk, pieces.clone().skip(n).step_by(most)) {
                Ok(lane) => ahead.lanes.push(lane),
                // Without threads it takes longer. The lanes that have begun end.
                Err(_) => {
                    ahead.lanes.clear();
                    break;
                }
            }
        }
        let done = work(&mut ahead);
        // The lanes end when nobody takes their pieces.
        drop(ahead);
        done
    })
}

impl Lane {
    fn start<'s, 'd: 's, D: Disk>(
        scope: &'s Scope<'s, 'd>,
        disk: &'d D,
        pieces: impl Iterator<Item = Piece> + Send + 's,
    ) -> io::Result<Lane> {
        let ((send, read), (spare, spares)) = (sync_channel(1), channel());
        Builder::new().name("read ahead".into()).spawn_scoped(scope, move || {
            for piece in pieces {
                let mut buffer: Aligned = spares.try_recv().unwrap_or_default();
                let done = read_piece(disk, &piece, &mut buffer);
                if send.send((buffer, done)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Lane { read, spare })
    }
}

fn read_piece(disk: &impl Disk, piece: &Piece, buffer: &mut Aligned) -> io::Result<()> {
    disk.read_exact_at(buffer.resized((piece.end - piece.start) as usize), piece.start)
}

impl<D: Disk, P: Iterator<Item = Piece>> Ahead<'_, D, P> {
    /// The next piece's bytes, or why they cannot all be read; `None` after the last.
    pub fn take_next(&mut self) -> Option<(Piece, io::Result<()>, &mut [u8])> {
        let piece = self.pieces.next()?;
        let done = match self.taken.checked_rem(self.lanes.len()) {
            None => read_piece(self.disk, &piece, &mut self.last),
            Some(n) => self.take(n),
        };
        self.taken += 1;
        Some((piece, done, self.last.bytes()))
    }

    fn take(&mut self, n: usize) -> io::Result<()> {
        let lane = &self.lanes[n];
        let (buffer, done) = lane.read.recv().map_err(|_| io::Error::other("a thread that reads has ended"))?;
        // A lane that has read its last piece needs no buffer.
        let _ = lane.spare.send(std::mem::replace(&mut self.last, buffer));
        done
    }
}

/// Where bytes come from, best in ascending order.
pub trait Source {
    fn read_exact_at(&mut self, buf: &mut [u8], at: u64) -> io::Result<()>;
    /// See [`Disk::copies`].
    fn copies(&self) -> usize;
    /// From one copy; none: from any.
    fn read_copy_at(&mut self, copy: Option<usize>, buf: &mut [u8], at: u64) -> io::Result<()>;
    /// See [`Disk::note_wrong`].
    fn note_wrong(&self);
}

impl<D: Disk> Source for &D {
    fn read_exact_at(&mut self, buf: &mut [u8], at: u64) -> io::Result<()> {
        (**self).read_exact_at(buf, at)
    }

    fn copies(&self) -> usize {
        (**self).copies()
    }

    fn read_copy_at(&mut self, copy: Option<usize>, buf: &mut [u8], at: u64) -> io::Result<()> {
        read_copy(*self, copy, buf, at)
    }

    fn note_wrong(&self) {
        (**self).note_wrong();
    }
}

/// Lets `work` read the bytes in `range` of a disk, mostly in ascending order.
pub fn stream<D: Disk, R>(disk: &D, range: Range<u64>, work: impl FnOnce(&mut dyn Source) -> Result<R>) -> Result<R> {
    if disk.reads_at_once() < 2 {
        return work(&mut { disk });
    }
    let end = range.end;
    let pieces = range.step_by(PIECE as usize).map(move |at| at..at.saturating_add(PIECE).min(end));
    read(disk, pieces, |ahead| work(&mut Stream { ahead, piece: 0..0, whole: false }))
}

/// A disk that is read piece by piece.
struct Stream<'a, 'd, D, P> {
    ahead: &'a mut Ahead<'d, D, P>,
    /// The one that was taken last, and whether all of it could be read.
    piece: Piece,
    whole: bool,
}

impl<D: Disk, P: Iterator<Item = Piece>> Source for Stream<'_, '_, D, P> {
    fn read_exact_at(&mut self, mut buf: &mut [u8], mut at: u64) -> io::Result<()> {
        while !buf.is_empty() {
            while at >= self.piece.end {
                let Some((piece, done, _)) = self.ahead.take_next() else { break };
                (self.piece, self.whole) = (piece, done.is_ok());
            }
            let Range { start, end } = self.piece;
            // Of a piece that was passed, or could not be read whole, only the wanted bytes are read.
            let (here, until) = match () {
                () if at < start => (false, start),
                () if at < end => (self.whole, end),
                () => (false, u64::MAX),
            };
            let (now, later) = buf.split_at_mut((until - at).min(buf.len() as u64) as usize);
            match here {
                true => now.copy_from_slice(&self.ahead.last.bytes()[(at - start) as usize..][..now.len()]),
                false => self.ahead.disk.read_exact_at(now, at)?,
            }
            (at, buf) = (at + now.len() as u64, later);
        }
        Ok(())
    }

    fn copies(&self) -> usize {
        self.ahead.disk.copies()
    }

    fn read_copy_at(&mut self, copy: Option<usize>, buf: &mut [u8], at: u64) -> io::Result<()> {
        match copy {
            None => self.read_exact_at(buf, at),
            copy => read_copy(self.ahead.disk, copy, buf, at),
        }
    }

    fn note_wrong(&self) {
        self.ahead.disk.note_wrong();
    }
}

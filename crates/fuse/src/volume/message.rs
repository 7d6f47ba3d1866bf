//! A request of /dev/fuse. The content of a WRITE begins where the memory for disks begins.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use exraid::{Aligned, Buffers};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::abi::{InHeader, Opcode, OutHeader, WriteIn};
use crate::init::MAX_PAYLOAD;
use crate::sys::Device;

const HEAD: usize = size_of::<InHeader>();
/// The number of bytes before the content of a WRITE.
const BEFORE: usize = HEAD + size_of::<WriteIn>();

/// How often to check whether the memory is still shared.
const PATIENCE: u32 = 100;

/// The memory of a request, and of the content that is read for it.
pub struct Message {
    before: [u8; BEFORE],
    memory: Arc<Aligned>,
    /// The length of the request.
    len: usize,
}

/// The content of a reply.
pub enum Reply {
    Nothing,
    Bytes(Vec<u8>),
    /// So many bytes of the message's own memory.
    Own(usize),
}

impl Message {
    pub fn new() -> Message {
        Message { before: [0; BEFORE], memory: Aligned::zeroed(MAX_PAYLOAD), len: 0 }
    }

    pub fn read(&mut self, device: &Device) -> Result<(), Errno> {
        self.have_alone();
        let memory = Arc::get_mut(&mut self.memory).ok_or(Errno::AGAIN)?;
        let mut parts = [IoSliceMut::new(&mut self.before), IoSliceMut::new(memory.bytes_mut())];
        self.len = rustix::io::readv(device, &mut parts)?;
        if self.len < HEAD {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// Makes the memory unshared. A disk that has just answered may share it for a moment; one that did not answer in
    /// time shares it for longer, and keeps it.
    fn have_alone(&mut self) {
        for _ in 0..PATIENCE {
            if Arc::get_mut(&mut self.memory).is_some() {
                return;
            }
            std::thread::yield_now();
        }
        self.memory = Aligned::zeroed(MAX_PAYLOAD);
    }

    pub fn head(&self) -> InHeader {
        InHeader::read_from_prefix(&self.before).map(|(head, _)| head).unwrap_or_default()
    }

    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_code(self.head().opcode)
    }

    /// The fixed argument.
    pub fn args<T: FromBytes>(&mut self) -> Result<T, Errno> {
        let bytes = self.bytes(size_of::<T>());
        T::read_from_bytes(&bytes).map_err(|_| Errno::INVAL)
    }

    /// The name that follows the header.
    pub fn name(&mut self) -> Result<Vec<u8>, Errno> {
        let bytes = self.bytes(self.len - HEAD);
        let end = bytes.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
        Ok(bytes[..end].to_vec())
    }

    /// `len` bytes after the header, or as many as came.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let len = len.min(self.len - HEAD);
        let first = len.min(BEFORE - HEAD);
        let mut bytes = self.before[HEAD..HEAD + first].to_vec();
        if let Some(memory) = Arc::get_mut(&mut self.memory).filter(|_| len > first) {
            bytes.extend_from_slice(&memory.bytes_mut()[..len - first]);
        }
        bytes
    }

    /// The content of a WRITE of `len` bytes.
    pub fn content(&self, len: u32) -> Result<Buffers, Errno> {
        match self.len.checked_sub(BEFORE) == Some(len as usize) {
            true => Ok(Buffers::part(&self.memory, 0..len as usize)),
            false => Err(Errno::INVAL),
        }
    }

    /// Memory for a reply.
    pub fn room(&self, len: usize) -> Buffers {
        Buffers::part(&self.memory, 0..len.min(self.memory.len()))
    }

    /// The reply for the bytes that were read, in the message's own memory if they are there.
    pub fn filled(&self, found: &Buffers) -> Reply {
        let len = found.len() as usize;
        match found.layout().eq(self.room(len).layout()) {
            true => Reply::Own(len),
            false => Reply::Bytes(found.to_vec()),
        }
    }

    pub fn answer(&mut self, device: &Device, answer: Result<Reply, Errno>) {
        let unique = self.head().unique;
        let copy;
        let (error, body): (i32, &[u8]) = match answer {
            Ok(Reply::Nothing) => (0, &[]),
            Ok(Reply::Bytes(bytes)) => {
                copy = bytes;
                (0, &copy)
            }
            Ok(Reply::Own(len)) => match Arc::get_mut(&mut self.memory) {
                Some(memory) => (0, &memory.bytes_mut()[..len]),
                // See `have_alone`: the memory is shared, but filled all the same.
                None => {
                    copy = self.room(len).to_vec();
                    (0, &copy)
                }
            },
            Err(e) => (-e.raw_os_error(), &[]),
        };
        let head = OutHeader { len: (size_of::<OutHeader>() + body.len()) as u32, error, unique };
        match rustix::io::writev(device, &[IoSlice::new(head.as_bytes()), IoSlice::new(body)]) {
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => {}
            Err(e) => tracing::error!("the kernel refused a reply: {e}"),
        }
    }
}

pub fn value<T: IntoBytes + Immutable>(value: &T) -> Reply {
    Reply::Bytes(value.as_bytes().to_vec())
}

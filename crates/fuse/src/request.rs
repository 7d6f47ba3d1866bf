//! One request of either transport: header, fixed argument, payload.
//!
//! The payload buffer serves both ways: it holds the names or data of the request, and the reply is built in it. So
//! file content moves between the kernel and the pool without another copy.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::abi::{ExtHeader, InHeader, EXT_GROUPS};

/// The length of the reply in the payload buffer, or the error.
pub type Answer = Result<usize, Errno>;

/// Most supplementary groups taken from a request; the kernel sends the one that matters.
const MAX_GROUPS: usize = 32;

pub struct Request<'a> {
    pub head: InHeader,
    /// The fixed argument of the opcode.
    pub args: &'a [u8],
    /// The whole payload buffer.
    pub data: &'a mut [u8],
    /// The length of the request's part of it.
    pub len: usize,
}

/// Supplementary groups of the caller, on the stack.
pub struct Groups {
    ids: [u32; MAX_GROUPS],
    len: usize,
}

impl Groups {
    pub fn as_slice(&self) -> &[u32] {
        &self.ids[..self.len]
    }
}

impl Request<'_> {
    pub fn args<T: FromBytes>(&self) -> Result<T, Errno> {
        T::read_from_prefix(self.args).map(|(args, _)| args).map_err(|_| Errno::INVAL)
    }

    fn payload(&self) -> &[u8] {
        &self.data[..self.len.min(self.data.len())]
    }

    /// The name at the start of the payload.
    pub fn name(&self) -> Result<&[u8], Errno> {
        Ok(split_name(self.payload())?.0)
    }

    /// The two names at the start of the payload.
    pub fn names(&self) -> Result<(&[u8], &[u8]), Errno> {
        let (first, rest) = split_name(self.payload())?;
        Ok((first, split_name(rest)?.0))
    }

    /// The name at the start of the payload, and `len` bytes after it.
    pub fn name_and_value(&self, len: usize) -> Result<(&[u8], &[u8]), Errno> {
        let (name, rest) = split_name(self.payload())?;
        Ok((name, rest.get(..len).ok_or(Errno::INVAL)?))
    }

    /// The first `len` bytes of the payload: the content of a WRITE.
    pub fn content(&self, len: usize) -> Result<&[u8], Errno> {
        self.payload().get(..len).ok_or(Errno::INVAL)
    }

    /// The groups extension, empty if there is none.
    pub fn groups(&self) -> Groups {
        let mut groups = Groups { ids: [0; MAX_GROUPS], len: 0 };
        let extensions = usize::from(self.head.total_extlen) * 8;
        let payload = self.payload();
        let Some(start) = payload.len().checked_sub(extensions) else { return groups };
        let mut rest = &payload[start..];
        while let Ok((head, body)) = ExtHeader::read_from_prefix(rest) {
            let Some(end) = (head.size as usize).checked_sub(std::mem::size_of::<ExtHeader>()) else { break };
            let Some(body_now) = body.get(..end) else { break };
            if head.kind == EXT_GROUPS {
                groups.read(body_now);
            }
            rest = &body[end..];
        }
        groups
    }

    /// Puts a value at the start of the reply.
    pub fn reply<T: IntoBytes + Immutable>(&mut self, value: &T) -> Answer {
        self.reply_bytes(value.as_bytes())
    }

    pub fn reply_bytes(&mut self, bytes: &[u8]) -> Answer {
        self.data.get_mut(..bytes.len()).ok_or(Errno::NOBUFS)?.copy_from_slice(bytes);
        Ok(bytes.len())
    }
}

impl Groups {
    fn read(&mut self, body: &[u8]) {
        let Ok((count, ids)) = u32::read_from_prefix(body) else { return };
        for id in ids.chunks_exact(4).take((count as usize).min(MAX_GROUPS)) {
            self.ids[self.len.min(MAX_GROUPS - 1)] = u32::from_ne_bytes([id[0], id[1], id[2], id[3]]);
            self.len = (self.len + 1).min(MAX_GROUPS);
        }
    }
}

/// Splits after the zero byte that ends a name.
fn split_name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = bytes.iter().position(|&b| b == 0).ok_or(Errno::INVAL)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(data: &mut [u8], len: usize, extlen: u16) -> Request<'_> {
        Request { head: InHeader { total_extlen: extlen, ..Default::default() }, args: &[], data, len }
    }

    #[test]
    fn names_end_at_their_zero_byte() {
        let mut data = *b"one\0two\0rest";
        let req = request(&mut data, 12, 0);
        assert_eq!(req.name(), Ok(&b"one"[..]));
        assert_eq!(req.names(), Ok((&b"one"[..], &b"two"[..])));
        assert_eq!(req.name_and_value(4), Ok((&b"one"[..], &b"two\0"[..])));
        assert_eq!(request(&mut b"open".to_vec(), 4, 0).name(), Err(Errno::INVAL));
    }

    #[test]
    fn groups_come_from_the_end_of_an_unaligned_payload() {
        let mut data = b"name\0".to_vec();
        for word in [16u32, EXT_GROUPS, 1, 42] {
            data.extend_from_slice(&word.to_ne_bytes());
        }
        let len = data.len();
        assert_eq!(request(&mut data, len, 2).groups().as_slice(), &[42]);
        assert!(request(&mut data, len, 0).groups().as_slice().is_empty());
        // Wrong lengths are ignored, not followed.
        assert!(request(&mut data, len, 900).groups().as_slice().is_empty());
        data[5] = 200;
        assert!(request(&mut data, len, 2).groups().as_slice().is_empty());
    }
}

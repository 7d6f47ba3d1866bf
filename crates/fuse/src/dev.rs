//! Transport /dev/fuse: several threads, each with a clone of the device, that read requests and write
//! replies. One such thread also stays beside io_uring, for what the kernel never sends there.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{InHeader, Opcode, OutHeader};
use crate::init;
use crate::promises::Promises;
use crate::request::{Answer, Request};
use crate::rhythm::Standing;
use crate::server::Server;
use crate::sys::Device;

/// Longest fixed argument of any opcode.
const ARGS_MAX: usize = 128;

/// How long the thread beside io_uring rests after each message, so that FORGETs gather and one waking
/// handles many. What a removed file occupied is free that much later.
pub const PAUSE: Duration = Duration::from_millis(2);

/// Serves the few messages that io_uring does not carry.
pub fn serve_beside(device: &Arc<Device>, server: &Server, promises: &Promises) {
    serve_paced(device, server, promises, PAUSE)
}

/// Serves requests until the connection ends.
pub fn serve(device: &Arc<Device>, server: &Server, promises: &Promises) {
    serve_paced(device, server, promises, Duration::ZERO)
}

fn serve_paced(device: &Arc<Device>, server: &Server, promises: &Promises, pause: Duration) {
    let mut reader = Reader { head: InHeader::default(), body: vec![0; init::buffer_len()] };
    let mut standing = Standing::default();
    loop {
        // Callers do not wait for what is served at a pace.
        if pause.is_zero() {
            standing.review();
        }
        let len = match reader.read(device) {
            Ok(len) => len,
            // Interrupted, or the request was withdrawn while being read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => return,
            Err(e) => return tracing::error!("reading /dev/fuse: {e}"),
        };
        reader.serve(device, server, promises, len);
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
}

struct Reader {
    head: InHeader,
    body: Vec<u8>,
}

impl Reader {
    /// Bytes that came after the header.
    fn read(&mut self, device: &Device) -> Result<usize, Errno> {
        let mut parts = [IoSliceMut::new(self.head.as_mut_bytes()), IoSliceMut::new(&mut self.body)];
        let len = rustix::io::readv(device, &mut parts)?;
        len.checked_sub(std::mem::size_of::<InHeader>()).ok_or(Errno::INVAL)
    }

    fn serve(&mut self, device: &Arc<Device>, server: &Server, promises: &Promises, len: usize) {
        let size = Opcode::from_code(self.head.opcode).map_or(0, Opcode::args_size).min(len);
        let mut args = [0; ARGS_MAX];
        args[..size].copy_from_slice(&self.body[..size]);
        let (args, data) = (&args[..size], &mut self.body[size..]);
        let mut req = Request { head: self.head, args, data, len: len - size };
        let unique = self.head.unique;
        match server.serve(&mut req) {
            None => {}
            Some((answer, None)) => reply(device, unique, answer, &self.body[size..]),
            Some((answer, Some(ticket))) => {
                let (device, data) = (device.clone(), answer.map(|len| self.body[size..size + len].to_vec()));
                promises.add(ticket, move |kept| match kept.and(data) {
                    Ok(data) => reply(&device, unique, Ok(data.len()), &data),
                    Err(e) => reply(&device, unique, Err(e), &[]),
                });
            }
        }
    }
}

fn reply(device: &Device, unique: u64, answer: Answer, data: &[u8]) {
    let (error, body) = match answer {
        Ok(len) => (0, &data[..len]),
        Err(e) => (-e.raw_os_error(), &data[..0]),
    };
    let len = std::mem::size_of::<OutHeader>() + body.len();
    let head = OutHeader { len: len as u32, error, unique };
    match rustix::io::writev(device, &[IoSlice::new(head.as_bytes()), IoSlice::new(body)]) {
        // The caller was interrupted and is gone, or the mount is.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => {}
        Err(e) => tracing::error!("the kernel refused a reply: {e}"),
    }
}

//! Transport /dev/fuse: several threads, each with a clone of the device, read requests and write replies. Beside
//! io_uring one such thread serves the messages that the kernel never sends there.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use pram::priority::ThreadPriority;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{InHeader, Opcode, OutHeader};
use crate::answer_later::{Carrier, Parked};
use crate::enospc::FORGETS_GATHER;
use crate::init;
use crate::request::{Answer, Request};
use crate::server::{Served, Server};
use crate::sys::Device;

/// Serves the few messages that io_uring does not carry.
pub fn serve_beside(device: &Arc<Device>, server: &Server) -> io::Result<()> {
    server.notifier.forgets_come_to(std::thread::current());
    serve_paced(device, server, FORGETS_GATHER)
}

/// Serves requests until the connection ends.
pub fn serve(device: &Arc<Device>, server: &Server) -> io::Result<()> {
    serve_paced(device, server, Duration::ZERO)
}

fn serve_paced(device: &Arc<Device>, server: &Server, pause: Duration) -> io::Result<()> {
    let mut message = Message::new(device);
    let mut priority = ThreadPriority::default();
    loop {
        // No caller waits for messages that are served with a pause.
        if pause.is_zero() {
            priority.review();
        }
        match message.read() {
            Ok(()) => {}
            // Interrupted, or the kernel withdrew the request during the read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        match server.serve(&mut message.request()) {
            (Served::Now(None), _) => {}
            (Served::Now(Some(answer)), _) => message.answer(answer),
            (Served::Later(why), begun) => {
                let parked = std::mem::replace(&mut message, Message::new(device));
                server.park(Parked::new(parked), why, begun);
            }
        }
        if !pause.is_zero() {
            std::thread::park_timeout(pause);
        }
    }
}

/// A message of the device, and the buffer for its answer.
struct Message {
    device: Arc<Device>,
    head: InHeader,
    body: Vec<u8>,
    /// How many bytes of `body` came with it.
    len: usize,
}

impl Message {
    fn new(device: &Arc<Device>) -> Message {
        Message { device: device.clone(), head: InHeader::default(), body: vec![0; init::buffer_len()], len: 0 }
    }

    fn read(&mut self) -> Result<(), Errno> {
        let mut parts = [IoSliceMut::new(self.head.as_mut_bytes()), IoSliceMut::new(&mut self.body)];
        let len = rustix::io::readv(&self.device, &mut parts)?;
        self.len = len.checked_sub(std::mem::size_of::<InHeader>()).ok_or(Errno::INVAL)?;
        Ok(())
    }

    /// The length in bytes of the fixed argument.
    fn args_size(&self) -> usize {
        Opcode::from_code(self.head.opcode).map_or(0, Opcode::args_size).min(self.len)
    }

    fn answer(&self, answer: Answer) {
        reply(&self.device, self.head.unique, answer, &self.body[self.args_size()..]);
    }
}

impl Carrier for Message {
    fn request(&mut self) -> Request<'_> {
        let size = self.args_size();
        let (args, data) = self.body.split_at_mut(size);
        Request { head: self.head, args, data, len: self.len - size }
    }

    fn send(self: Box<Self>, answer: Answer) {
        self.answer(answer);
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
        // The caller was interrupted and is gone, or the mount is gone.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => {}
        Err(e) => tracing::error!("the kernel refused a reply: {e}"),
    }
}

//! INIT: kernel and server agree on capabilities before anything else.

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, init, InHeader, InitIn, InitOut, Opcode, OutHeader};
use crate::error::{Context, Error, Result};
use crate::options::{MountOptions, Transport};
use crate::sys;

/// Largest payload of a request: a write of 256 pages.
pub const MAX_PAYLOAD: usize = 1 << 20;
const MAX_PAGES: u16 = 256;

/// Requests the kernel may have under way on its own account (read-ahead, write-back of mappings).
const MAX_BACKGROUND: u16 = 64;
const CONGESTED: u16 = 48;

/// Asked for where the kernel offers it. Not asked for, on purpose:
/// - WRITEBACK_CACHE: an acknowledged write must be in the pool.
/// - ATOMIC_O_TRUNC: opens send no message, so truncation must.
/// - NO_OPENDIR_SUPPORT: the kernel would cache listings, see `dirs`.
/// - AUTO_INVAL_DATA: pages stay until `notify` says otherwise.
/// - EXPLICIT_INVAL_DATA: the kernel would keep pages after it has cut them off at an outdated size, see `stale_attrs`.
/// - ASYNC_DIO: before a write past the page cache (O_DIRECT, by io_submit) the kernel would drop pages, and not after
///   it. Without it, direct reads and writes in batches are a tenth slower.
/// - Locks: the kernel's own are enough, since every user of a lock is on this machine's mount.
const WANTED: u64 = init::ASYNC_READ
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::NO_OPEN_SUPPORT
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::CREATE_SUPP_GROUP
    | init::HAS_EXPIRE_ONLY;

/// Without these `server` would answer wrongly.
const NEEDED: u64 = init::NO_OPEN_SUPPORT | init::INIT_EXT | init::HANDLE_KILLPRIV_V2;

/// The capabilities that a server asks for where they are offered, and those that it cannot do without.
pub struct Terms {
    pub wanted: u64,
    pub needed: u64,
}

/// The terms of a pool without options.
const POOL: Terms = Terms { wanted: WANTED, needed: NEEDED };

/// The terms of a pool that is mounted with these options.
pub fn terms(options: &MountOptions) -> Terms {
    let mut terms = POOL;
    if options.idmap {
        terms.wanted |= init::ALLOW_IDMAP;
        terms.needed |= init::ALLOW_IDMAP;
    }
    if options.noxattr {
        terms.wanted &= !init::POSIX_ACL;
    }
    terms
}

/// Reads INIT from a fresh connection and answers it. Returns the kernel's minor version.
pub fn negotiate(dev: &sys::Device, terms: &Terms, transport: Transport) -> Result<u32> {
    let mut buf = vec![0; buffer_len()];
    let len = loop {
        match rustix::io::read(dev, &mut buf[..]) {
            Err(Errno::INTR | Errno::AGAIN) => continue,
            read => break read.context("read the kernel's greeting")?,
        }
    };
    let bad = || Error::Unavailable("the kernel's greeting is not FUSE's".into());
    let (head, rest) = InHeader::read_from_prefix(&buf[..len]).map_err(|_| bad())?;
    if Opcode::from_code(head.opcode) != Some(Opcode::Init) {
        return Err(bad());
    }
    // Older kernels send a shorter structure: the missing fields are zero.
    let mut args = InitIn::default();
    let size = rest.len().min(std::mem::size_of::<InitIn>());
    args.as_mut_bytes()[..size].copy_from_slice(&rest[..size]);

    let reply = answer(&args, terms, transport);
    let head_out = OutHeader {
        len: (std::mem::size_of::<OutHeader>() + std::mem::size_of::<InitOut>()) as u32,
        error: if reply.is_ok() { 0 } else { -Errno::PROTO.raw_os_error() },
        unique: head.unique,
    };
    let body = *reply.as_ref().unwrap_or(&InitOut::default());
    let parts = [std::io::IoSlice::new(head_out.as_bytes()), std::io::IoSlice::new(body.as_bytes())];
    rustix::io::writev(dev, &parts).context("answer the kernel's greeting")?;
    reply.map(|_| args.minor)
}

/// A read of /dev/fuse must have room for the largest request.
pub fn buffer_len() -> usize {
    MAX_PAYLOAD + 4096
}

fn answer(args: &InitIn, terms: &Terms, transport: Transport) -> Result<InitOut> {
    let offered = u64::from(args.flags) | u64::from(args.flags2) << 32;
    let lacking = terms.needed & !offered;
    if lacking == init::ALLOW_IDMAP {
        return Err(Error::Unavailable("idmap: this kernel maps no users on FUSE; Linux 6.12 or later does".into()));
    }
    if args.major != abi::VERSION.0 || args.minor < abi::MIN_MINOR || lacking != 0 {
        let (major, minor) = (args.major, args.minor);
        let old = format!("the kernel speaks FUSE {major}.{minor}; Linux 5.17 or later (7.36) is needed");
        return Err(Error::Unavailable(old));
    }
    let mut flags = terms.wanted & offered;
    if transport == Transport::Uring {
        if offered & init::OVER_IO_URING == 0 {
            return Err(Error::Unavailable("the kernel does not offer FUSE over io_uring".into()));
        }
        flags |= init::OVER_IO_URING;
    }
    Ok(InitOut {
        major: abi::VERSION.0,
        minor: abi::VERSION.1,
        max_readahead: args.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: CONGESTED,
        max_write: MAX_PAYLOAD as u32,
        time_gran: 1,
        max_pages: MAX_PAGES,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, offered: u64) -> InitIn {
        InitIn { major: 7, minor, flags: offered as u32, flags2: (offered >> 32) as u32, ..Default::default() }
    }

    #[test]
    fn takes_only_what_is_offered() {
        let out = answer(&offer(44, NEEDED | init::POSIX_ACL), &POOL, Transport::Dev).unwrap();
        assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, NEEDED | init::POSIX_ACL);
        let all = answer(&offer(44, u64::MAX), &POOL, Transport::Uring).unwrap();
        assert_eq!(u64::from(all.flags) | u64::from(all.flags2) << 32, WANTED | init::OVER_IO_URING);
        let idmapped =
            answer(&offer(44, u64::MAX), &terms(&MountOptions::parse("idmap").unwrap()), Transport::Dev).unwrap();
        assert_eq!(u64::from(idmapped.flags2) << 32 & init::ALLOW_IDMAP, init::ALLOW_IDMAP);
        let plain = terms(&MountOptions::parse("noxattr").unwrap());
        assert_eq!(POOL.wanted & !plain.wanted, init::POSIX_ACL);
    }

    #[test]
    fn refuses_what_is_too_old() {
        assert!(answer(&offer(35, u64::MAX), &POOL, Transport::Dev).is_err());
        assert!(answer(&offer(44, 0), &POOL, Transport::Dev).is_err());
        let e = answer(&offer(39, NEEDED), &terms(&MountOptions::parse("idmap").unwrap()), Transport::Dev)
            .unwrap_err()
            .to_string();
        assert!(e.contains("6.12"), "{e}");
        let e = answer(&offer(40, NEEDED), &POOL, Transport::Uring).unwrap_err().to_string();
        assert!(e.contains("io_uring"), "{e}");
    }
}

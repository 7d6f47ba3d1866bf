//! Signals that ask a mount to end, as a file descriptor.
//!
//! A handler rather than a blocked mask: the mask is per thread, and threads that run already when the mount begins
//! would still die of the signal.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{eventfd, EventfdFlags};

/// The descriptor that the handler writes to; negative: none yet.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// Readable once SIGINT, SIGTERM or SIGHUP has come to this process, since the first of these was made.
pub struct Signals(BorrowedFd<'static>);

impl Signals {
    pub fn catch() -> io::Result<Signals> {
        if WAKE.load(Ordering::Acquire) < 0 {
            let fd: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            if WAKE.compare_exchange(-1, fd.as_raw_fd(), Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // The handler may use it as long as the process lives.
                std::mem::forget(fd);
            }
        }
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            install(signal)?;
        }
        // SAFETY: opened above by this or another call, never closed.
        Ok(Signals(unsafe { BorrowedFd::borrow_raw(WAKE.load(Ordering::Acquire)) }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}

fn install(signal: libc::c_int) -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all-zero is a valid `sigaction` (default handler, no flags, empty mask); the fields set make it
    // one whose handler does only what is allowed in a handler; the pointer lives across the call.
    let failed = unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = wake as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, action, std::ptr::null_mut())
    };
    if failed < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn wake(_signal: libc::c_int) {
    let one = 1u64;
    // SAFETY: `write` may be called in a handler; it reads eight bytes of `one`. A failure needs no handling: it means
    // that the descriptor is readable already.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::write(WAKE.load(Ordering::Acquire), std::ptr::from_ref(&one).cast(), 8);
        *errno = before;
    }
}

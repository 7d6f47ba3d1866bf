//! The one module with `unsafe`: memory that a device works with, and the kernel's calls that name it.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`memory`] | memory of transfers: aligned memory of our own, memory of others |
//! | [`ring`] | io_uring: what is sent with which memory, and when it comes back |
//! | [`shared`] | words that processes have mapped; locks on ranges of bytes |
//! | [`calls`] | the same by ordinary system calls, and what has no safe wrapper |
//!
//! Invariants that the SAFETY notes cite:
//! 1. A [`memory::Part`] points to memory that stays mapped, for reading and writing, as long as the owner that stands
//!    beside it in its [`memory::Buffers`] lives.
//! 2. That memory is only ever reached as atomics, by the kernel, or by a `&mut` to the one owner: others (threads,
//!    processes, devices) may store there at any time, and what is read may be torn, never invalid.
//! 3. What the kernel has been given (buffers, vectors, descriptor) stays where it is, and alive, until the kernel has
//!    given it back: it lies in a table whose entries are taken out by completions and by nothing else; if the table
//!    must end before, what is in it is leaked.
//! 4. A ring is used by the one thread that made it.

#![allow(unsafe_code)]

pub mod calls;
pub mod memory;
pub mod ring;
pub mod shared;

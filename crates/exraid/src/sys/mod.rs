//! The one module with `unsafe`: memory that a device works with, and the kernel's calls that name it.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`memory`] | memory of transfers: aligned memory of our own, memory of others |
//! | [`ring`] | io_uring: calls with their memory, and their completions |
//! | [`shared`] | mapped words of several processes; locks on ranges of bytes |
//! | [`calls`] | the same by ordinary system calls, and calls without a safe wrapper |
//!
//! Invariants that the SAFETY notes cite:
//! 1. A [`memory::Part`] points to memory that stays mapped, for reading and writing, as long as the owner beside it in
//!    its [`memory::Buffers`] lives.
//! 2. That memory is only accessed as atomics, by the kernel, or by a `&mut` to the one owner. Other threads, processes
//!    and devices may store there at any time, so content may be torn, never invalid.
//! 3. Buffers, vectors and descriptors that the kernel has got stay in place, and alive, until the kernel gives them
//!    back: they lie in a table whose entries only a completion removes; if the table must end before, its entries are
//!    leaked.
//! 4. A ring is used by the one thread that made it.

#![allow(unsafe_code)]

pub mod calls;
pub mod memory;
pub mod ring;
pub mod shared;

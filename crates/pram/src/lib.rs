//! Persistent RAM: one memory, mapped shared and used in place by every attached process.
//!
//! This crate knows nothing of files. It offers typed memory that survives, transactions over it, and
//! process-shared locks; all of its `unsafe` is in [`mem`].
//!
//! Each module knows only those above it in this table:
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`error`] | errors |
//! | [`off`] | typed offsets: the only references inside a memory |
//! | [`clock`] | the time of day; the clock that tests move |
//! | [`budget`] | the budget of background work, and its rests |
//! | [`sip`] | the keyed hash of the format |
//! | [`random`] | unpredictable numbers |
//! | [`host_cpus`] | how many threads run, and how long one has waited for a processor |
//! | [`mem`] | a mapping: loads, stores, copies, cache-line flushes; all `unsafe` |
//! | [`priority`] | before or after whom a thread runs that others wait for |
//! | [`medium`] | the medium of a memory: when a store is durable |
//! | [`reserve`] | room on the host for a memory's file, all of it at once |
//! | [`marks`] | which lines of a memory have changed since the last commit |
//! | [`memory`] | geometry, header, chunk table, typed access; the one place that stores to persistent RAM |
//! | [`dax`] | the medium for persistent memory behind the processor's caches |
//! | [`runtime`] | the shared file that does not persist: sessions, slots, locks, references |
//! | [`heap`] | the allocator: objects in size classes, runs of whole chunks, blocks of 4 KiB, whose content a backing holds only while it has no place |
//! | [`tx`] | transactions: undo log in persistent slots |
//! | [`session`] | an attached process: operations, optimistic reads, transfers between blocks and devices, death of other processes |
//! | [`attached`] | a list of the attached processes, without attaching |
//! | [`events`] | notifications of changes to the process that caches |
//! | [`delegation`] | keys that other processes change without an event |
//!
//! Words that carry a guarantee:
//! - *visible*: other threads and processes can load it. Stores become visible in program order.
//! - *durable*: it survives the loss that the medium guards against. On `battery`, visible is durable;
//!   on `dax`, a store that was flushed before a fence is; on `logged`, a store that a commit contains.
//! - *committed*: the transaction's commit word is durable; recovery will not undo it.
//!
//! Lock order: slot → key locks in ascending order → nothing. The heap takes no lock.

#![deny(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("the memory is little-endian and used in place");

pub mod attached;
pub mod budget;
pub mod clock;
pub mod dax;
pub mod delegation;
pub mod error;
pub mod events;
pub mod heap;
pub mod host_cpus;
pub mod marks;
pub mod medium;
pub mod mem;
pub mod memory;
pub mod off;
pub mod priority;
pub mod random;
pub mod reserve;
pub mod runtime;
pub mod session;
pub mod sip;
pub mod tx;

pub use error::{Error, Result};
pub use heap::Block;
pub use medium::{Medium, MediumKind, Needs};
pub use mem::{Mapping, Pod};
pub use memory::{Memory, Tag, CHUNK};
pub use off::Off;
pub use runtime::Sequence;
pub use session::{Backing, Op, Session};
pub use tx::Tx;

//! Cleaning up after processes that died.

use std::os::fd::AsFd;

use super::transfer;
use crate::error::Result;
use crate::heap::Heap;
use crate::memory::{Memory, OPEN_ROOT};
use crate::runtime::{self, Hold, Runtime, FULL};
use crate::tx;

/// Undoes open transactions, finds the free chunks. With nobody else attached.
pub(super) fn recover(memory: &Memory, rt: &Runtime) -> Result<()> {
    // First: even a read takes memory where a file in memory has a hole.
    memory.settle_memory()?;
    let mut undone = 0;
    for slot in 0..memory.geo.slots as u32 {
        undone += u32::from(tx::roll_back(memory, slot)?);
        tx::ensure_secret(memory, slot)?;
    }
    if undone > 0 {
        tracing::info!("undid {undone} transactions that were open");
    }
    let was_open = memory.load(memory.root(OPEN_ROOT))? != 0;
    rt.set_leaks_pending(was_open);
    rt.take_groups(memory.groups())?;
    Heap { memory, rt }.index()
}

/// Ends the transfers of processes that died, where the kernel has: see [`transfer`]. While
/// the memory's file is locked.
pub(super) fn end_transfers(rt: &Runtime, file: impl AsFd) -> Result<()> {
    for n in (0..FULL).filter(|n| !rt.session_taken(*n) && rt.has_pinned(*n)) {
        if !transfer::is_under_way(&file, n)? {
            rt.end_transfers_of(n);
        }
    }
    Ok(())
}

/// Cleans up after session `n`, whose process has died, while the memory's file is locked.
pub(super) fn reap_one(memory: &Memory, rt: &Runtime, n: u32) -> Result<()> {
    let mine: Vec<u32> = (0..rt.slots()).filter(|s| rt.slot_state(*s).1 == Some(n)).collect();
    // 1. Undo, under the dead process's locks; the next commit looks at all chunks of blocks again.
    for slot in &mine {
        tx::roll_back(memory, *slot)?;
    }
    rt.doubt_unplaced();
    // 2. Release its locks: their takers find a consistent state.
    if !mine.is_empty() {
        for number in 0..runtime::LOCKS as u32 {
            let lock = rt.lock(number);
            if lock.look().owner().is_some_and(|slot| mine.contains(&slot)) {
                lock.unlock();
            }
        }
    }
    memory.step();
    // 3. Release its chunks and its slots.
    Heap { memory, rt }.salvage(&mine)?;
    mine.iter().for_each(|slot| _ = rt.free_slot(*slot));
    memory.step();
    // 4. A sweep is due if it may have left anything else. (References first: an operation that removes a name and
    //    finds a reference marks that session, and looks again.)
    rt.clear_refs(n);
    if !mine.is_empty() || rt.leaves_leaks(n) {
        rt.set_leaks_pending(true);
    }
    memory.step();
    if rt.hold() == Hold::Frozen(n) {
        rt.thaw();
    }
    rt.abandon_sweep(n);
    memory.step();
    rt.abandon_long_locks(n);
    memory.step();
    rt.abandon_backing(n);
    memory.step();
    rt.leave_session(n);
    tracing::info!("cleaned up after a process that died (session {n})");
    Ok(())
}

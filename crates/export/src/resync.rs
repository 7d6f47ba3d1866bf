//! Making copies equal that may differ: the content that a read returns is written to all of them, and parity with it.
//!
//! This happens before a volume is shown, so no earlier read could have returned other content. It writes present
//! content, so a power cut meanwhile does no harm.

use std::ops::Range;

use exraid::{Aligned, Buffers, Class, Layout, Region, Request};

use crate::error::Result;

/// Bytes that are read and written at a time.
const PIECE: u64 = 1 << 20;

/// Does this region have, in its present state, copies that can differ?
pub fn can_differ(region: &dyn Region) -> bool {
    let is_redundant = matches!(region.layout(), Layout::Mirror | Layout::Raid5 { .. });
    is_redundant && region.tolerated().is_some_and(|more| more > 0)
}

/// Makes a stretch of a region equal on all members; durable when this returns. `go_on` gets the bytes done.
pub fn resync(region: &dyn Region, range: Range<u64>, go_on: &mut dyn FnMut(u64)) -> Result<()> {
    let size = region.properties().size;
    let grain = region.stripe().max(4096);
    let piece = PIECE.next_multiple_of(grain);
    let (mut at, end) = (range.start / grain * grain, range.end.next_multiple_of(grain).min(size));
    while at < end {
        let len = piece.min(end - at);
        rewrite(region, at, len)?;
        at += len;
        go_on(len);
    }
    Ok(region.flush()?)
}

fn rewrite(region: &dyn Region, at: u64, len: u64) -> Result<()> {
    let memory = Aligned::zeroed(len as usize);
    let answer = region.run(Request::read(at, Buffers::whole(&memory)));
    match answer.result {
        Ok(()) => Ok(region.run(Request::write(at, answer.buffers.unwrap_or_default())).result?),
        // A stretch with no readable copy cannot read differently.
        Err(e) if e.class == Class::Media => {
            tracing::warn!("{e}; copies of that stretch are not compared");
            Ok(())
        }
        Err(e) => Err(e.into()),
    }
}

//! Which objects something refers to, and the sweep of those that nothing does.
//!
//! Beside others at work, this is exact (decision 5):
//! 1. From the start on, allocations are noted as new. Operations under way then are waited for, so what
//!    they allocated is linked, or freed, before marking begins.
//! 2. Objects belong to one inode for life, and inodes are visited under their sequence counters. So an
//!    object allocated before the start that nobody frees is marked.
//! 3. Before sweeping, operations under way are waited for again: what they unlinked they have freed.
//! 4. What is then allocated, neither marked nor new, is a leak.

use pram::heap::{Meta, CLASSES};
use pram::region::PER_GROUP;
use pram::{Op, Region, Session, Tag, SEGMENT};

use crate::error::Result;

/// The marks of one pass: a bit per 16 bytes of the region.
pub struct Marks<'a> {
    session: &'a Session,
    bits: Vec<u64>,
    bytes: u64,
}

impl<'a> Marks<'a> {
    pub fn begin(session: &'a Session) -> Result<Marks<'a>> {
        // One sweep at a time; who sweeps is done in a moment, or dead.
        for round in 1u32.. {
            if session.runtime().start_sweep()? {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
            if round % 100 == 0 {
                session.reap()?;
            }
        }
        session.drain()?;
        Ok(Marks { session, bits: Vec::new(), bytes: 0 })
    }

    /// Marks the object at `off`; says why it cannot be one.
    pub fn mark(&mut self, off: u64, tag: Tag) -> Result<(), String> {
        let cap = self.check(off, tag)?;
        self.set(off, cap)
    }

    /// The bytes of the object at `off`, or why it cannot be one.
    pub fn check(&self, off: u64, tag: Tag) -> Result<u64, String> {
        let region = self.session.region();
        let cap = region.resolve(off, tag).map_err(|e| e.to_string())?;
        if !region.is_allocated(off).map_err(|e| e.to_string())? && !self.session.runtime().is_new(off) {
            return Err(format!("object {off:#x} is in use but not allocated"));
        }
        Ok(cap)
    }

    /// Marks what [`check`](Self::check) has found to be an object; fails if it was marked before.
    pub fn set(&mut self, off: u64, cap: u64) -> Result<(), String> {
        let n = off / 16;
        // The region may become larger meanwhile.
        if self.bits.len() as u64 <= n / 64 {
            let segments = self.session.region().segments_end();
            self.bits.resize((segments * SEGMENT / 16 / 64).max(n / 64 + 1) as usize, 0);
        }
        let word = &mut self.bits[(n / 64) as usize];
        if *word >> (n % 64) & 1 == 1 {
            if self.session.runtime().is_new(off) {
                return Ok(());
            }
            return Err(format!("object {off:#x} is in use twice"));
        }
        *word |= 1 << (n % 64);
        self.bytes += cap;
        Ok(())
    }

    /// Forgets all marks, for another pass.
    pub fn reset(&mut self) {
        self.bits.fill(0);
        self.bytes = 0;
    }

    /// Bytes marked.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_marked(&self, off: u64) -> bool {
        let n = off / 16;
        self.bits.get((n / 64) as usize).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// Counts, or frees, the objects and bytes that are allocated, neither marked nor new: in operations that `begin`
    /// gives, which whoever froze the pool begins in another way than others.
    pub fn unmarked(&self, begin: Option<&dyn Fn() -> pram::Result<Op<'a>>>) -> Result<(u64, u64)> {
        let (mut objects, mut bytes) = (0, 0);
        let region = self.session.region();
        for_each_object(region, &mut |off, cap| {
            // Others may have given the segment another class since its entry was read. So: is there an object
            // now? Only then whether it is new; in this order a new one cannot be missed.
            if self.is_marked(off) || !region.is_allocated(off).unwrap_or(false) || self.session.runtime().is_new(off) {
                return Ok(());
            }
            objects += 1;
            bytes += cap;
            if let Some(begin) = begin {
                self.session.heap().sweep_object(&begin()?, off)?;
            }
            Ok(())
        })?;
        Ok((objects, bytes))
    }
}

impl Drop for Marks<'_> {
    fn drop(&mut self) {
        self.session.runtime().end_sweep();
    }
}

/// Calls `f` with offset and capacity of every allocated object.
fn for_each_object(region: &Region, f: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
    let geo = &region.geo;
    for segment in region.segments() {
        match region.meta(segment)? {
            Meta::Small { class, .. } => {
                let c = &CLASSES[usize::from(class)];
                for w in 0..c.count.div_ceil(64) {
                    let mut bits = region.taken(segment, class, w)?;
                    while bits != 0 {
                        let index = w * 64 + bits.trailing_zeros();
                        bits &= bits - 1;
                        let within = u64::from(c.base) + u64::from(index) * u64::from(c.size);
                        f(geo.segment(segment) + within, u64::from(c.size))?;
                    }
                }
            }
            Meta::RunHead { len, .. } => f(geo.segment(segment), u64::from(len) * SEGMENT)?,
            _ => {}
        }
    }
    Ok(())
}

/// What is wrong with the segment table itself, and which segment can only be given up for it.
pub fn check_segments(region: &Region) -> Result<Vec<(Option<u64>, String)>> {
    let mut problems = Vec::new();
    let mut run_end = 0;
    let mut head = 0;
    for segment in region.segments() {
        let meta = region.meta(segment)?;
        let lost = match meta {
            Meta::Bad => Some(format!("segment {segment} has an impossible entry")),
            Meta::RunHead { len, .. } if segment % PER_GROUP + u64::from(len) > PER_GROUP => {
                Some(format!("segment {segment} begins a run of {len} that leaves its group"))
            }
            Meta::RunBody { .. } if segment >= run_end => {
                Some(format!("segment {segment} continues a run that is not there"))
            }
            _ => None,
        };
        if let Some(text) = lost {
            problems.push((Some(segment), text));
            continue;
        }
        match meta {
            Meta::RunBody { dist } if segment.checked_sub(u64::from(dist)) == Some(head) => {}
            _ if segment < run_end => problems.push((None, format!("segment {segment} interrupts the run of {head}"))),
            Meta::RunHead { len, .. } => (head, run_end) = (segment, segment + u64::from(len)),
            _ => {}
        }
    }
    Ok(problems)
}

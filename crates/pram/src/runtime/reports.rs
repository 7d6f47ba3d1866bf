//! Reports of each attached process on its background tasks, for other processes: records whose content the layer above
//! defines.
//!
//! ```text
//! for each session, but guests, a page: REPORTS records of a sequence counter (8 bytes; 0: no report, odd: being written) and REPORT bytes
//! ```
//! One thread at a time writes a record. A reader copies it out, and looks at the counter before and after.

use std::sync::atomic::{fence, Ordering};

use super::{Runtime, FULL};
use crate::error::Result;

/// Records of each session.
pub const REPORTS: u32 = 8;
/// Bytes of a record.
pub const REPORT: usize = (PAGE / REPORTS as u64 - 8) as usize;
const PAGE: u64 = 4096;
/// Bytes of all records.
pub(super) const BYTES: u64 = FULL as u64 * PAGE;
/// Attempts to read a record that changes meanwhile.
const TRIES: u32 = 1000;

impl Runtime {
    fn report_at(&self, session: u32, n: u32) -> u64 {
        self.at.reports + u64::from(session.min(FULL - 1)) * PAGE + u64::from(n % REPORTS) * (PAGE / u64::from(REPORTS))
    }

    /// Takes memory for the reports of session `n`, before it enters.
    pub(crate) fn take_reports(&self, n: u32) -> Result<()> {
        self.take(self.report_at(n, 0)..self.report_at(n, 0) + PAGE)
    }

    pub(super) fn clear_reports(&self, session: u32) {
        self.map.zero(self.report_at(session, 0), PAGE).expect("in bounds");
    }

    /// Replaces record `n` of this process. One thread at a time does that.
    pub fn report(&self, n: u32, report: &[u8; REPORT]) {
        debug_assert!(self.me() < FULL, "guests have no tasks");
        let at = self.report_at(self.me(), n);
        let counter = self.word(at);
        let odd = counter.load(Ordering::Relaxed) | 1;
        counter.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        self.map.write(at + 8, report).expect("in bounds");
        counter.store(odd + 1, Ordering::Release);
    }

    /// Record `n` of a session that has entered. `None` if there is none, or its process stopped or died while writing
    /// it.
    pub fn reported(&self, session: u32, n: u32) -> Option<[u8; REPORT]> {
        if session >= FULL {
            return None;
        }
        let at = self.report_at(session, n);
        let counter = self.word(at);
        let mut report = [0; REPORT];
        for round in 0..TRIES {
            let before = counter.load(Ordering::Acquire);
            if before == 0 {
                return None;
            }
            self.map.copy_out(at + 8, &mut report).expect("in bounds");
            fence(Ordering::Acquire);
            if before % 2 == 0 && counter.load(Ordering::Relaxed) == before {
                return Some(report);
            }
            super::pause(round);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Session;

    #[test]
    fn a_report_is_read_whole_while_it_changes() {
        let session = Session::in_memory(8 << 20).expect("a session");
        let rt = session.runtime();
        assert_eq!(rt.reported(0, 3), None);
        let whole = |report: [u8; REPORT]| report.iter().all(|byte| *byte == report[0]);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..20_000u32).for_each(|n| rt.report(3, &[n as u8; REPORT])));
            while !writer.is_finished() {
                assert!(rt.reported(0, 3).is_none_or(whole));
            }
        });
        assert!(rt.reported(0, 3).is_some() && rt.reported(0, 2).is_none());
    }
}

//! The bytes of the [note](crate::note) that members of a duplex store in their regions, and their verification.

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::label::{raw::STAMPS, Epoch};

/// Streams of a duplex.
pub const STREAMS: usize = 3;
/// The most members: two, and one that replaces another.
pub const MEMBERS: usize = 3;

const MAGIC: [u8; 8] = *b"CQ-DUPLX";
const VERSION: u32 = 1;

/// The state of a member's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// It has all acknowledged content.
    Whole,
    /// It missed a write, and is neither read nor written.
    Out,
    /// It is written and not read: the content that it lacks is being copied to it.
    Filling,
}

impl Completeness {
    fn from_raw(raw: u32) -> Option<Completeness> {
        [Completeness::Whole, Completeness::Out, Completeness::Filling].get((raw as usize).checked_sub(1)?).copied()
    }

    fn to_raw(self) -> u32 {
        match self {
            Completeness::Whole => 1,
            Completeness::Out => 2,
            Completeness::Filling => 3,
        }
    }
}

/// A member, as the notes of all members record it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub region: u32,
    pub state: Completeness,
    /// When it got this state, in seconds since 1970.
    pub since: u64,
}

/// The place of the streams in a region: segments, by number, in order.
pub type Spans = [Vec<Range<u32>>; STREAMS];

/// A decoded note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The random number of this duplex, and its time of creation in nanoseconds since 1970.
    pub id: u64,
    pub created: u64,
    /// Counts changes of membership.
    pub epoch: Epoch,
    /// Bytes of a segment.
    pub segment: u64,
    pub members: [Option<Member>; MEMBERS],
    /// The place of the note's own region among the members. None: the region is no member and only remembers the
    /// states.
    pub me: Option<usize>,
    /// The segments in this region.
    pub spans: Spans,
    /// The client's own data.
    pub extra: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawPlace {
    pub region: u32,
    /// 0: no member; 1 whole, 2 out, 3 being filled.
    pub state: u32,
    pub since: u64,
}

/// The head of such a note. Stretches of segments follow, the first and their number in 4 bytes each, and then the
/// client's own data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawDuplex {
    pub magic: [u8; 8],
    pub version: u32,
    /// The region's place among the members, plus 1; 0: it is none.
    pub me: u32,
    pub id: u64,
    pub created: u64,
    pub segment: u64,
    pub epoch: u64,
    pub stamps: [u64; STAMPS],
    pub members: [RawPlace; MEMBERS],
    /// The number of stretches of segments, by stream.
    pub spans: [u32; STREAMS],
    /// Bytes of the client's own data.
    pub extra: u32,
}

const _: () = assert!(size_of::<RawDuplex>() == 368);

impl Said {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut members = [RawPlace::default(); MEMBERS];
        for (raw, member) in members.iter_mut().zip(&self.members) {
            if let Some(Member { region, state, since }) = *member {
                *raw = RawPlace { region, state: state.to_raw(), since };
            }
        }
        let raw = RawDuplex {
            magic: MAGIC,
            version: VERSION,
            me: self.me.map_or(0, |me| me as u32 + 1),
            id: self.id,
            created: self.created,
            segment: self.segment,
            epoch: self.epoch.number(),
            stamps: *self.epoch.stamps(),
            members,
            spans: self.spans.each_ref().map(|spans| spans.len() as u32),
            extra: self.extra.len() as u32,
        };
        let mut bytes = raw.as_bytes().to_vec();
        for span in self.spans.iter().flatten() {
            bytes.extend_from_slice(&span.start.to_le_bytes());
            bytes.extend_from_slice(&(span.end - span.start).to_le_bytes());
        }
        bytes.extend_from_slice(&self.extra);
        bytes
    }

    /// `None` for other notes and implausible ones.
    pub fn from_bytes(bytes: &[u8]) -> Option<Said> {
        let (raw, mut rest) = RawDuplex::read_from_prefix(bytes).ok()?;
        let is_one = raw.magic == MAGIC && raw.version == VERSION && raw.segment.is_power_of_two();
        if !is_one || raw.segment < 4096 || raw.me as usize > MEMBERS {
            return None;
        }
        let mut members = [None; MEMBERS];
        for (member, raw) in members.iter_mut().zip(raw.members) {
            if raw.state != 0 {
                *member =
                    Some(Member { region: raw.region, state: Completeness::from_raw(raw.state)?, since: raw.since });
            }
        }
        let mut spans = Spans::default();
        for (of, count) in spans.iter_mut().zip(raw.spans) {
            for _ in 0..count {
                let (first, more) = rest.split_first_chunk::<4>()?;
                let (count, more) = more.split_first_chunk::<4>()?;
                let (first, count) = (u32::from_le_bytes(*first), u32::from_le_bytes(*count));
                of.push(first..first.checked_add(count)?);
                rest = more;
            }
        }
        // Overlapping stretches would make a walk over all segments endless.
        let mut sorted: Vec<&Range<u32>> = spans.iter().flatten().collect();
        sorted.sort_unstable_by_key(|span| span.start);
        if spans.iter().flatten().any(Range::is_empty) || sorted.windows(2).any(|pair| pair[0].end > pair[1].start) {
            return None;
        }
        let me = (raw.me as usize).checked_sub(1);
        let is_there = me.is_none_or(|me| members[me].is_some());
        (is_there && rest.len() == raw.extra as usize).then(|| Said {
            id: raw.id,
            created: raw.created,
            epoch: Epoch::from_raw(raw.epoch, raw.stamps),
            segment: raw.segment,
            members,
            me,
            spans,
            extra: rest.to_vec(),
        })
    }
}

/// The number of segments in these spans.
pub fn count(spans: &[Range<u32>]) -> u64 {
    spans.iter().map(|span| u64::from(span.end - span.start)).sum()
}

/// Appends segments to spans.
pub fn append(spans: &mut Vec<Range<u32>>, units: &[u32]) {
    for unit in units {
        match spans.last_mut() {
            Some(last) if last.end == *unit => last.end += 1,
            _ => spans.push(*unit..unit + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Said {
        let mut spans = Spans::default();
        append(&mut spans[0], &[3, 4, 5, 9]);
        append(&mut spans[2], &[1]);
        Said {
            id: 7,
            created: 8,
            epoch: Epoch::first(5).next(6),
            segment: 1 << 20,
            members: [
                Some(Member { region: 1, state: Completeness::Whole, since: 1 }),
                None,
                Some(Member { region: 4, state: Completeness::Filling, since: 2 }),
            ],
            me: Some(2),
            spans,
            extra: b"more".to_vec(),
        }
    }

    #[test]
    fn what_a_note_says_is_read_back() {
        let said = said();
        assert_eq!((count(&said.spans[0]), said.spans[0].len()), (4, 2));
        assert_eq!(Said::from_bytes(&said.to_bytes()), Some(said.clone()));
        assert_eq!(Said::from_bytes(&Said { me: None, ..said.clone() }.to_bytes()).map(|said| said.me), Some(None));
    }

    #[test]
    fn bytes_that_make_no_sense_are_none() {
        let bytes = said().to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(Said::from_bytes(&bytes[..len]), None, "{len} bytes");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x80;
            // It may be another valid one; it must not panic.
            let _ = Said::from_bytes(&other);
        }
        let of = |spans: [Range<u32>; 2]| Said { spans: [spans.to_vec(), Vec::new(), Vec::new()], ..said() }.to_bytes();
        assert!(Said::from_bytes(&of([0..u32::MAX - 1, u32::MAX - 1..u32::MAX])).is_some());
        assert_eq!(Said::from_bytes(&of([0..u32::MAX, 5..6])), None, "a segment is named twice");
        assert_eq!(Said::from_bytes(&of([3..3, 5..6])), None, "a stretch of none");
        let none = Said { me: Some(1), ..said() };
        assert_eq!(Said::from_bytes(&none.to_bytes()), None, "it says that it is a member, and there is none");
    }
}

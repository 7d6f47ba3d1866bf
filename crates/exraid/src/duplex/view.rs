//! The states of a duplex's members, as a process knows them.

use std::sync::Arc;

use super::choose_members::Found;
use super::raw::{self, Completeness, Said, Spans, MEMBERS};
use crate::label::Epoch;
use crate::region::Region;

/// The status of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    pub region: u32,
    pub state: Completeness,
    /// When it got this state, in seconds since 1970.
    pub since: u64,
    /// Its region is open.
    pub is_there: bool,
    /// Bytes of its segments.
    pub bytes: u64,
}

impl MemberStatus {
    /// Does it have all acknowledged content, and is it open?
    pub fn is_whole(&self) -> bool {
        self.state == Completeness::Whole && self.is_there
    }
}

/// One of the copies of the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPlace {
    pub region: u32,
    /// The number of the copy within the region.
    pub copy: usize,
}

/// A member, as this process knows it.
#[derive(Clone)]
pub(super) struct Place {
    pub region: u32,
    pub state: Completeness,
    pub since: u64,
    pub spans: Spans,
    pub handle: Option<Arc<dyn Region>>,
}

impl Place {
    /// Its region, if it is in use.
    pub fn used(&self) -> Option<&Arc<dyn Region>> {
        self.handle.as_ref().filter(|_| self.state != Completeness::Out)
    }

    pub fn is_whole(&self) -> bool {
        self.state == Completeness::Whole && self.handle.is_some()
    }
}

/// The members and their states at an instant.
#[derive(Clone)]
pub(super) struct View {
    pub version: u64,
    pub id: u64,
    pub created: u64,
    pub epoch: Epoch,
    pub segment: u64,
    pub extra: Vec<u8>,
    pub places: [Option<Place>; MEMBERS],
}

impl View {
    pub fn places(&self) -> impl Iterator<Item = (usize, &Place)> {
        self.places.iter().enumerate().filter_map(|(n, place)| Some((n, place.as_ref()?)))
    }

    /// Bytes of a stream in all members in use.
    pub fn len(&self, stream: usize) -> u64 {
        let used = self.places().filter(|(_, place)| place.used().is_some());
        used.map(|(_, place)| raw::count(&place.spans[stream]) * self.segment).min().unwrap_or(0)
    }

    /// The regions of the whole members but one.
    pub fn others(&self, n: usize) -> Vec<Arc<dyn Region>> {
        let others = self.places().filter(|(other, place)| *other != n && place.is_whole());
        others.filter_map(|(_, place)| place.handle.clone()).collect()
    }

    /// The block size that suits all members.
    pub fn block(&self) -> u64 {
        let used = self.places().filter_map(|(_, place)| place.used());
        used.map(|region| u64::from(region.properties().block)).max().unwrap_or(512)
    }
}

pub(super) fn copies_of(view: &View) -> Vec<CopyPlace> {
    let whole = view.places().filter(|(_, place)| place.is_whole());
    let handles = whole.filter_map(|(_, place)| Some((place.region, place.handle.as_ref()?.copies())));
    handles.flat_map(|(region, copies)| (0..copies).map(move |copy| CopyPlace { region, copy })).collect()
}

/// Makes a view of notes and of the open regions.
pub(super) fn view_of(found: &Found, find: impl Fn(u32) -> Option<Arc<dyn Region>>) -> View {
    let mut places: [Option<Place>; MEMBERS] = Default::default();
    for (n, place) in places.iter_mut().enumerate() {
        let Some(member) = found.said.members[n] else { continue };
        // A member with an unreadable note counts as missing.
        let handle = found.spans[n].as_ref().and_then(|_| find(member.region));
        let spans = found.spans[n].clone().unwrap_or_default();
        *place = Some(Place { region: member.region, state: member.state, since: member.since, spans, handle });
    }
    let Said { id, created, epoch, segment, ref extra, .. } = found.said;
    View { version: u64::MAX, id, created, epoch, segment, extra: extra.clone(), places }
}

/// The note of member `me`, or of a region that only remembers.
pub(super) fn said_of(view: &View, me: Option<usize>) -> Said {
    let member = |place: &Option<Place>| {
        place.as_ref().map(|place| raw::Member { region: place.region, state: place.state, since: place.since })
    };
    let spans = me.and_then(|me| view.places[me].as_ref()).map(|place| place.spans.clone());
    Said {
        id: view.id,
        created: view.created,
        epoch: view.epoch,
        segment: view.segment,
        members: view.places.each_ref().map(member),
        me,
        spans: spans.unwrap_or_default(),
        extra: view.extra.clone(),
    }
}

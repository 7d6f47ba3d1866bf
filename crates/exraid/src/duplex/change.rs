//! Changes of the notes: the members of a duplex, their states, and the places of their streams.
//!
//! One thread of one process changes notes at a time, after it has read their present content. The version goes up
//! before it writes anything: a process with another version waits for the change, and reads the notes.
//!
//! Ordered steps of a stream that gets longer:
//! 1. The client reserves segments. (Else: other content is written there.)
//! 2. The notes name them; durable. (Else: a power cut leaves a stream whose end cannot be found.)
//! 3. They are written.
//!
//! A crash after 1 leaves segments that no note names: the client compares both and frees them.
//!
//! Ordered steps of giving segments back: first the notes stop naming them, durably; then the client gets them. (Else:
//! two owners have them.)
//!
//! Ordered steps of a member that is filled:
//! 1. Under the exclusive lock, the notes record that it is being filled; durable. From now on it is written. (Else: it
//!    misses a write of a process that did not know of it.)
//! 2. All of the streams is copied to it, piece by piece, each under the exclusive lock; flushed.
//! 3. Its note records that it is whole, then those of the others do; durable. (In the other order, after a loss of the
//!    others its own note would say that it lacks content.)

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::choose_members::judge;
use super::raw::{append, count};
use super::{notes_of, said_of, seconds, view_of, Completeness, Duplex, Place, Refusal, View, STREAMS};
use crate::device::Request;
use crate::error::{Class, Error, Result};
use crate::label::{stamp, Layout};
use crate::region::shared_state::Held;
use crate::region::Region;
use crate::sys::memory::{Aligned, Buffers};

use super::Spans;

/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;
/// The error for segments that were given back before a note named them.
const TAKEN_BACK: &str = "segments that were taken have been given back meanwhile";
/// A stream gets longer by this part of its length, at least.
const MORE: u64 = 8;

impl Duplex {
    /// Keeps others from changing notes until it is dropped.
    pub(super) fn hold(&self) -> Result<Option<Held<'_>>> {
        self.shared_state.as_ref().map(|shared_state| shared_state.labels(&self.name)).transpose()
    }

    /// Sets the view of this process.
    pub(super) fn install(&self, view: View) -> Result<()> {
        let version = self.shared_state.as_ref().map_or(0, |shared_state| shared_state.version());
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(View { version, ..view });
        Ok(())
    }

    /// Reads the notes, if another process has changed them.
    pub(super) fn refresh(&self) -> Result<Arc<View>> {
        let _held = self.hold()?;
        self.refresh_held(&[])
    }

    /// The same, for a caller that holds them; leaves out the notes of regions that do not answer.
    fn refresh_held(&self, without: &[u32]) -> Result<Arc<View>> {
        let view = self.view();
        if self.is_current(&view) {
            return Ok(view);
        }
        let handles: Vec<Arc<dyn Region>> = self.handles().into_iter().collect();
        let mut notes = notes_of(&handles, without);
        // Members that another process has found.
        let listed: Vec<u32> = notes.iter().flat_map(|(_, said)| said.members).flatten().map(|m| m.region).collect();
        for number in listed {
            if self.region(number).is_none() {
                if let Some(region) = self.find(number) {
                    notes.extend(notes_of(std::slice::from_ref(&region), without));
                }
            }
        }
        let found = judge(&notes).map_err(|e| match e {
            Refusal::Transfer(e) => e,
            e => self.error(Class::Gone, e.to_string()),
        })?;
        let mut next = view_of(&found, |number| self.region(number));
        // Those that do not answer stay as they were known.
        for (place, known) in next.places.iter_mut().zip(&view.places) {
            if let (Some(place), Some(known)) = (place, known) {
                if place.region == known.region && without.contains(&place.region) {
                    (place.spans, place.handle) = (known.spans.clone(), known.handle.clone());
                }
            }
        }
        self.install(next)?;
        Ok(self.view())
    }

    fn handles(&self) -> Vec<Arc<dyn Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(super) fn region(&self, number: u32) -> Option<Arc<dyn Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    fn find(&self, number: u32) -> Option<Arc<dyn Region>> {
        let region =
            self.finder.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|find| find(number))?;
        self.know(&region);
        Some(region)
    }

    /// Makes a region known.
    pub fn know(&self, region: &Arc<dyn Region>) {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).insert(region.number(), region.clone());
    }

    /// Writes the notes of all members, first of one that has just become whole, then of those that were whole, then of
    /// others. Returns the failures among those in use.
    pub(super) fn publish(&self, view: &View) -> Vec<(usize, Error)> {
        if let Some(shared_state) = &self.shared_state {
            shared_state.change();
        }
        let known = self.view();
        let had_all = |n: usize| known.places[n].as_ref().is_some_and(|place| place.state == Completeness::Whole);
        let mut order: Vec<(usize, &Place)> = view.places().collect();
        order.sort_by_key(|(n, place)| match place.state {
            Completeness::Whole => u32::from(had_all(*n)),
            Completeness::Filling => 2,
            Completeness::Out => 3,
        });
        let mut failed = Vec::new();
        for (n, place) in order {
            let Some(region) = place.used() else { continue };
            if let Err(e) = region.set_note(&said_of(view, Some(n)).to_bytes()) {
                failed.push((n, e));
            }
        }
        failed
    }

    fn next_epoch(&self, view: &mut View) -> Result<()> {
        let stamp = stamp().map_err(|e| self.error(Class::Transient, format!("a random number: {e}")))?;
        view.epoch = view.epoch.next(stamp);
        Ok(())
    }

    /// Puts these members out, and others whose notes cannot be written; durable when it returns.
    fn put_out(&self, view: &mut View, mut which: Vec<usize>) -> Result<()> {
        while !which.is_empty() {
            for (n, place) in view.places.iter_mut().enumerate() {
                let Some(place) = place.as_mut().filter(|place| which.contains(&n) && place.state != Completeness::Out)
                else {
                    continue;
                };
                (place.state, place.since) = (Completeness::Out, seconds());
            }
            if !view.places().any(|(_, place)| place.is_whole()) {
                return Err(self.error(Class::Gone, "the notes of no member can be written"));
            }
            self.next_epoch(view)?;
            which = self.publish(view).into_iter().map(|(n, _)| n).collect();
        }
        Ok(())
    }

    /// Excludes members that have missed an operation.
    pub(super) fn exclude(&self, seen: &View, failures: &[(usize, Error)]) -> Result<()> {
        let _held = self.hold()?;
        let numbers: Vec<u32> =
            failures.iter().filter_map(|(n, _)| seen.places[*n].as_ref()).map(|place| place.region).collect();
        let mut view = (*self.refresh_held(&numbers)?).clone();
        // By region: another process may have changed the order of the members.
        let which: Vec<usize> = view
            .places()
            .filter(|(_, place)| numbers.contains(&place.region) && place.state != Completeness::Out)
            .map(|(n, _)| n)
            .collect();
        self.put_out(&mut view, which)?;
        if !seen.places().any(|(_, place)| self.has_all(&view, place) && !numbers.contains(&place.region)) {
            return Err(self.error(Class::Media, "the members that have it were excluded meanwhile"));
        }
        self.tell_excluded(&view, failures, &numbers);
        self.install(view)
    }

    fn has_all(&self, view: &View, place: &Place) -> bool {
        place.is_whole() && view.places().any(|(_, now)| now.region == place.region && now.is_whole())
    }

    /// Records the exclusion in the excluded member's own note, if that can still be written: so it is known even after
    /// a loss of the others.
    fn tell_excluded(&self, view: &View, failures: &[(usize, Error)], numbers: &[u32]) {
        let answers = failures.iter().all(|(_, e)| !matches!(e.class, Class::Gone | Class::Timeout));
        for (n, place) in view.places().filter(|(_, place)| numbers.contains(&place.region) && answers) {
            if let Some(region) = &place.handle {
                let _ = region.set_note(&said_of(view, Some(n)).to_bytes());
            }
        }
    }

    /// Puts missing members out, unless they are back and nothing has changed since.
    pub(super) fn exclude_missing(&self) -> Result<()> {
        let _held = self.hold()?;
        let mut view = (*self.refresh_held(&[])?).clone();
        let (id, epoch) = (view.id, view.epoch);
        for (n, place) in view.places.iter_mut().enumerate() {
            let Some(place) = place.as_mut().filter(|p| p.handle.is_none() && p.state != Completeness::Out) else {
                continue;
            };
            let Some(region) = self.find(place.region) else { continue };
            let said = super::named_by(&*region).ok().flatten();
            if let Some(said) = said.filter(|said| (said.id, said.epoch, said.me) == (id, epoch, Some(n))) {
                (place.spans, place.handle) = (said.spans, Some(region));
            }
        }
        let missing: Vec<usize> = view
            .places()
            .filter(|(_, place)| place.handle.is_none() && place.state != Completeness::Out)
            .map(|(n, _)| n)
            .collect();
        self.put_out(&mut view, missing)?;
        self.install(view)
    }

    /// Excludes a member for the client: its region has failed, or its content is wrong.
    pub fn put_away(&self, region: u32) -> Result<()> {
        let _held = self.hold()?;
        let mut view = (*self.refresh_held(&[])?).clone();
        let which: Vec<usize> = view
            .places()
            .filter(|(_, place)| place.region == region && place.state != Completeness::Out)
            .map(|(n, _)| n)
            .collect();
        let numbers: Vec<u32> = which.iter().filter_map(|n| view.places[*n].as_ref()).map(|p| p.region).collect();
        self.put_out(&mut view, which)?;
        self.tell_excluded(&view, &[], &numbers);
        self.install(view)
    }

    /// These of the [copies](Duplex::copies) lack content that another one has. Puts out a member if all its copies
    /// lack it, and otherwise the disks of its mirror; returns the names of disks or regions.
    pub fn put_away_copies(&self, old: &[usize]) -> Result<Vec<String>> {
        let (all, mut added) = (self.copies(), Vec::new());
        let of = |region: u32| all.iter().enumerate().filter(move |(_, place)| place.region == region);
        for number in all.iter().map(|place| place.region).collect::<std::collections::BTreeSet<_>>() {
            let Some(region) = self.region(number) else { continue };
            let behind: Vec<usize> = of(number).filter(|(n, _)| old.contains(n)).map(|(_, place)| place.copy).collect();
            if behind.is_empty() {
                continue;
            }
            added.push(format!("region {number} ({})", region.name()));
            if self.read_only {
                continue;
            }
            if behind.len() == of(number).count() {
                self.put_away(number)?;
            } else if region.layout() == Layout::Mirror {
                added.pop();
                for disk in behind {
                    let name = region.members().get(disk).and_then(|member| member.name.clone());
                    added.push(format!("region {number}, disk {}", name.unwrap_or_else(|| region.name().clone())));
                    region.put_out(disk, "it is older than the others: it was put back, or has lost writes")?;
                }
            }
        }
        Ok(added)
    }

    /// Lengthens a stream to hold `bytes`; see the steps above.
    pub fn grow(&self, stream: usize, bytes: u64) -> Result<()> {
        let supply = self.supply.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(supply) = supply.filter(|_| !self.read_only) else {
            return Err(self.error(Class::NoSpace, format!("stream {stream} has no room for {bytes} bytes")));
        };
        let view = self.current()?;
        let lacks = |view: &View, place: &Place, ahead: bool| {
            let (has, needed) = (count(&place.spans[stream]), bytes.div_ceil(view.segment));
            let more = if ahead { (has / MORE).min(64) } else { 0 };
            if needed > has {
                (needed - has).max(more)
            } else {
                0
            }
        };
        // 1.
        let mut taken: Vec<(u32, Vec<u32>)> = Vec::new();
        for (_, place) in view.places().filter(|(_, place)| place.used().is_some()) {
            let got = supply.take(place.region, lacks(&view, place, true));
            match got.or_else(|_| supply.take(place.region, lacks(&view, place, false))) {
                Ok(segments) => taken.push((place.region, segments)),
                Err(e) => {
                    give_back_all(&*supply, &taken);
                    return Err(e);
                }
            }
        }
        // 2.
        let named = self.name(stream, &taken, &|view, place| lacks(view, place, false) > 0);
        match named {
            Ok(left) => {
                give_back_all(&*supply, &left);
                Ok(())
            }
            // Notes may name them.
            Err(e) => Err(e),
        }
    }

    /// Names segments in the notes of members that still lack them; returns the segments left over.
    fn name(
        &self,
        stream: usize,
        taken: &[(u32, Vec<u32>)],
        lacks: &dyn Fn(&View, &Place) -> bool,
    ) -> Result<Vec<(u32, Vec<u32>)>> {
        let _held = self.hold()?;
        let mut view = (*self.refresh_held(&[])?).clone();
        let (mut left, seen) = (Vec::new(), view.clone());
        for (region, segments) in taken {
            let place = view.places.iter_mut().flatten().find(|place| place.region == *region);
            match place.filter(|place| place.used().is_some() && lacks(&seen, place)) {
                Some(place) if self.are_ours(place, segments) => append(&mut place.spans[stream], segments),
                Some(_) => return Err(self.error(Class::Transient, TAKEN_BACK)),
                None => left.push((*region, segments.clone())),
            }
        }
        let missed = self.publish(&view).into_iter().map(|(n, _)| n).collect();
        self.put_out(&mut view, missed)?;
        self.install(view)?;
        Ok(left)
    }

    /// Are segments of a member's region still reserved, and in no note? A process that gives back segments after a
    /// crash may have taken them for leftovers: [`with_named`](Self::with_named).
    fn are_ours(&self, place: &Place, segments: &[u32]) -> bool {
        let supply = self.supply.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut spans = Vec::new();
        append(&mut spans, segments);
        let overlaps = |a: &Range<u32>| spans.iter().any(|b| a.start < b.end && b.start < a.end);
        supply.is_some_and(|supply| supply.has(place.region, &spans)) && !place.spans.iter().flatten().any(overlaps)
    }

    /// Calls `look` with the segments of a region that notes name, while no others can be named.
    pub fn with_named<R>(&self, region: u32, look: impl FnOnce(&[Range<u32>]) -> R) -> Result<R> {
        let _held = self.hold()?;
        let view = self.refresh_held(&[])?;
        let spans = view.places().find(|(_, place)| place.region == region).map(|(_, place)| place.spans.clone());
        Ok(look(&spans.into_iter().flatten().flatten().collect::<Vec<_>>()))
    }

    /// Gives back a stream's segments beyond `bytes`, and beyond its least length.
    pub fn shrink(&self, stream: usize, bytes: u64) -> Result<()> {
        let bytes = bytes.max(self.least[stream].load(Ordering::Relaxed));
        let Some(supply) = self.supply.lock().unwrap_or_else(PoisonError::into_inner).clone() else { return Ok(()) };
        let mut gone: Vec<(u32, Vec<Range<u32>>)> = Vec::new();
        {
            let _held = self.stream_lock.exclusive(self.shared_state.as_ref(), &self.name)?;
            let _held = self.hold()?;
            let mut view = (*self.refresh_held(&[])?).clone();
            let length = bytes.div_ceil(view.segment);
            for place in view.places.iter_mut().flatten().filter(|place| place.used().is_some()) {
                let rest = cut(&mut place.spans[stream], length);
                if !rest.is_empty() {
                    gone.push((place.region, rest));
                }
            }
            if gone.is_empty() {
                return Ok(());
            }
            let missed: Vec<usize> = self.publish(&view).into_iter().map(|(n, _)| n).collect();
            self.put_out(&mut view, missed)?;
            self.install(view)?;
        }
        gone.iter().for_each(|(region, segments)| supply.give_back(*region, segments));
        Ok(())
    }

    /// Sets the client's own data in the notes.
    pub fn set_extra(&self, extra: &[u8]) -> Result<()> {
        let _held = self.hold()?;
        let mut view = (*self.refresh_held(&[])?).clone();
        if view.extra == extra {
            return Ok(());
        }
        view.extra = extra.to_vec();
        let missed = self.publish(&view).into_iter().map(|(n, _)| n).collect();
        self.put_out(&mut view, missed)?;
        self.install(view)
    }

    /// Makes a region a member that is to be filled: one that was out, or a new one. Step 1 above. It gets new segments
    /// if it has storage for them, since unanswered writes may still happen in its old ones, which are given back.
    pub fn begin_member(&self, number: u32) -> Result<()> {
        // The region as it is now, if it can be found.
        let found = self.find(number).or_else(|| self.region(number));
        let region = &found.ok_or_else(|| self.error(Class::Gone, format!("region {number} is missing")))?;
        let Some(supply) = self.supply.lock().unwrap_or_else(PoisonError::into_inner).clone() else {
            return Err(self.error(Class::NoSpace, "there is nobody who has segments"));
        };
        let view = self.current()?;
        let (mut spans, mut spans_of_old) = (Spans::default(), None);
        let mut taken = Vec::new();
        for (stream, spans) in spans.iter_mut().enumerate() {
            match supply.take(number, view.len(stream) / view.segment) {
                Ok(segments) => {
                    append(spans, &segments);
                    taken.push((number, segments));
                }
                Err(e) => {
                    give_back_all(&*supply, &taken);
                    taken.clear();
                    let has = |place: &Place| place.spans.iter().all(|spans| supply.has(number, spans));
                    let own = view.places().find(|(_, place)| place.region == number);
                    let own = own.filter(|(_, place)| region.pending().is_empty() && has(place));
                    spans_of_old = Some(own.map(|(_, place)| place.spans.clone()).ok_or(e)?);
                    break;
                }
            }
        }
        if let Some(old) = spans_of_old {
            return self.begin_with(region, old).map(drop);
        }
        let begun = self.begin_with(region, spans);
        match begun {
            Ok(Some(before)) => {
                before.iter().for_each(|spans| supply.give_back(number, spans));
                Ok(())
            }
            Ok(None) => {
                give_back_all(&*supply, &taken);
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Returns its old segments; `None`: it is a member already.
    fn begin_with(&self, region: &Arc<dyn Region>, spans: Spans) -> Result<Option<Spans>> {
        let _held = self.stream_lock.exclusive(self.shared_state.as_ref(), &self.name)?;
        let _held = self.hold()?;
        let mut view = (*self.refresh_held(&[])?).clone();
        let lacks = |stream: usize| count(&spans[stream]) * view.segment < view.len(stream);
        if (0..STREAMS).any(lacks) {
            return Err(self.error(Class::Transient, "a stream has become longer meanwhile"));
        }
        let number = region.number();
        let own = view.places().find(|(_, place)| place.region == number).map(|(n, _)| n);
        let at = match own {
            Some(n) if view.places[n].as_ref().is_some_and(|place| place.state != Completeness::Out) => {
                return Ok(None)
            }
            Some(n) => n,
            None => {
                let free = view.places.iter().position(Option::is_none);
                free.ok_or_else(|| self.error(Class::Invalid, "it has no room for another member"))?
            }
        };
        let before = view.places[at].take().map(|place| place.spans).unwrap_or_default();
        // It may get its own old ones again.
        let none = Place { region: number, state: Completeness::Out, since: 0, spans: Spans::default(), handle: None };
        if spans != before
            && !spans.iter().all(|spans| self.are_ours(&none, &spans.iter().cloned().flatten().collect::<Vec<_>>()))
        {
            return Err(self.error(Class::Transient, TAKEN_BACK));
        }
        let (state, since) = (Completeness::Filling, seconds());
        view.places[at] = Some(Place { region: number, state, since, spans, handle: Some(region.clone()) });
        self.next_epoch(&mut view)?;
        let missed: Vec<usize> = self.publish(&view).into_iter().map(|(n, _)| n).collect();
        self.put_out(&mut view, missed)?;
        self.install(view)?;
        Ok(Some(before))
    }

    /// Fills members: steps 2 and 3 above. `used` tells how much of a stream is in use. `go_on` gets the bytes that are
    /// left, and may sleep. This returns false if `go_on` does, or if another process has changed members or has filled
    /// this one: the caller then checks their states again.
    pub fn fill(&self, used: &dyn Fn(usize) -> u64, go_on: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        let view = self.current()?;
        let Some((n, place)) =
            view.places().find(|(_, place)| place.state == Completeness::Filling && place.handle.is_some())
        else {
            return Ok(true);
        };
        let (epoch, number) = (view.epoch, place.region);
        let sizes: Vec<u64> = (0..STREAMS).map(|stream| used(stream).min(view.len(stream))).collect();
        let mut left: u64 = sizes.iter().sum();
        for (stream, size) in sizes.iter().enumerate() {
            for at in (0..*size).step_by(PIECE as usize) {
                if !go_on(left) {
                    return Ok(false);
                }
                let piece = at..(at + PIECE).min(size.next_multiple_of(view.segment));
                let _held = self.stream_lock.exclusive(self.shared_state.as_ref(), &self.name)?;
                let view = self.current()?;
                let is_it =
                    view.places[n].as_ref().is_some_and(|p| p.region == number && p.state == Completeness::Filling);
                if !is_it || view.epoch != epoch {
                    return Ok(false);
                }
                self.copy_piece(&view, n, stream, &piece)?;
                left = left.saturating_sub(PIECE);
            }
        }
        self.flush()?;
        self.end_member(n, number)
    }

    fn copy_piece(&self, view: &View, n: usize, stream: usize, piece: &Range<u64>) -> Result<()> {
        let mut bytes = vec![0; (piece.end - piece.start) as usize];
        self.read(stream, &mut bytes, piece.start)?;
        let Some(place) = &view.places[n] else { return Ok(()) };
        let memory = Aligned::of(&bytes);
        let started: Vec<_> = self
            .pieces(view, place, stream, piece.clone())?
            .into_iter()
            .filter_map(|(to, range)| {
                let part = (range.start - piece.start) as usize..(range.end - piece.start) as usize;
                let request = Request::write(to, Buffers::part(&memory, part));
                Some((n, place.handle.as_ref()?.start(request)))
            })
            .collect();
        self.finish(view, started)
    }

    /// Step 3; false if it is not being filled any more.
    fn end_member(&self, n: usize, number: u32) -> Result<bool> {
        let _held = self.stream_lock.exclusive(self.shared_state.as_ref(), &self.name)?;
        let _held = self.hold()?;
        let mut view = (*self.refresh_held(&[])?).clone();
        let Some(place) = view.places[n].as_mut().filter(|p| p.region == number && p.state == Completeness::Filling)
        else {
            return Ok(false);
        };
        (place.state, place.since) = (Completeness::Whole, seconds());
        self.next_epoch(&mut view)?;
        let missed: Vec<usize> = self.publish(&view).into_iter().map(|(n, _)| n).collect();
        self.put_out(&mut view, missed)?;
        self.install(view).map(|()| true)
    }

    /// Ends a region's membership and gives its segments back; another member is whole. Its own note then only
    /// remembers the others' states.
    pub fn retire(&self, number: u32) -> Result<()> {
        let supply = self.supply.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let gone = {
            let _held = self.stream_lock.exclusive(self.shared_state.as_ref(), &self.name)?;
            let _held = self.hold()?;
            let mut view = (*self.refresh_held(&[number])?).clone();
            let Some(n) = view.places().find(|(_, place)| place.region == number).map(|(n, _)| n) else {
                return Ok(());
            };
            if !view.places().any(|(other, place)| other != n && place.is_whole()) {
                return Err(self.error(Class::Invalid, format!("region {number} is the only one that has all")));
            }
            let gone = view.places[n].take();
            self.next_epoch(&mut view)?;
            let missed: Vec<usize> = self.publish(&view).into_iter().map(|(n, _)| n).collect();
            self.put_out(&mut view, missed)?;
            if let Some(region) = gone.as_ref().and_then(|place| place.handle.as_ref()) {
                // It may fail: the others' notes say that it is no member.
                let _ = region.set_note(&said_of(&view, None).to_bytes());
            }
            self.install(view)?;
            self.regions.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
            gone
        };
        if let (Some(supply), Some(gone)) = (supply, gone) {
            gone.spans.iter().for_each(|spans| supply.give_back(number, spans));
        }
        Ok(())
    }
}

fn give_back_all(supply: &dyn super::Supply, taken: &[(u32, Vec<u32>)]) {
    for (region, segments) in taken {
        let mut spans = Vec::new();
        append(&mut spans, segments);
        supply.give_back(*region, &spans);
    }
}

/// Keeps segments up to `length`, and returns the rest.
fn cut(spans: &mut Vec<Range<u32>>, length: u64) -> Vec<Range<u32>> {
    let (mut has, mut rest) = (0, Vec::new());
    let all = std::mem::take(spans);
    for span in all {
        let here = (length - has).min(u64::from(span.end - span.start)) as u32;
        has += u64::from(here);
        if here > 0 {
            spans.push(span.start..span.start + here);
        }
        if span.start + here < span.end {
            rest.push(span.start + here..span.end);
        }
    }
    rest
}

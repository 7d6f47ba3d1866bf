//! From disks and their labels to a region.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::member_state::state_of;
use super::mirror::Mirror;
use super::raid5::{Raid5, MOST_CHUNK};
use super::set::{Finder, Others, Part, Set};
use super::shared_state::{Common, Opening, SharedState};
use super::single::Single;
use super::stripe::Stripe;
use super::{Begin, Map, Region, Volume};
use crate::device::Device;
use crate::error::OpenError;
use crate::label::{data_of, stamp, Epoch, Label, Layout, MemberState, Relation, Uuid};
use crate::meter::shared::Meters;

/// Disks of one region, with their labels, by role.
type Labelled = BTreeMap<usize, (Arc<dyn Device>, Label)>;

fn unusable(device: &dyn Device, what: impl Into<String>) -> OpenError {
    OpenError::Unusable { path: PathBuf::from(&**device.name()), what: what.into() }
}

fn no_random(device: &dyn Device) -> impl Fn(std::io::Error) -> OpenError + '_ {
    |e| unusable(device, format!("a random number: {e}"))
}

/// Makes a region of new disks: writes their labels.
pub fn make(
    pool: Uuid,
    number: u32,
    layout: Layout,
    devices: Vec<Arc<dyn Device>>,
) -> Result<Arc<dyn Region>, OpenError> {
    let Some(first) = devices.first().cloned() else {
        return Err(OpenError::Unusable { path: PathBuf::new(), what: "a region has a disk".into() });
    };
    if !layout.members().contains(&devices.len()) {
        let (least, most) = layout.members().into_inner();
        let what = format!("a {layout} has {least} to {most} disks, not {}", devices.len());
        return Err(unusable(&*first, what));
    }
    let map = map_for(layout, devices.len(), &*first, None)?;
    for device in &devices {
        check_room(&*map, layout, &**device, data_of(device.properties().size))?;
    }
    let epoch = Epoch::first(stamp().map_err(no_random(&*first))?);
    let uuids = devices.iter().map(|_| Uuid::random()).collect::<std::io::Result<Vec<_>>>();
    let uuids = uuids.map_err(no_random(&*first))?;
    let secret = stamp().map_err(no_random(&*first))?;
    for (role, device) in devices.iter().enumerate() {
        let label = Label::new(pool, number, layout, &uuids, role, device.properties().size, epoch);
        Label { secret, ..label }.write(&**device)?;
    }
    open_or_begin(devices, true, Together::Alone)
}

/// The means by which processes share a region.
#[derive(Clone)]
pub struct Sharing {
    pub common: Common,
    /// Finds a disk that another process has put in a member's place; if it is not found, the next write excludes the
    /// member.
    pub find: Option<Finder>,
}

/// The same as [`open`], for one of several processes that use the region.
///
/// # Errors
/// Those of [`open`], and [`OpenError::Transfer`] where the processes cannot agree.
pub fn open_shared(devices: Vec<Arc<dyn Device>>, sharing: &Sharing) -> Result<Arc<dyn Region>, OpenError> {
    open_or_begin(devices, false, Together::Share(sharing))
}

/// The same as [`open`], of disks that are only read, for a process that looks at the users' measurements.
///
/// # Errors
/// Those of [`open`].
pub fn look(devices: Vec<Arc<dyn Device>>, common: &Common) -> Result<Arc<dyn Region>, OpenError> {
    open_or_begin(devices, false, Together::Look(common))
}

/// The relation of a process to the others.
#[derive(Clone, Copy)]
enum Together<'t> {
    Alone,
    Share(&'t Sharing),
    Look(&'t Common),
}

/// Joins the other processes.
fn join(devices: &[Arc<dyn Device>], sharing: &Sharing) -> Result<(Arc<SharedState>, Opening), OpenError> {
    let labelled = by_role(devices.to_vec())?;
    let (any, label) = labelled.into_values().next().ok_or_else(no_disk)?;
    SharedState::join(&sharing.common, label.region)
        .map_err(|e| OpenError::Transfer(super::shared_state::failed(any.name(), &e)))
}

fn no_disk() -> OpenError {
    OpenError::Unusable { path: PathBuf::new(), what: "a region has a disk".into() }
}

/// Opens the region of these disks. It does without members that are missing or have missed a write, if it can, and
/// says so. If the disks are writable, the others' labels record that before anything else is written.
pub fn open(devices: Vec<Arc<dyn Device>>) -> Result<Arc<dyn Region>, OpenError> {
    open_or_begin(devices, false, Together::Alone)
}

fn open_or_begin(
    devices: Vec<Arc<dyn Device>>,
    is_new: bool,
    together: Together,
) -> Result<Arc<dyn Region>, OpenError> {
    // A process that only reads changes nothing that others have to know.
    let looks = devices.iter().any(|device| device.properties().read_only);
    let (sharing, common) = match together {
        Together::Alone => (None, None),
        Together::Share(sharing) => (Some(sharing), Some(&sharing.common)),
        Together::Look(common) => (None, Some(common)),
    };
    let joined = sharing.filter(|_| !looks).map(|sharing| join(&devices, sharing)).transpose()?;
    let shared_state = joined.as_ref().map(|(shared_state, _)| shared_state.clone());
    // No process changes labels until this one knows them and has written its changes.
    let name: Arc<str> = devices.first().map_or_else(|| "a region".into(), |device| device.name().clone());
    let held = shared_state.as_ref().map(|shared_state| shared_state.labels(&name)).transpose()?;
    let labelled = by_role(devices)?;
    let newest = newest(&labelled)?.clone();
    let any = labelled.values().next().map(|(device, _)| device.clone()).expect("there is a newest one");
    if shared_state.as_ref().is_some_and(|shared_state| newest.epoch.number() < shared_state.epoch()) {
        let what = "other processes use its region without it, on disks that cannot be opened here";
        return Err(unusable(&*any, what));
    }
    let count = newest.members.len();
    let mut states: Vec<MemberState> = newest.members.iter().map(|member| member.state).collect();
    let mut changed = false;
    for (role, state) in states.iter_mut().enumerate() {
        let known = labelled.get(&role).filter(|(_, label)| label.device == newest.members[role].device);
        let now = known.map_or(MemberState::Out, |(_, label)| state_of(role, label, &newest));
        changed |= now != *state && now == MemberState::Out;
        *state = now;
    }
    let uuids: Vec<Uuid> = newest.members.iter().map(|member| member.device).collect();
    let whole = states.iter().filter(|state| **state == MemberState::Whole).count();
    if count - whole > newest.layout.tolerates(count) {
        let missing = (0..count).filter(|role| states[*role] != MemberState::Whole);
        let missing: Vec<String> = missing.map(|role| format!("{} ({})", role + 1, uuids[role])).collect();
        let what = format!("region {} cannot do without its disk {}", newest.region, missing.join(" and "));
        return Err(unusable(&*any, what));
    }
    let meters = meters(&joined, common, newest.region, &*any)?;
    let share = labelled.values().map(|(_, label)| label.data).min().unwrap_or(0);
    let map = map_for(newest.layout, count, &*any, shared_state.clone())?;
    check_room(&*map, newest.layout, &*any, share)?;
    let part = |role: usize| {
        let (device, _) = labelled.get(&role)?;
        Some(Part::new(device.clone(), meters.as_ref(), role, uuids[role]))
    };
    let parts = (0..count).map(part).collect();
    let is_writable = labelled.values().all(|(device, _)| !device.properties().read_only);
    let lags = labelled.iter().any(|(role, (_, l))| states[*role] != MemberState::Out && l.epoch != newest.epoch);
    let labels = labelled.into_iter().map(|(role, (_, label))| (role, label)).collect();
    let others = shared_state
        .clone()
        .map(|shared_state| Others { shared_state, find: sharing.and_then(|sharing| sharing.find.clone()) });
    let set = Set::new(labels, parts, uuids, states, share, others, meters);
    if is_writable && (changed || lags) {
        set.write_found(&newest)?;
    }
    set.tell_epoch();
    drop(held);
    let volume = Volume::new(set, map);
    let is_first = joined.as_ref().is_none_or(|(_, opening)| opening.is_alone);
    volume.map.start(&volume.set, Begin { is_new, is_first })?;
    Ok(Arc::new(volume))
}

/// The measurements that processes share.
fn meters(
    joined: &Option<(Arc<SharedState>, Opening)>,
    common: Option<&Common>,
    number: u32,
    any: &dyn Device,
) -> Result<Option<Arc<Meters>>, OpenError> {
    let failed = |e| OpenError::Transfer(super::shared_state::failed(any.name(), &e));
    match (joined, common) {
        (Some((_, opening)), Some(common)) => common.meters(opening).map_err(failed),
        (None, Some(common)) => Ok(Some(common.look_at_meters(number))),
        _ => Ok(None),
    }
}

fn by_role(devices: Vec<Arc<dyn Device>>) -> Result<Labelled, OpenError> {
    let mut labelled: Labelled = BTreeMap::new();
    for device in devices {
        let label = Label::read(&*device)?;
        if let Some((other, first)) = labelled.values().next() {
            let same = (first.pool, first.region, first.layout) == (label.pool, label.region, label.layout);
            if !same || first.members.len() != label.members.len() {
                let of =
                    |label: &Label| format!("of region {} ({}) of the pool {}", label.region, label.layout, label.pool);
                let expected = format!("{} like {}", of(first), other.name());
                let path = PathBuf::from(&**device.name());
                return Err(OpenError::Mismatch { path, expected, found: of(&label) });
            }
        }
        if let Some((other, first)) = labelled.get(&label.role) {
            // A disk that was replaced comes back.
            match first.epoch.relation(&label.epoch) {
                Relation::Ahead => continue,
                Relation::Behind => {
                    labelled.insert(label.role, (device, label));
                    continue;
                }
                _ => {}
            }
            let which = if first.device == label.device { "the same disk as" } else { "in the same place as" };
            return Err(unusable(&*device, format!("it is {which} {}: disk {}", other.name(), label.role + 1)));
        }
        labelled.insert(label.role, (device, label));
    }
    Ok(labelled)
}

/// The newest label: that of the last epoch, which the others must have been through or be in.
fn newest(labelled: &Labelled) -> Result<&Label, OpenError> {
    let newest = labelled.values().max_by_key(|(_, label)| (label.epoch.number(), label.generation));
    let Some((best, newest)) = newest else { return Err(no_disk()) };
    for (device, label) in labelled.values() {
        // A disk that the newest label replaces does not count.
        let is_replaced = newest.members.get(label.role).is_none_or(|member| member.device != label.device);
        if is_replaced {
            continue;
        }
        let epochs = || format!("epoch {} here, {} on {}", label.epoch.number(), newest.epoch.number(), best.name());
        match newest.epoch.relation(&label.epoch) {
            Relation::Same | Relation::Ahead => {}
            Relation::Split | Relation::Behind => {
                let what = format!("it was written while it was apart from {}: {}", best.name(), epochs());
                return Err(unusable(
                    &**device,
                    format!("{what}; open the pool with one of them and make the other anew"),
                ));
            }
            Relation::Unknown => {
                let what = format!("it has been away too long to tell whether it still belongs here: {}", epochs());
                return Err(unusable(&**device, format!("{what}; make it anew")));
            }
        }
    }
    Ok(newest)
}

fn check_room(map: &dyn Map, layout: Layout, device: &dyn Device, share: u64) -> Result<(), OpenError> {
    match share >= map.least() {
        true => Ok(()),
        false => {
            let what = format!("it has {share} bytes of content; this {layout} takes at least {}", map.least());
            Err(unusable(device, what))
        }
    }
}

fn map_for(
    layout: Layout,
    members: usize,
    device: &dyn Device,
    shared_state: Option<Arc<SharedState>>,
) -> Result<Box<dyn Map>, OpenError> {
    Ok(match layout {
        Layout::Single => Box::new(Single),
        Layout::Stripe { chunk } => Box::new(Stripe { members: members as u64, chunk: chunk.into() }),
        Layout::Mirror => {
            Box::new(Mirror::new(shared_state).map_err(|e| unusable(device, format!("starting a thread: {e}")))?)
        }
        Layout::Raid5 { chunk } if u64::from(chunk) > MOST_CHUNK => {
            return Err(unusable(device, format!("a chunk of a {layout} has at most {MOST_CHUNK} bytes, not {chunk}")));
        }
        Layout::Raid5 { chunk } => {
            let raid5 = Raid5::new(members, chunk, shared_state);
            Box::new(raid5.map_err(|e| unusable(device, format!("starting a thread: {e}")))?)
        }
    })
}

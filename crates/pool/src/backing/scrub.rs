//! Scrubbing the parts of a pool's disks beside content: the backing, labels, notes. Faults are reported as damage of
//! files is.

use backing::scrub::{Compared, Odd};
use exraid::duplex::{CopyPlace, Duplex};
use exraid::region::throttle::Background;

use crate::disks::damage::Damage;
use conquest_fs::error::Result;
use conquest_fs::node::Fs;
use conquest_fs::ubj::Union;

/// Bytes that were read, and the damage.
#[derive(Default)]
pub struct Scrubbed {
    pub bytes: u64,
    pub damage: Vec<Damage>,
}

/// Scrubs all of it, as a background thread.
pub fn scrub(fs: &Fs, union: Option<&Union>, duplex: Option<&Duplex>, go_on: &dyn Fn() -> bool) -> Result<Scrubbed> {
    let _background = Background::begin();
    let (regions, mut all) = (union.map(Union::regions).unwrap_or_default(), Scrubbed::default());
    for region in &regions {
        match region.mend_ends() {
            Ok(odd) => all.damage.extend(odd.into_iter().map(|what| of_ends(what, region.number()))),
            Err(e) => tracing::error!("scrub: labels of {}: {e}", region.name()),
        }
    }
    let Some(backing) = backing::of(fs.session()) else { return Ok(all) };
    // A backing that takes no more writes cannot be repaired.
    if fs.session().runtime().backing_failed() {
        return Ok(all);
    }
    let places = duplex.map(Duplex::copies).unwrap_or_default();
    let its: Vec<_> = regions.iter().filter(|region| places.iter().any(|of| of.region == region.number())).collect();
    let compared = backing.scrub(fs.session(), &mut |bytes| {
        its.iter().for_each(|region| _ = region.give_way(bytes));
        go_on()
    })?;
    let _ = duplex.map(Duplex::take_wrong);
    all.bytes = compared.bytes;
    all.damage.extend(damage_of(&compared, &places));
    Ok(all)
}

/// The damage, by the regions of the copies.
pub fn damage_of(compared: &Compared, places: &[CopyPlace]) -> Vec<Damage> {
    let mut all = Vec::new();
    for odd in &compared.odd {
        let region = odd.copy.and_then(|n| places.get(n)).or(places.first()).map(|of| of.region);
        add(&mut all, of_backing(odd, region));
    }
    all
}

/// Adds damage; if it continues the last one, makes that longer.
fn add(all: &mut Vec<Damage>, one: Damage) {
    match all.last_mut() {
        Some(last)
            if last.last + 1 == one.first
                && (&last.path, last.region, last.repaired) == (&one.path, one.region, one.repaired) =>
        {
            last.last = one.last;
        }
        _ => all.push(one),
    }
}

/// Damage of the backing in that region; none: in files.
fn of_backing(odd: &Odd, region: Option<u32>) -> Damage {
    let part = ["image", "log 0", "log 1"].get(odd.part).unwrap_or(&"image");
    Damage {
        ino: 0,
        path: Some(format!("the backing, {part}")),
        first: odd.at.start,
        last: odd.at.end - 1,
        region: region.unwrap_or(0),
        why: "it is not what it should be".into(),
        repaired: odd.mended,
        from_memory: region.is_none(),
        beside: region.is_none(),
    }
}

fn of_ends(what: String, region: u32) -> Damage {
    let why = "its two places differ".into();
    Damage {
        ino: 0,
        path: Some(what),
        first: 0,
        last: 4095,
        region,
        why,
        repaired: true,
        from_memory: false,
        beside: false,
    }
}

//! What cannot be read fails at once.

use exraid::{Aligned, Buffers};

use super::super::place::{Place, Run, BLOCK};
use super::copies::{file, world, MOST};
use super::rig::MIB;
use super::world::World;

fn bytes_read(world: &World) -> u64 {
    world.rig.log.regions().iter().map(|region| region.performance().read.bytes).sum()
}

/// Each of the pages of a segment of which no summary was left had the whole segment looked through again.
#[test]
fn what_is_known_to_be_lost_is_not_looked_for_again() {
    let world = world(1, &[]);
    world.write(&file(1, 0..MOST)).expect("there is room");
    // The summary goes, and some content.
    let places: Vec<Place> = world.pages.lock().expect("not poisoned").iter().map(|(_, (place, _))| *place).collect();
    world.rig.disk.overwrite(MIB, &vec![0xd5; MIB as usize / 2]);
    let world = World::with(world.rig.reopened(), Default::default(), 1, 0);
    let fails = |place: Place| {
        let memory = Buffers::whole(&Aligned::zeroed(BLOCK as usize));
        let reading = world.rig.log.read(&world.rig.session, Run::one(place), memory);
        reading.and_then(|reading| reading.wait(&world.rig.log, &world.rig.session)).is_err()
    };
    assert!(fails(places[0]));
    let once = bytes_read(&world);
    assert!(places[1..].iter().all(|place| fails(*place)));
    // The page itself, and the first summary.
    let each = (bytes_read(&world) - once) / (places.len() as u64 - 1);
    assert!(each <= 16 * BLOCK, "{each} bytes for each page, of a segment of {MIB}");
}

//! Power cuts together with a lost disk.

use std::sync::Arc;

use export::{BlockDevice, Linear};
use exraid::fault::{Cut, RamDisk};
use exraid::{Device, Layout, Region};
use rng::Rng;

use crate::line::{read, write, CHUNK, POOL};

const MIB: u64 = 1 << 20;
const SECTOR: usize = 512;
/// Bytes of the line that the tests write.
const USED: u64 = 256 << 10;

fn devices(disks: &[Arc<RamDisk>]) -> Vec<Arc<dyn Device>> {
    disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect()
}

fn line_of(region: Arc<dyn Region>) -> Linear {
    Linear::new("line", vec![region], true).expect("a line")
}

/// A request, its beginning and end, and the content after it.
struct Step {
    began: u64,
    /// Whole stripes written at once, which may be torn.
    whole: Vec<std::ops::Range<usize>>,
    flush: bool,
    ended: u64,
    after: Vec<u8>,
}

/// Writes of all sizes and flushes, with the content after each.
fn load(line: &Linear, seed: u64, stripe: u64) -> Vec<Step> {
    let (mut rng, mut model, mut steps) = (Rng::new(seed), vec![0; USED as usize], Vec::new());
    for _ in 0..40 {
        let began = RamDisk::now();
        let (mut whole, mut flush) = (Vec::new(), false);
        match rng.below(5) {
            0 => {
                line.flush().expect("a flush");
                flush = true;
            }
            which => {
                let len = if which < 4 { rng.within(1, 9000) } else { rng.within(1, 3 * stripe) };
                let at = rng.below(USED - len);
                let bytes = rng.bytes(len as usize);
                write(line, at, &bytes).expect("a write");
                model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                let (first, end) = (at / 512 * 512, (at + len).div_ceil(512) * 512);
                let (first, end) = (first.div_ceil(stripe) * stripe, end / stripe * stripe);
                if first < end {
                    whole.push(first as usize..end as usize);
                }
            }
        }
        steps.push(Step { began, whole, flush, ended: RamDisk::now(), after: model.clone() });
    }
    steps
}

/// Each sector has the content of the last flush, or of any later write that had begun.
fn check(line: &Linear, steps: &[Step], cut: u64, lost: bool, what: &str) -> usize {
    let found = read(line, 0, USED as usize).expect("a read");
    let flushed = steps.iter().rposition(|step| step.flush && step.ended <= cut);
    let zero = vec![0; USED as usize];
    let before = flushed.map_or(&zero, |step| &steps[step].after);
    let later: Vec<&Step> = steps[flushed.map_or(0, |n| n + 1)..].iter().filter(|step| step.began < cut).collect();
    let mut sure = 0;
    for at in (0..USED as usize).step_by(SECTOR) {
        let sector = at..at + SECTOR;
        let is_torn = |step: &&&Step| step.whole.iter().any(|range| range.contains(&at));
        if lost && later.iter().any(|step| is_torn(&step)) {
            continue;
        }
        let mut may_be = std::iter::once(before).chain(later.iter().map(|step| &step.after));
        assert!(may_be.any(|bytes| bytes[sector.clone()] == found[sector.clone()]), "{what}: sector at {at}");
        sure += 1;
    }
    sure
}

/// The power is cut at any instant of a load, and with it any one disk is lost, or none.
#[test]
fn what_was_flushed_outlives_a_power_cut_and_a_lost_disk() {
    for (layout, count) in
        [(Layout::Raid5 { chunk: CHUNK }, 3usize), (Layout::Raid5 { chunk: CHUNK }, 4), (Layout::Mirror, 2)]
    {
        let mut sure = 0;
        for seed in 0..6 {
            let disks: Vec<Arc<RamDisk>> = (0..count).map(|n| RamDisk::new(&format!("ram-{n}"), 18 * MIB)).collect();
            let region = exraid::region::make(POOL, 0, layout, devices(&disks)).expect("a region");
            let stripe = region.stripe();
            region.flush().expect("a flush");
            disks.iter().for_each(|disk| disk.record());
            let begun = RamDisk::now();
            let line = line_of(region);
            let steps = load(&line, seed, stripe);
            drop(line);
            let end = RamDisk::now();
            let mut rng = Rng::new(seed + 100);
            let instants = (0..25).map(|_| begun + rng.below(end - begun + 1)).chain([end]).collect::<Vec<_>>();
            for cut in instants {
                for lost in 0..=count {
                    let left: Vec<Arc<RamDisk>> = disks
                        .iter()
                        .enumerate()
                        .filter(|(n, _)| *n != lost)
                        .map(|(n, disk)| {
                            let cut = Cut { event: disk.at(cut), seed: seed * 1000 + cut + n as u64 };
                            RamDisk::with(disk.name(), disk.after(cut))
                        })
                        .collect();
                    let line = line_of(exraid::region::open(devices(&left)).expect("a region"));
                    let what = format!("{layout} of {count}, seed {seed}, cut at {cut}, {lost} lost");
                    sure += check(&line, &steps, cut, lost < count && layout != Layout::Mirror, &what);
                }
            }
        }
        assert!(sure > 50_000, "{layout}: {sure} sectors were looked at");
    }
}

/// A partial write leaves an intent in the log; replay must not bring its content back after a discard of the stripe.
#[test]
fn what_was_discarded_does_not_come_back_after_a_power_cut() {
    let disks: Vec<Arc<RamDisk>> = (0..3).map(|n| RamDisk::new(&format!("ram-{n}"), 18 * MIB)).collect();
    let layout = Layout::Raid5 { chunk: CHUNK };
    let region = exraid::region::make(POOL, 0, layout, devices(&disks)).expect("a region");
    let stripe = region.stripe();
    let line = line_of(region);
    disks.iter().for_each(|disk| disk.record());
    write(&line, 512, &[7; 1024]).expect("a write");
    line.flush().expect("a flush");
    line.discard(0..stripe).expect("a discard");
    line.flush().expect("a flush");
    assert!(read(&line, 0, stripe as usize).expect("a read").iter().all(|byte| *byte == 0));
    drop(line);
    let left = |(n, disk): (usize, &Arc<RamDisk>)| {
        RamDisk::with(disk.name(), disk.after(Cut { event: disk.tape().len(), seed: n as u64 }))
    };
    let left: Vec<Arc<RamDisk>> = disks.iter().enumerate().map(left).collect();
    for lost in 0..=3 {
        let there: Vec<Arc<RamDisk>> = left
            .iter()
            .enumerate()
            .filter(|(n, _)| *n != lost)
            .map(|(_, disk)| RamDisk::with(disk.name(), disk.content()))
            .collect();
        let line = line_of(exraid::region::open(devices(&there)).expect("a region"));
        let found = read(&line, 0, stripe as usize).expect("a read");
        assert!(found.iter().all(|byte| *byte == 0), "{lost} lost");
    }
}

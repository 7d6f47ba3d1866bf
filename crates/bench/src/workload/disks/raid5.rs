//! Whole stripes of a RAID-5 region over four disks, against three quarters of what these deliver.

use super::peer::Bare;
use super::unequal::skip;
use super::{Bench, COUNT, MB, MIB};
use crate::error::Error;
use conquest::MediumKind;
use exraid::Layout;
use report::goals::{Finding, Goal};
use report::{Outcome, Section};

const ROUNDS: usize = 3;
const RAID5: &str = "RAID-5 region";
const PART: &str = "three quarters of the disks";
const WRITE: &str = "write";
const CHUNK: u32 = 256 << 10;

pub fn run(bench: &Bench<'_>) -> Outcome {
    let title = format!(
        "Four disks of {} MB/s: {} MiB in whole stripes of a RAID-5 region with chunks of {} KiB",
        bench.args.fast,
        bench.size() / MIB,
        CHUNK >> 10
    );
    let mut section = Section::rates("disks-raid5", title, "MB/s");
    section.baseline = Some(PART.into());
    if let Err(e) = measure(bench, &mut section) {
        bench.failed("raid5", std::slice::from_mut(&mut section), &e);
    }
    let measured = format!("{} / {} MB/s", section.text(RAID5, WRITE), section.text(PART, WRITE));
    let what = "RAID-5 region: whole stripes written, against (n-1)/n of the disks";
    let value = section.ratio(WRITE, RAID5, PART);
    let finding = Finding::judge(MediumKind::Battery, what, Goal::factor(0.85, 0.95), measured, value);
    Outcome { sections: vec![section], findings: vec![finding] }
}

fn measure(bench: &Bench<'_>, section: &mut Section) -> Result<(), Error> {
    let rates = [bench.fast(); COUNT];
    let rig = bench.rig(&rates)?;
    for round in 0..bench.context.rounds(ROUNDS) {
        bench.say("raid5", round, ROUNDS, RAID5);
        section.add(PART, WRITE, rig.verify(&rates)? * (COUNT - 1) as f64 / COUNT as f64 / MB);
        match Bare::make(Layout::Raid5 { chunk: CHUNK }, &rig.paths()).and_then(|bare| bare.write(bench.size())) {
            Ok(speed) => section.add(RAID5, WRITE, speed / MB),
            Err(e) => skip(bench, section, RAID5, &e),
        }
    }
    Ok(())
}

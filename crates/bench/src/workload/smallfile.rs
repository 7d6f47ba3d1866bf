//! Sprite LFS small files (Figure 5.1 of the Conquest paper): create, stat, read and unlink many files of 1 KB, in
//! separate phases; read them a second time; and in two more phases create empty ones, and sync each.

use super::tree::{Content, Tree};
use crate::prelude::*;

const ROUNDS: usize = 7;

/// The phases of a round, in order, by their names in the report.
pub const CREATE: &str = "create+write";
/// Without content.
const EMPTY: &str = "create";
pub const STAT: &str = "stat";
pub const READ: &str = "open+read";
/// Once more: by now a kernel that caches content has it.
pub const CACHED: &str = "open+read cached";
pub const UNLINK: &str = "unlink";
pub const SYNC: &str = "create+write+fsync";

options! { Options {
    files: count "N" = 10_000, "Files per round";
    dirs: count "N" = 100, "Directories they are spread over";
    size: count "BYTES" = 1024, "Bytes per file";
    synced: count "N" = 1_000, "Files of the phase that syncs each";
} }

impl Workload for Options {
    fn run(&self, context: &Context) -> Result<Outcome, Error> {
        let files = context.size(self.files, 1_000);
        let plan = Plan {
            tree: Tree::new("d", self.dirs, files),
            synced: context.size(self.synced, 100).min(files),
            content: Content::drawn(51, self.size),
        };
        let mut sections = [Section::times("smallfile", plan.title(), "us/op").against(TMPFS.name).drawn(Plot::bars())];
        let mut peers = context.make(&ALL, &mut sections, |who| in_ram(context, who));
        context.rounds("small files", ROUNDS, &mut peers, &mut sections, |peer, _, sections| {
            let figures = on_place!(&peer.place, place => plan.round(place))?;
            figures.into_iter().for_each(|(measure, figure)| sections[0].add(peer.who.name, measure, figure));
            Ok(())
        });
        Ok(Outcome { findings: findings(&sections[0]), sections: sections.into() })
    }
}

/// A file system of the usual size in RAM.
pub fn in_ram(context: &Context, who: Who) -> Result<Peer, Error> {
    Peer::in_ram(who, &context.base, &context.program, context.bytes(), |how| how)
}

/// The work of a round, prepared once.
struct Plan {
    tree: Tree,
    synced: usize,
    content: Content,
}

impl Plan {
    fn title(&self) -> String {
        let (files, dirs) = (self.tree.files.len(), self.tree.dirs.len());
        format!("Figure 5.1, Sprite LFS small files: {files} files of {} B in {dirs} directories", self.content.0.len())
    }

    fn round(&self, place: &impl Place) -> Result<[(&'static str, f64); 7], Error> {
        let files = &self.tree.files;
        self.tree.make_dirs(place)?;
        let create = timed(files, CREATE, |f| self.content.create(place, f))?;
        let stat = timed(files, STAT, |f| self.content.stat(place, f))?;
        let mut buf = self.content.buffer();
        let read = timed(files, READ, |f| self.content.read(place, f, &mut buf))?;
        let cached = timed(files, CACHED, |f| self.content.read(place, f, &mut buf))?;
        let unlink = timed(files, UNLINK, |f| place.unlink(f))?;
        place.settle()?;
        // Spread over the directories, as the other phases are.
        let synced: Vec<Name> = files.iter().step_by(files.len() / self.synced).take(self.synced).cloned().collect();
        let sync = timed(&synced, SYNC, |f| self.content.create_synced(place, f))?;
        timed(&synced, UNLINK, |f| place.unlink(f))?;
        place.settle()?;
        let empty = timed(files, EMPTY, |f| place.create(f).map(drop))?;
        timed(files, UNLINK, |f| place.unlink(f))?;
        self.tree.remove_dirs(place)?;
        place.settle()?;
        Ok([
            (CREATE, create),
            (STAT, stat),
            (READ, read),
            (CACHED, cached),
            (UNLINK, unlink),
            (SYNC, sync),
            (EMPTY, empty),
        ])
    }
}

/// Does `work` on each file; microseconds per file.
fn timed(files: &[Name], phase: &str, mut work: impl FnMut(&Name) -> Result<(), Error>) -> Result<f64, Error> {
    let start = now();
    for file in files {
        work(file).map_err(|e| e.at(format!("{phase} of {file:?}")))?;
    }
    Ok(us_per_op(start, files.len()))
}

/// The rows of the goals that this workload answers.
fn findings(section: &Section) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (own, mounted) in [(LOGGED, LOGGED_MOUNTED), (BATTERY, BATTERY_MOUNTED)] {
        let row = |what, required, aim| section.row(own.medium(), what, Goal::factor(required, aim));
        let [own, tmpfs, ext4, xfs] = [own, TMPFS, EXT4, XFS].map(|who| who.name);
        // On `logged` the sync writes the redo log; on `battery` it has nothing to do.
        let [of_ext4, of_xfs] = if mounted == LOGGED_MOUNTED { [(1.5, 2.5); 2] } else { [(4.0, 6.0), (3.0, 5.0)] };
        findings.extend([
            row("in process: create + write 1 KB + close, faster than tmpfs", 8.0, 15.0).factor(CREATE, own, tmpfs),
            row("in process: stat, faster than tmpfs", 5.0, 8.0).factor(STAT, own, tmpfs),
            row("in process: open + read + close, faster than tmpfs", 6.0, 10.0).factor(READ, own, tmpfs),
            row("in process: unlink, faster than tmpfs", 8.0, 12.0).factor(UNLINK, own, tmpfs),
        ]);
        let own = mounted.name;
        let slower = |what, required, aim| section.row(mounted.medium(), what, Goal::at_most(required, aim));
        findings.extend([
            row("mounted: create + write + fsync, faster than ext4", of_ext4.0, of_ext4.1).factor(SYNC, own, ext4),
            row("mounted: create + write + fsync, faster than XFS", of_xfs.0, of_xfs.1).factor(SYNC, own, xfs),
            slower("mounted: open + read + close, cached, time of ext4", 1.5, 1.05).ratio(CACHED, own, ext4),
            slower("mounted: create + write, time of ext4", 3.0, 2.0).ratio(CREATE, own, ext4),
        ]);
    }
    findings.extend([("create", EMPTY), ("create + write", CREATE)].map(|(what, measure)| {
        let what = format!("mounted: {what}, io_uring faster than /dev/fuse");
        let row = section.row(MediumKind::Battery, what, Goal::factor(2.5, 4.0));
        row.factor(measure, BATTERY_MOUNTED.name, BATTERY_DEV.name)
    }));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::goals::Verdict;

    fn plan() -> Plan {
        Plan { tree: Tree::new("d", 4, 32), synced: 8, content: Content(vec![7; 100]) }
    }

    #[test]
    fn a_round_measures_every_phase_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Mounted::new(dir.path()).expect("open");
        let figures = plan().round(&place).expect("a round");
        assert!(figures.iter().all(|(_, figure)| *figure > 0.0), "{figures:?}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);
    }

    #[test]
    fn ratios_stand_the_right_way_round() {
        let mut section = Section::times("s", "s", "us/op");
        for (subject, figure) in
            [("tmpfs", 8.0), ("ext4", 16.0), ("conquest logged", 0.5), ("conquest logged+uring", 32.0)]
        {
            section.add(subject, CREATE, figure);
        }
        let rows = findings(&section);
        assert_eq!((rows[0].value, rows[0].verdict), (Some(16.0), Verdict::Aim));
        assert_eq!((rows[7].value, rows[7].verdict), (Some(2.0), Verdict::Aim));
        assert_eq!(rows[8].verdict, Verdict::Skipped);
    }
}

//! The explorer: runs a scenario, judges every crash state.

mod again;
mod repair;
mod together;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use conquest_fs::fsck;
use conquest_fs::layout::tag;
use conquest_fs::node::{Atime, Policy, Rename};
use conquest_fs::Fs;
use pram::heap::TAGS;
use pram::{Mapping, Medium as _, Memory, Session};
use rustix::io::Errno;

use again::recover_twice;
pub use repair::{explore_repair, Damaged};
pub use together::{explore_together, explore_togethers, Together};

use crate::crash::{mapping, points, Choice, Medium, Point};
use crate::medium::{CrashMedium, Discipline, Fault, Faulty};
use crate::model::Model;
use crate::op::{Op, Runner};
use crate::scenario::Scenario;
use crate::trace::{Event, Recorder};
use crate::tree::{difference, normalise, snapshot, Snapshot};

/// Key of the name hash: the same in every run.
pub(crate) const HASH_KEY: u64 = 0x5eed_0000_5eed_0001;

/// A fault planted below the file system, for tests of the tester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    Nothing,
    /// Undo records are not flushed.
    DropLogFlush,
    /// The words that commit are not flushed.
    DropCommitFlush,
    /// What transactions change, or fill in, is not flushed.
    DropDataFlush,
    /// Undo records are flushed, and not waited for.
    DropLogFence,
    /// The words that commit are flushed, and not waited for.
    DropCommitFence,
    /// What transactions change, or fill in, is flushed, and not waited for.
    DropDataFence,
    /// Undo records become valid after the change that they undo.
    DelayLog,
}

/// How thorough an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Most cuts inside one long store.
    pub cuts: u64,
    /// On dax all that can become of the words in doubt is looked at if it is no more than this.
    pub subsets: u64,
    /// Else so many seeds per point, beside none and all.
    pub seeds: u64,
    /// One state in so many is also worked with after recovery.
    pub aftermath: usize,
    /// One state in so many is recovered again after a crash at each store of its recovery.
    pub again: usize,
}

impl Depth {
    /// What the environment asks for.
    pub fn from_env() -> Depth {
        match std::env::var("CONQUEST_SIM").as_deref() {
            Ok("full") => Depth { cuts: 64, subsets: 256, seeds: 16, aftermath: 1, again: 7 },
            _ => Depth { cuts: 6, subsets: 4, seeds: 2, aftermath: 5, again: 101 },
        }
    }
}

/// What an exploration covered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub scenarios: u64,
    pub events: u64,
    pub states: u64,
    /// Of these, recovered again after a crash at each store of the recovery.
    pub again: u64,
    /// States that recovered to before and to after the operation.
    pub before: u64,
    pub after: u64,
}

/// A state that is not what was promised.
#[derive(Clone, Debug)]
pub struct Failure {
    /// `scenario:discipline:point:choice`
    pub id: String,
    pub text: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}\n    {}\n    again: CONQUEST_SIM_REPLAY='{}'", self.id, self.text, self.id)
    }
}

/// A file system on a recording medium.
fn format(size: u64, discipline: Discipline, sabotage: Sabotage, recorder: &Arc<Recorder>) -> Result<Session, String> {
    format_on(size, medium(size, discipline, sabotage, recorder)?)
}

fn format_on(size: u64, medium: Box<dyn pram::Medium>) -> Result<Session, String> {
    let map = Mapping::anonymous(size).map_err(|e| e.to_string())?;
    let region = Memory::format(map, medium, *b"crash explorer  ", conquest_fs::layout::VERSION, 0)
        .map_err(|e| e.to_string())?;
    let session = Session::private(region, keys(size)).map_err(|e| e.to_string())?;
    Fs::format(&session, (0, 0, 0o755), HASH_KEY).map_err(|e| e.to_string())?;
    Ok(session)
}

/// Inode numbers are below this.
pub(crate) fn keys(size: u64) -> u64 {
    size / 64 + 16
}

fn medium(
    size: u64,
    discipline: Discipline,
    sabotage: Sabotage,
    recorder: &Arc<Recorder>,
) -> Result<Box<dyn pram::Medium>, String> {
    let inner = CrashMedium { discipline, recorder: recorder.clone() };
    let geo = pram::memory::Geometry::of(size).map_err(|e| e.to_string())?;
    let slots = geo.undo_logs();
    let is_data = move |off: u64| off >= geo.heap();
    let is_commit = move |off: u64| is_slot_word(&geo, off);
    let of_log = slots.clone();
    let is_log = move |off: u64| of_log.contains(&off) && !is_slot_word(&geo, off);
    let fault = match sabotage {
        Sabotage::Nothing => return Ok(Box::new(inner)),
        Sabotage::DropDataFlush => Fault::DropFlush(Box::new(is_data)),
        Sabotage::DropLogFlush => Fault::DropFlush(Box::new(is_log)),
        Sabotage::DropCommitFlush => Fault::DropFlush(Box::new(is_commit)),
        Sabotage::DropDataFence => Fault::DropFence(Box::new(is_data)),
        Sabotage::DropLogFence => Fault::DropFence(Box::new(is_log)),
        Sabotage::DropCommitFence => Fault::DropFence(Box::new(is_commit)),
        Sabotage::DelayLog => Fault::DelayStore(slots),
    };
    Ok(Box::new(Faulty::new(inner, fault)))
}

fn is_slot_word(geo: &pram::memory::Geometry, off: u64) -> bool {
    (0..geo.slots as u32).any(|n| geo.slot(n) == off)
}

/// Opens what a crash left: recovery happens here.
fn open(map: Mapping, discipline: Discipline) -> Result<Fs, String> {
    open_recording(map, discipline, &Arc::default())
}

fn open_recording(map: Mapping, discipline: Discipline, recorder: &Arc<Recorder>) -> Result<Fs, String> {
    let quiet = CrashMedium { discipline, recorder: recorder.clone() };
    debug_assert!(quiet.needs().stores);
    let region = Memory::open(map, Box::new(quiet)).map_err(|e| format!("the region does not open: {e}"))?;
    let size = region.size();
    let session = Session::private(region, keys(size)).map_err(|e| format!("recovery failed: {e}"))?;
    let policy = Policy { atime: Atime::Never, ..Policy::default() };
    Fs::over(session, policy).map_err(|e| format!("the file system does not open: {e}"))
}

fn bytes_of(fs: &Fs) -> Vec<u8> {
    let region = fs.session().memory();
    let mut bytes = vec![0; region.size() as usize];
    region.read_bytes(0, &mut bytes).expect("inside the region");
    bytes
}

/// Checks without repair; leaks and orphans are allowed.
pub(crate) fn check(fs: &Fs, repair: bool) -> Result<fsck::Report, String> {
    let report = fs.fsck(repair, &mut |_, _| {}).map_err(|e| format!("fsck: {e}"))?;
    match report.problems.first() {
        None => Ok(report),
        Some(p) => Err(format!("fsck: {p} ({} problems)", report.problems.len())),
    }
}

/// Sweeps, and shows that nothing is left to sweep. Returns bytes by tag.
pub(crate) fn sweep(fs: &Fs) -> Result<[u64; TAGS], String> {
    check(fs, true)?;
    let report = check(fs, false)?;
    let usage = fs.session().memory().allocated().map_err(|e| e.to_string())?;
    let allocated: u64 = usage.iter().sum();
    let left = (report.leaked_objects, report.orphans, report.truncations);
    if left != (0, 0, 0) || report.bytes != allocated {
        let (bytes, (objects, orphans, truncations)) = (report.bytes, left);
        return Err(format!(
            "after a sweep {objects} objects, {orphans} orphans and {truncations} truncations are left; {bytes} of \
             {allocated} bytes are in use"
        ));
    }
    Ok(usage)
}

/// One of the two states that a crash may leave.
struct Outcome {
    snapshot: Snapshot,
    /// Bytes by tag, swept.
    usage: [u64; TAGS],
}

impl Outcome {
    fn of(bytes: &[u8], discipline: Discipline) -> Result<Outcome, String> {
        let fs = open(mapping(bytes), discipline)?;
        let mut snapshot = snapshot(&fs)?;
        normalise(&mut snapshot.tree);
        check(&fs, false)?;
        let usage = sweep(&fs)?;
        Ok(Outcome { snapshot, usage })
    }
}

/// A scenario that has run once.
struct Run {
    base: Vec<u8>,
    events: Vec<Event>,
    before: Outcome,
    after: Outcome,
}

fn run(s: &Scenario, discipline: Discipline, sabotage: Sabotage) -> Result<Run, String> {
    let recorder = Arc::<Recorder>::default();
    let session = format(s.size, discipline, sabotage, &recorder)?;
    let fs = Fs::over(session, Policy { atime: s.atime, ..Policy::default() }).map_err(|e| e.to_string())?;
    let (mut runner, mut model) = (Runner::new(&fs), Model::default());
    for op in &s.setup {
        let done = runner.run(op)?;
        if s.modelled {
            model.apply_in(op, &done, s.full)?;
        }
    }
    let base = bytes_of(&fs);
    let before = Outcome::of(&base, discipline)?;
    agree(s, &before, &model, "before")?;
    recorder.start();
    let done = runner.run(&s.op);
    let events = recorder.stop();
    let done = done?;
    if s.modelled {
        model.apply_in(&s.op, &done, s.full)?;
    }
    let after = Outcome::of(&bytes_of(&fs), discipline)?;
    agree(s, &after, &model, "after")?;
    if let Err(e) = done {
        if let Some(d) = after.snapshot.difference(&before.snapshot) {
            return Err(format!("it failed with {e:?} and changed something: {d}"));
        }
    }
    Ok(Run { base, events, before, after })
}

fn agree(s: &Scenario, outcome: &Outcome, model: &Model, when: &str) -> Result<(), String> {
    if !s.modelled {
        return Ok(());
    }
    let found = difference(&outcome.snapshot.tree, &model.tree());
    found.map_or(Ok(()), |d| Err(format!("differs from the model {when} the operation: {d}")))
}

/// Bytes of a page of a file.
const PAGE: usize = 4096;

/// Which of the states before and after is allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Allowed {
    Before,
    After,
    Either,
}

impl Run {
    /// Judges one crash state; true if it is that after the operation.
    fn judge(&self, s: &Scenario, fs: &Fs, allowed: Allowed, work: bool) -> Result<bool, String> {
        check(fs, false)?;
        let mut found = snapshot(fs)?;
        normalise(&mut found.tree);
        if s.frees_later && found != self.before.snapshot {
            self.free(&mut found);
        }
        // Within one tick of the clock, what only allocates memory looks like that too when it is done.
        let expanded = s.expands && found != self.after.snapshot && self.is_expanded(&found);
        if expanded {
            found = self.before.snapshot.clone();
        }
        let is_after = match s.by_page && allowed == Allowed::Either && self.is_between(&found) {
            true => false,
            false => self.which(&found, allowed)?,
        };
        let usage = sweep(fs)?;
        if !expanded {
            // Packing goes bucket by bucket and block by block, and nobody sees which are.
            let in_pieces = s.by_page || s.op == Op::PackInodes;
            self.same_usage(&usage, if is_after { &self.after } else { &self.before }, in_pieces)?;
        }
        if work {
            if s.full {
                empty_and_use(fs)?;
            } else {
                work_with(fs, &found)?;
            }
        }
        Ok(is_after)
    }

    /// Is all as before the operation, but that what was compressed is plain?
    fn is_expanded(&self, found: &Snapshot) -> bool {
        let before = &self.before.snapshot;
        let mut as_before = found.clone();
        for (path, attr) in &mut as_before.attrs {
            let Some(old) = before.attrs.get(path) else { return false };
            if attr.blocks > old.blocks {
                attr.blocks = old.blocks;
            }
        }
        as_before == *before && found != before
    }

    /// Takes memory of files that are as after the operation, which they may have had before it, for freed.
    fn free(&self, found: &mut Snapshot) {
        for (path, attr) in &mut found.attrs {
            let (Some(old), Some(new)) = (self.before.snapshot.attrs.get(path), self.after.snapshot.attrs.get(path))
            else {
                continue;
            };
            if attr.mtime == new.mtime && (new.blocks..=old.blocks).contains(&attr.blocks) {
                attr.blocks = new.blocks;
            }
        }
    }

    /// Are the first pages of a file as after the operation, and all else as before?
    fn is_between(&self, found: &Snapshot) -> bool {
        let (before, after) = (&self.before.snapshot, &self.after.snapshot);
        let mut whole = found.clone();
        for (path, seen) in &mut whole.tree {
            let (Some(old), Some(new)) = (before.tree.get(path), after.tree.get(path)) else { return false };
            let (old, new, now) = (&old.content, &new.content, &seen.content);
            if now == new || old.len() != new.len() || now.len() != new.len() {
                continue;
            }
            let done = (PAGE..now.len()).step_by(PAGE).find(|done| now[*done..] == old[*done..]);
            if done.is_some_and(|done| now[..done] == new[..done]) {
                seen.content = new.clone();
                // The times are those of the last page that was written, and memory goes with the pages.
                if let (Some(attr), Some(first), Some(last)) =
                    (whole.attrs.get_mut(path), before.attrs.get(path), after.attrs.get(path))
                {
                    if !(first.blocks.min(last.blocks)..=first.blocks.max(last.blocks)).contains(&attr.blocks) {
                        return false;
                    }
                    (attr.mtime, attr.ctime, attr.blocks) = (last.mtime, last.ctime, last.blocks);
                }
            }
        }
        whole == *after && found != after
    }

    fn which(&self, found: &Snapshot, allowed: Allowed) -> Result<bool, String> {
        let (before, after) = (&self.before.snapshot, &self.after.snapshot);
        match allowed {
            Allowed::Before | Allowed::Either if found == before => return Ok(false),
            Allowed::After | Allowed::Either if found == after => return Ok(true),
            _ => {}
        }
        let told = |wanted| found.difference(wanted).unwrap_or_default();
        Err(match allowed {
            Allowed::Before => format!("nothing had begun: {}", told(before)),
            Allowed::After if found == before => "what was acknowledged is lost".into(),
            Allowed::After => format!("it was acknowledged: {}", told(after)),
            Allowed::Either => format!("neither before ({}) nor after ({})", told(before), told(after)),
        })
    }

    /// Tables that grow outside transactions may have grown already, and what changes in pieces may have changed in part;
    /// all else is as if never crashed.
    fn same_usage(&self, found: &[u64; TAGS], wanted: &Outcome, in_pieces: bool) -> Result<(), String> {
        // So may inodes be plain that are to change.
        let tables =
            [tag::INODE_TABLE, tag::INODE_BLOCK, tag::PACKED, tag::PACKING, tag::PERM].map(|t| usize::from(t.0));
        let packs = [&self.before, &self.after].iter().any(|one| one.usage[usize::from(tag::PACKED.0)] > 0);
        for (t, bytes) in found.iter().enumerate() {
            let (low, high) =
                (self.before.usage[t].min(self.after.usage[t]), self.before.usage[t].max(self.after.usage[t]));
            // A plain block that was packed may not be kept yet for unpacking.
            let low = if t == usize::from(tag::INODE_BLOCK.0) && packs { 0 } else { low };
            let right = match in_pieces || tables.contains(&t) {
                true => (low..=high).contains(bytes),
                false => *bytes == wanted.usage[t],
            };
            if !right {
                let name = conquest_fs::layout::tag::NAMES.get(t).unwrap_or(&"?");
                return Err(format!("{bytes} bytes of {name}, should be {}", wanted.usage[t]));
            }
        }
        Ok(())
    }
}

/// One more operation of each kind, undone in the end.
pub(crate) fn work_with(fs: &Fs, found: &Snapshot) -> Result<(), String> {
    let mut runner = Runner::new(fs);
    let p = |name: &str| format!("/zz-{name}");
    let ops = [
        Op::Create(p("file"), 0o644),
        Op::Write(p("file"), 100, 3000, 1),
        Op::Append(p("file"), 5000, 2),
        Op::Mkdir(p("dir"), 0o755),
        Op::Symlink { target: "t".repeat(200), path: p("dir/link") },
        Op::Link(p("file"), p("dir/hard")),
        Op::Rename(p("dir"), p("moved"), Rename::NoReplace),
        Op::SetXattr(p("moved"), "user.a".into(), vec![1; 300]),
        Op::Chmod(p("file"), 0o4711),
        Op::Truncate(p("file"), 40_000),
        Op::Truncate(p("file"), 10),
        Op::Rename(p("file"), p("moved/hard2"), Rename::Replace),
        Op::Rename(p("moved/link"), p("moved/hard"), Rename::Exchange),
        Op::Tmpfile("/".into(), "@t".into()),
        Op::Append("@t".into(), 9, 3),
        Op::Link("@t".into(), p("named")),
        Op::Close("@t".into()),
        Op::Unlink(p("named")),
        Op::Unlink(p("moved/link")),
        Op::Unlink(p("moved/hard")),
        Op::Unlink(p("moved/hard2")),
        Op::Rmdir(p("moved")),
    ];
    for op in &ops {
        if let Err(e) = runner.run(op)? {
            return Err(format!("after recovery {op:?} fails: {e:?}"));
        }
    }
    check(fs, false)?;
    let mut now = snapshot(fs)?;
    normalise(&mut now.tree);
    difference(&now.tree, &found.tree).map_or(Ok(()), |d| Err(format!("after recovery and work: {d}")))
}

/// Deletes everything, which must work on a full file system, and uses the space.
fn empty_and_use(fs: &Fs) -> Result<(), String> {
    let mut paths: Vec<_> = snapshot(fs)?.tree.into_iter().rev().collect();
    paths.retain(|(path, _)| path != b"/");
    let mut runner = Runner::new(fs);
    for (path, seen) in paths {
        let path = String::from_utf8_lossy(&path).into_owned();
        let op = if seen.kind == conquest_fs::Kind::Directory { Op::Rmdir(path) } else { Op::Unlink(path) };
        if let Err(e) = runner.run(&op)? {
            return Err(format!("on a full file system {op:?} fails: {e:?}"));
        }
    }
    let ops = [Op::Create("/new".into(), 0o644), Op::Append("/new".into(), 20_000, 1)];
    for op in &ops {
        if let Err(e) = runner.run(op)? {
            return Err(format!("on an emptied file system {op:?} fails: {e:?}"));
        }
    }
    check(fs, false).map(|_| ())
}

/// What to look at of a scenario: everything, or the one state that an id names.
#[derive(Clone, Copy, Default, PartialEq)]
struct Filter {
    at: Option<At>,
    choice: Option<Choice>,
}

#[derive(Clone, Copy, PartialEq)]
enum At {
    Point(Point),
    /// When the call has returned.
    End,
}

impl Filter {
    // What an id names does not depend on how much is looked at.

    fn points(&self, events: &[Event], depth: Depth) -> Vec<Point> {
        match self.at {
            None => points(events, depth.cuts),
            Some(At::Point(point)) => vec![point],
            Some(At::End) => Vec::new(),
        }
    }

    /// What to make of the words in doubt.
    fn choices(&self, medium: &Medium, discipline: Discipline, depth: Depth) -> Vec<Choice> {
        self.choice.map_or_else(|| choices(medium, discipline, depth), |named| vec![named])
    }
}

fn name_of(point: Point) -> String {
    format!("{}.{}", point.events, point.cut)
}

pub(crate) fn name_of_choice(choice: Choice) -> String {
    match choice {
        Choice::None => "none".into(),
        Choice::All => "all".into(),
        Choice::Subset(n) => format!("of{n}"),
        Choice::Seed(n) => n.to_string(),
    }
}

fn at_of(name: &str) -> Option<At> {
    if name == END {
        return Some(At::End);
    }
    let (events, cut) = name.split_once('.')?;
    Some(At::Point(Point { events: events.parse().ok()?, cut: cut.parse().ok()? }))
}

fn choice_of(name: &str) -> Option<Choice> {
    Some(match name {
        "none" => Choice::None,
        "all" => Choice::All,
        name => match name.strip_prefix("of") {
            Some(n) => Choice::Subset(n.parse().ok()?),
            None => Choice::Seed(name.parse().ok()?),
        },
    })
}

/// The choices at a point: all that there are if they are few, else nothing, everything, and some drawn by seeds.
pub(crate) fn choices(medium: &Medium, discipline: Discipline, depth: Depth) -> Vec<Choice> {
    if discipline == Discipline::Battery {
        return vec![Choice::All];
    }
    match medium.subsets() {
        few if few <= depth.subsets => (0..few).map(Choice::Subset).collect(),
        _ => [Choice::None, Choice::All].into_iter().chain((1..=depth.seeds).map(Choice::Seed)).collect(),
    }
}

/// Explores every crash of one scenario. Stops at its first few failures.
pub fn explore(
    s: &Scenario,
    discipline: Discipline,
    sabotage: Sabotage,
    depth: Depth,
    stats: &mut Stats,
) -> Result<(), Vec<Failure>> {
    explore_filtered(s, discipline, sabotage, depth, stats, &Filter::default())
}

/// An id in its parts: scenario, discipline, and what to look at of it.
fn parse(id: &str) -> Option<(&str, Discipline, Filter)> {
    let parts: Vec<&str> = id.rsplitn(4, ':').collect();
    let [choice, point, discipline, name] = parts[..] else { return None };
    let discipline = Discipline::ALL.into_iter().find(|d| d.name() == discipline)?;
    // A failure of the run itself has no point: the whole scenario is explored again.
    let filter = match at_of(point) {
        None => Filter::default(),
        at => Filter { at, choice: Some(choice_of(choice)?) },
    };
    Some((name, discipline, filter))
}

/// The point of an id that stands for what is there when the call has returned.
const END: &str = "end";

/// Explores the one state that an id names.
pub fn replay(s: &Scenario, id: &str, sabotage: Sabotage) -> Result<(), Vec<Failure>> {
    let (name, discipline, filter) = parse(id).expect("scenario:discipline:point:choice");
    assert_eq!(name, s.name);
    explore_filtered(s, discipline, sabotage, Depth::from_env(), &mut Stats::default(), &filter)
}

fn explore_filtered(
    s: &Scenario,
    discipline: Discipline,
    sabotage: Sabotage,
    depth: Depth,
    stats: &mut Stats,
    filter: &Filter,
) -> Result<(), Vec<Failure>> {
    let id = |rest: String| format!("{}:{}:{rest}", s.name, discipline.name());
    let ran = catch_unwind(AssertUnwindSafe(|| run(s, discipline, sabotage))).unwrap_or_else(|p| Err(panic_text(p)));
    let run = ran.map_err(|text| vec![Failure { id: id("run:".into()), text }])?;
    stats.scenarios += 1;
    stats.events += run.events.len() as u64;
    let mut failures = Vec::new();
    let mut medium = Medium::new(discipline, &run.base);
    let (mut applied, mut count, mut committed) = (0, 0usize, false);
    for point in filter.points(&run.events, depth) {
        while applied < point.events {
            medium.apply(&run.events[applied], None);
            applied += 1;
        }
        if point.cut > 0 {
            medium.apply(&run.events[point.events], Some(point.cut));
        }
        for choice in filter.choices(&medium, discipline, depth) {
            let allowed = match point {
                _ if committed || point.events == run.events.len() => Allowed::After,
                Point { events: 0, cut: 0 } => Allowed::Before,
                _ => Allowed::Either,
            };
            count += 1;
            let work = count % depth.aftermath == 0 || filter.at.is_some();
            let again = count % depth.again == 0 || filter.at.is_some();
            let judged = catch_unwind(AssertUnwindSafe(|| {
                let left = medium.crash(choice);
                if again {
                    recover_twice(&run, s, discipline, depth, &left, allowed)?;
                    stats.again += 1;
                }
                run.judge(s, &open(left, discipline)?, allowed, work)
            }));
            stats.states += 1;
            match judged.unwrap_or_else(|p| Err(panic_text(p))) {
                Ok(after) => {
                    *(if after { &mut stats.after } else { &mut stats.before }) += 1;
                    // In program order there is no way back.
                    committed |=
                        after && discipline == Discipline::Battery && run.before.snapshot != run.after.snapshot;
                }
                Err(text) => {
                    failures.push(Failure { id: id(format!("{}:{}", name_of(point), name_of_choice(choice))), text });
                    if failures.len() >= 3 {
                        return Err(failures);
                    }
                }
            }
        }
    }
    if filter.at.is_none_or(|at| at == At::End) {
        let failed = final_state(&run, discipline).map(|text| Failure { id: id(format!("{END}:none")), text });
        failures.extend(failed);
    }
    if failures.is_empty() {
        Ok(())
    } else {
        Err(failures)
    }
}

/// When the call has returned, its effect is durable whatever is lost.
fn final_state(run: &Run, discipline: Discipline) -> Option<String> {
    let mut end = Medium::new(discipline, &run.base);
    run.events.iter().for_each(|e| end.apply(e, None));
    let judged = catch_unwind(AssertUnwindSafe(|| {
        let fs = open(end.crash(Choice::None), discipline)?;
        let mut found = snapshot(&fs)?;
        normalise(&mut found.tree);
        run.which(&found, Allowed::After).map(|_| ())
    }));
    judged.unwrap_or_else(|p| Err(panic_text(p))).err()
}

/// What `f` comes to, a panic being one of its errors.
fn guarded<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|p| Err(panic_text(p)))
}

pub(crate) fn panic_text(payload: Box<dyn std::any::Any + Send>) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("?"))
}

/// Explores scenarios under both disciplines, or the one state that `CONQUEST_SIM_REPLAY` names. Panics
/// with the ids of what failed.
pub fn explore_all(scenarios: &[Scenario]) -> Stats {
    let (depth, mut stats) = (Depth::from_env(), Stats::default());
    let failures = explore_each(
        scenarios,
        |s| &s.name,
        |s, discipline, filter| explore_filtered(s, discipline, Sabotage::Nothing, depth, &mut stats, filter),
    );
    eprintln!("{stats:?}");
    assert_none(&failures);
    stats
}

/// Calls `explore` for all under both disciplines, or for what `CONQUEST_SIM_REPLAY` names.
fn explore_each<T>(
    all: &[T],
    name: fn(&T) -> &str,
    mut explore: impl FnMut(&T, Discipline, &Filter) -> Result<(), Vec<Failure>>,
) -> Vec<Failure> {
    let replay = std::env::var("CONQUEST_SIM_REPLAY").ok();
    let wanted = replay.as_deref().map(parse);
    let mut failures = Vec::new();
    for one in all {
        for discipline in Discipline::ALL {
            let filter = match &wanted {
                Some(Some((named, d, filter))) if *named == name(one) && *d == discipline => *filter,
                // Another one, or the id of another explorer.
                Some(_) => continue,
                None => Filter::default(),
            };
            failures.extend(explore(one, discipline, &filter).err().into_iter().flatten());
        }
        if failures.len() > 20 {
            break;
        }
    }
    failures
}

fn assert_none(failures: &[Failure]) {
    let told: Vec<String> = failures.iter().map(Failure::to_string).collect();
    assert!(failures.is_empty(), "{} crash states are wrong:\n{}", failures.len(), told.join("\n"));
}

/// The events of a scenario's last operation.
pub fn trace(s: &Scenario, discipline: Discipline) -> Result<Vec<Event>, String> {
    run(s, discipline, Sabotage::Nothing).map(|r| r.events)
}

/// Runs operations one by one; the number of events of each.
pub fn costs(size: u64, ops: &[Op]) -> Result<Vec<usize>, String> {
    let recorder = Arc::<Recorder>::default();
    let session = format(size, Discipline::Battery, Sabotage::Nothing, &recorder)?;
    let fs = Fs::over(session, Policy::default()).map_err(|e| e.to_string())?;
    let mut runner = Runner::new(&fs);
    let mut costs = Vec::new();
    for op in ops {
        recorder.start();
        let done = runner.run(op)?;
        let events = recorder.stop();
        if !matches!(done, Ok(_) | Err(Errno::NOSPC)) {
            return Err(format!("{op:?}: {done:?}"));
        }
        costs.push(events.len());
    }
    Ok(costs)
}

/// A file system with something of everything, and where its metadata lies: the used objects but those
/// with the tags `without`, and the segment table. For tests that damage it.
pub fn damaged_base(without: &[pram::Tag]) -> (Vec<u8>, Vec<(u64, u64)>) {
    damaged_base_on(Discipline::Battery, without)
}

/// The same on a medium with this discipline.
pub fn damaged_base_on(discipline: Discipline, without: &[pram::Tag]) -> (Vec<u8>, Vec<(u64, u64)>) {
    damaged_base_of(discipline, &crate::scenario::something_of_everything(), without)
}

/// The same with all inodes packed, of which some were read since; only where these lie, and what leads there.
pub fn damaged_base_packed() -> (Vec<u8>, Vec<(u64, u64)>) {
    let mut ops = crate::scenario::something_of_everything();
    ops.extend([Op::PackInodes, Op::Read("/small".into()), Op::Read("/tree".into())]);
    let packed = [tag::INODE_TABLE, tag::PACKED, tag::PACKING];
    let without: Vec<_> = (1..TAGS as u8).map(pram::Tag).filter(|t| !packed.contains(t)).collect();
    damaged_base_of(Discipline::Battery, &ops, &without)
}

fn damaged_base_of(discipline: Discipline, ops: &[Op], without: &[pram::Tag]) -> (Vec<u8>, Vec<(u64, u64)>) {
    let recorder = Arc::<Recorder>::default();
    let session = format(4 << 20, discipline, Sabotage::Nothing, &recorder).expect("formats");
    let fs = Fs::over(session, Policy::default()).expect("opens");
    let mut runner = Runner::new(&fs);
    for op in ops {
        let done = runner.run(op).expect("runs");
        assert!(done.is_ok(), "{op:?}: {done:?}");
    }
    let region = fs.session().memory();
    let (geo, end) = (region.geo, region.chunks_end());
    let mut places = vec![(geo.entry(geo.first).raw(), (end - geo.first) * 16)];
    for at in (geo.heap()..geo.chunk(end)).step_by(16) {
        for tag in (1..TAGS as u8).map(pram::Tag).filter(|t| !without.contains(t)) {
            if let (Ok(cap), Ok(true)) = (region.resolve(at, tag), region.is_allocated(at)) {
                places.push((at, cap));
            }
        }
    }
    (bytes_of(&fs), places)
}

/// Opens the file system in `bytes`.
pub fn open_bytes(bytes: &[u8]) -> Result<Fs, String> {
    open(mapping(bytes), Discipline::Battery)
}

/// Works with a repaired file system.
pub fn work_after_repair(fs: &Fs) -> Result<(), String> {
    let mut found = snapshot(fs)?;
    normalise(&mut found.tree);
    work_with(fs, &found)
}

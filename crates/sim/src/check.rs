//! Is a file system sound, and does it work?

use conquest_fs::node::Rename;
use conquest_fs::{fsck, Fs, Kind};
use pram::memory::TAGS;

use crate::op::{create, Op, Runner};
use crate::tree::{difference, look, Snapshot};

/// Runs fsck; fails if it finds a problem. Leaks and orphans are none; `repair` frees them.
pub fn check(fs: &Fs, repair: bool) -> Result<fsck::Report, String> {
    let report = fs.fsck(repair, &mut |_, _| {}).map_err(|e| format!("fsck: {e}"))?;
    match report.problems.first() {
        None => Ok(report),
        Some(p) => Err(format!("fsck: {p} ({} problems)", report.problems.len())),
    }
}

/// Sweeps, and checks that nothing is left to sweep. Returns bytes by tag.
pub fn sweep(fs: &Fs) -> Result<[u64; TAGS], String> {
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

/// Runs one more operation of each kind, and undoes them in the end.
pub fn work_with(fs: &Fs, found: &Snapshot) -> Result<(), String> {
    let mut runner = Runner::new(fs);
    let p = |name: &str| format!("/zz-{name}");
    let ops = [
        create(&p("file")),
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
    difference(&look(fs)?.tree, &found.tree).map_or(Ok(()), |d| Err(format!("after recovery and work: {d}")))
}

/// Deletes everything, which must work on a full file system, and uses the space.
pub fn empty_and_use(fs: &Fs) -> Result<(), String> {
    let mut paths: Vec<_> = look(fs)?.tree.into_iter().rev().collect();
    paths.retain(|(path, _)| path != b"/");
    let mut runner = Runner::new(fs);
    for (path, seen) in paths {
        let path = String::from_utf8_lossy(&path).into_owned();
        let op = if seen.kind == Kind::Directory { Op::Rmdir(path) } else { Op::Unlink(path) };
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

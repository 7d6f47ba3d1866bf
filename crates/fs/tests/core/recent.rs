//! A thread remembers the directory that it found last: after any change on the way there, it finds the same as
//! if it remembered nothing, as a new thread does.

use conquest_fs::attr::SetAttr;
use conquest_fs::node::Rename;
use conquest_fs::path::View;
use conquest_fs::Caller;
use rng::Rng;
use rustix::io::Errno;

use crate::rig::*;

const USER: Caller = Caller { uid: 1000, gid: 1000, groups: &[5, 7], umask: 0, checked: false, owns: &[] };

fn anew<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| s.spawn(f).join().expect("no panic"))
}

fn seen(view: &View, path: &str) -> Result<(u64, u32), Errno> {
    view.stat(path.as_bytes()).map(|attr| (attr.ino, attr.generation)).map_err(|e| e.errno())
}

#[test]
fn a_directory_that_moves_or_goes_is_not_found_where_it_was() {
    let (_dir, pool) = pool(8 * MIB);
    let v = root(&pool);
    v.mkdir(b"a", 0o755).unwrap();
    put(&v, "a/x", b"first").unwrap();
    v.rename(b"a", b"b", Rename::Replace).unwrap();
    assert_errno(v.stat(b"a/x"), Errno::NOENT);
    assert_errno(v.create(b"a/y", 0o644), Errno::NOENT);
    assert_errno(v.unlink(b"a/x"), Errno::NOENT);
    assert_eq!(get(&v, "b/x").unwrap(), b"first");
    v.unlink(b"b/x").unwrap();
    v.rmdir(b"b").unwrap();
    assert_errno(v.create(b"b/y", 0o644), Errno::NOENT);
    v.mkdir(b"b", 0o755).unwrap();
    put(&v, "b/y", b"second").unwrap();
    assert_eq!(anew(|| get(&root(&pool), "b/y").unwrap()), b"second");
    assert_clean(&pool);
}

#[test]
fn callers_and_pools_are_not_taken_for_one_another() {
    let [(_one, first), (_two, second)] = [pool(8 * MIB), pool(8 * MIB)];
    for (pool, content) in [(&first, b"1"), (&second, b"2")] {
        let v = root(pool);
        v.mkdir(b"d", 0o755).unwrap();
        v.mkdir(b"d/e", 0o755).unwrap();
        put(&v, "d/e/f", content).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(get(&root(&first), "d/e/f").unwrap(), b"1");
        assert_eq!(get(&root(&second), "d/e/f").unwrap(), b"2");
    }
    let close = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    let user = View::new(&first, USER);
    user.stat(b"d/e/f").unwrap();
    root(&first).setattr(b"d", &close).unwrap();
    assert_errno(user.stat(b"d/e/f"), Errno::ACCESS);
    root(&first).stat(b"d/e/f").unwrap();
    assert_errno(user.stat(b"d/e/f"), Errno::ACCESS);
    let own = SetAttr { gid: Some(7), mode: Some(0o750), ..SetAttr::default() };
    root(&first).setattr(b"d", &own).unwrap();
    user.stat(b"d/e/f").unwrap();
    assert_errno(View::new(&first, Caller { groups: &[5], ..USER }).stat(b"d/e/f"), Errno::ACCESS);
    assert_errno(View::new(&first, Caller { groups: &[5, 8], ..USER }).stat(b"d/e/f"), Errno::ACCESS);
    user.stat(b"d/e/f").unwrap();
}

/// Random changes, by this thread and by others; after each some paths, as this thread and as a new one finds them.
#[test]
fn whatever_changes_is_noticed() {
    let (_dir, pool) = pool(16 * MIB);
    let mut rng = Rng::new(7);
    let path = |rng: &mut Rng| {
        let depth = 1 + rng.below(4);
        let mut path: Vec<String> =
            (0..depth).map(|_| ["a", "b", "l", "..", "."][rng.below(5) as usize].into()).collect();
        if rng.below(8) == 0 {
            path.push(String::new());
        }
        path.join(if rng.below(8) == 0 { "//" } else { "/" })
    };
    let (mut found, mut changed) = (0, 0);
    for _ in 0..10_000 {
        let (from, to, other) = (path(&mut rng), path(&mut rng), path(&mut rng));
        let (what, elsewhere) = (rng.below(8), rng.below(2) == 0);
        let view = if rng.below(2) == 0 { root(&pool) } else { View::new(&pool, USER) };
        // It remembers the way to one of these, or to neither.
        let paths = [&from, &to, &other].map(|path| format!("{path}/{}", ["a", "b"][rng.below(2) as usize]));
        let last = &paths[rng.below(3) as usize];
        let before = seen(&view, last);
        let change = || {
            let v = root(&pool);
            let mode = [0o755, 0o711, 0o700, 0o600][(from.len() + to.len()) % 4];
            match what {
                0 | 1 => v.mkdir(from.as_bytes(), 0o755).map(drop),
                2 => v.rmdir(from.as_bytes()),
                3 => v.rename(from.as_bytes(), to.as_bytes(), Rename::Replace),
                4 => v.rename(from.as_bytes(), to.as_bytes(), Rename::Exchange),
                5 => v.symlink(to.as_bytes(), from.as_bytes()).map(drop),
                6 => v.unlink(from.as_bytes()),
                _ => v.setattr(from.as_bytes(), &SetAttr { mode: Some(mode), ..SetAttr::default() }).map(drop),
            }
        };
        let done = if elsewhere { anew(change) } else { change() };
        let after = seen(&view, last);
        assert_eq!(after, anew(|| seen(&view, last)), "{last:?} was {before:?} before {what} of {from:?} and {to:?}");
        for path in &paths {
            assert_eq!(seen(&view, path), anew(|| seen(&view, path)), "{path:?}");
        }
        changed += u64::from(done.is_ok() && after != before);
        found += u64::from(after.is_ok());
    }
    assert!(changed > 100 && found > 1_000, "{changed} changes of what was looked for, {found} found");
    assert_clean(&pool);
}

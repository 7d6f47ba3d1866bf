//! The mount points of a pool: one server serves it to the kernel, and further directories are further mounts of the
//! same file system, each with flags of its own.
//!
//! | there is | mounting at a directory |
//! | --- | --- |
//! | no server | starts one |
//! | a server, and a mount point of it that we see | makes the directory a further mount point; the server is not asked |
//! | a server that starts or ends | waits for that for a short time |
//! | a server whose mount points we do not see | refuses: they are in another mount namespace, or detached while in use |
//! | mount points whose server is gone | starts a server, and mounts them again, as they were; none is ever empty meanwhile |

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conquest::config::Config;
use conquest::SessionStatus;
use conquest::{Durability, MediumKind};
use fuse::{MountOptions, Transport, TransportChoice};

use crate::failure::{Context, Failure, Result};
use crate::mount_request::Request;
use crate::mounts::{self, Mounted};
use crate::{effective_options, locate, other_mounts, servers};

/// The longest wait for a server that starts or ends.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// Fails if a disk would lie in the pool itself, as a file or behind a loop device: its server would wait for itself.
pub fn refuse_within(pool: &Path, disk: &Path) -> Result<()> {
    let file = backing_file(disk).unwrap_or_else(|| disk.into());
    let real = file.canonicalize().or_else(|_| file.parent().unwrap_or(&file).canonicalize()).unwrap_or(file);
    for dir in real.ancestors() {
        match mounts::at(dir)? {
            Some(mounted) if mounted.is_conquest() && mounted.source == pool => {
                return Err(Failure::new(format!(
                    "{} lies in {} itself, which is mounted at {}, and so cannot be a disk of it: name a file elsewhere, or a device",
                    disk.display(),
                    pool.display(),
                    dir.display()
                )))
            }
            Some(_) => break,
            None => {}
        }
    }
    Ok(())
}

/// The file behind a loop device.
fn backing_file(disk: &Path) -> Option<PathBuf> {
    let real = disk.canonicalize().ok()?;
    let name = real.strip_prefix("/dev").ok()?.file_name()?;
    let text = std::fs::read_to_string(Path::new("/sys/block").join(name).join("loop/backing_file")).ok()?;
    Some(PathBuf::from(text.trim_end_matches('\n')))
}

/// The directories in a list for users.
pub fn list(places: &[Mounted]) -> String {
    places.iter().map(|place| place.dir.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Mounts a pool as requested; `start` starts a server. Returns notes for the user.
pub fn mount(request: &Request, start: impl Fn(&Request) -> Result<()>) -> Result<Vec<String>> {
    let begun = Instant::now();
    loop {
        let (server, places) = (servers::of_pool(&request.pool), mounts::of(&request.pool)?);
        let place = places.iter().find(|place| is_whole(place) && place.is_alive());
        match (server, place) {
            (Some(server), Some(place)) => return further(request, &server, place),
            (None, _) => match start(request) {
                Ok(()) => return Ok(revive(request, &places)),
                // Another process was faster.
                Err(e) => _ = servers::of_pool(&request.pool).ok_or(e)?,
            },
            (Some(server), None) if begun.elapsed() > PATIENCE => return Err(unseen(request, &server)),
            (Some(_), None) => std::thread::sleep(PAUSE),
        }
    }
}

/// Does the mount show all of the file system, and is it not covered by another mount?
fn is_whole(place: &Mounted) -> bool {
    place.root == Path::new("/") && is_on_top(place)
}

fn is_on_top(place: &Mounted) -> bool {
    mounts::at(&place.dir).is_ok_and(|top| top.is_some_and(|top| top.id == place.id))
}

fn further(request: &Request, server: &SessionStatus, place: &Mounted) -> Result<Vec<String>> {
    let (pool, dir) = (request.pool.display(), request.dir.display());
    refuse_others(request, server, place)?;
    if !locate::is_root() {
        let places = list(&mounts::of(&request.pool)?);
        return Err(Failure::new(format!(
            "{pool} is mounted already, at {places}, by process {}; only root can show it at a further directory: `sudo \
             mount --bind {} {dir}`",
            server.pid,
            place.dir.display()
        )));
    }
    fuse::mount_again(&request.pool, &place.dir, &request.dir, &request.options.mount)
        .context(|| format!("cannot mount {pool} at {dir}"))?;
    Ok(Vec::new())
}

/// Refuses options of the server that differ from those in effect: they hold for all mount points.
fn refuse_others(request: &Request, server: &SessionStatus, place: &Mounted) -> Result<()> {
    let (pool, at) = (request.pool.display(), place.dir.display());
    let differs = |what: String, now: String, remedy: String| {
        Err(Failure::new(format!(
            "{what}: {pool} is mounted at {at} with {now}, which holds for all its places; {remedy}"
        )))
    };
    let remount = |what: &str| format!("`conquest mount {pool} {at} -o remount,{what}` changes it");
    let fixed = || format!("to change it, unmount all: `conquest umount {pool}`");
    let options = &request.options;
    let is_logged = || {
        Config::read(&request.pool).is_ok_and(|config| config.is_some_and(|config| config.medium == MediumKind::Logged))
    };
    if let (Some(asked), Some(now)) = (options.terms.durability, server.durability) {
        // On other media every durability is strict.
        if asked.name() != now && (asked == Durability::Strict || is_logged()) {
            let what = format!("durability={}", asked.name());
            return differs(what.clone(), format!("durability={now}"), remount(&what));
        }
    }
    if let (Some(asked), Some(now)) = (options.terms.commit_interval.map(f64::from), server.commit) {
        if asked != now {
            let what = format!("commit={asked}");
            return differs(what.clone(), format!("commit={now}"), remount(&what));
        }
    }
    if let (TransportChoice::Only(asked), Some(now)) = (options.mount.transport, &server.transport) {
        if asked.to_string() != *now {
            let word = if asked == Transport::Uring { "uring" } else { "dev" };
            return differs(format!("transport={word}"), format!("requests over {now}"), fixed());
        }
    }
    if let (Some(asked), Some(now)) = (&options.save, effective_options::save_of(server.pid)) {
        if now.as_ref() != Some(asked) {
            let now = now.map_or("no save=".into(), |file| format!("save={}", file.display()));
            return differs(format!("save={}", asked.display()), now, fixed());
        }
    }
    if let Some(word) = effective_options::lacking(server.pid, &options.mount) {
        return differs(word.into(), format!("no {word}"), fixed());
    }
    if options.mount.allow_other && !place.allow_other {
        return differs("allow_other".into(), "access for its owner alone".into(), fixed());
    }
    Ok(())
}

/// There is a server, but no mount point that a second directory could share.
fn unseen(request: &Request, server: &SessionStatus) -> Failure {
    let (pool, pid) = (request.pool.display(), server.pid);
    let part =
        mounts::of(&request.pool).unwrap_or_default().into_iter().find(|place| !is_whole(place) && place.is_alive());
    if let Some(part) = part {
        let dir = part.dir.display();
        return Failure::new(format!(
            "{pool} is mounted by process {pid}, but of its places only {dir} is to be seen, which is a part of it or covered \
             by another mount; `umount {dir}`, or uncover it"
        ));
    }
    let first = server.mountpoint.as_ref().map(|dir| format!(" at {}", dir.display())).unwrap_or_default();
    match other_mounts::shares_our_mounts(pid) {
        Some(false) => Failure::new(format!(
            "{pool} is mounted{first} by process {pid} in another mount namespace (a container?), from where it cannot be \
             taken over; `nsenter --mount --target {pid} conquest umount {pool}` unmounts it there"
        )),
        _ => Failure::new(format!(
            "{pool} is served by process {pid}, which was mounted{first} and is nowhere in our mount table: it was taken away \
             while it was in use (`umount -l`), or is about to start or to end; `kill {pid}` ends it"
        )),
    }
}

/// Mounts again, as they were, the mount points whose server was gone. Returns a note for each success and failure.
pub fn revive(request: &Request, before: &[Mounted]) -> Vec<String> {
    let others = before.iter().filter(|place| place.dir != request.dir);
    let gone = others.filter(|place| is_on_top(place) && !place.is_alive());
    let (mut again, mut notes) = (Vec::new(), Vec::new());
    for place in gone {
        match revive_one(request, place) {
            Ok(()) => again.push(place.clone()),
            Err(e) => notes.push(format!("not mounted again, as its server was gone: {}: {e}", place.dir.display())),
        }
    }
    if !again.is_empty() {
        notes.insert(0, format!("mounted again: {}", list(&again)));
    }
    notes
}

fn revive_one(request: &Request, place: &Mounted) -> Result<()> {
    if !locate::is_root() {
        return Err(Failure::new("only root can mount it at a further directory"));
    }
    let options =
        MountOptions::parse(&effective_options::stays(&place.options)).context(|| "the mount table".into())?;
    let part = request.dir.join(place.root.strip_prefix("/").unwrap_or(&place.root));
    fuse::mount_again(&request.pool, &part, &place.dir, &options).context(|| "its place stays as it is".into())
}

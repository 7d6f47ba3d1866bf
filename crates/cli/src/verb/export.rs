//! `conquest export`: shows volumes of several disks as one block device, for other file systems.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use export::config::{Kind, NewDisk, NewRegion};
use export::control::Control;
use export::status::{DiskStatus, RegionStatus};
use export::volume::members::Replacement;
use export::volume::HowToMake;
use export::{BlockDevice, Status, Volume};

use crate::failure::{Context, Failure, Result};
use crate::{background, locate, mounts, progress, regions, say, size};

/// Show several disks as one block device, for another file system.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    conquest export make /srv/vol raid5:/dev/sdb,/dev/sdc,/dev/sdd\n  \
    conquest export make /srv/vol mirror:/data/a:10G,/other/b:10G    (files, sparse, made for it)\n  \
    conquest export mount /srv/vol /mnt/vol                          (one file, /mnt/vol/volume)\n  \
    losetup --direct-io=on -f --show /mnt/vol/volume                 (say /dev/loop0)\n  \
    mkfs.ext4 /dev/loop0 && mount /dev/loop0 /mnt/old\n  \
    conquest export status /srv/vol\n  \
    conquest export replace /srv/vol /dev/sdc /dev/sde               (also while it is in use)\n  \
    umount /mnt/old && losetup -d /dev/loop0 && conquest export umount /mnt/vol\n\n\
    A volume has disks of its own. A pool's regions hold segments that the pool moves, and are never exported.")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Make a volume from disks; several regions are joined end to end
    Make(Make),
    /// Show a volume as one file in a directory, for losetup
    Mount(Mount),
    /// Stop showing a volume
    Umount(Umount),
    /// Show its disks, their health and speed; exit status 1 if one is missing or out
    Status(StatusArgs),
    /// Destroy a volume and release its disks; files stay, with their content
    Destroy(Destroy),
    /// Replace a disk, or put a failed one back in service, and rebuild it
    Replace(Replace),
}

#[derive(clap::Args)]
struct Make {
    /// The volume's directory, which is made
    volume: PathBuf,
    /// A disk, or several: each a file or block device; a file that does not exist is made and needs a size
    #[arg(value_name = "PATH[:SIZE] | stripe:|mirror:|raid5:PATH[:SIZE],PATH...", required = true)]
    regions: Vec<String>,
    /// Overwrite existing content of the disks
    #[arg(long)]
    force: bool,
    /// Reserve the whole space of files at once: then no write fails for lack of space, and discards free nothing
    #[arg(long)]
    reserve: bool,
    /// Do not make disks that existed before equal: bytes never written may then read differently each time
    #[arg(long)]
    unsynced: bool,
}

#[derive(clap::Args)]
struct Mount {
    /// The volume's directory
    volume: PathBuf,
    /// The directory to mount at; it must exist
    dir: PathBuf,
    /// Serve from this process, until it is unmounted or gets SIGINT or SIGTERM
    #[arg(short, long)]
    foreground: bool,
    #[arg(long, hide = true)]
    detached: bool,
}

#[derive(clap::Args)]
struct Umount {
    /// The directory where it is mounted, or the volume's directory
    dir: PathBuf,
}

#[derive(clap::Args)]
struct Destroy {
    /// The volume's directory
    volume: PathBuf,
}

#[derive(clap::Args)]
struct StatusArgs {
    /// The volume's directory, or the directory where it is mounted
    volume: PathBuf,
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Replace {
    /// The volume's directory, or the directory where it is mounted
    volume: PathBuf,
    /// A disk of the volume, present or missing
    old: PathBuf,
    /// The new disk; a file that does not exist is made as large as the others [default: the same disk again]
    #[arg(value_name = "NEW[:SIZE]")]
    new: Option<String>,
    /// Overwrite existing content of the new disk
    #[arg(long)]
    force: bool,
}

/// Longest wait for a server that still writes.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::Make(args) => make(args),
        What::Mount(args) => mount(args),
        What::Umount(args) => umount(&locate::absolute(&args.dir)?),
        What::Status(args) => status(args),
        What::Destroy(args) => {
            let volume = locate::absolute(&args.volume)?;
            Volume::destroy(&volume).context(|| format!("cannot destroy {}", volume.display()))
        }
        What::Replace(args) => replace(args),
    }
}

/// Reads `PATH[:SIZE]`, `KIND:PATH[:SIZE],PATH[:SIZE]...`.
fn parse(text: &str) -> Result<NewRegion> {
    let kinds = &Kind::ALL[1..];
    let kind = text.split_once(':').and_then(|(word, rest)| {
        let kind = kinds.iter().find(|(name, _)| *name == word)?.1;
        Some((kind, rest))
    });
    match kind {
        Some((kind, rest)) => {
            let parts = rest.split(',').filter(|part| !part.is_empty());
            Ok(NewRegion { kind, disks: parts.map(disk).collect::<Result<_>>()? })
        }
        None => Ok(NewRegion { kind: Kind::Single, disks: vec![disk(text)?] }),
    }
}

/// Reads `PATH[:SIZE]`.
fn disk(text: &str) -> Result<NewDisk> {
    let disk = regions::parse_disk(text).map_err(|why| Failure::new(format!("{text}: {why}")).with_status(2))?;
    let disk = regions::absolute_disk(&disk)?;
    Ok(NewDisk { path: disk.path, size: disk.size })
}

fn make(args: &Make) -> Result<()> {
    let volume = locate::absolute(&args.volume)?;
    let regions = args.regions.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
    let how = HowToMake { force: args.force, reserve: args.reserve, unsynced: args.unsynced };
    let shown = volume.display();
    let mut show = progress::bytes("making disks the same");
    Volume::make(&volume, &regions, how, &mut show).context(|| format!("cannot make the volume {shown}"))?;
    drop(show);
    say(&format!("{shown} is a volume now; to use it:\n  conquest export mount {shown} DIR"))
}

/// The volume's directory, from the directory itself or from where it is mounted.
fn volume_of(path: &Path) -> Result<PathBuf> {
    let path = locate::absolute(path)?;
    if let Some(pool) = mounts::conquest_at(&path)? {
        let (shown, pool) = (path.display(), pool.source);
        return Err(Failure::new(format!(
            "{shown} is the pool {}: a pool is never exported; see `conquest export make --help`",
            pool.display()
        )));
    }
    Ok(mounts::at(&path)?.filter(|mounted| mounted.is_volume()).map_or(path, |mounted| mounted.source))
}

fn mount(args: &Mount) -> Result<()> {
    let (volume, dir) = (volume_of(&args.volume)?, locate::absolute(&args.dir)?);
    if args.detached {
        return background::detached(|ready| serve(&volume, &dir, ready));
    }
    if args.foreground {
        return serve(&volume, &dir, &|| {});
    }
    // Errors in its configuration are reported here rather than by the server.
    export::volume::config_of(&volume).context(|| "cannot show it".into())?;
    let args: [OsString; 5] =
        ["export".into(), "mount".into(), "--detached".into(), volume.clone().into(), dir.clone().into()];
    background::launch(&args, &volume)?;
    let file = dir.join(fuse::VOLUME_FILE);
    let status = export::control::status(&volume).context(|| "it is shown, but".into())?;
    let mut text = format!("{} ({})", file.display(), size::show(status.size.unwrap_or(0)));
    if !status.is_well() {
        let _ = write!(text, "; NOT ALL OF ITS DISKS ARE WHOLE: conquest export status {}", volume.display());
    }
    say(&format!("{text}\n  losetup --direct-io=on -f --show {}", file.display()))
}

fn serve(dir: &Path, at: &Path, ready: &dyn Fn()) -> Result<()> {
    let shown = dir.display();
    let what = || format!("cannot show the volume {shown}");
    // Called before any thread starts, those for disks included: each thread inherits it.
    if let Err(e) = fuse::flushes_for_others() {
        tracing::warn!("where memory is short, a loop device may wait for itself: PR_SET_IO_FLUSHER: {e}");
    }
    let volume = Volume::open(dir, &mut progress::bytes("making members equal")).context(what)?;
    for problem in volume.problems() {
        tracing::warn!("region {}: {}", problem.region, problem.why);
    }
    let device: Arc<dyn BlockDevice> = volume.line().clone();
    let mount = fuse::mount_volume(device, dir, at).context(what)?;
    let control = Control::serve(volume.clone(), Some(at.into())).context(what)?;
    volume.watch().context(what)?;
    volume.rebuild_in_background();
    ready();
    let served = mount.run().context(|| format!("the volume {shown} ended"));
    let closed = volume.close().context(|| format!("the volume {shown} cannot be closed in order"));
    drop(control);
    served.and(closed)
}

/// Unmounts a volume; `conquest umount` calls it too.
pub fn umount(path: &Path) -> Result<()> {
    let is_at = |mounted: &mounts::Mounted| mounted.is_volume() && (mounted.dir == path || mounted.source == path);
    let Some(mounted) = mounts::all()?.into_iter().rev().find(is_at) else {
        let shown = path.display();
        return Err(Failure::new(format!(
            "no volume is mounted at {shown}; `findmnt -t fuse.conquest-volume` lists what is"
        )));
    };
    let dir = mounted.dir.display();
    fuse::umount_volume(&mounted.dir).context(|| format!("cannot unmount {dir}"))?;
    // When its server has closed it, it can be used again.
    let is_free = || export::volume::is_in_use(&mounted.source).is_ok_and(|used| !used);
    match conquest_fs::poll::poll_until(PATIENCE, is_free) {
        true => Ok(()),
        false => {
            let log = mounted.source.join(conquest::LOG);
            Err(Failure::new(format!("unmounted, but the server has not closed the volume yet; see {}", log.display())))
        }
    }
}

/// Does a path name a volume that is mounted?
pub fn is_shown(path: &Path) -> bool {
    mounts::all().is_ok_and(|all| {
        all.iter().any(|mounted| mounted.is_volume() && (mounted.dir == path || mounted.source == path))
    })
}

fn status(args: &StatusArgs) -> Result<()> {
    let volume = volume_of(&args.volume)?;
    let status = export::control::status(&volume).context(|| "cannot tell".into())?;
    match args.json {
        true => say(&serde_json::to_string_pretty(&status).context(|| "cannot tell".into())?)?,
        false => say(describe(&status).trim_end())?,
    }
    match status.is_well() {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "not all disks of {} are whole; `conquest export replace {0} OLD NEW` puts another in the place of one",
            volume.display()
        ))),
    }
}

fn describe(status: &Status) -> String {
    let mut out = format!("volume     {}\nuuid       {}\n", status.volume.display(), status.uuid);
    match (&status.mounted, status.pid, status.size) {
        (Some(at), Some(pid), Some(size)) => {
            let discards = if status.discards == Some(true) { "; takes discards" } else { "" };
            let file = at.join(fuse::VOLUME_FILE);
            let _ = writeln!(out, "shown      {}, {}, by process {pid}{discards}", file.display(), size::show(size));
        }
        _ => out.push_str("shown      nowhere\n"),
    }
    for region in &status.regions {
        let _ = writeln!(out, "region {}   {}", region.number, describe_region(region));
        region.disks.iter().for_each(|disk| _ = writeln!(out, "  {}", describe_disk(disk)));
    }
    for problem in &status.problems {
        let _ = writeln!(out, "NOT USED   region {}: {}", problem.region, problem.why);
    }
    if status.rebuild_left > 0 {
        let _ = writeln!(out, "rebuilding {} left", size::show(status.rebuild_left));
    }
    out
}

fn describe_region(region: &RegionStatus) -> String {
    let size = region.size.map_or(String::new(), |bytes| format!(", {}", size::show(bytes)));
    let stands = match region.tolerates {
        None => "CONTENT IS LOST".into(),
        Some(0) => "can do without no disk".into(),
        Some(more) => format!("can do without {more} of its disks"),
    };
    format!("{}{size}; {stands}", region.kind)
}

fn describe_disk(disk: &DiskStatus) -> String {
    let name = disk.path.as_ref().map_or_else(|| format!("MISSING ({})", disk.uuid), |path| path.display().to_string());
    let mut out = format!("{name}: {}", if disk.state == "out" { "OUT" } else { &disk.state });
    if let Some(rebuilt) = disk.rebuilt {
        let _ = write!(out, ", {} put back", size::show(rebuilt));
    }
    for (what, flow) in [("read", &disk.read), ("write", &disk.write)] {
        if flow.requests > 0 {
            let (speed, median) = (size::show(flow.speed as u64), flow.median * 1e3);
            let _ = write!(out, "; {what} {speed}/s in {median:.2} ms (99 %: {:.2} ms)", flow.p99 * 1e3);
        }
    }
    if disk.errors > 0 {
        let _ = write!(out, "; {} FAILED", disk.errors);
    }
    out
}

fn replace(args: &Replace) -> Result<()> {
    let (volume, old) = (volume_of(&args.volume)?, locate::absolute(&args.old)?);
    let new = match &args.new {
        Some(text) => disk(text)?,
        None => NewDisk { path: old.clone(), size: None },
    };
    let (shown, taker) = (old.display().to_string(), new.path.display().to_string());
    let how = Replacement { old, new, force: args.force };
    let (mut show, mut all) = (progress::bytes("rebuilding"), 0);
    let mut left = |bytes: u64| {
        all = all.max(bytes);
        show(all - bytes, all);
    };
    let whole = export::control::replace(&volume, &how, &mut left);
    let whole = whole.context(|| format!("cannot put {taker} in the place of {shown}"))?;
    drop(show);
    match whole {
        true => say(&format!("{taker} is whole")),
        false => say(&format!("{taker} is being rebuilt; that goes on when the volume is mounted again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_a_disk_or_a_kind_with_several() {
        let disk = |path: &str, size| NewDisk { path: path.into(), size };
        let single = parse("/data/x:1G").expect("a disk");
        assert_eq!(single, NewRegion { kind: Kind::Single, disks: vec![disk("/data/x", Some(1 << 30))] });
        let several = parse("raid5:/a:1G,/b,/c:2G").expect("a region");
        let disks = vec![disk("/a", Some(1 << 30)), disk("/b", None), disk("/c", Some(2 << 30))];
        assert_eq!(several, NewRegion { kind: Kind::Raid5, disks });
        assert!(parse("mirror:/a:big").is_err());
    }
}

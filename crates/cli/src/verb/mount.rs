//! `conquest mount`: makes a pool's files available at a directory.

use std::path::{Path, PathBuf};

use conquest::DiskStatus;
use conquest::Pool;

use crate::failure::{Context, Failure, Result};
use crate::mount_request::Request;
use crate::remount::Remount;
use crate::serve;
use crate::{background, guard, killed_servers, locate, mount_points, mounts, save_option, say, servers};

/// Mount a pool at a directory; returns once it can be used. A mounted pool gets a further mount point.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    conquest mount /srv/pool /mnt/fast\n  \
    conquest mount /srv/pool /mnt/fast -o ro,noatime\n  \
    conquest mount /srv/pool /srv/www -o ro               (there, too: a further place of the same mount)\n  \
    conquest mount /srv/pool /mnt/fast -o durability=strict\n  \
    conquest mount /srv/pool /mnt/fast -o remount,commit=1    (while it is mounted)\n  \
    conquest mount /srv/pool /mnt/fast -o save=/var/backups/pool.img\n  \
    mount -t conquest /srv/pool /mnt/fast                 (after `conquest install`)\n  \
    /srv/pool /mnt/fast conquest defaults,nofail 0 0      (a line of /etc/fstab)\n\n\
    The server stays in the background and writes its log to POOL/server.log. There is one for a pool: at a further \
    directory ro, nosuid, nodev, noexec and nosymfollow hold for that directory, and durability, commit, transport and save \
    are as they are. Places whose server was killed are mounted again, also by a remount.")]
pub struct Args {
    /// The pool directory
    pool: PathBuf,
    /// The directory to mount at; it must exist
    dir: PathBuf,
    /// Mount options, separated by commas: ro, noatime, strictatime, nosuid, nodev, noexec, allow_other, sync (strict),
    /// transport=uring|dev, durability=strict|fsync (strict: every change is durable when its call returns, on every
    /// medium), commit=SECONDS (instead of the pool's own interval), save=FILE (write an image of the pool at unmount
    /// and on SIGTERM), idmap (further mount points may map users and groups to others, as containers request with
    /// `:idmap`), noxattr (no extended attributes and no ACLs through the mount: fewer messages); remount, with other
    /// options: change those of the existing mount
    #[arg(short, value_name = "OPTS")]
    options: Vec<String>,
    /// Serve from this process, until it is unmounted or gets SIGINT or SIGTERM
    #[arg(short, long)]
    foreground: bool,
    /// The background half of this command: report on the standard output when ready
    #[arg(long, hide = true)]
    detached: bool,
    /// The second process of a mount, whose server is process PID
    #[arg(long, hide = true, value_name = "PID")]
    guard: Option<u32>,
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(server) = args.guard {
        return guard::run(server, &args.dir);
    }
    let pool = locate::absolute(&args.pool)?;
    let dir = locate::absolute(&args.dir)?;
    let request = Request::new(pool, dir, &args.options.join(","))?;
    if args.detached {
        return background::serve(&request);
    }
    if request.options.mount.remount {
        return change(&request);
    }
    if args.foreground {
        check(&request)?;
        return stay(&request);
    }
    begin(&request)?;
    warn_of_missing(&request.pool)
}

/// Mounts, and leaves the server in the background.
pub fn begin(request: &Request) -> Result<()> {
    check(request)?;
    report(&mount_points::mount(request, background::start)?)
}

/// Serves from this process, unless another one does.
fn stay(request: &Request) -> Result<()> {
    if let (Some(server), Some(place)) = (servers::of_pool(&request.pool), mounts::alive(&request.pool)?.first()) {
        let (pool, dir, at) = (request.pool.display(), request.dir.display(), place.dir.display());
        return Err(Failure::new(format!(
            "{pool} is mounted already, at {at}, by process {}; without --foreground {dir} becomes a further place of it",
            server.pid
        )));
    }
    let before = mounts::of(&request.pool)?;
    serve::serve(request, || {
        // No other process is there to do so. A terminal shows the notes.
        for note in mount_points::revive(request, &before) {
            let _ = say(&note);
        }
    })
}

/// Warns of missing disks of regions and of missing regions: the server reports them in its log alone.
pub fn warn_of_missing(pool: &Path) -> Result<()> {
    // It is mounted: an unknown state is no failure now.
    let Ok((regions, disks)) = Pool::disks(pool) else { return Ok(()) };
    let trouble = regions.iter().filter_map(|region| region.trouble(pool));
    let broken = regions.iter().filter_map(|region| region.problem.as_ref());
    // No region line names a region without any of its disks.
    let has_region_line = |disk: &DiskStatus| regions.iter().any(|region| Some(region.number) == disk.region);
    let gone = disks.iter().filter(|disk| !has_region_line(disk)).filter_map(|disk| disk.problem.as_ref());
    let lost = broken.chain(gone).map(|why| format!("mounted, but what only this has cannot be read: {why}"));
    trouble.chain(lost).try_for_each(|what| say(&what))
}

pub fn report(notes: &[String]) -> Result<()> {
    notes.iter().try_for_each(|note| say(note))
}

/// With `-o remount`: changes the existing mount.
fn change(request: &Request) -> Result<()> {
    let remount = Remount::of(&request.dir, &request.options.words)?;
    if remount.pool() != request.pool {
        let (dir, other) = (request.dir.display(), remount.pool().display());
        return Err(Failure::new(format!("mounted at {dir} is another pool, {other}")));
    }
    run_remount(remount)
}

/// Changes an existing mount, or mounts it again if its server is gone.
pub fn run_remount(remount: Remount) -> Result<()> {
    killed_servers::wait(remount.pool())?;
    match remount.is_dead() {
        true => begin(&remount.again()),
        false => remount.run(),
    }
}

/// Refuses wrong requests before a server is started.
pub fn check(request: &Request) -> Result<()> {
    let (pool, dir) = (&request.pool, &request.dir);
    if !Pool::exists(pool) {
        return Err(locate::no_pool(pool));
    }
    Pool::refuse_of_others(pool).context(|| format!("cannot mount {}", pool.display()))?;
    if pool.starts_with(dir) {
        let (pool, dir) = (pool.display(), dir.display());
        return Err(Failure::new(format!(
            "the pool {pool} lies in {dir} and would disappear under the mount; choose another directory"
        )));
    }
    request.options.save.iter().try_for_each(|file| save_option::refuse(file, pool, dir))?;
    // The server clears away a mount that is dead by then.
    killed_servers::wait(pool)
}

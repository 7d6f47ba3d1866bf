//! The host's file systems: tmpfs, and ext2, ext4, XFS and btrfs on loop devices over tmpfs or over files of a disk.
//!
//! Each is made here and lives as long as its [`Host`]. Images are sparse files on the tmpfs of the run, so that the
//! disk costs them nothing either: the measurement covers their code, as with Conquest. On a disk all blocks of an image
//! are written before.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::UnmountFlags;

use crate::command::{output, run};
use crate::error::Error;

/// Bytes of a write.
const PIECE: usize = 1 << 20;

/// The journal of an ext4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journal {
    /// There is none.
    None,
    /// Metadata is journaled: the default of mkfs.ext4 and mount.
    Ordered,
    /// Metadata and content are journaled.
    Data,
}

/// A mounted file system of the host; dropping it unmounts it and removes its image.
pub struct Host {
    pub dir: PathBuf,
    image: Option<PathBuf>,
}

impl Host {
    /// Makes and mounts a file system of a type, of `bytes`, below `base`. mount attaches the loop device with
    /// autoclear, so the kernel detaches it.
    pub fn make(fs_type: &'static str, base: &Path, bytes: u64) -> Result<Host, Error> {
        let dir = base.join(fs_type);
        std::fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        let Some(mkfs) = mkfs(fs_type) else {
            let mounted = mount(&["-t", "tmpfs", "-o", &format!("size={bytes},mode=700"), "tmpfs"], &dir);
            // A user who may not mount still has the tmpfs of the run itself.
            return if is_tmpfs(&dir) { Ok(()) } else { mounted }.map(|()| Host { dir, image: None });
        };
        refuse_others()?;
        let image = base.join(format!("{fs_type}.img"));
        let file = File::create(&image).map_err(Error::file(&image))?;
        file.set_len(bytes).map_err(Error::file(&image))?;
        // From here on dropping the host cleans up.
        let host = Host { dir, image: Some(image.clone()) };
        run(Command::new(format!("mkfs.{fs_type}")).args(mkfs).arg(&image))?;
        mount(&["-t", fs_type, "-o", "loop", &image.display().to_string()], &host.dir)?;
        Ok(host)
    }

    /// An ext4 of `bytes` in a file in `home`, mounted at `dir`, through the page cache of the file system beneath.
    pub fn ext4_in(home: &Path, dir: PathBuf, bytes: u64) -> Result<Host, Error> {
        let host = Host::on_image("ext4", home.join("ext4.img"), dir, bytes, &[])?;
        host.mount_as("ext4", "loop", host.image.as_deref())?;
        Ok(host)
    }

    /// A file system of `bytes` on a loop device over the file `image`, mounted at `dir`. The loop device bypasses the
    /// page cache beneath where that is possible, so that a block is in memory once, and a flush reaches the disk.
    pub fn direct(
        fs_type: &'static str,
        image: PathBuf,
        dir: PathBuf,
        bytes: u64,
        journal: Journal,
    ) -> Result<Host, Error> {
        let bare: &[&str] = if journal == Journal::None { &["-O", "^has_journal"] } else { &[] };
        let host = Host::on_image(fs_type, image.clone(), dir, bytes, bare)?;
        let device = Loop::over(&image)?;
        let how = if journal == Journal::Data { "data=journal" } else { "defaults" };
        host.mount_as(fs_type, how, Some(&device.path))?;
        Ok(host)
    }

    /// Makes it without mounting it. The whole file is written, so that later writes change only content in the file
    /// system beneath.
    fn on_image(
        fs_type: &'static str,
        image: PathBuf,
        dir: PathBuf,
        bytes: u64,
        options: &[&str],
    ) -> Result<Host, Error> {
        refuse_others()?;
        let host = Host { dir, image: Some(image.clone()) };
        std::fs::create_dir_all(&host.dir).map_err(Error::file(&host.dir))?;
        write_all(&image, bytes)?;
        // A discarded block would have to be allocated again.
        let keep: &[&str] = if fs_type.starts_with("ext") { &["-E", "nodiscard"] } else { &["-K"] };
        let usual = mkfs(fs_type).unwrap_or_default();
        run(Command::new(format!("mkfs.{fs_type}")).args(usual).args(keep).args(options).arg(&image))?;
        Ok(host)
    }

    fn mount_as(&self, fs_type: &str, how: &str, what: Option<&Path>) -> Result<(), Error> {
        mount(&["-t", fs_type, "-o", how, &what.unwrap_or(Path::new("")).display().to_string()], &self.dir)
    }
}

/// A loop device; dropping it detaches it, once no mount uses it any more.
pub struct Loop {
    pub path: PathBuf,
}

impl Loop {
    pub fn over(image: &Path) -> Result<Loop, Error> {
        // The file system of the file may not permit bypassing its page cache.
        Loop::attach(image, "on").or_else(|_| Loop::attach(image, "off"))
    }

    fn attach(image: &Path, direct: &str) -> Result<Loop, Error> {
        let direct = format!("--direct-io={direct}");
        let device = output(Command::new("losetup").args(["--find", "--show", &direct]).arg(image))?;
        Ok(Loop { path: device.trim().into() })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // If it is mounted, the kernel detaches it afterwards.
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.path));
    }
}

/// Makes a file of zeros whose blocks are all allocated in the file system beneath.
fn write_all(path: &Path, bytes: u64) -> Result<(), Error> {
    let mut file = File::create(path).map_err(Error::file(path))?;
    let zeros = std::io::repeat(0).take(bytes);
    std::io::copy(&mut BufReader::with_capacity(PIECE, zeros), &mut file).map_err(Error::file(path))?;
    file.sync_all().map_err(Error::file(path))
}

fn refuse_others() -> Result<(), Error> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(Error::Usage("needs root, to mount it".into())),
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        unmount(&self.dir);
        if let Some(image) = &self.image {
            // Fails only if the file is gone already.
            let _ = std::fs::remove_file(image);
        }
    }
}

/// The options of mkfs for a type. ext4 initialises its tables at once: otherwise a kernel thread would do so during
/// the measurement.
fn mkfs(fs_type: &str) -> Option<&'static [&'static str]> {
    match fs_type {
        "ext4" => Some(&["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]),
        "ext2" => Some(&["-q", "-F", "-E", "lazy_itable_init=0"]),
        "xfs" | "btrfs" => Some(&["-q", "-f"]),
        _ => None,
    }
}

/// Mounts at `dir` with the arguments of mount(8).
pub fn mount(arguments: &[&str], dir: &Path) -> Result<(), Error> {
    run(Command::new("mount").args(arguments).arg(dir))
}

fn is_tmpfs(dir: &Path) -> bool {
    // TMPFS_MAGIC; the type of the field differs between architectures.
    rustix::fs::statfs(dir).is_ok_and(|s| s.f_type == 0x0102_1994)
}

/// Unmounts `dir`, at the latest when its last user has gone.
pub fn unmount(dir: &Path) {
    if rustix::mount::unmount(dir, UnmountFlags::empty()).is_err() {
        // It may not be mounted at all.
        let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH);
    }
}

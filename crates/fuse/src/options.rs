//! Mount options, and the transport that they choose.

use std::path::Path;

use rustix::mount::MountFlags;

use crate::error::{Error, Result};
use crate::sys;

const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// FUSE over io_uring (Linux 6.14 and later).
    Uring,
    /// Reads and writes of /dev/fuse.
    Dev,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Transport::Uring => "io_uring",
            Transport::Dev => "/dev/fuse",
        })
    }
}

/// The value of the `transport` option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// io_uring where it is available, else /dev/fuse.
    #[default]
    Auto,
    Only(Transport),
}

/// The options of `-o`. The default is read-write, with access times by `relatime`.
#[derive(Clone, Debug)]
pub struct MountOptions {
    pub read_only: bool,
    pub noatime: bool,
    pub strictatime: bool,
    /// Other users than the mounting one may use the mount; always true for root.
    pub allow_other: bool,
    pub transport: TransportChoice,
    /// Further mount points may map users and groups to others.
    pub idmap: bool,
    /// Files have no extended attributes and no ACLs through the mount, and the kernel does not ask for any.
    pub noxattr: bool,
    /// Change the existing mount, by [`remount`](crate::remount), instead of making one.
    pub remount: bool,
    /// `nosuid`, `nodev` and the like, for the kernel.
    pub(crate) flags: MountFlags,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            noatime: false,
            strictatime: false,
            allow_other: false,
            transport: TransportChoice::Auto,
            idmap: false,
            noxattr: false,
            remount: false,
            flags: MountFlags::empty(),
        }
    }
}

impl MountOptions {
    /// From the comma-separated words after `-o`. Words for `mount(8)` and fstab are accepted and ignored.
    pub fn parse(words: &str) -> Result<MountOptions> {
        let mut options = MountOptions::default();
        for word in words.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            options.take(word)?;
        }
        Ok(options)
    }

    /// Takes one more word, which overrides earlier ones.
    fn take(&mut self, word: &str) -> Result<()> {
        for (_, flag, set) in KERNEL_FLAGS.iter().filter(|(name, ..)| *name == word) {
            self.flags.set(*flag, *set);
        }
        match word {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "noatime" => (self.noatime, self.strictatime) = (true, false),
            "strictatime" => (self.noatime, self.strictatime) = (false, true),
            "atime" | "relatime" | "norelatime" | "nostrictatime" => (self.noatime, self.strictatime) = (false, false),
            "remount" => self.remount = true,
            "allow_other" => self.allow_other = true,
            "idmap" => self.idmap = true,
            "noxattr" => self.noxattr = true,
            _ if word.starts_with("transport=") => self.transport = transport_choice(&word["transport=".len()..])?,
            _ if is_kernel_flag(word) || is_for_mount(word) => {}
            _ => return Err(unknown(word)),
        }
        Ok(())
    }

    pub fn nodiratime(&self) -> bool {
        self.flags.contains(MountFlags::NODIRATIME)
    }

    /// Do both options give the kernel the same flags?
    pub fn has_flags_of(&self, other: &MountOptions) -> bool {
        self.flags == other.flags
    }

    /// The words that `fusermount3` takes for [`flags`](Self::flags).
    pub(crate) fn flag_words(&self) -> Vec<&'static str> {
        let unknown_there = MountFlags::RELATIME | MountFlags::STRICTATIME | MountFlags::NOSYMFOLLOW;
        let fits = |f: &&(&str, MountFlags, bool)| f.2 && self.flags.contains(f.1) && !unknown_there.contains(f.1);
        KERNEL_FLAGS.iter().filter(fits).map(|f| f.0).collect()
    }
}

const KERNEL_FLAGS: &[(&str, MountFlags, bool)] = &[
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("noatime", MountFlags::NOATIME, true),
    ("noatime", MountFlags::RELATIME, false),
    ("noatime", MountFlags::STRICTATIME, false),
    ("relatime", MountFlags::NOATIME, false),
    ("relatime", MountFlags::STRICTATIME, false),
    // A remount keeps noatime unless its options say otherwise.
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("strictatime", MountFlags::NOATIME, false),
    ("strictatime", MountFlags::RELATIME, false),
    ("strictatime", MountFlags::STRICTATIME, true),
    ("nostrictatime", MountFlags::STRICTATIME, false),
    ("atime", MountFlags::NOATIME, false),
    ("atime", MountFlags::STRICTATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("nosymfollow", MountFlags::NOSYMFOLLOW, true),
    ("symfollow", MountFlags::NOSYMFOLLOW, false),
];

fn is_kernel_flag(word: &str) -> bool {
    KERNEL_FLAGS.iter().any(|(name, ..)| *name == word)
}

/// Words that are for `mount(8)` or for readers of fstab, that always hold here, or that stand in the mount table and
/// come back with a remount.
fn is_for_mount(word: &str) -> bool {
    const WORDS: &[&str] = &[
        "defaults",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "owner",
        "group",
        "nofail",
        "_netdev",
        "nonempty",
        "default_permissions",
        "silent",
        "loud",
        "lazytime",
        "nolazytime",
        "mand",
        "nomand",
        "iversion",
        "noiversion",
    ];
    const PREFIXES: &[&str] =
        &["x-", "X-", "comment=", "subtype=", "fsname=", "user=", "user_id=", "group_id=", "max_read=", "blksize="];
    WORDS.contains(&word) || PREFIXES.iter().any(|p| word.starts_with(p))
}

fn transport_choice(value: &str) -> Result<TransportChoice> {
    Ok(match value {
        "auto" => TransportChoice::Auto,
        "uring" => TransportChoice::Only(Transport::Uring),
        "dev" => TransportChoice::Only(Transport::Dev),
        _ => return Err(Error::Option(format!("transport={value}: choose `auto`, `uring` or `dev`"))),
    })
}

fn unknown(word: &str) -> Error {
    Error::Option(format!(
        "unknown mount option `{word}`; there are ro, rw, noatime, relatime, strictatime, nodiratime, nosuid, nodev, \
         noexec, nosymfollow, sync, dirsync, allow_other, idmap, noxattr and transport=auto|uring|dev"
    ))
}

/// The transport of a mount with these options. As root this turns FUSE over io_uring on where the kernel supports it
/// but has it turned off.
pub fn choose_transport(options: &MountOptions) -> Result<Transport> {
    if !Path::new(sys::DEVICE).exists() {
        return Err(no_device());
    }
    match options.transport {
        TransportChoice::Only(Transport::Dev) => Ok(Transport::Dev),
        TransportChoice::Only(Transport::Uring) => uring_ready().map(|()| Transport::Uring),
        TransportChoice::Auto => match uring_ready() {
            Ok(()) => Ok(Transport::Uring),
            Err(e) => {
                tracing::info!("using /dev/fuse: {e}");
                Ok(Transport::Dev)
            }
        },
    }
}

pub(crate) fn no_device() -> Error {
    Error::Unavailable(
        "there is no /dev/fuse; load the kernel module with `modprobe fuse`, or start the container with \
         `--device /dev/fuse --cap-add SYS_ADMIN`"
            .into(),
    )
}

/// Fails with the reason if FUSE over io_uring cannot be used.
fn uring_ready() -> Result<()> {
    let Ok(now) = std::fs::read_to_string(ENABLE_URING) else {
        return Err(Error::Unavailable(
            "this kernel has no FUSE over io_uring; Linux 6.14 or later has it, with CONFIG_FUSE_IO_URING".into(),
        ));
    };
    sys::try_ring().map_err(|e| {
        Error::Unavailable(format!("io_uring cannot be used here: {e}; see the sysctl kernel.io_uring_disabled"))
    })?;
    if now.trim() == "Y" {
        return Ok(());
    }
    std::fs::write(ENABLE_URING, "Y").map_err(|e| {
        Error::Unavailable(format!("FUSE over io_uring is off ({e}); as root: echo Y > {ENABLE_URING}"))
    })?;
    tracing::info!("turned on FUSE over io_uring: wrote Y to {ENABLE_URING}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_words_win() {
        let o = MountOptions::parse("ro,noatime,rw,nosuid,transport=dev").unwrap();
        assert!(!o.read_only && o.noatime);
        assert_eq!(o.transport, TransportChoice::Only(Transport::Dev));
        assert_eq!(o.flags, MountFlags::NOSUID | MountFlags::NOATIME);
        assert_eq!(o.flag_words(), ["nosuid", "noatime"]);
        let o = MountOptions::parse("noatime,relatime").unwrap();
        assert!(!o.noatime && o.flags == MountFlags::RELATIME);
        assert!(o.flag_words().is_empty());
        let o = MountOptions::parse("noatime,strictatime,nosymfollow").unwrap();
        assert!(o.strictatime && o.flags == MountFlags::STRICTATIME | MountFlags::NOSYMFOLLOW);
        assert!(o.flag_words().is_empty(), "fusermount3 knows neither");
        let o = MountOptions::parse("nosymfollow,strictatime,symfollow,relatime,nomand").unwrap();
        assert!(!o.strictatime && o.flags == MountFlags::RELATIME);
    }

    #[test]
    fn fstab_words_are_ignored() {
        let words = "defaults,auto,noauto,user,nofail,_netdev,x-systemd.automount,comment=hello,";
        let o = MountOptions::parse(words).unwrap();
        assert!(o.flags.is_empty() && !o.read_only);
    }

    #[test]
    fn what_is_unknown_is_named() {
        let e = MountOptions::parse("ro,frobnicate").unwrap_err().to_string();
        assert!(e.contains("`frobnicate`") && e.contains("transport="), "{e}");
        let e = MountOptions::parse("transport=pigeon").unwrap_err().to_string();
        assert!(e.contains("pigeon") && e.contains("uring"), "{e}");
    }
}

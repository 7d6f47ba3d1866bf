//! Persistent memory behind the processor's caches: a DAX character device, or a file on a file system
//! mounted with `-o dax`.
//!
//! A store is durable when its cache line has been written back and a fence has passed, so `flush` writes lines back
//! with the best instruction of the processor, and `fence` is SFENCE. Many bytes at once are stored past the caches:
//! they are not read soon, and lines need not be fetched to be overwritten. Where the platform says that its caches
//! survive a power cut too (eADR), lines are not written back. The fence stays, since stores still in the processor's
//! store buffer would be lost; the checksums of the undo log stay, since the memory may be moved to another machine.
//!
//! Locks (see `session`) belong to the inode, which for a device is that of its node: all processes must
//! name the device by the same one, `/dev/daxX.Y`. The kernel locks nodes of devices as it does files.

use std::fs::{canonicalize, read_to_string};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{major, minor, FileType, Stat};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::medium::{Medium, MediumKind, Needs};
use crate::mem::{store_fence, LineFlush, Mapping, Sync};
use crate::memory::Memory;

const SYS: &str = "/sys";

/// Persistent memory behind the processor's caches.
#[derive(Debug)]
pub struct Dax {
    /// `None`: the caches survive.
    flush: Option<LineFlush>,
}

impl Dax {
    /// The medium of a memory in `file`.
    pub fn of(file: impl AsFd) -> Result<Dax> {
        let stat = rustix::fs::fstat(file).map_err(Error::host("memory"))?;
        let how = LineFlush::of_this_processor().ok_or_else(|| {
            Error::Unusable("the medium `dax` needs an x86-64 processor; use `--medium battery`".into())
        })?;
        Ok(Dax { flush: (!caches_survive(SYS.as_ref(), &stat)).then_some(how) })
    }
}

impl Medium for Dax {
    fn kind(&self) -> MediumKind {
        MediumKind::Dax
    }

    fn needs(&self) -> Needs {
        Needs { flush: true, stores: false }
    }

    fn flush_instruction(&self) -> Option<&'static str> {
        Some(match self.flush {
            Some(LineFlush::Keep) => "CLWB",
            Some(LineFlush::Drop) => "CLFLUSHOPT",
            Some(LineFlush::DropInOrder) => "CLFLUSH",
            None => "none: the caches survive",
        })
    }

    fn flush(&self, map: &Mapping, off: u64, len: u64) {
        if let Some(how) = self.flush {
            // Everything flushed has been stored before, so it is in bounds.
            let flushed = map.flush_lines(off, len, how);
            debug_assert!(flushed.is_ok(), "flush of {off:#x} (+{len})");
        }
    }

    fn stream(&self, map: &Mapping, off: u64, bytes: &[u8]) -> Result<bool> {
        match self.flush {
            Some(how) => map.stream(off, bytes, how).map(|()| true),
            None => Ok(false),
        }
    }

    fn fence(&self, _: &Mapping) {
        store_fence();
    }

    fn stored(&self, _: u64, _: &[u8]) {}
}

/// A DAX character device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Bytes that can be mapped: whole units of alignment.
    pub size: u64,
    /// Mappings begin and end at multiples of this.
    pub align: u64,
}

/// Describes `file` if it is a DAX device; `None` for a regular file. Nothing else can hold a memory.
pub fn device(file: impl AsFd) -> Result<Option<Device>> {
    let stat = rustix::fs::fstat(file).map_err(Error::host("memory"))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(None),
        FileType::CharacterDevice => describe(SYS.as_ref(), &stat).map(Some),
        FileType::BlockDevice => Err(Error::Unusable(
            "it is a block device; make a file system on it that is mounted with `-o dax` and give a file there, or \
             turn it into a DAX device (`ndctl create-namespace -m devdax`)"
                .into(),
        )),
        _ => Err(Error::Unusable("it is neither a file nor a DAX device".into())),
    }
}

/// Maps the first `len` bytes of a DAX device, or of a file on a DAX mount, for a memory.
pub fn map(file: impl AsFd, len: u64) -> Result<Mapping> {
    // A device has no file system whose records MAP_SYNC would make durable, and older ones refuse it.
    let mapped = match device(&file)? {
        Some(_) => Mapping::device(file, len, Memory::recorded_len),
        None => Mapping::growing(file, len, Sync::Dax, Memory::recorded_len),
    };
    mapped.map_err(|errno| match errno {
        Errno::OPNOTSUPP => Error::Unusable(
            "no persistent memory is mapped here (MAP_SYNC is refused); give a file on a file system mounted with \
             `-o dax` or a device /dev/daxX.Y (`--nvram PATH`), or use `--medium battery`"
                .into(),
        ),
        errno => Error::Host { what: "mapping the memory".into(), errno },
    })
}

/// The description of a character device in sysfs.
fn describe(sys: &Path, stat: &Stat) -> Result<Device> {
    let dir = sys.join(format!("dev/char/{}:{}", major(stat.st_rdev), minor(stat.st_rdev)));
    let is_dax = canonicalize(dir.join("subsystem")).is_ok_and(|d| d.ends_with("dax"));
    let number = |name: &str| read_to_string(dir.join(name)).ok().and_then(|text| parse(&text));
    let align = number("align").unwrap_or(2 << 20);
    match number("size") {
        Some(size) if is_dax && align > 0 => Ok(Device { size: size / align * align, align }),
        _ => Err(Error::Unusable("it is not a DAX device (`daxctl list` shows those there are)".into())),
    }
}

/// A number as sysfs writes it: decimal, or hexadecimal with 0x.
fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Does the platform say that its caches survive a power cut (eADR)? sysfs says it in the memory region of the device,
/// or of the device below the file. If the kernel does not say so, they count as lost.
fn caches_survive(sys: &Path, stat: &Stat) -> bool {
    let (kind, dev) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => ("char", stat.st_rdev),
        _ => ("block", stat.st_dev),
    };
    let Ok(place) = canonicalize(sys.join(format!("dev/{kind}/{}:{}", major(dev), minor(dev)))) else { return false };
    let text = place.ancestors().find_map(|dir| read_to_string(dir.join("persistence_domain")).ok());
    text.is_some_and(|domain| domain.trim() == "cpu_cache")
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write, File};
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::mem::{byte_lock, lines, LINE};

    #[test]
    fn every_line_that_holds_a_dirty_byte_is_flushed_once() {
        for off in 0..3 * LINE {
            for len in 0..4 * LINE {
                let mut wanted: Vec<u64> = (off..off + len).map(|byte| byte / LINE * LINE).collect();
                wanted.dedup();
                assert_eq!(lines(off, len).collect::<Vec<_>>(), wanted, "{off} + {len}");
            }
        }
    }

    #[test]
    fn every_instruction_that_this_processor_has_leaves_the_content() {
        let map = Mapping::anonymous(8192).unwrap();
        let Some(best) = LineFlush::of_this_processor() else {
            eprintln!("skipped: no x86-64 processor");
            return;
        };
        map.write(100, &[7; 300]).unwrap();
        // A processor that has the better one has the worse ones too.
        let all = [LineFlush::Keep, LineFlush::Drop, LineFlush::DropInOrder];
        for how in all.into_iter().skip_while(|how| *how != best) {
            map.flush_lines(100, 300, how).unwrap();
            store_fence();
            assert!(map.equals(100, &[7; 300]).unwrap(), "{how:?}");
            map.flush_lines(8191, 1, how).unwrap();
            assert!(map.flush_lines(8191, 2, how).is_err(), "beyond the end");
        }
    }

    #[test]
    fn what_is_streamed_is_there_and_nothing_else() {
        let Some(how) = LineFlush::of_this_processor() else {
            eprintln!("skipped: no x86-64 processor");
            return;
        };
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i % 251) as u8).collect();
        for off in [0, 1, 15, 64, 100, 4090] {
            for len in [0, 1, 63, 64, 65, 200, 512, 1000] {
                let map = Mapping::anonymous(8192).unwrap();
                map.write(0, &[0xee; 8192]).unwrap();
                map.stream(off, &bytes[..len as usize], how).unwrap();
                store_fence();
                assert!(map.equals(off, &bytes[..len as usize]).unwrap(), "{off} + {len}");
                assert!(map.equals(0, &vec![0xee; off as usize]).unwrap(), "before {off} + {len}");
                assert!(
                    map.equals(off + len, &vec![0xee; (8192 - off - len) as usize]).unwrap(),
                    "after {off} + {len}"
                );
            }
        }
        let map = Mapping::anonymous(8192).unwrap();
        assert!(map.stream(8000, &bytes, how).is_err(), "beyond the end");
        assert!(map.is_zero(0, 8192).unwrap());
    }

    #[test]
    fn what_is_not_persistent_memory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (what, file) in [("tmpfs", tempfile::tempfile_in("/dev/shm")), ("disk", tempfile::tempfile_in(dir.path()))]
        {
            let file = file.unwrap();
            file.set_len(1 << 20).unwrap();
            match map(&file, 1 << 20) {
                Err(e) => {
                    let text = e.to_string();
                    assert!(text.contains("-o dax") && text.contains("--medium battery"), "{what}: {text}");
                }
                Ok(_) => eprintln!("skipped: {what} is persistent memory here"),
            }
        }
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        assert!(device(&null).unwrap_err().to_string().contains("not a DAX device"));
        assert!(device(File::open("/").unwrap()).unwrap_err().to_string().contains("neither"));
    }

    /// `/dev/null`, and a sysfs that calls it a DAX device of some memory region.
    fn device_of(domain: &str, size: &str) -> (tempfile::TempDir, Stat) {
        let stat = rustix::fs::stat("/dev/null").unwrap();
        let sys = tempfile::tempdir().unwrap();
        let dir = sys.path().join("devices/ndbus0/region0/dax0.0/dax/dax0.0");
        create_dir_all(&dir).unwrap();
        create_dir_all(sys.path().join("dev/char")).unwrap();
        create_dir_all(sys.path().join("bus/dax")).unwrap();
        symlink(&dir, sys.path().join(format!("dev/char/{}:{}", major(stat.st_rdev), minor(stat.st_rdev)))).unwrap();
        symlink(sys.path().join("bus/dax"), dir.join("subsystem")).unwrap();
        write(dir.join("size"), size).unwrap();
        write(dir.join("align"), "2097152\n").unwrap();
        write(sys.path().join("devices/ndbus0/region0/persistence_domain"), domain).unwrap();
        (sys, stat)
    }

    #[test]
    fn a_device_has_the_size_that_sysfs_says_in_whole_units() {
        let (sys, stat) = device_of("memory_controller\n", "5242880\n");
        assert_eq!(describe(sys.path(), &stat).unwrap(), Device { size: 4 << 20, align: 2 << 20 });
        let (sys, stat) = device_of("memory_controller\n", "many\n");
        assert!(describe(sys.path(), &stat).is_err());
        assert_eq!((parse("0x200000\n"), parse("12"), parse("x")), (Some(2 << 20), Some(12), None));
    }

    #[test]
    fn caches_survive_only_where_the_platform_says_so() {
        for (domain, survive) in [("cpu_cache\n", true), ("memory_controller\n", false), ("unknown\n", false)] {
            let (sys, stat) = device_of(domain, "5242880\n");
            assert_eq!(caches_survive(sys.path(), &stat), survive, "{domain}");
        }
        let (sys, stat) = device_of("cpu_cache\n", "5242880\n");
        std::fs::remove_file(sys.path().join("devices/ndbus0/region0/persistence_domain")).unwrap();
        assert!(!caches_survive(sys.path(), &stat));
    }

    #[test]
    fn locks_hold_on_the_node_of_a_character_device() {
        let open = || File::options().read(true).write(true).open("/dev/zero").unwrap();
        let (a, b) = (open(), open());
        let byte = std::process::id();
        assert!(byte_lock::acquire(&a, byte).unwrap());
        assert!(byte_lock::is_held(&b, byte).unwrap() && !byte_lock::acquire(&b, byte).unwrap());
        drop(a);
        assert!(byte_lock::acquire(&b, byte).unwrap());
    }
}

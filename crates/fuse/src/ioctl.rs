//! The flags of a file that `chattr` sets and `lsattr` shows, as far as they have a meaning here: `c`, compress it, and
//! `m`, do not. They are another form of the attribute `user.conquest.compression`: `always`, and `never`.

use conquest_fs::node::SetXattr;
use rustix::io::Errno;

use crate::abi::{IoctlFlagsOut, IoctlIn, IoctlOut, IoctlXattrOut};
use crate::convert::errno;
use crate::request::{Answer, Request};
use crate::server::Server;

/// From `linux/fs.h`: commands, whose numbers hold the size of a word, and flags.
const GET: u32 = 0x8008_6601;
const SET: u32 = 0x4008_6602;
/// The kernel asks for these flags before it sets others; none of them exists here.
const GET_XFLAGS: u32 = 0x801c_581f;
const COMPRESS: u32 = 0x4;
const NO_COMPRESS: u32 = 0x400;

const SETTING: &[u8] = b"user.conquest.compression";

impl Server {
    pub(crate) fn ioctl(&self, req: &mut Request) -> Answer {
        let args: IoctlIn = req.args()?;
        match args.cmd {
            GET => {
                let value = self.file_flags(req.head.nodeid)?;
                req.reply(&IoctlFlagsOut { value, ..IoctlFlagsOut::default() })
            }
            SET => {
                let bytes: [u8; 4] = req.content(4)?.try_into().map_err(|_| Errno::INVAL)?;
                self.set_file_flags(req, u32::from_ne_bytes(bytes))?;
                req.reply(&IoctlOut::default())
            }
            GET_XFLAGS => req.reply(&IoctlXattrOut::default()),
            _ => Err(Errno::NOTTY),
        }
    }

    fn file_flags(&self, ino: u64) -> Result<u32, Errno> {
        match self.fs().getxattr(ino, SETTING) {
            Ok(value) => Ok(flags_of(&value)),
            Err(e) if e.errno() == Errno::NODATA => Ok(0),
            Err(e) => Err(errno(e)),
        }
    }

    fn set_file_flags(&self, req: &Request, flags: u32) -> Result<(), Errno> {
        let ino = req.head.nodeid;
        let Some(value) = setting_of(flags)? else {
            // `auto`, `warm` and `cold` have no flag that the caller could have cleared.
            return match self.file_flags(ino)? {
                0 => Ok(()),
                _ => self.as_owner(req, |caller| self.fs().removexattr(ino, SETTING, caller)),
            };
        };
        self.as_owner(req, |caller| self.fs().setxattr(ino, SETTING, value, SetXattr::Any, caller))
    }
}

fn flags_of(value: &[u8]) -> u32 {
    match value {
        b"always" => COMPRESS,
        b"never" => NO_COMPRESS,
        _ => 0,
    }
}

fn setting_of(flags: u32) -> Result<Option<&'static [u8]>, Errno> {
    match flags {
        0 => Ok(None),
        COMPRESS => Ok(Some(b"always")),
        NO_COMPRESS => Ok(Some(b"never")),
        flags if flags == COMPRESS | NO_COMPRESS => Err(Errno::INVAL),
        _ => Err(Errno::OPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_settings_say_the_same() {
        for flags in [COMPRESS, NO_COMPRESS] {
            let value = setting_of(flags).unwrap().unwrap();
            assert_eq!(flags_of(value), flags);
            assert!(conquest_fs::Compression::from_name(value).is_some());
        }
        assert_eq!(setting_of(0), Ok(None));
        assert_eq!(setting_of(COMPRESS | NO_COMPRESS), Err(Errno::INVAL));
        // Immutable, append-only.
        for other in [0x10, 0x20, COMPRESS | 0x10] {
            assert_eq!(setting_of(other), Err(Errno::OPNOTSUPP));
        }
        for compression in conquest_fs::Compression::ALL {
            let is = matches!(compression, conquest_fs::Compression::Always | conquest_fs::Compression::Never);
            assert_eq!(flags_of(compression.name().as_bytes()) != 0, is);
        }
    }
}

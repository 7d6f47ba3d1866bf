//! The program as a mount helper, called by mount(8) or by another helper:
//!
//! ```text
//! mount.conquest      SOURCE DIR [-sfnvrw] [-N NS] [-t TYPE] [-o OPTS]     mount -t conquest
//! mount.fuse.conquest SOURCE DIR ...                                       mount -t fuse.conquest
//! conquest            SOURCE DIR -o OPTS                                   mount.fuse3 conquest#SOURCE DIR
//! ```

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::failure::{Failure, Result};
use crate::locate;
use crate::mount_request::Request;
use crate::remount::Remount;
use crate::verb::install::NAMES;
use crate::verb::mount;

const USAGE: &str = "usage: mount.conquest POOL DIR [-sfnvrw] [-o OPTS]";

/// The request of mount(8).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HelperRequest {
    source: PathBuf,
    dir: PathBuf,
    options: Vec<String>,
    remount: bool,
    /// Do everything except mounting.
    fake: bool,
    help: bool,
}

/// The request, if the program is called as a helper.
pub fn recognise(args: &[OsString]) -> Option<Result<HelperRequest>> {
    let name = Path::new(args.first()?).file_name()?;
    let by_name = NAMES.iter().any(|n| name == OsStr::new(n));
    // `mount.fuse3` calls us with a pool in the place of a command.
    let by_path = args.len() >= 3 && args[1].to_string_lossy().contains('/');
    (by_name || by_path).then(|| parse(&args[1..]))
}

fn parse(args: &[OsString]) -> Result<HelperRequest> {
    let wrong = |what: &str| Failure::new(format!("{what}; {USAGE}")).with_status(1);
    let mut request = HelperRequest::default();
    let mut places = Vec::new();
    let mut options = Vec::new();
    if args.iter().any(|a| a == "--help" || a == "-h") {
        return Ok(HelperRequest { help: true, ..HelperRequest::default() });
    }
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        let Some(letters) = text.strip_prefix('-').filter(|l| !l.is_empty()) else {
            places.push(arg);
            continue;
        };
        for (at, letter) in letters.char_indices() {
            match letter {
                's' | 'n' | 'v' => {}
                'f' => request.fake = true,
                'r' => options.push("ro".to_string()),
                'w' => options.push("rw".to_string()),
                'o' | 't' | 'N' => {
                    let rest = &letters[at + 1..];
                    let mut next = || args.next().map(|a| a.to_string_lossy().into_owned());
                    let value = if rest.is_empty() { next() } else { Some(rest.to_string()) };
                    let value = value.ok_or_else(|| wrong(&format!("-{letter} needs a value")))?;
                    if letter == 'o' {
                        options.extend(value.split(',').map(str::to_string));
                    }
                    break;
                }
                other => return Err(wrong(&format!("unknown option -{other}"))),
            }
        }
    }
    let [source, dir] = places[..] else { return Err(wrong("a pool and a directory are needed")) };
    let source_text = source.to_string_lossy();
    request.source = source_text.strip_prefix("conquest#").map_or_else(|| source.into(), PathBuf::from);
    request.dir = dir.into();
    request.remount = options.iter().any(|o| o == "remount");
    request.options = options;
    Ok(request)
}

impl HelperRequest {
    pub fn run(self) -> Result<ExitCode> {
        if self.help {
            return crate::say(USAGE).map(|()| ExitCode::SUCCESS);
        }
        let dir = locate::absolute(&self.dir)?;
        if self.remount {
            let remount = Remount::of_all(&dir, &self.options.join(","))?;
            if !self.fake {
                mount::run_remount(remount)?;
            }
        } else {
            let request = Request::new(locate::absolute(&self.source)?, dir, &self.options.join(","))?;
            match self.fake {
                true => mount::check(&request)?,
                false => mount::begin(&request)?,
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(words: &str) -> Result<HelperRequest> {
        let args: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        recognise(&args).expect("a helper")
    }

    #[test]
    fn what_mount_passes_is_understood() {
        let r = request("/sbin/mount.conquest /srv/pool /mnt -sv -o rw,noatime,nofail,x-systemd.automount").unwrap();
        assert_eq!((r.source, r.dir), ("/srv/pool".into(), "/mnt".into()));
        assert_eq!(r.options, ["rw", "noatime", "nofail", "x-systemd.automount"]);
        assert!(!r.remount && !r.fake);
        let r = request("mount.fuse.conquest -n /srv/pool /mnt -f -oro,remount -t fuse.conquest").unwrap();
        assert!(r.remount && r.fake);
        assert_eq!(r.options, ["ro", "remount"]);
    }

    #[test]
    fn mount_fuse_names_the_pool_where_a_verb_would_stand() {
        assert_eq!(request("conquest /srv/pool /mnt -o rw").unwrap().source, Path::new("/srv/pool"));
        assert_eq!(request("mount.fuse.conquest conquest#/srv/pool /mnt").unwrap().source, Path::new("/srv/pool"));
        assert!(recognise(&["conquest".into(), "mount".into(), "/a".into(), "/b".into()]).is_none());
    }

    #[test]
    fn wrong_calls_are_refused() {
        for words in [
            "mount.conquest",
            "mount.conquest /a",
            "mount.conquest /a /b /c",
            "mount.conquest /a /b -z",
            "mount.conquest /a /b -o",
        ] {
            assert!(request(words).is_err(), "{words}");
        }
    }
}

//! The options in effect of a mount: from the mount table, and from the command line of its server.

use std::path::{Path, PathBuf};

use conquest::Atime;
use fuse::MountOptions;

use crate::locate;

/// Is it an option of a mount?
pub fn is_known(word: &str) -> bool {
    fuse::MountOptions::parse(word).is_ok()
}

/// The words that request the options shown in the mount table, which has none for `strictatime`.
pub fn stays(now: &str) -> String {
    let strict = Some("strictatime").filter(|_| atime_by(now, false) == Atime::Always);
    now.split(',').filter(|word| is_known(word)).chain(strict).collect::<Vec<_>>().join(",")
}

/// The file to which the server writes an image when it is unmounted, from its command line; `None` if that is unknown.
pub fn save_of(pid: u32) -> Option<Option<PathBuf>> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    match saved_by(&String::from_utf8(line).ok()?) {
        // The path is relative to the directory where that process was started.
        Some(file) if Path::new(file).is_relative() => None,
        Some(file) => locate::absolute(Path::new(file)).ok().map(Some),
        None => Some(None),
    }
}

/// Options that hold for a mount as long as it lives.
const FIXED: [&str; 2] = ["idmap", "noxattr"];

/// The first fixed option among those asked for that a mount does not have, by the command line of its server.
pub fn lacking(pid: u32, asked: &MountOptions) -> Option<&'static str> {
    let line = String::from_utf8(std::fs::read(format!("/proc/{pid}/cmdline")).ok()?).ok()?;
    let (asked, has) = ([asked.idmap, asked.noxattr], words_in(&line));
    FIXED.into_iter().zip(asked).find(|(word, asked)| *asked && !has.contains(word)).map(|(word, _)| word)
}

fn saved_by(line: &str) -> Option<&str> {
    words_in(line).into_iter().filter_map(|word| word.strip_prefix("save=")).next_back()
}

/// The words after each `-o`; a zero byte ends each argument.
fn words_in(line: &str) -> Vec<&str> {
    let (mut args, mut words) = (line.split('\0'), Vec::new());
    while let Some(arg) = args.next() {
        let more = match arg.strip_prefix("-o") {
            Some("") => args.next().unwrap_or_default(),
            Some(more) => more,
            None => continue,
        };
        words.extend(more.split(',').map(str::trim));
    }
    words
}

/// When accesses are noted, by the flags that the kernel shows. `strict`: at each read, unless the flags rule it out.
pub fn atime_by(flags: &str, strict: bool) -> Atime {
    if has(flags, "noatime") || has(flags, "ro") {
        Atime::Never
    } else if strict || !has(flags, "relatime") {
        Atime::Always
    } else {
        Atime::Relative
    }
}

pub fn has(flags: &str, word: &str) -> bool {
    flags.split(',').any(|flag| flag == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_decide_when_accesses_are_noted() {
        assert_eq!(atime_by("rw,nosuid,noatime", true), Atime::Never);
        assert_eq!(atime_by("ro,relatime", false), Atime::Never);
        assert_eq!(atime_by("rw,relatime", false), Atime::Relative);
        assert_eq!(atime_by("rw,relatime", true), Atime::Always);
        assert_eq!(atime_by("rw,nosuid", false), Atime::Always);
    }

    #[test]
    fn what_the_table_shows_stays() {
        assert_eq!(stays("rw,nosuid,idmapped,relatime"), "rw,nosuid,relatime");
        assert_eq!(stays("rw,nosymfollow"), "rw,nosymfollow,strictatime");
        assert_eq!(stays("rw,noatime"), "rw,noatime");
    }

    #[test]
    fn the_command_line_says_what_is_saved() {
        let line = |args: &[&str]| args.iter().map(|arg| format!("{arg}\0")).collect::<String>();
        for (args, file) in [
            (
                &["conquest", "mount", "--detached", "-odurability=strict,save=/a b,ro", "/save=/p", "/m"][..],
                Some("/a b"),
            ),
            (&["conquest", "mount", "/p", "/m", "-o", "save=/a", "-f", "-o", "ro"], Some("/a")),
            (&["conquest", "mount", "-osave=/a", "-o", "save=b", "/p", "/m"], Some("b")),
            (&["conquest", "mount", "/p", "/m", "-o"], None),
            (&["conquest", "mount", "/p", "save=/m"], None),
        ] {
            assert_eq!(saved_by(&line(args)), file, "{args:?}");
        }
    }
}

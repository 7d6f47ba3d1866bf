//! The options of `-o`: for the pool and its server, and for the mount.

use std::path::{Path, PathBuf};

use conquest::{CommitInterval, Terms};
use conquest_fs::Durability;

use crate::failure::{Failure, Result};
use crate::locate;

/// The parsed words after `-o`.
pub struct Options {
    /// The words again, for another process, which may have another working directory.
    pub words: String,
    pub mount: fuse::MountOptions,
    /// Write an image to this file after unmounting.
    pub save: Option<PathBuf>,
    /// Durability and the commit interval; the latter overrides the pool's own.
    pub terms: Terms,
}

impl Options {
    /// Reads comma-separated words; later ones override earlier ones. Words that are not ours belong to the mount.
    pub fn parse(words: &str) -> Result<Options> {
        let mut options =
            Options { words: String::new(), mount: fuse::MountOptions::default(), save: None, terms: Terms::default() };
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for word in words.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            match options.take(word).map_err(|e| refusal(words, &e))? {
                true if word.starts_with("save=") => {}
                true => ours.push(word.to_string()),
                false => theirs.push(word),
            }
        }
        ours.extend(options.save.iter().map(|file| format!("save={}", file.display())));
        options.mount = fuse::MountOptions::parse(&theirs.join(",")).map_err(|e| refusal(words, &e))?;
        ours.extend(theirs.into_iter().map(str::to_string));
        options.words = ours.join(",");
        Ok(options)
    }

    /// Takes one more word; false if it is not ours.
    fn take(&mut self, word: &str) -> std::result::Result<bool, String> {
        match word.split_once('=').unwrap_or((word, "")) {
            ("save", "") => return Err("save= needs a file, e.g. save=/var/backups/pool.img".into()),
            ("save", file) => self.save = Some(locate::absolute(Path::new(file)).map_err(|e| e.to_string())?),
            ("durability", value) => {
                let named = Durability::from_name(value.as_bytes());
                let unknown = || format!("durability={value}: choose `strict` or `fsync`");
                self.terms.durability = Some(named.ok_or_else(unknown)?);
            }
            // The kernel applies these to writes alone.
            ("sync" | "dirsync", "") => {
                self.terms.durability = Some(Durability::Strict);
                return Ok(false);
            }
            ("async", "") => {
                self.terms.durability = Some(Durability::Fsync);
                return Ok(false);
            }
            ("commit", value) => {
                let interval: Result<CommitInterval, String> = value.parse();
                self.terms.commit_interval = Some(interval.map_err(|e| format!("commit={value}: {e}"))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn refusal(words: &str, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("-o {words}: {why}; see `conquest mount --help`")).with_status(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_and_theirs_may_be_mixed() {
        let o = Options::parse("ro,durability=strict,noatime,commit=0.5,save=/image").unwrap();
        assert!(o.mount.read_only && o.mount.noatime);
        assert_eq!(o.terms.durability, Some(Durability::Strict));
        assert_eq!(o.terms.commit_interval, Some("0.5".parse().unwrap()));
        assert_eq!(o.save, Some("/image".into()));
        assert_eq!(o.words, "durability=strict,commit=0.5,save=/image,ro,noatime");
        let o = Options::parse("durability=strict,durability=fsync").unwrap();
        assert_eq!(o.terms, Terms { durability: Some(Durability::Fsync), ..Terms::default() });
        assert_eq!(Options::parse("rw").unwrap().terms, Terms::default());
    }

    #[test]
    fn what_mount_calls_sync_is_strict() {
        use Durability::{Fsync, Strict};
        for (words, durability) in [
            ("rw,sync", Some(Strict)),
            ("dirsync,noatime", Some(Strict)),
            ("durability=fsync,sync", Some(Strict)),
            ("sync,durability=fsync", Some(Fsync)),
            ("async,durability=strict", Some(Strict)),
            ("sync,async", Some(Fsync)),
            ("rw,relatime", None),
        ] {
            assert_eq!(Options::parse(words).unwrap().terms.durability, durability, "{words}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (words, named) in [
            ("durability", "durability=: choose `strict` or `fsync`"),
            ("durability=eventual", "choose `strict` or `fsync`"),
            ("commit", "commit=: `` is not a number"),
            ("commit=soon", "`soon` is not a number"),
            ("commit=0", "0.01 to 86400"),
            ("commit=-5", "0.01 to 86400"),
            ("commit=1e9", "0.01 to 86400"),
            ("commit=nan", "0.01 to 86400"),
            ("save=", "needs a file"),
            ("ro,frobnicate", "unknown mount option `frobnicate`"),
        ] {
            let e = Options::parse(words).err().expect(words).to_string();
            assert!(e.contains(named), "{words}: {e}");
        }
    }
}

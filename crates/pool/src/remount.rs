//! The terms of a process while it has the pool open, and a request of another process to change them: a remount, without
//! an unmount.
//!
//! Both are words of the process's record in the runtime file: one has the terms in effect, for `status`; in the
//! other, another process leaves the terms that it wants, which the process takes when it [heeds](Pool::heed) them.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use super::config::Config;
use super::{role, CommitInterval, Pool, Threshold};
use conquest_fs::error::{Error, Result};
use conquest_fs::node::Policy;
use conquest_fs::poll::poll_until;
use conquest_fs::setting::Durability;
use ilfs::table::GROWING;

/// How long a process has to heed a request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Terms to change, or in effect. `None`: unchanged; without effect here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    pub durability: Option<Durability>,
    pub commit_interval: Option<CommitInterval>,
    /// Read the threshold from `pool.toml` again.
    pub settings: bool,
}

/// Bits of the word: a durability, 0 for none; that settings are to be read again; that there is a word; then an interval in microseconds,
/// 0 for none.
const DURABILITY: u64 = 0b11;
const SETTINGS: u64 = 1 << 2;
const SAID: u64 = 1 << 7;
const INTERVAL: u32 = 8;

impl Terms {
    fn word(&self) -> u64 {
        let micros = self.commit_interval.map_or(0, |interval| Duration::from(interval).as_micros() as u64);
        let settings = if self.settings { SETTINGS } else { 0 };
        self.durability.map_or(0, |durability| durability as u64) | settings | SAID | micros << INTERVAL
    }

    pub(super) fn of(word: u64) -> Terms {
        let known = [Durability::Fsync, Durability::Strict];
        let seconds = (word >> INTERVAL) as f64 / 1e6;
        Terms {
            durability: known.into_iter().find(|durability| *durability as u64 == word & DURABILITY),
            commit_interval: CommitInterval::try_from(seconds).ok(),
            settings: word & SETTINGS != 0,
        }
    }
}

impl Pool {
    /// The terms in effect in this process.
    pub fn terms(&self) -> Terms {
        let durability = if self.durable_at_return() { Durability::Strict } else { self.policy().durability };
        let commit_interval = self.threads.commits.as_ref().map(|commits| commits.interval());
        Terms { durability: Some(durability), commit_interval, settings: false }
    }

    /// Changes the terms, for calls that begin after this returns.
    pub fn change(&self, terms: &Terms) {
        if let Some(durability) = terms.durability.filter(|_| !self.mirrored) {
            self.set_policy(Policy { durability, ..self.policy() });
        }
        if let (Some(commits), Some(interval)) = (&self.threads.commits, terms.commit_interval) {
            commits.set_interval(interval);
        }
        if terms.settings {
            self.take_up_settings();
        }
        self.tell();
    }

    fn take_up_settings(&self) {
        match Config::read(&self.dir) {
            Ok(Some(config)) => self.fs.union().into_iter().for_each(|union| union.set_threshold(config.threshold())),
            Ok(None) => {}
            Err(e) => tracing::error!("{e}"),
        }
    }

    /// Sets the size beyond which the content of files goes to disk, for all processes that open the pool from now on, and for the mount.
    /// Maintenance moves files that are then on the wrong side.
    pub fn set_threshold(&self, threshold: Threshold) -> Result<()> {
        let Some(union) = self.fs.union() else {
            return Err(Error::Pool(format!(
                "{}: all content is in memory, since the pool has no disk; give it one with `conquest region add`",
                self.dir.display()
            )));
        };
        {
            // All that change `pool.toml` hold this lock.
            let _alone = self.session().long_lock(GROWING)?;
            let Some(mut config) = Config::read(&self.dir)? else {
                return Err(Error::Pool(format!("{}: the pool has no settings", self.dir.display())));
            };
            config.threshold = Some(threshold);
            config.write(&self.dir)?;
        }
        union.set_threshold(threshold.into());
        match self.sessions().iter().any(|(_, user)| user.is_mount()) {
            true => self.ask(&Terms { settings: true, ..Terms::default() })?.wait(),
            false => Ok(()),
        }
    }

    /// Publishes the terms of this process.
    pub(super) fn tell(&self) {
        self.session().runtime().set_terms(self.terms().word());
    }

    /// Takes the terms that another process has asked for since the last time.
    pub fn heed(&self) {
        let runtime = self.session().runtime();
        if let Some(word) = runtime.asked() {
            let terms = Terms::of(word);
            tracing::info!("asked to change: {terms:?}");
            self.change(&terms);
            runtime.heeded(word);
        }
    }

    /// Reports this mount point of the process, the mount, instead of the one before.
    pub fn set_mountpoint(&self, dir: impl AsRef<Path>) {
        self.session().runtime().set_label(dir.as_ref().as_os_str().as_bytes());
    }

    /// Reports the transport over which this process, the mount, is served.
    pub fn set_transport(&self, uring: bool) {
        self.session().runtime().set_role(role::of_mount(uring));
    }

    /// This process is no longer the mount, though it has the pool open: another one may be.
    pub fn end_mount(&self) {
        self.session().runtime().set_role(role::API);
    }

    /// Asks the process that serves the mount to change its terms.
    pub fn ask(&self, terms: &Terms) -> Result<Asked<'_>> {
        let mount = self.sessions().into_iter().find(|(_, user)| user.is_mount());
        let Some((session, _)) = mount else {
            return Err(Error::Pool("no process serves a mount of the pool".into()));
        };
        let asked = Asked { pool: self, session, word: terms.word() };
        self.session().runtime().ask(session, asked.word);
        Ok(asked)
    }
}

/// A request to another process; dropping it takes it back if it has not been heeded.
#[must_use = "nobody may have heard"]
pub struct Asked<'a> {
    pool: &'a Pool,
    session: u32,
    word: u64,
}

impl Asked<'_> {
    /// Waits until the process has heeded it.
    pub fn wait(&self) -> Result<()> {
        let runtime = self.pool.session().runtime();
        if poll_until(PATIENCE, || !runtime.is_asked(self.session, self.word)) {
            return Ok(());
        }
        let seconds = PATIENCE.as_secs();
        Err(Error::Pool(format!("the server has not answered for {seconds} s: is it stopped?")))
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.pool.session().runtime().withdraw(self.session, self.word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_shown_in_a_word() {
        for durability in [None, Some(Durability::Fsync), Some(Durability::Strict)] {
            for seconds in ["0.01", "0.5", "30", "86400"] {
                for commit_interval in [None, Some(seconds.parse().unwrap())] {
                    for settings in [false, true] {
                        let terms = Terms { durability, commit_interval, settings };
                        assert_eq!(Terms::of(terms.word()), terms);
                        assert_ne!(terms.word(), 0, "0 is nothing");
                    }
                }
            }
        }
        assert_eq!(Terms::of(0), Terms::default());
    }
}

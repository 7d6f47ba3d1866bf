//! What a process keeps to while it has the pool open, and how another one asks it to change that: a remount, without
//! taking the mount away.
//!
//! Both are words of the process's record in the runtime file: one says what is in effect, for `status`; in the
//! other somebody leaves what he wants, which the process takes when it [heeds](Pool::heed) it.

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

/// How long a process has to do as it is asked.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is to change, or what is in effect. `None`: it stays; it has no effect here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    pub durability: Option<Durability>,
    pub commit_interval: Option<CommitInterval>,
    /// What `pool.toml` says of the threshold is to be taken up.
    pub settings: bool,
}

/// Bits of the word: a durability, 0 for none; that settings are to be taken up; that the word is one; then an interval in microseconds, 0
/// for none.
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
    /// What this process keeps to.
    pub fn terms(&self) -> Terms {
        let durability = if self.durable_at_return() { Durability::Strict } else { self.policy().durability };
        let commit_interval = self.threads.commits.as_ref().map(|commits| commits.interval());
        Terms { durability: Some(durability), commit_interval, settings: false }
    }

    /// Keeps to something else from now on: calls that begin after this returns.
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

    /// Sets the size beyond which the content of files goes to disk. It counts for whoever opens the pool from now on, and for the mount; files
    /// that lie on the wrong side then are moved in the background.
    pub fn set_threshold(&self, threshold: Threshold) -> Result<()> {
        let Some(union) = self.fs.union() else {
            return Err(Error::Pool(format!(
                "{}: all content is in memory, since the pool has no disk; give it one with `conquest region add`",
                self.dir.display()
            )));
        };
        {
            // Others who change what is written there have this lock too.
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

    /// Lets others know.
    pub(super) fn tell(&self) {
        self.session().runtime().set_terms(self.terms().word());
    }

    /// Does what others have asked of this process since the last time.
    pub fn heed(&self) {
        let runtime = self.session().runtime();
        if let Some(word) = runtime.asked() {
            let terms = Terms::of(word);
            tracing::info!("asked to change: {terms:?}");
            self.change(&terms);
            runtime.heeded(word);
        }
    }

    /// This process, the mount, is mounted there, too; and where it was first, no more.
    pub fn set_mountpoint(&self, dir: impl AsRef<Path>) {
        self.session().runtime().set_label(dir.as_ref().as_os_str().as_bytes());
    }

    /// Over which transport this process, the mount, is served.
    pub fn set_transport(&self, uring: bool) {
        self.session().runtime().set_role(role::of_mount(uring));
    }

    /// This process is the mount no more, though it has the pool open: another one may be.
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

/// Something that was asked of another process; dropping it takes it back if it has not been heeded.
#[must_use = "nobody may have heard"]
pub struct Asked<'a> {
    pool: &'a Pool,
    session: u32,
    word: u64,
}

impl Asked<'_> {
    /// Waits until it is done.
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

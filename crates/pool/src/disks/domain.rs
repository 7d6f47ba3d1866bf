//! Names of domains: regions that fail together, as the disks of one enclosure do.
//!
//! The segment table has a number for each region's domain, which decides where replicas go; `pool.toml` has its name. A name that is a
//! number is that number; other names get unused numbers.
//!
//! | step | action | otherwise, after a crash |
//! | --- | --- | --- |
//! | 1 | `pool.toml` has the name and its number; durable | regions are in a domain without a name |
//! | 2 | the table has the number for the regions; durable | |
//! | 3 | names without a region are removed from `pool.toml` | they stay until domains are changed again |

use std::collections::BTreeMap;
use std::path::Path;

use crate::rescue::absent::read_config;
use crate::Pool;
use conquest_fs::error::{Error, Result};

/// The first number of a domain whose name is no number.
const NAMED: u32 = 1_000_000;
/// Bytes of a name, at most.
const LONGEST: usize = 64;

impl Pool {
    /// Puts these regions into the domain with this name, in which they fail together; the name `0` puts each on its own.
    pub fn set_domain(&self, regions: &[u32], name: &str) -> Result<()> {
        check(name)?;
        let (log, session) = (self.with_log()?.log(), self.fs.session());
        let _alone = session.long_lock(ilfs::table::GROWING)?;
        let mut config = read_config(&self.dir)?;
        let there = log.numbers();
        if let Some(number) = regions.iter().find(|number| !there.contains(number)) {
            let dir = self.dir.display();
            return Err(Error::Pool(format!(
                "{dir} has no region {number}; `conquest region list {dir}` tells its regions"
            )));
        }
        // 1.
        let number = match (name, config.domains.get(name)) {
            ("0", _) => 0,
            (_, Some(number)) => *number,
            (name, None) => {
                let number = name.parse().unwrap_or_else(|_| free(&config.domains));
                config.domains.insert(name.into(), number);
                config.write(&self.dir)?;
                number
            }
        };
        // 2.
        log.set_domain(session, regions, number)?;
        backing::of(session).map_or(Ok(()), |backing| backing.wait(session))?;
        // 3.
        let used = log.named_domains(session)?;
        let before = config.domains.len();
        config.domains.retain(|_, number| used.iter().any(|(_, used)| used == number));
        match config.domains.len() == before {
            true => Ok(()),
            false => config.write(&self.dir),
        }
    }

    /// Regions that fail together with others, each with the name of its domain.
    pub fn domains(&self) -> Result<Vec<(u32, String)>> {
        let names = read_config(&self.dir)?.domains;
        let name = |of: u32| names.iter().find(|(_, number)| **number == of).map(|(name, _)| name.clone());
        let named = self.with_log()?.log().named_domains(self.fs.session())?;
        Ok(named.into_iter().map(|(region, of)| (region, name(of).unwrap_or_else(|| of.to_string()))).collect())
    }

    /// Whether domains of the pool at `dir` have names, as far as is known without its memory.
    pub fn may_have_domains(dir: impl AsRef<Path>) -> Result<bool> {
        Ok(!read_config(dir.as_ref())?.domains.is_empty())
    }
}

fn free(names: &BTreeMap<String, u32>) -> u32 {
    names.values().filter(|number| **number >= NAMED).max().map_or(NAMED, |last| last + 1)
}

fn check(name: &str) -> Result<()> {
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let is_word = |c: char| c.is_alphanumeric() || "-_.:".contains(c);
    match () {
        () if is_number && name.parse().is_ok_and(|number: u32| number < NAMED && number.to_string() == name) => Ok(()),
        () if is_number => {
            Err(Error::Pool(format!("{name} is no number of a domain: choose one below {NAMED}, or a name")))
        }
        () if !name.is_empty() && name.len() <= LONGEST && name.chars().all(is_word) => Ok(()),
        () => Err(Error::Pool(format!(
            "`{name}` is no name of a domain: it has up to {LONGEST} bytes of letters, digits, `-`, `_`, `.` and `:`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_distinguished_from_what_is_neither() {
        for name in ["0", "7", "999999", "shelf", "shelf-2", "room_1.rack:3", "gehäuse"] {
            assert!(check(name).is_ok(), "{name}");
        }
        for name in ["", "007", "1000000", "99999999999", "a b", "a/b", "-\n", &"x".repeat(65)] {
            assert!(check(name).is_err(), "{name}");
        }
        let names = BTreeMap::from([("7".into(), 7), ("shelf".into(), NAMED + 4)]);
        assert_eq!(free(&names), NAMED + 5);
    }
}

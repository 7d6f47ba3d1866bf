//! `conquest list`: the pools of this host, and memory that belongs to no pool.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use conquest::brief::Brief;
use conquest::health::Health;
use conquest::{Belongs, MediumKind, Memory, Pool, Summary};
use report::cells::align;
use serde::Serialize;

use crate::ask::{self, Asked};
use crate::failure::{Context, Result};
use crate::mounts::Mounted;
use crate::{glance, locate, mounts, say, size};

/// List the pools of this host, their health, and memory that belongs to no pool.
#[derive(clap::Args)]
#[command(
    after_help = "Shown are the pools that are mounted, that have memory, that /etc/fstab names, and the default one. \
    (One that is neither, and whose memory was given back, takes nothing but its directory.)\n\n\
    Examples:\n  conquest list\n  conquest list --json | jq '.memory[].path'"
)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A pool, and where it is mounted.
#[derive(Serialize)]
struct Listed {
    /// Its directory.
    #[serde(rename = "pool")]
    dir: String,
    #[serde(flatten)]
    facts: Option<Facts>,
    /// The reason why no more is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// What the server of a mount says; and the health if there is no server that answers.
    status: Option<Brief>,
    health: Option<Health>,
    /// As text: a path may be any bytes.
    mounts: Vec<String>,
}

#[derive(Serialize)]
struct Answer {
    version: &'static str,
    pools: Vec<Listed>,
    /// Memory of no existing pool, as far as is known.
    memory: Vec<Memory>,
}

pub fn run(args: &Args) -> Result<()> {
    let (owned, memory): (Vec<Memory>, Vec<Memory>) = Pool::all_memory()
        .context(|| "cannot look for memory".into())?
        .into_iter()
        .partition(|memory| memory.belongs == Belongs::Pool);
    let pools = pools(owned.into_iter().filter_map(|memory| memory.pool))?;
    if args.json {
        let answer = Answer { version: env!("CARGO_PKG_VERSION"), pools, memory };
        return say(&serde_json::to_string_pretty(&answer).context(|| "cannot write JSON".into())?);
    }
    say(text(&pools, &memory).trim_end())
}

/// The pools that can be found; `with_memory`: those that have memory.
fn pools(with_memory: impl Iterator<Item = PathBuf>) -> Result<Vec<Listed>> {
    let mut found: BTreeMap<PathBuf, Vec<Mounted>> = with_memory.map(|pool| (pool, Vec::new())).collect();
    for mounted in mounts::conquest()? {
        found.entry(mounted.source.clone()).or_default().push(mounted);
    }
    let table = std::fs::read_to_string(FSTAB).unwrap_or_default();
    for pool in in_fstab(&table).chain(locate::default_pool()) {
        found.entry(pool).or_default();
    }
    Ok(found.into_iter().filter_map(|(pool, mounts)| listed(&pool, &mounts)).collect())
}

/// `None` where there is no pool.
fn listed(pool: &Path, mounts: &[Mounted]) -> Option<Listed> {
    let (facts, refused) = match Pool::summary(pool) {
        Ok(summary) => (Some(summary?.into()), None),
        Err(e) => (None, Some(e.to_string())),
    };
    let asked: Vec<Asked<Brief>> = mounts.iter().map(ask::brief).collect();
    let mounts = mounts.iter().map(|mounted| mounted.dir.display().to_string()).collect();
    let is_dead = !asked.is_empty() && asked.iter().all(|asked| matches!(asked, Asked::Dead));
    let is_silent = asked.iter().any(|asked| matches!(asked, Asked::Silent));
    let status = asked.into_iter().find_map(Asked::known);
    let health = match &status {
        Some(brief) => Some(brief.health),
        None if is_dead => Some(Health::Dead),
        None => is_silent.then_some(Health::Silent),
    };
    Some(Listed { dir: pool.display().to_string(), facts, refused, status, health, mounts })
}

/// The facts about a pool that the caller may look at.
#[derive(Serialize)]
struct Facts {
    uuid: String,
    medium: MediumKind,
    /// None: the calling user may not know.
    taken: Option<u64>,
    in_use: Option<bool>,
}

impl From<Summary> for Facts {
    fn from(Summary { uuid, medium, taken, in_use, .. }: Summary) -> Facts {
        Facts { uuid, medium, taken: in_use.map(|_| taken), in_use }
    }
}

const FSTAB: &str = "/etc/fstab";

/// The pools in fstab. A space is written as its octal number.
fn in_fstab(table: &str) -> impl Iterator<Item = PathBuf> + '_ {
    table.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (source, kind) = (fields.next().filter(|source| !source.starts_with('#'))?, fields.nth(1)?);
        let is_ours = [mounts::TYPE, mounts::BLOCK_TYPE, "conquest"].contains(&kind);
        is_ours.then(|| PathBuf::from(source.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")))
    })
}

fn text(pools: &[Listed], memory: &[Memory]) -> String {
    let mut out = String::new();
    if pools.is_empty() {
        out.push_str("no pools; `conquest up` makes one and mounts it\n");
    }
    let heads = ["POOL", "SIZE", "USED", "HEALTH", "COPY AGE", "MOUNT"].map(String::from);
    let rows: Vec<_> = std::iter::once(heads.to_vec()).chain(pools.iter().map(row)).collect();
    if rows.len() > 1 {
        out.push_str(&align(&rows));
    }
    for memory in memory {
        let _ = writeln!(out, "{}", of_none(memory));
    }
    out
}

fn row(listed: &Listed) -> Vec<String> {
    let none = || "-".to_string();
    let health = listed.health.map_or_else(none, |health| health.shown().into());
    let (mut room, mut used, mut age) = (none(), none(), none());
    if let Some(brief) = &listed.status {
        (room, used) = (size::show(brief.room().size), glance::percent(&brief.room()));
        age = brief.copy.as_ref().and_then(|copy| copy.lacks()).map_or_else(none, |age| format!("{age:.1} s"));
    }
    vec![listed.dir.clone(), room, used, health, age, place(listed)]
}

/// Where it is mounted, or why there is no more to see.
fn place(listed: &Listed) -> String {
    if !listed.mounts.is_empty() {
        return listed.mounts.join(", ");
    }
    match (&listed.facts, &listed.refused) {
        (Some(Facts { in_use: Some(true), .. }), _) => "in use".into(),
        (Some(Facts { taken: Some(0), .. }), _) => "not mounted".into(),
        (Some(Facts { taken: Some(taken), .. }), _) => format!("not mounted, {} of memory", size::show(*taken)),
        (Some(_), _) => "only its owner and root see more".into(),
        (None, why) => why.clone().unwrap_or_default(),
    }
}

/// Memory that belongs to no pool, and the commands for it.
fn of_none(memory: &Memory) -> String {
    let (path, taken) = (memory.path.display(), size::show(memory.taken));
    let was = memory.pool.as_deref().map(Path::display);
    let whose = match (memory.belongs, was) {
        (Belongs::Gone, Some(dir)) => format!("its pool at {dir} is gone"),
        (_, Some(dir)) => format!("of a pool that was at {dir}"),
        (_, None) => format!("nothing says of which pool; made by user {}", memory.owner),
    };
    let remedy = match memory.belongs {
        Belongs::Another => {
            let owner = memory.owner;
            return format!("{path}  {taken} of memory of user {owner}, who alone sees of which pool it is");
        }
        // The backing was removed with the directory.
        Belongs::Gone => format!(
            "it may be all that is left of that: `conquest save {path} FILE` writes an image, `conquest destroy {path}` gives it up"
        ),
        _ => format!(
            "it may hold what is nowhere else: `conquest save {path} FILE` writes an image, `conquest destroy {path}` gives it \
             up"
        ),
    };
    format!("{path}  {taken} of memory, {whose}; {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_found_in_fstab() {
        let table = "# /srv/no /mnt conquest\nUUID=1 / ext4 defaults 0 1\n/srv/a\\040b /mnt/a conquest nofail 0 0\n\n\
                     /srv/c  /mnt/c\tfuse.conquest ro\n/srv/d\n";
        assert_eq!(in_fstab(table).collect::<Vec<_>>(), [Path::new("/srv/a b"), Path::new("/srv/c")]);
    }

    #[test]
    fn memory_of_no_pool_is_reported_with_what_to_do() {
        let memory = Memory {
            path: "/dev/shm/m".into(),
            uuid: String::new(),
            owner: 7,
            size: 2 << 30,
            taken: 1 << 30,
            pool: Some("/srv/p".into()),
            belongs: Belongs::Gone,
            backed: Some(true),
        };
        let shown = of_none(&memory);
        assert!(
            shown.contains("1 GiB") && shown.contains("/srv/p is gone") && shown.contains("conquest save /dev/shm/m")
        );
        assert!(!shown.contains("release"), "{shown}");
        let shown = of_none(&Memory { backed: None, ..memory.clone() });
        assert!(shown.contains("conquest save") && shown.contains("conquest destroy /dev/shm/m"), "{shown}");
        let shown = of_none(&Memory { belongs: Belongs::Unknown, pool: None, ..memory });
        assert!(shown.contains("user 7") && !shown.contains("release"), "{shown}");
    }
}

//! Regions as users write them: one disk, or several as one region.
//!
//! ```text
//! REGION = DISK | KIND[=CHUNK]:DISK,DISK...      KIND = single | stripe | mirror | raid5
//! DISK   = PATH[:SIZE]
//! ```
//!
//! A text that does not begin with a kind is one disk. A text that seems to begin with a kind, a word and a colon
//! without a size behind it, is refused unless a file has that name: a mistyped kind is not taken for a path. `./` at
//! the beginning marks a path. In a list `\,` is a comma of a path, and `\\` a backslash.

use std::path::Path;

use conquest::{Layout, NewDisk, NewRegion};

use crate::failure::Result;
use crate::{locate, size};

/// The default chunk: bytes on one disk before the next disk continues. It is small, so that a segment of 1 MiB lies on
/// all of 16 disks, and RAID-5 adds little to fill a stripe. And it is large, so that a read of some pages nearly
/// always needs a single disk. A large request costs each disk one transfer, independent of its number of chunks there.
const CHUNK: u64 = 64 << 10;
/// The permitted chunks: powers of two in this range.
const CHUNKS: std::ops::RangeInclusive<u64> = 4 << 10..=1 << 20;

const KINDS: &str = "`single`, `stripe[=CHUNK]`, `mirror` and `raid5[=CHUNK]`";

/// This word instead of a path makes a pool without disks.
const NONE: &str = "none";

/// The value of one `--disk`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    None,
    Region(NewRegion),
}

/// Reads a region, or `none`.
pub fn parse_or_none(text: &str) -> Result<Asked, String> {
    match text {
        NONE => Ok(Asked::None),
        text => parse(text).map(Asked::Region),
    }
}

/// Reads a region.
pub fn parse(text: &str) -> Result<NewRegion, String> {
    let Some((layout, list)) = kind(text)? else {
        refuse_unknown_kind(text)?;
        return Ok(parse_disk(text)?.into());
    };
    let paths = split(list);
    if paths.iter().any(String::is_empty) {
        return Err("a path is missing: write PATH[:SIZE],PATH[:SIZE] without spaces".into());
    }
    let disks = paths.iter().map(|disk| parse_disk(disk)).collect::<Result<Vec<_>, _>>()?;
    let (least, most) = layout.members().into_inner();
    match disks.len() {
        n if (least..=most).contains(&n) => Ok(NewRegion { layout, disks }),
        n if most == 1 => Err(format!("a {layout} has one disk, not {n}")),
        n => Err(format!(
            "a {layout} has {least} to {most} disks, not {n}; a path that begins so is written `./{layout}:...`"
        )),
    }
}

/// Reads `PATH` or `PATH:SIZE`.
pub fn parse_disk(text: &str) -> Result<NewDisk, String> {
    let whole = || Ok(NewDisk { path: text.into(), size: None });
    let Some((path, after)) = text.rsplit_once(':').filter(|(path, _)| !path.is_empty()) else { return whole() };
    match size::parse(after) {
        Ok(bytes) => Ok(NewDisk { path: path.into(), size: Some(bytes) }),
        Err(_) if after.contains('/') || Path::new(text).exists() => whole(),
        Err(why) => Err(why),
    }
}

/// The region with absolute paths.
pub fn absolute(region: &NewRegion) -> Result<NewRegion> {
    let disks = region.disks.iter().map(absolute_disk).collect::<Result<_>>()?;
    Ok(NewRegion { layout: region.layout, disks })
}

pub fn absolute_disk(disk: &NewDisk) -> Result<NewDisk> {
    Ok(NewDisk { path: locate::absolute(&disk.path)?, size: disk.size })
}

/// The kind at the beginning of a text, and the rest.
fn kind(text: &str) -> Result<Option<(Layout, &str)>, String> {
    let Some((kind, list)) = text.split_once(':') else { return Ok(None) };
    let (name, chunk) = kind.split_once('=').map_or((kind, None), |(name, chunk)| (name, Some(chunk)));
    let layout = match name {
        "stripe" => Layout::Stripe { chunk: parse_chunk(chunk)? },
        "raid5" => Layout::Raid5 { chunk: parse_chunk(chunk)? },
        "single" => Layout::Single,
        "mirror" => Layout::Mirror,
        _ => return Ok(None),
    };
    match (layout, chunk) {
        (Layout::Single | Layout::Mirror, Some(_)) => {
            Err(format!("a {layout} has no chunks: leave `={}` out", chunk.unwrap_or_default()))
        }
        _ => Ok(Some((layout, list))),
    }
}

/// Refuses a text that names an unknown kind, or a kind without its disks.
fn refuse_unknown_kind(text: &str) -> Result<(), String> {
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_=".contains(c));
    let known = format!("the kinds of regions are {KINDS}");
    let is_kind = |word: &str| kind(&format!("{word}:")).map_or(true, |kind| kind.is_some());
    match text.split_once(':') {
        _ if Path::new(text).exists() => Ok(()),
        None if is_kind(text) => Err(format!(
            "`{text}` lacks its disks: write `{text}:PATH,PATH`; a file of that name is written `./{text}`"
        )),
        Some((word, rest)) if is_word(word) && size::parse(rest).is_err() => {
            Err(format!("`{word}` is no kind of region: {known}; a path with a colon is written `./{text}`"))
        }
        _ => Ok(()),
    }
}

fn parse_chunk(text: Option<&str>) -> Result<u32, String> {
    let bytes = text.map_or(Ok(CHUNK), size::parse)?;
    match CHUNKS.contains(&bytes) && bytes.is_power_of_two() {
        true => Ok(bytes as u32),
        false => Err(format!(
            "chunks of {} cannot be: choose a power of two from {} to {}",
            size::show(bytes),
            size::show(*CHUNKS.start()),
            size::show(*CHUNKS.end())
        )),
    }
}

/// Splits at commas.
fn split(list: &str) -> Vec<String> {
    let (mut parts, mut chars) = (vec![String::new()], list.chars().peekable());
    while let Some(c) = chars.next() {
        let escaped = chars.next_if(|next| c == '\\' && [',', '\\'].contains(next));
        match (c, escaped) {
            (',', None) => parts.push(String::new()),
            (c, escaped) => parts.last_mut().expect("there is one").push(escaped.unwrap_or(c)),
        }
    }
    parts
}

/// The disks of a region, for users.
pub fn describe(pool: &Path, region: &NewRegion) -> String {
    let disk = |disk: &NewDisk| {
        let most = disk.size.map(|bytes| format!(", up to {}", size::show(bytes))).unwrap_or_default();
        format!("{}{most}", pool.join(&disk.path).display())
    };
    match (region.layout, &region.disks[..]) {
        (Layout::Single, [one]) => format!("Its disk is {}", disk(one)),
        (layout, disks) => {
            let disks: Vec<String> = disks.iter().map(disk).collect();
            format!("Its disks in a {layout} are {}", disks.join(" and "))
        }
    }
}

/// A region in a few words, for users.
pub fn name(region: &NewRegion) -> String {
    let paths: Vec<String> = region.disks.iter().map(|disk| disk.path.display().to_string()).collect();
    match (region.layout, &paths[..]) {
        (Layout::Single, [one]) => format!("the disk {one}"),
        (layout, paths) => format!("the {layout} of {}", paths.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn paths(region: &NewRegion) -> Vec<PathBuf> {
        region.disks.iter().map(|disk| disk.path.clone()).collect()
    }

    fn parsed(text: &str) -> Option<(String, Option<u64>)> {
        parse_disk(text).ok().map(|disk| (disk.path.display().to_string(), disk.size))
    }

    #[test]
    fn a_disk_is_a_path_and_perhaps_a_size() {
        assert_eq!(parsed("/data/disk"), Some(("/data/disk".into(), None)));
        assert_eq!(parsed("/data/disk:10G"), Some(("/data/disk".into(), Some(10 << 30))));
        assert_eq!(parsed("/dev/disk/by-path/pci-0000:00:1f.2"), None, "a size that is none");
        assert_eq!(
            parsed("/dev/disk/by-path/pci-0000:00:1f.2/part"),
            Some(("/dev/disk/by-path/pci-0000:00:1f.2/part".into(), None))
        );
        assert_eq!(parsed("/a:b/c:64M"), Some(("/a:b/c".into(), Some(64 << 20))));
        assert_eq!(parsed("/data/disk:10Q"), None);
    }

    #[test]
    fn a_region_is_a_disk_or_a_kind_and_disks() {
        let region = |text: &str| parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        let one = region("/a,b");
        assert_eq!((one.layout, paths(&one)), (Layout::Single, vec!["/a,b".into()]));
        assert_eq!(region("single:/a").layout, Layout::Single);
        let stripe = region("stripe:/a:64M,/b");
        assert_eq!(stripe.layout, Layout::Stripe { chunk: 64 << 10 });
        assert_eq!(stripe.disks[0], NewDisk { path: "/a".into(), size: Some(64 << 20) });
        assert_eq!(stripe.disks[1], NewDisk { path: "/b".into(), size: None });
        assert_eq!(region("stripe=256K:/a,/b").layout, Layout::Stripe { chunk: 256 << 10 });
        assert_eq!(region("mirror:/a,/b,/c").disks.len(), 3);
        assert_eq!(region("raid5:/a,/b,/c").layout, Layout::Raid5 { chunk: 64 << 10 });
        assert_eq!(parse_or_none("none"), Ok(Asked::None));
    }

    #[test]
    fn paths_may_have_what_else_means_something() {
        let of = |text: &str| paths(&parse(text).expect("a region"));
        assert_eq!(of("./mirror:/x"), [Path::new("./mirror:/x")]);
        assert_eq!(of("./mirror"), [Path::new("./mirror")], "no kind without disks");
        assert_eq!(of("./other:/a,/b"), [Path::new("./other:/a,/b")]);
        assert_eq!(of("/srv/x:/a,/b"), [Path::new("/srv/x:/a,/b")]);
        assert_eq!(of("disk:64M"), [Path::new("disk")]);
        assert_eq!(of("mirror:/a\\,b,/c\\\\,/d\\e"), [Path::new("/a,b"), Path::new("/c\\"), Path::new("/d\\e")]);
    }

    #[test]
    fn what_makes_no_region_is_refused_by_name() {
        let many = format!("mirror:{}", vec!["/d"; 33].join(","));
        for (text, named) in [
            ("stripe:/a", "2 to 32 disks, not 1"),
            ("mirror:/a", "2 to 32 disks, not 1; a path that begins so is written `./mirror:"),
            ("raid5:/a,/b", "3 to 32 disks, not 2"),
            ("single:/a,/b", "one disk, not 2"),
            (&many, "2 to 32 disks, not 33"),
            ("mirror:/a,,/b", "a path is missing"),
            ("mirror:", "a path is missing"),
            ("mirror=64K:/a,/b", "no chunks"),
            (
                "raid6:/a,/b",
                "`raid6` is no kind of region: the kinds of regions are `single`, `stripe[=CHUNK]`, `mirror` and",
            ),
            ("raid6:/a,/b", "a path with a colon is written `./raid6:/a,/b`"),
            ("none:x", "`none` is no kind of region"),
            ("strip=64K:/a,/b", "`strip=64K` is no kind"),
            ("mirror", "lacks its disks: write `mirror:PATH,PATH`; a file of that name is written `./mirror`"),
            ("stripe=64K", "lacks its disks"),
            ("stripe=100K:/a,/b", "100 KiB cannot be: choose a power of two from 4 KiB to 1 MiB"),
            ("stripe=2M:/a,/b", "2 MiB cannot be"),
            ("stripe=big:/a,/b", "`big` is not a size"),
            ("mirror:/a:10Q,/b", "`10Q` is not a size"),
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.contains(named), "{text}: {why}");
        }
    }
}

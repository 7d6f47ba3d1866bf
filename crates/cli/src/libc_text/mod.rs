//! The C library's text as programs with direct access have it: with a jump at each site, in a file.

mod find;
mod rewrite;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use conquest::owner;
use direct::rewritten::{id, Header, MAGIC, PAGE};
use object::{Object, ObjectSection, ObjectSegment};
use zerocopy::IntoBytes;

use crate::failure::{Context, Failure, Result};
use crate::locate;
use find::Site;

/// Where C libraries for x86-64 are: Debian's place, and that of others.
const LIBC: [&str; 2] = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6"];
/// Where root keeps the file for all users.
const SHARED: &str = "/var/cache/conquest";

/// The file for this machine's C library, made if it is not there.
pub fn file() -> Result<PathBuf> {
    let library = LIBC.iter().map(Path::new).find(|path| path.exists());
    let library = library
        .ok_or_else(|| Failure::new("no C library that direct access knows is installed: libc.so.6 of glibc"))?;
    let bytes = fs::read(library).context(|| format!("cannot read {}", library.display()))?;
    let made = rewritten(&bytes).map_err(|why| Failure::new(format!("{}: {why}", library.display())))?;
    let own = own()?;
    let dirs = [Path::new(SHARED), &own];
    let is_good = |path: &PathBuf| {
        owner::refuse_foreign_file(path).is_ok() && fs::read(path).is_ok_and(|there| there == made.bytes)
    };
    if let Some(there) = dirs.map(|dir| dir.join(&made.name)).into_iter().find(is_good) {
        return Ok(there);
    }
    let failed = |why: String| {
        let own = own.display();
        Failure::new(format!("cannot keep a file in {own}: {why}; set XDG_CACHE_HOME to a directory where this can"))
    };
    fs::create_dir_all(&own).map_err(|e| failed(e.to_string()))?;
    owner::refuse_foreign_dir(&own).map_err(|e| failed(e.to_string()))?;
    // Processes may have mapped another file of this name: they go on with that.
    owner::replace_within(&own, &made.name, &made.bytes).map_err(|e| failed(e.to_string()))?;
    Ok(own.join(&made.name))
}

/// Where this user keeps the file.
fn own() -> Result<PathBuf> {
    let set = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    match set {
        Some(cache) => Ok(cache.join("conquest")),
        None if locate::is_root() => Ok(SHARED.into()),
        None => Ok(locate::home()?.join(".cache/conquest")),
    }
}

struct Rewritten {
    name: String,
    bytes: Vec<u8>,
}

/// The rewritten text of a C library.
fn rewritten(library: &[u8]) -> std::result::Result<Rewritten, String> {
    let unknown = || String::from("no C library that direct access knows");
    let file = object::File::parse(library).map_err(|_| unknown())?;
    let build_id = file.build_id().ok().flatten().ok_or_else(unknown)?;
    let section = file.section_by_name(".text").ok_or_else(unknown)?;
    let code = section.data().map_err(|_| unknown())?;
    let base = u32::try_from(section.address()).map_err(|_| unknown())?;
    let sites = find::find(code, base).map_err(|at| format!("the call at {at:#x} is of no known form"))?;
    let pages = pages(&sites).ok_or_else(unknown)?;
    let mut text = segment(&file, library, &pages).ok_or_else(unknown)?.to_vec();
    let trampolines = rewrite::rewrite(&mut text, pages.start, &sites);
    let header = Header {
        magic: MAGIC,
        build_id: id(build_id).ok_or_else(unknown)?,
        start: pages.start,
        text: text.len() as u32,
        trampolines: trampolines.len() as u32,
        reserved: 0,
    };
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(PAGE, 0);
    bytes.extend([trampolines, text].concat());
    let name: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Rewritten { name: format!("libc-{name}"), bytes })
}

/// From the page of the first site to that of the last; `None`: there are no sites.
fn pages(sites: &[Site]) -> Option<Range<u32>> {
    let page = PAGE as u32;
    let (first, last) = (sites.iter().map(|site| site.at()).min()?, sites.iter().map(|site| site.at()).max()?);
    Some(first / page * page..(last + find::JUMP as u32).next_multiple_of(page))
}

/// These pages, as the loader maps them.
fn segment<'a>(file: &object::File, library: &'a [u8], pages: &Range<u32>) -> Option<&'a [u8]> {
    let holds = |one: &object::Segment| {
        let start = one.address() / PAGE as u64 * PAGE as u64;
        (start..one.address() + one.size()).contains(&pages.start.into())
    };
    let segment = file.segments().find(holds)?;
    let (offset, _) = segment.file_range();
    let from = (u64::from(pages.start) + offset).checked_sub(segment.address())?;
    library.get(from as usize..from as usize + pages.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where it is glibc.
    #[test]
    fn the_library_of_this_machine_can_be_rewritten() {
        let Some(path) = LIBC.map(Path::new).into_iter().find(|path| path.exists()) else {
            return println!("there is no glibc");
        };
        let library = fs::read(path).expect("it is there");
        let made = rewritten(&library).expect("a C library of known forms");
        let (header, _) = <Header as zerocopy::FromBytes>::read_from_prefix(&made.bytes).expect("a header");
        assert_eq!(made.bytes.len(), PAGE + (header.trampolines + header.text) as usize);
        let text = &made.bytes[PAGE + header.trampolines as usize..];
        let pages = header.start..header.start + header.text;
        let file = object::File::parse(&*library).expect("an ELF file");
        let before = segment(&file, &library, &pages).expect("the segment");
        let changed = text.iter().zip(before).filter(|(now, then)| now != then).count();
        assert!((500..4000).contains(&changed), "{changed} bytes");
    }
}

//! The C library's text: as it is loaded, and as `conquest run` has rewritten it.

use std::ffi::{c_int, c_void, CStr};

use direct::rewritten::{id, Header, DISTANCE, ENTRY, ID, MAGIC, PAGE};
use rustix::fs::{fstat, open, Mode, OFlags};
use rustix::io::{pread, Errno};
use rustix::mm::{mmap, mmap_anonymous, MapFlags, ProtFlags};
use zerocopy::{FromZeros, IntoBytes};

use crate::entry;

/// Type of the note that holds a build ID.
const NT_GNU_BUILD_ID: u32 = 3;

/// Why the text stays as it is.
pub enum Refused {
    System(Errno),
    /// Another user could have written the file.
    Foreign,
    /// It is of another C library, or of another version of this one.
    Other,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Refused::System(error) => write!(f, "the file of the C library's text: {error}"),
            Refused::Foreign => f.write_str("another user could have written the file of the C library's text"),
            Refused::Other => f.write_str("the process has another C library than this machine's"),
        }
    }
}

impl From<Errno> for Refused {
    fn from(error: Errno) -> Refused {
        Refused::System(error)
    }
}

/// Maps the text in this file in place of that of the loaded C library. The process has one thread.
pub fn replace(path: &CStr) -> Result<(), Refused> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    let found = fstat(&file)?;
    let user = rustix::process::geteuid();
    if !(found.st_uid == 0 || found.st_uid == user.as_raw()) || found.st_mode & 0o022 != 0 {
        return Err(Refused::Foreign);
    }
    let mut header = Header::new_zeroed();
    pread(&file, header.as_mut_bytes(), 0)?;
    let len = PAGE as u64 + u64::from(header.trampolines) + u64::from(header.text);
    if header.magic != MAGIC || found.st_size as u64 != len {
        return Err(Refused::Other);
    }
    let base = find(&header).ok_or(Refused::Other)?;
    let text = base + header.start as usize;
    let trampolines = text.checked_sub(DISTANCE + ENTRY).ok_or(Refused::Other)? + ENTRY;
    let rx = ProtFlags::READ | ProtFlags::EXEC;
    let flags = MapFlags::PRIVATE;
    let at = |place: usize| place as *mut c_void;
    // SAFETY: new mappings where there are none; then the text that is there, with jumps that lead to them.
    unsafe {
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        let entry = mmap_anonymous(at(trampolines - ENTRY), PAGE, rw, flags | MapFlags::FIXED_NOREPLACE)?;
        entry.cast::<usize>().write(entry::address());
        let new = flags | MapFlags::FIXED_NOREPLACE;
        mmap(at(trampolines), header.trampolines as usize, rx, new, &file, PAGE as u64)?;
        let offset = PAGE as u64 + u64::from(header.trampolines);
        mmap(at(text), header.text as usize, rx, flags | MapFlags::FIXED, &file, offset)?;
    }
    Ok(())
}

struct Search<'a> {
    header: &'a Header,
    base: Option<usize>,
}

/// Where the C library of this process is loaded, if it is the one whose text has this header.
fn find(header: &Header) -> Option<usize> {
    let mut search = Search { header, base: None };
    // SAFETY: `visit` takes what the pointer is to.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.base
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description, and what `find` has passed.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    // SAFETY: a name ends with 0.
    let name = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
    if !name.to_bytes().ends_with(b"/libc.so.6") {
        return 0;
    }
    // SAFETY: so many program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr as usize;
    let notes = headers.iter().filter(|header| header.p_type == libc::PT_NOTE);
    let has_id = notes.into_iter().any(|note| {
        // SAFETY: the note is loaded.
        let bytes =
            unsafe { std::slice::from_raw_parts((base + note.p_vaddr as usize) as *const u8, note.p_memsz as usize) };
        holds_id(bytes, &search.header.build_id)
    });
    let text = headers.iter().find(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0);
    let (start, len) = (u64::from(search.header.start), u64::from(search.header.text));
    let holds = |text: &libc::Elf64_Phdr| {
        let end = (text.p_vaddr + text.p_memsz).next_multiple_of(PAGE as u64);
        text.p_vaddr / PAGE as u64 * PAGE as u64 <= start && start + len <= end
    };
    search.base = Some(base).filter(|_| has_id && text.is_some_and(holds));
    1
}

/// Is this build ID among the notes?
fn holds_id(notes: &[u8], wanted: &[u8; ID]) -> bool {
    let mut rest = notes;
    while rest.len() >= 12 {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| rest[at + i]));
        let (name, desc) = (word(0).next_multiple_of(4) as usize, word(4) as usize);
        let body = 12 + name;
        if word(8) == NT_GNU_BUILD_ID {
            return rest.get(body..body + desc).and_then(id).is_some_and(|id| id == *wanted);
        }
        rest = rest.get(body + desc.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

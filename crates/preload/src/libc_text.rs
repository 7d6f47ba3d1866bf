//! The C library as it is loaded.

use std::ffi::{c_int, c_void, CStr};

/// Type of the note that holds a build ID.
const NT_GNU_BUILD_ID: u32 = 3;

/// The text of the C library.
pub struct Text {
    /// Where offset 0 of the library is.
    pub base: usize,
    /// The segment that is executed, as offsets.
    pub start: usize,
    pub end: usize,
}

struct Search<'a> {
    build_id: &'a [u8],
    found: Option<Text>,
}

/// The C library of this process, if it has this build ID.
pub fn find(build_id: &[u8]) -> Option<Text> {
    let mut search = Search { build_id, found: None };
    // SAFETY: `visit` takes what the pointer is to.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
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
        holds_id(bytes, search.build_id)
    });
    let text = headers.iter().find(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0);
    if let (true, Some(text)) = (has_id, text) {
        let start = text.p_vaddr as usize;
        search.found = Some(Text { base, start, end: start + text.p_memsz as usize });
    }
    1
}

/// Is this build ID among the notes?
fn holds_id(notes: &[u8], id: &[u8]) -> bool {
    let mut rest = notes;
    while rest.len() >= 12 {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| rest[at + i]));
        let (name, desc) = (word(0).next_multiple_of(4) as usize, word(4) as usize);
        let body = 12 + name;
        if word(8) == NT_GNU_BUILD_ID {
            return rest.get(body..body + desc) == Some(id);
        }
        rest = rest.get(body + desc.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

impl Text {
    /// The bytes from this offset on.
    pub fn from(&self, at: u32) -> &[u8] {
        let at = (at as usize).clamp(self.start, self.end);
        // SAFETY: the segment is mapped for as long as the process lives, and readable.
        unsafe { std::slice::from_raw_parts((self.base + at) as *const u8, self.end - at) }
    }
}

//! The environment that `conquest run` sets: the sites of the C library, and the mounts of pools.

use crate::mounts::Mount;
use direct::sites::Site;

/// The variable that says which sites the C library has: its build ID, and the sites.
pub const SITES: &str = "CONQUEST_SITES";
/// The variable that names the mounts.
pub const MOUNTS: &str = "CONQUEST_MOUNTS";

pub struct Plan {
    pub build_id: Vec<u8>,
    pub sites: Vec<Site>,
    pub mounts: Vec<Mount>,
}

/// What this process is to do; `None`: nothing, as it was not started by `conquest run`.
pub fn plan() -> Option<Plan> {
    let (sites, mounts) = (std::env::var_os(SITES)?, std::env::var_os(MOUNTS)?);
    let mut words = std::os::unix::ffi::OsStrExt::as_bytes(sites.as_os_str()).split(|byte| *byte == b' ');
    Some(Plan {
        build_id: unhex(std::str::from_utf8(words.next()?).ok()?)?,
        sites: words.map(Site::parse).collect::<Option<_>>()?,
        mounts: Mount::parse_all(std::os::unix::ffi::OsStrExt::as_bytes(mounts.as_os_str()))?,
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

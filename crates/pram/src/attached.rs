//! The list of the processes that are attached to a memory, for callers that need not be attached: it opens nothing,
//! recovers nothing and never waits.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::mem::byte_lock;
use crate::runtime::{SessionInfo, SESSIONS, SESSION_REC};
use crate::session::shared_name;

/// The processes that are attached to the memory with this UUID: its runtime file in `runtime_dir` lists them, and each
/// holds a lock of the file `lock`. A process that is being killed holds its lock until it has closed all files. The
/// answer may be wrong for a process that comes or goes at this moment.
pub fn processes(lock: impl AsFd, uuid: &[u8; 16], runtime_dir: &Path) -> Result<Vec<SessionInfo>> {
    let stat = rustix::fs::fstat(&lock).map_err(Error::host("the memory's locks"))?;
    let path = runtime_dir.join(shared_name(uuid, &stat));
    let fail = |e: std::io::Error| Error::of_io(&format!("reading {}", path.display()), &e);
    let mut live = vec![0; (SessionInfo::LIVE.end - SessionInfo::LIVE.start) as usize];
    let opened =
        File::open(&path).and_then(|file| file.read_exact_at(&mut live, SessionInfo::LIVE.start).map(|()| file));
    let file = match opened {
        Ok(file) => file,
        // No process is attached, or the first one has not written its record yet.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) => return Ok(Vec::new()),
        Err(e) => return Err(fail(e)),
    };
    let (mut found, mut record) = (Vec::new(), [0; SESSION_REC as usize]);
    for n in (0..SESSIONS).filter(|n| live[*n as usize / 8] >> (n % 8) & 1 == 1) {
        file.read_exact_at(&mut record, SessionInfo::at(n)).map_err(fail)?;
        if let Some(info) = SessionInfo::parse(n, &record) {
            if byte_lock::is_held(&lock, n).map_err(Error::host("looking for attached processes"))? {
                found.push(info);
            }
        }
    }
    Ok(found)
}

//! ENOSPC and EIO at every write and flush of every file of the copy.

use rustix::io::Errno;
use sim::copy::disk::NAMES;
use sim::copy::failing::{calls, explore, End};
use sim::copy::fault::{Call, Fault};

#[test]
fn whatever_call_fails_what_was_promised_is_kept_and_the_pool_turns_read_only() {
    let (mut ends, mut wrong) = (Vec::new(), Vec::new());
    for (file, call, n) in calls().unwrap() {
        for nth in 0..n {
            // Flushes know no ENOSPC on files whose blocks are there, but others' may.
            let errnos = [Errno::IO, Errno::NOSPC];
            let few = if sim::copy::full() { &errnos[..] } else { &errnos[nth as usize % 2..][..1] };
            for errno in few {
                match explore(Fault { file, call, nth, errno: *errno }) {
                    Ok(end) => ends.push(((file, call), end)),
                    Err(e) => wrong.push(format!("{call:?} {nth} of {}, {errno:?}: {e}", NAMES[file])),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), wrong.len() + ends.len(), wrong.join("\n"));
    // Each failed, and most in the middle.
    assert!(ends.iter().all(|(_, end)| *end != End::Whole));
    for (file, name) in NAMES.iter().enumerate() {
        for call in [Call::Write, Call::Flush] {
            let failed = ends.iter().filter(|end| **end == ((file, call), End::Failed)).count();
            assert!(failed > 1, "{call:?} of {name} fails {failed} times");
        }
    }
}

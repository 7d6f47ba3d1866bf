//! ENOSPC and EIO at every write and flush of every file of the backing.

use rustix::io::Errno;
use sim::backing::failing::{calls, explore, End, Remains, Taken};
use sim::disk::{LEDGER, NAMES};
use sim::fault::{Call, Fault};
use sim::verdict::full;

#[test]
fn whatever_call_fails_what_was_promised_is_kept_and_the_copy_is_made_anew_or_the_pool_turns_read_only() {
    let (mut ends, mut wrong) = (Vec::new(), Vec::new());
    for (file, call, n) in calls().unwrap() {
        for nth in 0..n {
            // Flushes know no ENOSPC on files whose blocks are allocated, but on other files they may.
            let errnos = [Errno::IO, Errno::NOSPC];
            let few = if full() { &errnos[..] } else { &errnos[nth as usize % 2..][..1] };
            for errno in few {
                match explore(Fault { file, call, nth, errno: *errno }) {
                    Ok(end) => ends.push(((file, call), end)),
                    Err(e) => wrong.push(format!("{call:?} {nth} of {}, {errno:?}: {e}", NAMES[file])),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), wrong.len() + ends.len(), wrong.join("\n"));
    // Each failed, and most in the middle; except that one readable header of two suffices.
    assert!(ends.iter().all(|((_, call), end)| *call == Call::Read || *end != End::Whole));
    // The memory has everything that the backing has, but not the participant's own content.
    for (file, name) in NAMES.iter().enumerate() {
        for call in [Call::Read, Call::Write, Call::Flush] {
            let count = |end| ends.iter().filter(|found| **found == ((file, call), end)).count();
            let (failed, anew) = (count(End::Failed), count(End::Anew));
            let enough = if file == LEDGER { failed > 1 && anew == 0 } else { anew > 1 };
            assert!(
                enough || (file, call) == (0, Call::Read),
                "{call:?} of {name}: {failed} failed, {anew} were made anew"
            );
        }
    }
}

#[test]
fn whatever_call_fails_when_a_copy_is_taken_up_it_is_there_afterwards() {
    let remains = Remains::make().unwrap();
    let (mut refused, mut wrong) = (0, Vec::new());
    for how in [Taken::Resumed, Taken::Compared, Taken::Loaded] {
        for (file, call, n) in remains.calls(how).unwrap() {
            for nth in 0..n {
                match remains.explore(how, Fault { file, call, nth, errno: Errno::IO }) {
                    Ok(was_refused) => refused += usize::from(was_refused),
                    Err(e) => wrong.push(format!("{how:?}, {call:?} {nth} of {}: {e}", NAMES[file])),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused > 20, "{refused} are refused");
}

//! Reads from /proc whether a process is being killed.

/// The bit of SIGKILL in the masks of /proc/PID/status.
const KILL: u64 = 1 << 8;
/// The flag of /proc/PID/stat for a thread that is ending: PF_EXITING.
const EXITING: u64 = 4;

/// Has the process been killed, or begun to end? False if it cannot be seen. A thread that ends by itself looks the
/// same.
pub fn is_ending(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        let read = |name| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        waits_to_be_killed(&read("status")) || has_ended(&read("stat"))
    })
}

/// Is it certain that the process ends, even while threads of it still run? A SIGKILL that is pending for one thread is
/// pending for all, and the first thread ends by itself only with the process.
pub fn is_doomed(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let first_ends = has_ended(&read(format!("/proc/{pid}/task/{pid}/stat").into()));
    first_ends || threads.flatten().any(|thread| waits_to_be_killed(&read(thread.path().join("status"))))
}

/// Does /proc/PID/status show a pending SIGKILL?
fn waits_to_be_killed(status: &str) -> bool {
    let masks =
        status.lines().filter_map(|line| line.split_once(':')).filter(|(k, _)| matches!(*k, "SigPnd" | "ShdPnd"));
    masks.map(|(_, mask)| u64::from_str_radix(mask.trim(), 16)).any(|mask| mask.is_ok_and(|mask| mask & KILL != 0))
}

/// Does /proc/PID/stat show that the thread ends or has ended? The line is `pid (name) state ...`, and its ninth field
/// is the flags.
fn has_ended(stat: &str) -> bool {
    let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
    let fields: Vec<&str> = fields.split(' ').collect();
    let flags = fields.get(6).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    matches!(fields[0], "Z" | "X") || flags & EXITING != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_is_understood() {
        let status =
            |own: &str, shared: &str| format!("Name:\tconquest\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t0100\n");
        assert!(!waits_to_be_killed(&status("0000000000000000", "0000000000004000")));
        assert!(waits_to_be_killed(&status("0000000000000100", "0000000000000000")));
        assert!(waits_to_be_killed(&status("0000000000000000", "0000000000000100")));
        assert!(!has_ended("12 (a) b) S 1 12 12 0 -1 4194304 9 0"));
        assert!(has_ended("12 (a) b) S 1 12 12 0 -1 4194308 9 0"));
        assert!(has_ended("12 (conquest) Z 1 12 12 0 -1 4194304 9 0"));
        assert!(!has_ended("") && !has_ended("12 (conquest) "));
    }

    #[test]
    fn a_child_that_was_killed_is_ending_and_we_are_not() {
        assert!(!is_ending(std::process::id()) && !is_doomed(std::process::id()));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!is_ending(child.id()) && !is_doomed(child.id()));
        child.kill().unwrap();
        // The child stays until its parent waits for it: killed, ending, or a zombie.
        assert!(is_ending(child.id()) && is_doomed(child.id()));
        child.wait().unwrap();
        assert!(!is_ending(child.id()) && !is_doomed(child.id()));
    }
}

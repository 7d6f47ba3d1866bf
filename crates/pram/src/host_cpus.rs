//! The host's counts of processors and of threads that run or wait for one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const LOADAVG: &str = "/proc/loadavg";
/// The scheduler's statistics of the thread that opens the file.
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";
/// The host counts as busy if this many of the last 8 looks saw no processor idle.
const MANY: u32 = 4;

/// The processors of the host, and its count of running threads.
pub struct Host {
    /// The file with that count. Without it, ways are only tried.
    running: Option<File>,
    processors: u32,
}

impl Default for Host {
    fn default() -> Host {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Host { running: File::open(LOADAVG).ok(), processors }
    }
}

impl Host {
    /// A host without a count.
    pub fn unknown() -> Host {
        Host { running: None, processors: 1 }
    }

    /// Do threads run on all processors? The calling thread is not counted: its caller may still be on the processor
    /// from which it asked, or another queue may be awake.
    pub fn all_busy(&self) -> bool {
        let mut text = [0; 64];
        let len = self.running.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        running_in(&text[..len]).is_some_and(|running| running > self.processors)
    }
}

/// The number of running threads in a line such as `0.52 0.58 0.59 2/613 12345`.
fn running_in(loadavg: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(loadavg).ok()?;
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// The last looks at the host, a bit each: set if all processors were busy.
#[derive(Default)]
pub struct Looks(u8);

impl Looks {
    /// Adds one look. Were the processors busy in most of them?
    pub fn add(&mut self, all_busy: bool) -> bool {
        self.0 = self.0 << 1 | u8::from(all_busy);
        self.0.count_ones() >= MANY
    }
}

/// How long a thread has waited for a processor.
pub struct Delay {
    /// The host's record of it. Without it, nothing held the thread up.
    stat: Option<File>,
    last: Duration,
}

impl Delay {
    pub fn of_this_thread() -> Delay {
        Delay { stat: File::open(SCHEDSTAT).ok(), last: Duration::ZERO }
    }

    /// The growth since the last call.
    pub fn grew_by(&mut self) -> Duration {
        let mut text = [0; 96];
        let len = self.stat.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let now = delay_in(&text[..len]).unwrap_or(self.last);
        now.saturating_sub(std::mem::replace(&mut self.last, now))
    }
}

/// The waiting time in a line such as `326105 90715 2`: nanoseconds that the thread ran and waited, and time slices.
fn delay_in(schedstat: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(schedstat).ok()?;
    text.split(' ').nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_says_how_many_run() {
        assert_eq!(running_in(b"0.52 0.58 0.59 2/613 12345\n"), Some(2));
        assert_eq!(running_in(b"0.52 0.58"), None);
        assert_eq!(running_in(b""), None);
        let host = Host { processors: 0, ..Host::default() };
        assert!(host.all_busy(), "this thread runs");
    }

    #[test]
    fn the_host_says_how_long_a_thread_waited() {
        assert_eq!(delay_in(b"326105 90715 2\n"), Some(Duration::from_nanos(90715)));
        assert_eq!(delay_in(b"326105"), None);
        let mut delay = Delay { stat: None, last: Duration::ZERO };
        assert_eq!(delay.grew_by(), Duration::ZERO);
    }
}

//! Makes a test that hangs fail: its mounts are detached by force, which ends the hanging.

use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::time::Duration;

use crate::lab;
use crate::settings::number;

/// The time in which hanging calls may notice that.
const GRACE: Duration = Duration::from_secs(60);

/// Watches one test; dropping it ends the watch.
pub struct Watch {
    _done: Sender<()>,
}

pub fn over(test: &'static str) -> Watch {
    let limit = Duration::from_secs(number("CONQUEST_TEST_LIMIT", 1200));
    let (done, ended) = channel::<()>();
    std::thread::spawn(move || {
        let still = |limit| ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        if still(limit) {
            println!("test {test} has not ended after {limit:?}: taking its mounts away");
            lab::abort_mounts();
            if still(GRACE) {
                println!("test {test} ... FAILED, it hangs; giving up");
                println!("test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
                std::process::exit(101);
            }
        }
    });
    Watch { _done: done }
}

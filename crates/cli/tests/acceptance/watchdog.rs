//! A test that hangs is a test that fails: its mounts are taken away by force, which ends the hanging.

use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::time::Duration;

use crate::lab;
use crate::settings::number;

/// How long what hung may take to notice.
const GRACE: Duration = Duration::from_secs(60);

/// Guards one test; dropping it calls the watch off.
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

//! Progress of long work, on a terminal only.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

const BYTES: &str = "{msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// A bar that counts bytes.
pub fn bytes(label: &'static str) -> impl FnMut(u64, u64) {
    follow(bar(label, BYTES))
}

/// A bar that counts bytes, and a handle for printing beside it.
pub fn bytes_beside(label: &'static str) -> (impl FnMut(u64, u64), Beside) {
    let bar = bar(label, BYTES);
    let again = bar.clone();
    (follow(bar), Beside(again))
}

/// The terminal on which a bar may be shown.
pub struct Beside(ProgressBar);

impl Beside {
    /// Hides the bar while `print` uses the terminal.
    pub fn show(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }
}

/// A bar that counts items.
pub fn count(label: &'static str) -> impl FnMut(u64, u64) {
    follow(bar(label, "{msg} [{bar:40}] {pos}/{len} {eta}"))
}

/// Changing words, for work of unknown length.
pub fn words() -> impl FnMut(String) {
    let bar = Clear(styled(ProgressBar::new_spinner(), "{spinner} {msg}"));
    move |words| {
        let bar = &bar.0;
        bar.set_message(words);
        bar.tick();
    }
}

fn bar(label: &'static str, template: &str) -> ProgressBar {
    styled(ProgressBar::new(0), template).with_message(label)
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Removes the bar when the work is done, or given up.
struct Clear(ProgressBar);

impl Drop for Clear {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn follow(bar: ProgressBar) -> impl FnMut(u64, u64) {
    let bar = Clear(bar);
    move |done, total| {
        let bar = &bar.0;
        bar.set_length(total);
        bar.set_position(done);
    }
}

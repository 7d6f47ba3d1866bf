//! A message that a module repeats is written once, then counted until the module writes another one: that a disk is
//! lost, back, and lost again is written each time. Of many messages at once, those beyond `BURST` are counted too.

use std::time::{Duration, Instant};

/// After this time a repeated message is written again, with its count.
const AGAIN: Duration = Duration::from_secs(60);
/// The number of modules whose last messages are remembered.
const MODULES_MAX: usize = 64;
/// This many messages are written at once, and one more each second.
const BURST: u32 = 200;

/// The last message of each module.
pub struct Repeats {
    written: Vec<Written>,
    left: u32,
    counted: Instant,
    /// Messages left out since the last one was written.
    omitted: u64,
}

struct Written {
    /// Level, module and message.
    text: String,
    at: Instant,
    more: u64,
}

impl Repeats {
    pub fn new(now: Instant) -> Repeats {
        Repeats { written: Vec::new(), left: BURST, counted: now, omitted: 0 }
    }

    /// The text to write after `message`, which begins with the time.
    pub fn said(&mut self, message: &str, now: Instant) -> String {
        let (time, text) = message.split_once(' ').unwrap_or(("", message));
        let mut lines = String::new();
        let old = self.written.iter().take_while(|written| now.duration_since(written.at) >= AGAIN).count();
        self.written.drain(..old).for_each(|written| written.write_more(time, &mut lines));
        let last = self.written.iter().position(|written| module(&written.text) == module(text));
        if let Some(last) = last {
            match self.written[last].text == text {
                true => {
                    self.written[last].more += 1;
                    return lines;
                }
                false => self.written.remove(last).write_more(time, &mut lines),
            }
        }
        if !self.may_write(now) {
            self.omitted += 1;
            return lines;
        }
        if self.omitted > 0 {
            lines += &format!("{time} ({} other messages were left out)\n", std::mem::take(&mut self.omitted));
        }
        lines += message;
        self.written.push(Written { text: text.to_owned(), at: now, more: 0 });
        if self.written.len() > MODULES_MAX {
            self.written.remove(0).write_more(time, &mut lines);
        }
        lines
    }

    fn may_write(&mut self, now: Instant) -> bool {
        let passed = now.duration_since(self.counted).as_secs();
        self.counted += Duration::from_secs(passed);
        self.left = BURST.min(self.left.saturating_add(passed.try_into().unwrap_or(u32::MAX)));
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}

/// The level and module before the message itself.
fn module(text: &str) -> &str {
    text.split_once(": ").map_or(text, |(module, _)| module)
}

impl Written {
    fn write_more(self, time: &str, lines: &mut String) {
        if self.more > 0 {
            *lines += &format!("{time} (said {} times more) {}", self.more, self.text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_reported_once_and_counted() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut repeats = Repeats::new(start);
        assert_eq!(repeats.said("1 ERROR disk\n", start), "1 ERROR disk\n");
        assert_eq!(repeats.said("2 ERROR disk\n", after(1)), "");
        assert_eq!(repeats.said("3 ERROR disk\n", after(2)), "");
        assert_eq!(repeats.said("4 WARN other\n", after(3)), "4 WARN other\n");
        let again = repeats.said("5 ERROR disk\n", after(61));
        assert_eq!(again, "5 (said 2 times more) ERROR disk\n5 ERROR disk\n");
        assert_eq!(repeats.said("6 WARN other\n", after(200)), "6 WARN other\n");
    }

    #[test]
    fn what_changes_is_reported_each_time() {
        let now = Instant::now();
        let mut repeats = Repeats::new(now);
        let said = [
            "1 WARN disks: 1 is lost\n",
            "2 WARN disks: 1 is lost\n",
            "3 WARN disks: 1 is back\n",
            "4 WARN disks: 1 is lost\n",
        ];
        let lines = said.map(|message| repeats.said(message, now));
        assert_eq!(
            lines,
            [said[0], "", "3 (said 1 times more) WARN disks: 1 is lost\n3 WARN disks: 1 is back\n", said[3]]
        );
    }

    #[test]
    fn of_much_at_once_the_rest_is_counted() {
        let start = Instant::now();
        let mut repeats = Repeats::new(start);
        let lines: String = (0..10_000).map(|n| repeats.said(&format!("1 ERROR inode {n}\n"), start)).collect();
        assert_eq!(lines.lines().count(), BURST as usize);
        let later = repeats.said("2 ERROR last\n", start + Duration::from_secs(1));
        assert_eq!(later, format!("2 ({} other messages were left out)\n2 ERROR last\n", 10_000 - BURST));
        assert!(repeats.written.len() <= MODULES_MAX);
    }
}

//! The number of replicas of a file's content on disks, and the order in which files are repaired.
//!
//! | value | |
//! | --- | --- |
//! | `none` | one replica, wherever there is room: in effect if nothing is set |
//! | `whole` | one replica, all of it in one region, so that the loss of another does not touch it |
//! | `mirror:N` | N replicas, 2 to 4, each in a region of its own, before a commit counts as durable; `mirror` is `mirror:2` |
//! | `lazy:DELAY` | one replica at first; the second follows once the file was left alone for so long; `lazy` is `lazy:2m` |
//!
//! A delay is 1 to 60 seconds, a number of whole minutes up to 60, or one of whole hours up to 24, in a byte:
//!
//! | code | delay |
//! | --- | --- |
//! | 0 | none: it is not `lazy` |
//! | 1 to 60 | so many seconds |
//! | 61 to 119 | 2 to 60 minutes |
//! | 120 to 142 | 2 to 24 hours |

use super::{DELAY_HOURS, DELAY_MINUTES, DELAY_MOST};

/// The number of replicas of content on disks, and their regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Redundancy {
    /// One, wherever there is room.
    #[default]
    None,
    /// One, in one region.
    Whole,
    /// So many in all, 2 to 4, each in another region.
    Mirror(u8),
    /// Two, the second of which is made once the file was left alone for so many seconds.
    Lazy(u32),
}

/// Copies that `mirror` means, and how many there can be.
const USUAL_REPLICAS: u8 = 2;
const MOST_REPLICAS: u8 = 4;
/// Seconds that `lazy` means.
const USUAL_DELAY: u32 = 120;

impl Redundancy {
    /// From a value like `none`, `whole`, `mirror`, `mirror:3`, `lazy`, `lazy:20s`, `lazy:5m`.
    pub fn from_text(text: &[u8]) -> Option<Redundancy> {
        let text = std::str::from_utf8(text).ok()?;
        match text.split_once(':') {
            None if text == "none" => Some(Redundancy::None),
            None if text == "whole" => Some(Redundancy::Whole),
            None if text == "mirror" => Some(Redundancy::Mirror(USUAL_REPLICAS)),
            None if text == "lazy" => Some(Redundancy::Lazy(USUAL_DELAY)),
            Some(("mirror", "2")) => Some(Redundancy::Mirror(2)),
            Some(("mirror", "3")) => Some(Redundancy::Mirror(3)),
            Some(("mirror", "4")) => Some(Redundancy::Mirror(4)),
            Some(("lazy", delay)) => delay_from_text(delay).map(Redundancy::Lazy),
            _ => None,
        }
    }

    /// Copies that there are in the end.
    pub fn replicas(self) -> u32 {
        match self {
            Redundancy::None | Redundancy::Whole => 1,
            Redundancy::Mirror(replicas) => u32::from(replicas),
            Redundancy::Lazy(_) => 2,
        }
    }

    /// The codes of the value and of its delay, as an inode has them; none for values that it has no room for.
    pub(super) fn codes(self) -> Option<(u16, u8)> {
        match self {
            Redundancy::None => Some((1, 0)),
            Redundancy::Whole => Some((2, 0)),
            Redundancy::Mirror(replicas @ 2..=MOST_REPLICAS) => Some((u16::from(replicas) + 1, 0)),
            Redundancy::Mirror(_) => None,
            Redundancy::Lazy(seconds) => Some((LAZY, code_of(seconds)?)),
        }
    }

    /// From these codes; none where they say nothing, or nothing that exists.
    pub(super) fn from_codes(code: u16, delay: u8) -> Option<Redundancy> {
        match (code, delay) {
            (1, 0) => Some(Redundancy::None),
            (2, 0) => Some(Redundancy::Whole),
            (3..=5, 0) => Some(Redundancy::Mirror(code as u8 - 1)),
            (LAZY, delay) => seconds_of(delay).map(Redundancy::Lazy),
            _ => None,
        }
    }
}

/// The code of `lazy`, the highest.
const LAZY: u16 = 6;

/// As it is written in attributes and options: `from_text` reads it.
impl std::fmt::Display for Redundancy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Redundancy::None => f.write_str("none"),
            Redundancy::Whole => f.write_str("whole"),
            Redundancy::Mirror(replicas) => write!(f, "mirror:{replicas}"),
            Redundancy::Lazy(seconds) if seconds % 3600 == 0 => write!(f, "lazy:{}h", seconds / 3600),
            Redundancy::Lazy(seconds) if seconds % 60 == 0 => write!(f, "lazy:{}m", seconds / 60),
            Redundancy::Lazy(seconds) => write!(f, "lazy:{seconds}s"),
        }
    }
}

/// Seconds of a delay like `20`, `20s`, `2m`, `1h`, if there is a code for it.
fn delay_from_text(text: &str) -> Option<u32> {
    let (digits, unit) = match text.as_bytes().last()? {
        b's' => (&text[..text.len() - 1], 1),
        b'm' => (&text[..text.len() - 1], 60),
        b'h' => (&text[..text.len() - 1], 3600),
        _ => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let seconds = digits.parse::<u32>().ok()?.checked_mul(unit)?;
    code_of(seconds).map(|_| seconds)
}

fn code_of(seconds: u32) -> Option<u8> {
    (1..=DELAY_MOST).find(|code| seconds_of(*code) == Some(seconds))
}

fn seconds_of(code: u8) -> Option<u32> {
    let beyond = |least: u8| u32::from(code - least) + 2;
    match code {
        1..DELAY_MINUTES => Some(u32::from(code)),
        DELAY_MINUTES..DELAY_HOURS => Some(beyond(DELAY_MINUTES) * 60),
        DELAY_HOURS..=DELAY_MOST => Some(beyond(DELAY_HOURS) * 3600),
        _ => None,
    }
}

/// Which files come first where there is something to be put right, as after the loss of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Priority {
    Low = 1,
    #[default]
    Normal = 2,
    High = 3,
}

impl Priority {
    pub const ALL: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];

    /// As it is written in attributes and options.
    pub fn name(self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
        }
    }

    /// From its name.
    pub fn from_name(name: &[u8]) -> Option<Priority> {
        Priority::ALL.into_iter().find(|priority| priority.name().as_bytes() == name)
    }

    pub(super) fn from_code(code: u16) -> Option<Priority> {
        Priority::ALL.into_iter().find(|priority| *priority as u16 == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Option<String> {
        Redundancy::from_text(text.as_bytes()).map(|redundancy| redundancy.to_string())
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        for (text, is) in [
            ("none", "none"),
            ("whole", "whole"),
            ("mirror", "mirror:2"),
            ("mirror:2", "mirror:2"),
            ("mirror:4", "mirror:4"),
            ("lazy", "lazy:2m"),
            ("lazy:1", "lazy:1s"),
            ("lazy:20", "lazy:20s"),
            ("lazy:59s", "lazy:59s"),
            ("lazy:60s", "lazy:1m"),
            ("lazy:120", "lazy:2m"),
            ("lazy:59m", "lazy:59m"),
            ("lazy:60m", "lazy:1h"),
            ("lazy:3600", "lazy:1h"),
            ("lazy:24h", "lazy:24h"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(is), "{text}");
        }
        for wrong in [
            "",
            "None",
            "none:",
            "whole:2",
            "mirror:",
            "mirror:1",
            "mirror:5",
            "mirror:02",
            "mirror:+2",
            "lazy:",
            "lazy:0",
            "lazy:0s",
            "lazy:s",
            "lazy:61",
            "lazy:90s",
            "lazy:61m",
            "lazy:25h",
            "lazy:1d",
            "lazy:-1",
            "lazy:1.5m",
            "lazy: 2m",
            "lazy:2m ",
            "lazy:99999999999h",
            "lazy:1193047h",
            "lazy:2m:3",
            "lazy:\u{e9}",
        ] {
            assert_eq!(shown(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_delay_code_is_a_delay_of_its_own() {
        let delays: Vec<u32> = (1..=DELAY_MOST).map(|code| seconds_of(code).expect("a delay")).collect();
        assert!(delays.is_sorted_by(|a, b| a < b));
        assert_eq!((delays[0], delays[59], delays[60], delays[118]), (1, 60, 120, 3600));
        assert_eq!((delays[119], delays.last()), (7200, Some(&(24 * 3600))));
        assert_eq!((seconds_of(0), seconds_of(DELAY_MOST + 1), seconds_of(u8::MAX)), (None, None, None));
        for (code, delay) in (1..).zip(delays) {
            assert_eq!(code_of(delay), Some(code));
        }
    }

    #[test]
    fn priorities_have_an_order() {
        assert!(Priority::Low < Priority::Normal && Priority::Normal < Priority::High);
        assert_eq!(Priority::default(), Priority::Normal);
    }
}

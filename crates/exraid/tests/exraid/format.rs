//! docs/FORMAT.md, "Labels", "Notes" and "RAID-5", against the structures and constants of the code.

use std::mem::{offset_of, size_of};

use exraid::duplex::raw::{RawDuplex, RawPlace};
use exraid::label::raw::{RawLabel, RawMember, LEASE, MAGIC, MEMBERS, STAMPS, VERSION};
use exraid::label::END;
use exraid::note::{self, RawNote};
use exraid::region::raid5::raw::{self as intents, RawFloors, RawIntent};

fn page() -> String {
    let path = format!("{}/../../docs/FORMAT.md", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("the page")
}

/// Offset, size and name in each row of the table with this caption.
fn documented(page: &str, name: &str) -> (usize, Vec<(usize, usize, String)>) {
    let caption = format!("**`{name}`**, ");
    let mut lines = page.lines().skip_while(|line| !line.starts_with(&caption));
    let size = lines.next().and_then(|line| line[caption.len()..].split(' ').next()?.parse().ok()).expect("a caption");
    let rows = lines.skip_while(|line| !line.starts_with("| ---")).skip(1).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        (cells[1].parse().expect("an offset"), cells[2].parse().expect("a size"), cells[3].to_string())
    };
    (size, rows.map(cells).collect())
}

macro_rules! same {
    ($type:ident: $($field:ident)+) => {{
        let (size, rows) = documented(&page(), stringify!($type));
        assert_eq!(size, size_of::<$type>());
        let code = [$((offset_of!($type, $field), stringify!($field))),+];
        let mut ends = code.iter().map(|(offset, _)| *offset).skip(1).chain([size]);
        let code: Vec<_> = code.iter().map(|(at, name)| (*at, ends.next().expect("one each") - at, name.to_string())).collect();
        assert_eq!(rows, code);
    }};
}

#[test]
fn labels_lie_as_documented() {
    same!(RawLabel: magic version kind pool device region role members chunk place size data generation epoch sequence
        created written stamps table secret lease_len lease reserved high_water unused crc);
    same!(RawMember: uuid state reserved rebuilt);
}

#[test]
fn intents_lie_as_documented() {
    same!(RawIntent: magic version crc secret sequence stripe start end at len role roles reserved);
    same!(RawFloors: magic version crc secret floors reserved);
}

#[test]
fn notes_lie_as_documented() {
    same!(RawNote: magic version len generation device place reserved crc);
    same!(RawDuplex: magic version me id created segment epoch stamps members spans extra);
    same!(RawPlace: region state since);
    let page = page();
    assert!(page.contains(&format!(", {} bytes behind the place", note::AT)));
    assert!(page.contains(&format!("{} at most", note::MOST)));
}

#[test]
fn constants_are_as_documented() {
    let page = page();
    for (name, value) in [
        ("LABEL_VERSION", u64::from(VERSION)),
        ("LABEL_END", END),
        ("LABEL_STAMPS", STAMPS as u64),
        ("LABEL_MEMBERS", MEMBERS as u64),
        ("LABEL_LEASE", LEASE as u64),
        ("INTENT_VERSION", intents::VERSION.into()),
        ("INTENT_HEAD", intents::HEAD),
        ("INTENT_HEADER", intents::HEADER),
        ("INTENT_LOG", intents::LOG),
        ("INTENT_LEAST", intents::LEAST_SLOTS as u64),
        ("INTENT_SLOTS", intents::SLOTS as u64),
        ("RAID5_CHUNK", intents::MOST_CHUNK),
    ] {
        assert!(page.contains(&format!("| `{name}` | {value} |")), "{name} is {value}");
    }
    for magic in [MAGIC, intents::INTENT_MAGIC, intents::FLOORS_MAGIC] {
        assert!(page.contains(&format!("`{}`", std::str::from_utf8(&magic).expect("text"))));
    }
}

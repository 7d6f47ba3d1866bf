//! GUIDE.md: a program or the system gives each message for which the page has advice.

use std::fs;
use std::path::Path;

use crate::tables::Page;

/// Messages of other programs.
const FOREIGN: [&str; 1] = ["unknown filesystem type 'conquest'"];

/// Placeholders in a message.
const ANYTHING: [&str; 3] = ["...", "POOL", " N "];

/// The product code of all crates, with each text in one piece.
fn code() -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let entries = |dir: &Path| fs::read_dir(dir).map(|found| found.flatten().map(|entry| entry.path()).collect());
    let members: Vec<_> = entries(&crates).expect("the crates");
    let mut dirs: Vec<_> = members.into_iter().map(|member| member.join("src")).filter(|src| src.is_dir()).collect();
    let mut text = String::new();
    while let Some(dir) = dirs.pop() {
        for path in entries(&dir).expect("a folder of a crate") {
            match path.extension() {
                _ if path.is_dir() => dirs.push(path),
                Some(end) if end == "rs" => text += &fs::read_to_string(&path).expect("a file of a crate"),
                _ => {}
            }
        }
    }
    // A backslash at the end of a line joins it with the next word.
    text.split("\\\n").map(str::trim_start).collect()
}

/// The messages in the first column of the tables of advice.
fn messages(page: &Page) -> Vec<String> {
    let (_, tables) = page.text.split_once("## What to do when").expect("the section");
    let tables = tables.split("\n## ").next().expect("a text");
    let rows = tables.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    rows.flat_map(|cell| cell.split('`').step_by(2).map(String::from).collect::<Vec<_>>()).collect()
}

/// The literal parts of a message.
fn parts(message: &str) -> Vec<String> {
    let bare = ANYTHING.iter().fold(message.to_string(), |text, any| text.replace(any, "\0"));
    bare.split('\0').map(|part| part.trim().to_string()).filter(|part| !part.is_empty()).collect()
}

#[test]
fn messages_are_given_by_somebody() {
    let page = Page::open("GUIDE.md");
    let code = code();
    let system: Vec<String> = (1..134).map(|n| std::io::Error::from_raw_os_error(n).to_string()).collect();
    let is_given = |part: &String| {
        code.contains(part.as_str())
            || system.iter().any(|text| text.contains(part))
            || FOREIGN.contains(&part.as_str())
    };
    let messages = messages(&page);
    let wrong: Vec<&String> = messages.iter().filter(|message| !parts(message).iter().all(is_given)).collect();
    assert!(wrong.is_empty(), "nobody says {wrong:#?}");
    assert!(messages.len() > 30, "{} messages were seen", messages.len());
}

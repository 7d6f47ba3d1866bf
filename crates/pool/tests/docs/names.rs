//! What the documents refer to exists: files, and names in them.

use crate::tables::Page;

const PAGES: [&str; 3] = ["DESIGN.md", "FORMAT.md", "SEMANTICS.md"];

fn root() -> String {
    format!("{}/../..", env!("CARGO_MANIFEST_DIR"))
}

/// Everything between single backticks, in order.
fn quoted(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn files_that_are_named_exist() {
    for page in PAGES {
        for path in quoted(&Page::open(page).text).into_iter().filter(|q| q.starts_with("crates/")) {
            let path = path.split("::").next().unwrap_or(path);
            assert!(std::path::Path::new(&format!("{}/{path}", root())).exists(), "{page} names {path}");
        }
    }
}

/// `crates/x/src/y.rs::name` names something that is defined there.
#[test]
fn functions_that_are_named_exist() {
    let mut found = 0;
    for page in PAGES {
        for (path, name) in quoted(&Page::open(page).text).into_iter().filter_map(|q| q.split_once(".rs::")) {
            let file = format!("{}/{path}.rs", root());
            let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{page}: {file}: {e}"));
            let defined =
                ["fn", "struct", "enum", "trait", "const", "mod"].iter().any(|k| text.contains(&format!("{k} {name}")));
            assert!(defined, "{page} refers to {path}.rs::{name}, which is not there");
            found += 1;
        }
    }
    assert!(found > 20, "DESIGN.md refers to the code, and does so {found} times");
}

//! The files that the documents refer to exist, and the names in them.

use std::path::Path;

pub fn root() -> String {
    format!("{}/../..", env!("CARGO_MANIFEST_DIR"))
}

/// README and all documents: paths from the root of the sources, and text.
pub fn documents() -> Vec<(String, String)> {
    let mut found = vec!["README.md".to_string()];
    let mut folders = vec!["docs".to_string()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(format!("{}/{folder}", root())).unwrap().map(Result::unwrap) {
            let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(path),
                false if path.ends_with(".md") => found.push(path),
                false => {}
            }
        }
    }
    found.sort();
    let text = |path: &String| std::fs::read_to_string(format!("{}/{path}", root())).unwrap();
    found.into_iter().map(|path| (path.clone(), text(&path))).collect()
}

/// Everything between single backticks, in order.
fn quoted(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn files_that_are_named_exist() {
    for (page, text) in documents() {
        for path in quoted(&text).into_iter().filter(|q| q.starts_with("crates/") && !q.contains(' ')) {
            let path = path.split("::").next().unwrap_or(path);
            assert!(Path::new(&format!("{}/{path}", root())).exists(), "{page} names {path}");
        }
    }
}

/// `crates/x/src/y.rs::name` names something that is defined there.
#[test]
fn functions_that_are_named_exist() {
    let mut found = 0;
    for (page, text) in documents() {
        for (path, name) in quoted(&text).into_iter().filter_map(|q| q.split_once(".rs::")) {
            let file = format!("{}/{path}.rs", root());
            let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{page}: {file}: {e}"));
            let defined =
                ["fn", "struct", "enum", "trait", "const", "mod"].iter().any(|k| text.contains(&format!("{k} {name}")));
            assert!(defined, "{page} refers to {path}.rs::{name}, which is not there");
            found += 1;
        }
    }
    assert!(found > 150, "the documents refer to the code, and do so {found} times");
}

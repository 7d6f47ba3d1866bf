//! For tests only: what the sources are held to.
//!
//! | module | what it holds them to |
//! | --- | --- |
//! | [`imports`] | the modules of a folder import each other in no circle |
//! | [`length`] | a function has 70 lines at most, and a file 600 |
//! | [`words`] | words that were given up are in no name |
//!
//! Each test names the exceptions that there are. One that is no longer needed fails too: the list only becomes shorter.

#[cfg(test)]
mod imports;
#[cfg(test)]
mod length;
#[cfg(test)]
mod words;

use std::fs;
use std::path::{Path, PathBuf};

/// A file of a crate's sources.
pub struct Source {
    /// Its path, from the root of the workspace on.
    pub path: String,
    /// The modules that lead to it: none for `lib.rs` and `main.rs`.
    pub modules: Vec<String>,
    pub text: String,
}

impl Source {
    /// Is it compiled for tests alone?
    pub fn is_test(&self) -> bool {
        self.modules.iter().any(|module| module == "tests" || module.ends_with("_tests"))
    }
}

/// The crates of the workspace.
pub fn crates() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let entries = fs::read_dir(all).expect("the crates");
    let mut crates: Vec<PathBuf> = entries.map(|entry| entry.expect("a crate").path()).collect();
    crates.retain(|path| path.join("Cargo.toml").is_file());
    crates.sort();
    crates
}

/// The sources of a crate.
pub fn sources(of: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    collect(of, &of.join("src"), &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(of: &Path, dir: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(dir).expect("sources") {
        let path = entry.expect("a source").path();
        if path.is_dir() {
            collect(of, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let inside = path.strip_prefix(of.join("src")).expect("it is in there").with_extension("");
            let mut modules: Vec<String> =
                inside.iter().map(|name| name.to_str().expect("UTF-8").to_string()).collect();
            if matches!(modules.last().map(String::as_str), Some("mod" | "lib" | "main")) {
                modules.pop();
            }
            let name = of.file_name().expect("a name").to_str().expect("UTF-8");
            let inside = path.strip_prefix(of).expect("it is in there").display();
            let text = fs::read_to_string(&path).expect("UTF-8");
            found.push(Source { path: format!("crates/{name}/{inside}"), modules, text });
        }
    }
}

/// Fails where `found` and the exceptions differ.
pub fn expect_only(what: &str, found: &[String], exceptions: &[&str]) {
    let new: Vec<&String> = found.iter().filter(|name| !exceptions.contains(&name.as_str())).collect();
    let old: Vec<&&str> = exceptions.iter().filter(|name| !found.iter().any(|f| f == **name)).collect();
    assert!(new.is_empty(), "{what}: {new:#?}");
    assert!(old.is_empty(), "no exceptions any more, take them from the list: {old:#?}");
}

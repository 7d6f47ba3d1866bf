//! The modules of a crate, and of each folder in it, import each other in no circle: what lies below knows nothing of what lies above it.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Macro, UseTree};

use crate::{crates, expect_only, sources, Source};

/// A path of modules, from the root of the crate on.
type Path = Vec<String>;

/// The paths that a file names, but for tests.
struct Named<'s> {
    source: &'s Source,
    /// Modules within the file.
    inside: Path,
    found: BTreeSet<Path>,
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| a.path().is_ident("cfg") && a.parse_args::<syn::Ident>().is_ok_and(|name| name == "test"))
}

impl Named<'_> {
    /// A path of these names.
    fn see(&mut self, names: &[String]) {
        let here = || self.source.modules.iter().chain(&self.inside);
        let ups = names.iter().take_while(|name| *name == "super").count();
        let before: Path = match names.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super") => {
                here().take((self.source.modules.len() + self.inside.len()).saturating_sub(ups)).cloned().collect()
            }
            _ => return,
        };
        self.found.insert([&before[..], &names[ups.max(1)..]].concat());
    }

    fn see_tree(&mut self, before: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.see_tree(before, &path.tree);
                before.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|item| self.see_tree(before, item)),
            UseTree::Name(name) => self.see(&[&before[..], &[name.ident.to_string()]].concat()),
            UseTree::Rename(name) => self.see(&[&before[..], &[name.ident.to_string()]].concat()),
            UseTree::Glob(_) => self.see(before),
        }
    }
}

impl<'ast> Visit<'ast> for Named<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_for_tests(&item.attrs) {
            self.inside.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.inside.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.see_tree(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.see(&names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let text = call.tokens.to_string().replace(" :: ", "::");
        let is_of_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
        for path in text.split(|letter| !is_of_path(letter)).filter(|path| path.contains("::")) {
            self.see(&path.split("::").map(str::to_string).collect::<Vec<_>>());
        }
    }
}

/// What stands in a folder for what lies in a module of it: `pub use session::Op` makes `crate::Op` of `session`.
fn names_of(source: &Source) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for item in &syn::parse_file(&source.text).expect("Rust").items {
        if let Item::Use(item) = item {
            leaves(&mut Vec::new(), &item.tree, &mut names);
        }
    }
    names
}

fn leaves(before: &mut Path, tree: &UseTree, names: &mut BTreeMap<String, String>) {
    let first = |before: &[String]| before.iter().find(|name| *name != "self").filter(|name| *name != "crate").cloned();
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves(before, &path.tree, names);
            before.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|item| leaves(before, item, names)),
        UseTree::Name(name) => names.extend(first(before).map(|module| (name.ident.to_string(), module))),
        UseTree::Rename(name) => names.extend(first(before).map(|module| (name.rename.to_string(), module))),
        UseTree::Glob(_) => {}
    }
}

type Imports = BTreeMap<String, BTreeSet<String>>;

/// The folders of a crate; of each its modules, and which others of them each imports.
fn imports(of: &std::path::Path) -> BTreeMap<Path, Imports> {
    let sources: Vec<Source> = sources(of).into_iter().filter(|source| !source.is_test()).collect();
    let mut folders: BTreeMap<Path, Imports> = BTreeMap::new();
    for source in &sources {
        for n in 0..source.modules.len() {
            folders.entry(source.modules[..n].to_vec()).or_default().entry(source.modules[n].clone()).or_default();
        }
    }
    let mut names: BTreeMap<&[String], BTreeMap<String, String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| folders.contains_key(&source.modules)) {
        names.entry(&source.modules).or_default().append(&mut names_of(source));
    }
    for source in &sources {
        let mut named = Named { source, inside: Vec::new(), found: BTreeSet::new() };
        named.visit_file(&syn::parse_file(&source.text).expect("Rust"));
        for (folder, imports) in &mut folders {
            let Some([module, ..]) = source.modules.strip_prefix(&folder[..]) else { continue };
            let here = named.found.iter().filter_map(|path| path.strip_prefix(&folder[..])?.first());
            let here = here.map(|name| names.get(&folder[..]).and_then(|names| names.get(name)).unwrap_or(name));
            let found: BTreeSet<String> =
                here.filter(|name| *name != module && imports.contains_key(*name)).cloned().collect();
            imports.get_mut(module).expect("it is there").extend(found);
        }
    }
    folders
}

/// All that a module leads to, through others too.
fn below<'i>(module: &str, imports: &'i Imports) -> BTreeSet<&'i str> {
    let (mut found, mut left) = (BTreeSet::new(), vec![module]);
    while let Some(module) = left.pop() {
        let new = imports[module].iter().map(String::as_str).filter(|name| found.insert(*name));
        left.extend(new.collect::<Vec<_>>());
    }
    found
}

/// The circles in a folder: modules each of which leads to each other one.
fn circles(imports: &Imports) -> BTreeSet<Vec<&str>> {
    let below: BTreeMap<&str, BTreeSet<&str>> = imports.keys().map(|m| (m.as_str(), below(m, imports))).collect();
    let in_circles = below.iter().filter(|(module, found)| found.contains(*module));
    in_circles
        .map(|(module, found)| found.iter().copied().filter(|other| below[other].contains(module)).collect())
        .collect()
}

#[test]
fn no_modules_import_each_other_in_circles() {
    let mut found = Vec::new();
    for of in crates() {
        let name = of.file_name().expect("a name").to_str().expect("UTF-8");
        for (folder, imports) in imports(&of) {
            let folder = [&[name.to_string()], &folder[..]].concat().join("/");
            found.extend(circles(&imports).into_iter().map(|circle| format!("{folder}: {}", circle.join(", "))));
        }
    }
    expect_only("modules import each other: what both need belongs below them", &found, &[]);
}

#[test]
fn a_circle_of_three_is_one() {
    let of = |module: &str, found: &[&str]| (module.to_string(), found.iter().map(|name| name.to_string()).collect());
    let imports =
        BTreeMap::from([of("a", &["b", "d"]), of("b", &["c"]), of("c", &["a"]), of("d", &[]), of("e", &["a", "d"])]);
    assert_eq!(circles(&imports), BTreeSet::from([vec!["a", "b", "c"]]));
}

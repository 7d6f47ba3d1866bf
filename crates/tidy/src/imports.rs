//! The modules of a crate import each other in no circle: what lies below knows nothing of what lies above it.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Macro, Path, UseTree};

use crate::{crates, expect_only, sources, Source};

/// Those that still do.
const EXCEPTIONS: &[&str] = &[];

/// The modules right below the root of a crate that a file names, but for tests.
struct Named<'s> {
    source: &'s Source,
    /// Modules within the file.
    inside: usize,
    found: BTreeSet<String>,
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| a.path().is_ident("cfg") && a.parse_args::<syn::Ident>().is_ok_and(|name| name == "test"))
}

impl Named<'_> {
    /// A path that begins with these names.
    fn see(&mut self, names: &[String]) {
        let ups = names.iter().take_while(|name| *name == "super").count();
        let depth = self.source.modules.len() + self.inside;
        let first = match names.first().map(String::as_str) {
            Some("crate") => names.get(1),
            Some("super") if ups == depth => names.get(ups),
            _ => None,
        };
        self.found.extend(first.cloned());
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
            self.inside += 1;
            visit::visit_item_mod(self, item);
            self.inside -= 1;
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.see_tree(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
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

/// What stands at the root of a crate for what lies in a module: `pub use session::Op` makes `crate::Op` of `session`.
fn names_at_root(sources: &[Source]) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for source in sources.iter().filter(|source| source.modules.is_empty()) {
        let file = syn::parse_file(&source.text).expect("Rust");
        for item in &file.items {
            if let Item::Use(item) = item {
                leaves(&mut Vec::new(), &item.tree, &mut names);
            }
        }
    }
    names
}

fn leaves(before: &mut Vec<String>, tree: &UseTree, names: &mut BTreeMap<String, String>) {
    let first = |before: &[String]| before.iter().find(|name| !["crate", "self"].contains(&name.as_str())).cloned();
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

/// The modules of a crate below its root, and which others each imports.
fn imports(of: &std::path::Path) -> BTreeMap<String, BTreeSet<String>> {
    let sources = sources(of);
    let at_root = names_at_root(&sources);
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test()) {
        let Some(module) = source.modules.first() else { continue };
        let file = syn::parse_file(&source.text).expect("Rust");
        let mut named = Named { source, inside: 0, found: BTreeSet::new() };
        named.visit_file(&file);
        let found = named.found.into_iter().map(|name| at_root.get(&name).cloned().unwrap_or(name));
        imports.entry(module.clone()).or_default().extend(found);
    }
    let modules: BTreeSet<String> = imports.keys().cloned().collect();
    imports.iter_mut().for_each(|(module, found)| found.retain(|name| name != module && modules.contains(name)));
    imports
}

/// All that a module leads to, through others too.
fn below<'i>(module: &str, imports: &'i BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'i str> {
    let (mut found, mut left) = (BTreeSet::new(), vec![module]);
    while let Some(module) = left.pop() {
        let new = imports[module].iter().map(String::as_str).filter(|name| found.insert(*name));
        left.extend(new.collect::<Vec<_>>());
    }
    found
}

/// The circles of a crate: modules each of which leads to each other one.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<&str>> {
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
        let imports = imports(&of);
        let name = of.file_name().expect("a name").to_str().expect("UTF-8");
        found.extend(circles(&imports).into_iter().map(|circle| format!("{name}: {}", circle.join(", "))));
    }
    expect_only("modules import each other: what both need belongs below them", &found, EXCEPTIONS);
}

#[test]
fn a_circle_of_three_is_one() {
    let of = |module: &str, found: &[&str]| (module.to_string(), found.iter().map(|name| name.to_string()).collect());
    let imports =
        BTreeMap::from([of("a", &["b", "d"]), of("b", &["c"]), of("c", &["a"]), of("d", &[]), of("e", &["a", "d"])]);
    assert_eq!(circles(&imports), BTreeSet::from([vec!["a", "b", "c"]]));
}

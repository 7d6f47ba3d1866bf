//! No two modules of a crate import each other: what lies below knows nothing of what lies above it.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemUse, Path, UseTree};

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
}

#[test]
fn no_two_modules_import_each_other() {
    let mut pairs = Vec::new();
    for of in crates() {
        let sources = sources(&of);
        let mut imports: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for source in sources.iter().filter(|source| !source.is_test()) {
            let Some(module) = source.modules.first() else { continue };
            let file = syn::parse_file(&source.text).expect("Rust");
            let mut named = Named { source, inside: 0, found: BTreeSet::new() };
            named.visit_file(&file);
            imports.entry(module).or_default().append(&mut named.found);
        }
        let name = of.file_name().expect("a name").to_str().expect("UTF-8");
        for (one, below) in &imports {
            let mutual = below.iter().filter(|other| {
                *one < other.as_str() && imports.get(other.as_str()).is_some_and(|found| found.contains(*one))
            });
            pairs.extend(mutual.map(|other| format!("{name}: {one}, {other}")));
        }
    }
    expect_only("modules import each other: what both need belongs below them", &pairs, EXCEPTIONS);
}

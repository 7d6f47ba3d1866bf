//! A function has [`FUNCTION`] lines at most, and a file [`FILE`].

use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, ItemFn, Signature};

use crate::{crates, expect_only, sources};

const FUNCTION: usize = 70;
const FILE: usize = 600;

/// Longer ones: a match over all operations that a scenario may have, an arm each, is no shorter in parts.
const FUNCTIONS: &[&str] = &["crates/sim/src/model.rs: call", "crates/sim/src/op.rs: call"];

struct Long<'s> {
    path: &'s str,
    found: Vec<String>,
}

impl Long<'_> {
    fn see(&mut self, signature: &Signature, body: &Block) {
        let last = body.brace_token.span.close().end().line;
        if last - signature.fn_token.span.start().line >= FUNCTION {
            self.found.push(format!("{}: {}", self.path, signature.ident));
        }
    }
}

impl<'ast> Visit<'ast> for Long<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.see(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.see(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }
}

#[test]
fn functions_are_short() {
    let mut found = Vec::new();
    for source in crates().iter().flat_map(|of| sources(of)) {
        let mut long = Long { path: &source.path, found: Vec::new() };
        long.visit_file(&syn::parse_file(&source.text).expect("Rust"));
        found.append(&mut long.found);
    }
    expect_only("functions have more than 70 lines", &found, FUNCTIONS);
}

#[test]
fn files_are_short() {
    let sources = crates().iter().flat_map(|of| sources(of)).collect::<Vec<_>>();
    let long = sources.iter().filter(|source| source.text.lines().count() > FILE);
    let found: Vec<String> = long.map(|source| source.path.clone()).collect();
    expect_only("files have more than 600 lines", &found, &[]);
}

//! Words that were given up: `docs/GLOSSARY.md` says which ones stand for what instead.

use proc_macro2::{TokenStream, TokenTree};

use crate::{crates, expect_only, sources};

/// Where a word is no part of a name any more, and what is said instead.
const GIVEN_UP: &[(&str, &str, &str)] = &[
    ("crates/pram/", "region", "memory"),
    ("crates/pram/", "segment", "chunk"),
    ("crates/backing/", "region", "memory"),
];

/// The words that a name is made of, in small letters.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut last = '_';
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() && last.is_lowercase() {
            words.push(String::new());
        }
        if letter != '_' {
            words.last_mut().expect("one").extend(letter.to_lowercase());
        }
        last = letter;
    }
    words
}

fn names(tokens: TokenStream, see: &mut dyn FnMut(String)) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => names(group.stream(), see),
            TokenTree::Ident(name) => see(name.to_string()),
            _ => {}
        }
    }
}

#[test]
fn words_that_were_given_up_are_in_no_name() {
    let mut found = Vec::new();
    for source in crates().iter().flat_map(|of| sources(of)) {
        let given_up = || GIVEN_UP.iter().filter(|(place, ..)| source.path.starts_with(place));
        if given_up().next().is_none() {
            continue;
        }
        names(source.text.parse().expect("Rust"), &mut |name| {
            let words = words(&name);
            for (_, word, instead) in given_up().filter(|(_, word, _)| words.iter().any(|w| w == word)) {
                found.push(format!("{}: {name}: {word} is {instead}", source.path));
            }
        });
    }
    found.sort();
    found.dedup();
    expect_only("words that were given up", &found, &[]);
}

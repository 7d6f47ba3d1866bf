//! Words that were given up: `docs/GLOSSARY.md` says which ones stand for what instead.

use proc_macro2::{TokenStream, TokenTree};

use crate::{crates, expect_only, sources};

/// Where a word is no part of a name any more, and what is said instead.
const GIVEN_UP: &[(&str, &str, &str)] = &[
    ("crates/pram/", "region", "memory"),
    ("crates/pram/", "segment", "chunk"),
    ("crates/backing/src/save/", "segment", "chunk"),
    ("crates/backing/", "region", "memory"),
    ("crates/fs/src/fsck/mark", "segment", "chunk"),
    ("crates/fs/src/node/usage", "copies", "replica"),
    ("crates/fs/src/setting/redundancy", "copies", "replica"),
    ("crates/ilfs/src/replicas/", "copies", "replica"),
    ("crates/ilfs/src/table/", "copies", "replica"),
    ("crates/ilfs/src/write", "copies", "replica"),
];

/// Where a word is in no literal and no documentation any more, and what is said instead.
const IN_NO_TEXT: &[(&str, &str, &str)] = &[
    ("crates/cli/src/", "copies", "replica, or a region's member"),
    ("crates/ilfs/src/replicas/", "copies", "replica"),
];
/// What no module is called.
const NO_MODULE: &[(&str, &str)] = &[("copy", "backing or replica"), ("copies", "backing or replica")];

/// Pictures that name nothing in any crate.
const NOWHERE: &[(&str, &str)] = &[
    ("told", "reported, recorded, known, or the thing's own name"),
    ("untold", "unreported, or the thing's own name"),
];
/// Pictures that name nothing in these crates any more.
const NO_PICTURES_IN: &[&str] =
    &["crates/cli/", "crates/export/", "crates/exraid/", "crates/fs/", "crates/fuse/", "crates/ilfs/", "crates/pool/"];
const PICTURES: &[(&str, &str)] = &[
    ("bell", "a wake-up"),
    ("between", "shared state"),
    ("board", "a table of intents"),
    ("gentle", "throttle"),
    ("hurry", "unthrottle"),
    ("keeper", "what the thread does"),
    ("relief", "shortage"),
    ("settle", "finish"),
    ("settled", "finished"),
    ("tend", "maintain"),
    ("tending", "maintain"),
    ("turns", "range locks"),
    ("vain", "what was not found or gained"),
];
/// A name of more words is the sentence that a test is called by.
const SENTENCE: usize = 5;

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

fn texts(tokens: TokenStream, see: &mut dyn FnMut(String)) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => texts(group.stream(), see),
            TokenTree::Literal(literal) => see(literal.to_string()),
            _ => {}
        }
    }
}

#[test]
fn words_that_were_given_up_are_in_no_text_and_name_no_module() {
    let mut found = Vec::new();
    for source in crates().iter().flat_map(|of| sources(of)) {
        for (word, instead) in NO_MODULE.iter().filter(|(word, _)| source.modules.iter().any(|name| name == word)) {
            found.push(format!("{}: {word} is {instead}", source.path));
        }
        let given_up: Vec<_> = IN_NO_TEXT.iter().filter(|(place, ..)| source.path.starts_with(place)).collect();
        texts(source.text.parse().expect("Rust"), &mut |text| {
            let is_in_word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
            for (_, word, instead) in given_up.iter().filter(|g| text.split(|l| !is_in_word(l)).any(|w| w == g.1)) {
                found.push(format!("{}: {text}: {word} is {instead}", source.path));
            }
        });
    }
    expect_only("words that were given up", &found, &[]);
}

#[test]
fn words_that_were_given_up_are_in_no_name() {
    let mut found = Vec::new();
    for source in crates().iter().flat_map(|of| sources(of)) {
        let is_in = |place: &str| source.path.starts_with(place);
        let mut given_up: Vec<(&str, &str)> =
            GIVEN_UP.iter().filter(|(place, ..)| is_in(place)).map(|g| (g.1, g.2)).collect();
        let pictures = if NO_PICTURES_IN.iter().any(|place| is_in(place)) { PICTURES } else { &[] };
        let pictures: Vec<_> = pictures.iter().chain(NOWHERE).copied().collect();
        given_up.extend(&pictures);
        names(source.text.parse().expect("Rust"), &mut |name| {
            let words = words(&name);
            let is_sentence = words.len() > SENTENCE;
            for (word, instead) in given_up.iter().filter(|(word, _)| words.iter().any(|w| w == word)) {
                if !(is_sentence && pictures.iter().any(|(picture, _)| picture == word)) {
                    found.push(format!("{}: {name}: {word} is {instead}", source.path));
                }
            }
        });
    }
    found.sort();
    found.dedup();
    expect_only("words that were given up", &found, &[]);
}

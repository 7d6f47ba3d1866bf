//! The documents are written for readers: few sentences hide their subject behind *who* or *what*, and the pages that a newcomer
//! reads first are short.

use crate::names::documents;

/// Words that stand in the place of the one that acts.
const HIDING: [&str; 5] = ["who", "what", "whose", "whoever", "whatever"];
/// Words that may precede them at the opening of a clause.
const JOINING: [&str; 10] = ["and", "but", "or", "so", "that", "as", "if", "where", "when", "until"];

/// The most clauses for each thousand words that begin with one of these words. Other documents have [`ELSEWHERE`].
/// The limits are lowered when a document gets better, and not raised.
const REACHED: [(&str, f64); 2] = [("docs/FORMAT.md", 3.2), ("docs/SEMANTICS.md", 9.3)];
const ELSEWHERE: f64 = 1.0;

/// The most bytes of a document.
const SHORT: [(&str, usize); 2] = [("README.md", 8 << 10), ("docs/DESIGN.md", 30 << 10)];

/// The text without code and headings, each cell of a table and each item of a list as a paragraph of its own. A cell often is
/// a phrase, so its opening counts as no clause.
fn prose(text: &str) -> String {
    let text: String = text.split("```").step_by(2).collect();
    let mut prose: String = text.split('`').step_by(2).collect::<Vec<_>>().join("x");
    prose.retain(|c| c != '*');
    let lines = prose.lines().map(|line| match line.trim_start() {
        line if line.is_empty() || line.starts_with('#') => "\n\n".to_string(),
        line if line.starts_with("- ") => format!("\n\n{}\n", &line[2..]),
        line => line.replace('|', "\n\ncell ") + "\n",
    });
    lines.collect()
}

/// Clauses that begin with one of the hiding words, and all words. Questions do not count.
fn count(text: &str) -> (Vec<String>, usize) {
    let (mut hidden, mut words) = (Vec::new(), 0);
    for paragraph in prose(text).split("\n\n") {
        words += paragraph.split_whitespace().count();
        for sentence in paragraph.split_inclusive(['.', '!', '?']).filter(|s| !s.ends_with('?')) {
            let clauses = sentence.split([',', ';', ':', '(']);
            hidden.extend(clauses.filter(|clause| hides(clause)).map(|clause| clause.trim().to_string()));
        }
    }
    (hidden, words)
}

fn hides(clause: &str) -> bool {
    let mut words = clause.split_whitespace().map(|w| w.to_lowercase()).skip_while(|w| JOINING.contains(&w.as_str()));
    words.next().is_some_and(|first| HIDING.contains(&first.as_str()))
}

#[test]
fn sentences_name_what_acts() {
    let mut worse = Vec::new();
    for (page, text) in documents() {
        let (hidden, words) = count(&text);
        let limit = REACHED.iter().find(|(name, _)| *name == page).map_or(ELSEWHERE, |(_, limit)| *limit);
        let rate = hidden.len() as f64 * 1000.0 / words.max(1) as f64;
        println!("{page}: {rate:.2} of at most {limit}");
        if rate > limit {
            worse.push(format!(
                "{page}: {rate:.2} for each thousand words, at most {limit}:\n  {}",
                hidden.join("\n  ")
            ));
        }
    }
    assert!(worse.is_empty(), "clauses whose subject is hidden:\n{}", worse.join("\n"));
}

#[test]
fn hidden_subjects_are_found() {
    let text =
        "# Who acts\nWho waits, looks. A thread that waits\nlooks, and what it finds counts.\n\n- Whoever comes\n\n\
                | what is left | it is there; what is not, is not |\n\n\
                *Who waits?* `who` said so; the kernel, who knows.\n```\nwho\n```\n";
    let (hidden, words) = count(text);
    assert_eq!(hidden, ["Who waits", "and what it finds counts.", "Whoever comes", "what is not", "who knows."]);
    assert_eq!(words, 38);
}

#[test]
fn first_documents_are_short() {
    for (page, text) in documents() {
        if let Some((_, most)) = SHORT.iter().find(|(name, _)| *name == page) {
            assert!(text.len() <= *most, "{page} has {} bytes, more than {most}", text.len());
        }
    }
}

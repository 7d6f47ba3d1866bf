//! Links in the documents lead to existing files and headings.

use std::path::Path;

use crate::names::{documents, root};

/// The text without its examples.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The targets of a document's links, without those on other hosts.
fn links(prose: &str) -> impl Iterator<Item = &str> {
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://"))
}

/// The anchor of a heading in links.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

fn has_heading(text: &str, name: &str) -> bool {
    prose(text).lines().filter(|line| line.starts_with('#')).any(|line| anchor(line.trim_start_matches('#')) == name)
}

/// Whether the target of a link in the document at `page` exists.
fn leads(page: &str, text: &str, target: &str) -> bool {
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let there = Path::new(&root()).join(page).with_file_name(file);
    let has = |text: &str| heading.is_empty() || has_heading(text, heading);
    match file {
        "" => has(text),
        _ if heading.is_empty() => there.exists(),
        _ => std::fs::read_to_string(there).is_ok_and(|text| has(&text)),
    }
}

#[test]
fn links_lead_to_what_is_there() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (page, text) in documents() {
        for target in links(&prose(&text)) {
            seen += 1;
            if !leads(&page, &text, target) {
                wrong.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
    assert!(seen > 50, "the documents have many links, and {seen} were seen");
}

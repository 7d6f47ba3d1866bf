//! Tables for a reader.

use std::fmt::Write;

use crate::cells::align;
use crate::goals::Finding;
use crate::Section;

/// A section: subjects down, measures across, medians, and ratios against the baseline below them.
pub fn section(section: &Section) -> String {
    titled(section, &format!("{}, medians", section.unit))
}

/// A section of figures of one round each.
pub fn single(section: &Section) -> String {
    titled(section, &section.unit)
}

fn titled(section: &Section, unit: &str) -> String {
    if let Some(table) = &section.table {
        return format!("\n{}\n{}", section.title, table.show());
    }
    let mut out = format!("\n{} [{unit}]\n", section.title);
    let measures = section.measures();
    let mut rows = vec![header(&measures)];
    for subject in section.subjects() {
        rows.push(row(subject, &measures, |m| section.get(subject, m).map(|s| number(s.median))));
    }
    if let Some(base) = section.baseline.as_deref().filter(|b| section.subjects().contains(b)) {
        rows.push(Vec::new());
        rows.push(vec![format!("times as fast as {base}")]);
        for subject in section.subjects().into_iter().filter(|s| *s != base) {
            rows.push(row(subject, &measures, |m| section.factor(m, subject, base).ok().map(|r| format!("{r:.2} x"))));
        }
    }
    out.push_str(&align(&rows));
    for of_one_reason in section.skipped.chunk_by(|a, b| a.reason == b.reason) {
        let names: Vec<&str> = of_one_reason.iter().map(|s| &*s.subject).collect();
        let _ = writeln!(out, "  skipped {}: {}", names.join(", "), of_one_reason[0].reason);
    }
    for note in &section.notes {
        let _ = writeln!(out, "  {note}");
    }
    out
}

/// The table of goals.
pub fn findings(findings: &[Finding], quick: bool) -> String {
    let mut rows =
        vec![["what", "medium", "measured", "result", "at least", "aim", "verdict"].map(String::from).to_vec()];
    for f in findings {
        let doubt = if f.is_hidden() { ", within the spread" } else { "" };
        rows.push(vec![
            f.what.clone(),
            f.medium.to_string(),
            f.measured.clone(),
            f.result(),
            f.goal.show(f.goal.required),
            f.goal.show(f.goal.aim),
            format!("{}{doubt}", f.verdict.word()),
        ]);
    }
    let mut out = String::from("\nNumbers to reach\n");
    out.push_str(&align(&rows));
    let mut reasons: Vec<&String> = findings.iter().filter_map(|f| f.reason.as_ref()).collect();
    reasons.dedup();
    for reason in reasons {
        let _ = writeln!(out, "  skipped: {reason}");
    }
    if quick {
        out.push_str("  --quick: reduced sizes, few rounds; the verdicts mean little\n");
    }
    out
}

fn header(measures: &[&str]) -> Vec<String> {
    std::iter::once(String::new()).chain(measures.iter().map(|m| (*m).to_owned())).collect()
}

fn row(subject: &str, measures: &[&str], cell: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let cells = measures.iter().map(|m| cell(m).unwrap_or_else(|| "-".into()));
    std::iter::once(subject.to_owned()).chain(cells).collect()
}

fn number(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::Table;
    use crate::goals::Goal;

    #[test]
    fn a_section_shows_medians_factors_and_what_was_skipped() {
        let mut s = Section::times("t", "Small files", "us/op");
        s.baseline = Some("tmpfs".into());
        s.add("tmpfs", "create", 8.0);
        s.add("conquest", "create", 0.5);
        s.fail("ext4", "no root".into());
        let text = section(&s);
        assert!(text.contains("16.00 x"), "{text}");
        assert!(text.contains("skipped ext4: FAILED: no root"), "{text}");
    }

    #[test]
    fn a_table_of_texts_is_aligned() {
        let mut table = Table::new(&["what", "how many"]);
        table.row(["a".into(), "1".into()]);
        assert_eq!(section(&Section::of_table("t", "Title", table)), "\nTitle\n  what  how many\n  a            1\n");
    }

    #[test]
    fn a_finding_shows_its_bounds() {
        let f = Finding::judge(
            conquest::MediumKind::Logged,
            "create",
            Goal::factor(8.0, 15.0),
            "0.5 / 8 us".into(),
            Ok(16.0),
        );
        let text = findings(&[f], false);
        assert!(text.contains(">= 8 x") && text.contains(">= 15 x") && text.contains("aim reached"), "{text}");
    }
}

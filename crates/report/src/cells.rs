//! Cells of text in rows and columns: aligned for a terminal, or for a page.

use std::borrow::Cow;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// A table of texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    pub columns: Vec<Cow<'static, str>>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[&'static str]) -> Table {
        Table { columns: columns.iter().map(|column| Cow::Borrowed(*column)).collect(), rows: Vec::new() }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    pub fn show(&self) -> String {
        let columns = self.columns.iter().map(|column| column.to_string()).collect();
        align(&std::iter::once(columns).chain(self.rows.iter().cloned()).collect::<Vec<_>>())
    }
}

/// A table of a page, with an empty line after it.
pub fn markdown(table: &Table) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let heads: Vec<String> = table.columns.iter().map(|column| column.to_string()).collect();
    let rule: Vec<String> = heads.iter().map(|_| "---".into()).collect();
    let rows: String = table.rows.iter().map(|row| line(row)).collect();
    line(&heads) + &line(&rule) + &rows + "\n"
}

/// Columns as wide as their widest cell, the first to the left, the others to the right. Rows of one cell
/// are headings and do not count.
pub fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        let cells = rows.iter().filter(|r| r.len() > 1).filter_map(|r| r.get(c));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for cells in rows {
        let mut line = String::from("  ");
        for (c, cell) in cells.iter().enumerate() {
            let pad = widths[c].saturating_sub(cell.chars().count());
            let _ = match c {
                0 => write!(line, "{cell}{}", " ".repeat(pad)),
                _ => write!(line, "  {}{cell}", " ".repeat(pad)),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

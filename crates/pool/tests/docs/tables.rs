//! The tables of a page in `docs`, for the tests that compare them with the code.

use std::collections::HashMap;

/// A page, taken apart.
pub struct Page {
    pub text: String,
    structures: HashMap<String, Structure>,
    constants: HashMap<String, u64>,
    tables: Vec<Table>,
}

/// A table with the caption ``**`Name`**, N bytes`` (fields in bytes) or ``**`Name`**, a word`` (in bits).
#[derive(Clone, Debug, Default)]
pub struct Structure {
    pub size: u64,
    /// Name, position, size.
    pub fields: Vec<(String, u64, u64)>,
}

#[derive(Clone, Debug, Default)]
pub struct Table {
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

pub fn number(text: &str) -> u64 {
    let text = text.trim().trim_matches('`');
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .unwrap_or_else(|_| panic!("`{text}` is no number"))
}

fn cells(line: &str) -> Vec<String> {
    line.trim().trim_matches('|').split('|').map(|c| c.trim().to_string()).collect()
}

fn bare(cell: &str) -> String {
    cell.trim_matches('`').to_string()
}

impl Page {
    pub fn open(name: &str) -> Page {
        let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut page = Page { structures: HashMap::new(), constants: HashMap::new(), tables: tables(&text), text };
        page.collect_constants();
        page.collect_structures();
        page
    }

    fn collect_constants(&mut self) {
        let rows = self.tables.iter().filter(|t| t.header == ["constant", "value", "meaning"]).flat_map(|t| &t.rows);
        for row in rows {
            let known = self.constants.insert(bare(&row[0]), number(&row[1]));
            assert!(known.is_none(), "{} is documented twice", row[0]);
        }
    }

    fn collect_structures(&mut self) {
        let mut caption: Option<(String, u64)> = None;
        let mut lines = self.text.lines().peekable();
        while let Some(line) = lines.next() {
            if let Some((name, rest)) = line.strip_prefix("**`").and_then(|l| l.split_once("`**, ")) {
                let size = if rest == "a word" { 64 } else { number(rest.split(' ').next().unwrap_or("")) };
                caption = Some((name.into(), size));
            }
            let is_fields = line.starts_with("| offset | bytes |") || line.starts_with("| bit | bits |");
            if let (true, Some((name, size))) = (is_fields, &caption) {
                let mut s = Structure { size: *size, fields: Vec::new() };
                lines.next();
                while let Some(row) = lines.next_if(|l| l.starts_with('|')) {
                    let row = cells(row);
                    s.fields.push((bare(&row[2]), number(&row[0]), number(&row[1])));
                }
                s.check(name);
                self.structures.insert(name.clone(), s);
                caption = None;
            }
        }
    }

    pub fn constant(&self, name: &str) -> u64 {
        *self.constants.get(name).unwrap_or_else(|| panic!("no constant `{name}`"))
    }

    pub fn constant_names(&self) -> Vec<&str> {
        self.constants.keys().map(String::as_str).collect()
    }

    pub fn structure(&self, name: &str) -> &Structure {
        self.structures.get(name).unwrap_or_else(|| panic!("no structure `{name}`"))
    }

    /// The rows of the table with this header.
    pub fn rows(&self, header: &[&str]) -> &[Vec<String>] {
        let found = self.tables.iter().find(|t| t.header == header);
        &found.unwrap_or_else(|| panic!("no table {header:?}")).rows
    }
}

impl Structure {
    /// The fields follow one another without gap and fill the structure.
    fn check(&self, name: &str) {
        let end = self.fields.iter().fold(0, |at, (field, offset, size)| {
            assert_eq!(*offset, at, "{name}.{field} begins where the field before ends");
            at + size
        });
        assert_eq!(end, self.size, "the fields of {name} fill it");
    }

    /// The position and size of a field.
    pub fn field(&self, name: &str) -> (u64, u64) {
        let found = self.fields.iter().find(|(n, ..)| n == name);
        found.map(|(_, offset, size)| (*offset, *size)).unwrap_or_else(|| panic!("no field `{name}`"))
    }

    /// A field of a word.
    pub fn bits(&self, word: u64, name: &str) -> u64 {
        let (from, count) = self.field(name);
        word >> from & (u64::MAX >> (64 - count))
    }
}

fn tables(text: &str) -> Vec<Table> {
    let mut tables = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with('|') && lines.peek().is_some_and(|l| l.starts_with("| ---")) {
            lines.next();
            let mut table = Table { header: cells(line), rows: Vec::new() };
            while let Some(row) = lines.next_if(|l| l.starts_with('|')) {
                table.rows.push(cells(row));
            }
            tables.push(table);
        }
    }
    tables
}

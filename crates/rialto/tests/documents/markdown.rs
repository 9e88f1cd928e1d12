//! As much Markdown as the documents use: fenced blocks, tables, links, headings.

use std::collections::BTreeSet;

/// A table and the heading it stands under.
pub(crate) struct Table {
    pub(crate) heading: String,
    columns: Vec<String>,
    cells: Vec<Vec<String>>,
}

pub(crate) struct Row<'a> {
    columns: &'a [String],
    cells: &'a [String],
}

impl Table {
    pub(crate) fn has(&self, column: &str) -> bool {
        self.columns.iter().any(|name| name == column)
    }

    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        let rows = self.cells.iter();
        rows.map(|cells| Row {
            columns: &self.columns,
            cells,
        })
        .collect()
    }

    /// All that stands between backticks in a column.
    pub(crate) fn codes(&self, column: &str) -> Vec<String> {
        let rows = self.rows();
        rows.iter().flat_map(|row| codes(row.cell(column))).collect()
    }
}

impl<'a> Row<'a> {
    pub(crate) fn cell(&self, column: &str) -> &'a str {
        let index = self.columns.iter().position(|name| name == column);
        let index = index.unwrap_or_else(|| panic!("no column {column}"));
        self.cells.get(index).map_or("", String::as_str)
    }
}

pub(crate) fn tables(document: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let (mut heading, mut inside) = (String::new(), false);
    for line in prose(document) {
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim().to_owned();
        }
        if !line.starts_with('|') {
            inside = false;
        } else if !inside {
            inside = true;
            tables.push(Table {
                heading: heading.clone(),
                columns: cells(line),
                cells: Vec::new(),
            });
        } else if let Some(table) = tables.last_mut() {
            let cells = cells(line);
            assert_eq!(
                cells.len(),
                table.columns.len(),
                "a row with too many or too few cells: {line}"
            );
            // The line under the head is none of the rows, but where its cells are not as many
            // there is no table at all.
            if !line.starts_with("|---") {
                table.cells.push(cells);
            }
        }
    }
    tables
}

/// The blocks fenced as this language.
pub(crate) fn blocks(document: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in document.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some((info == language, String::new())),
            (Some(_), Some(_)) => {
                if let Some((true, text)) = open.take() {
                    blocks.push(text);
                }
            }
            (Some((_, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

pub(crate) fn codes(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Where the links lead, but for those that leave the repository.
pub(crate) fn links(document: &str) -> Vec<String> {
    let lines = prose(document).collect::<Vec<_>>().join("\n");
    let targets = lines
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://"))
        .map(str::to_owned)
        .collect()
}

/// The anchors that a forge makes of headings.
pub(crate) fn anchors(document: &str) -> BTreeSet<String> {
    let headings = prose(document).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let text = line.trim_start_matches('#').trim().to_lowercase();
            let kept = text
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// The lines outside of fenced blocks.
fn prose(document: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    document.lines().filter(move |line| {
        let fence = line.starts_with("```");
        fenced ^= fence;
        !fence && !fenced
    })
}

fn cells(line: &str) -> Vec<String> {
    // A bar that was escaped is one of the text's.
    const BAR: &str = "\u{0}";
    let line = line.trim().replace("\\|", BAR);
    let inner = line.trim_start_matches('|').trim_end_matches('|');
    let cells = inner.split('|').map(|cell| cell.trim().replace(BAR, "|"));
    cells.collect()
}

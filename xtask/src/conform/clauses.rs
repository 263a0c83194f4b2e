//! The clause list: sections of `| id | clause | observed by | kind | source |` rows.

/// One testable statement.
pub(super) struct Clause {
    pub(super) id: String,
    pub(super) text: String,
    pub(super) kind: String,
}

/// The clauses under one heading.
pub(super) struct Section {
    pub(super) title: String,
    pub(super) clauses: Vec<Clause>,
}

/// The heading where the list ends and its statistics begin.
const END: &str = "# Count of clauses";

/// Reads the list; omits headings without clauses.
pub(super) fn parse(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines().take_while(|line| *line != END) {
        if let Some(title) = line.strip_prefix("## ").or_else(|| line.strip_prefix("# ")) {
            sections.push(Section {
                title: title.trim().to_owned(),
                clauses: Vec::new(),
            });
        } else if let (Some(clause), Some(section)) = (row(line), sections.last_mut()) {
            section.clauses.push(clause);
        }
    }
    sections.retain(|section| !section.clauses.is_empty());
    sections
}

fn row(line: &str) -> Option<Clause> {
    let cells = cells(line)?;
    let [id, text, _, kind, ..] = &cells[..] else {
        return None;
    };
    is_id(id).then(|| Clause {
        id: id.clone(),
        text: text.clone(),
        kind: kind.clone(),
    })
}

/// The cells of a table row; `\|` inside a cell is not a border and stays unchanged.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let mut cells = vec![String::new()];
    let mut escaped = false;
    for character in inner.chars() {
        if character == '|' && !escaped {
            cells.push(String::new());
        } else if let Some(cell) = cells.last_mut() {
            cell.push(character);
        }
        escaped = character == '\\' && !escaped;
    }
    Some(
        cells
            .into_iter()
            .map(|cell| cell.trim().to_owned())
            .collect(),
    )
}

/// Whether this is the id of a clause, such as `FI-001`, `VB-I23` or `X-08`.
pub(super) fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(family, number)| {
        let digits = number.strip_prefix('I').unwrap_or(number);
        matches!(family, "FI" | "VB" | "DA" | "X")
            && digits.len() >= 2
            && digits.bytes().all(|b| b.is_ascii_digit())
    })
}

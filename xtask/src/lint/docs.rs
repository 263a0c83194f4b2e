//! Checks that everything a reader needs exists: the documents, a paragraph at the top of each source file, and manifests
//! that describe the crates.

use super::Finding;
use crate::source::{Tree, code_without_tests};

const DOCUMENTS: &[&str] = &[
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "docs/architecture.md",
    "docs/conformance.md",
    "docs/spec/clauses.md",
    ".ci/run",
];

/// Checks that every document in `DOCUMENTS` exists and is not empty.
pub(super) fn documents(tree: &Tree) -> Vec<Finding> {
    let missing = |path: &&&str| {
        tree.get(path)
            .is_none_or(|file| file.text.trim().is_empty())
    };
    DOCUMENTS
        .iter()
        .filter(missing)
        .map(|path| Finding::of("documents", *path, "is missing or empty"))
        .collect()
}

/// Checks that each source file opens with a `//!` paragraph for a newcomer.
pub(super) fn headers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        // Samples of programs that must not compile are read together with their error messages.
        if file.path.contains("/compile-fail/") || file.path.contains("/ui/") {
            continue;
        }
        let first = file
            .text
            .lines()
            .find(|line| !line.trim().is_empty() && !line.starts_with("#!"));
        if !first.is_some_and(|line| line.starts_with("//!") && line.len() > 10) {
            findings.push(Finding::at(
                "headers",
                &file.path,
                1,
                "open the file with a `//!` paragraph: what it is for",
            ));
        }
    }
    findings
}

/// Checks that a table of modules at the top of a file lists every module of the file, and no others.
pub(super) fn tables(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let head: Vec<&str> = file
            .text
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .collect();
        let Some(start) = head
            .iter()
            .position(|line| line.starts_with("//! | module |"))
        else {
            continue;
        };
        let modules = modules(&code_without_tests(&file.text));
        let rows = &head[start..];
        let first_cell = |row: &&str| row.split('|').nth(1).map(quoted).unwrap_or_default();
        let listed: Vec<String> = rows.iter().flat_map(first_cell).collect();
        let named: Vec<String> = rows.iter().flat_map(|row| quoted(row)).collect();
        for (name, _) in modules
            .iter()
            .filter(|(name, shown)| *shown && !named.contains(name))
        {
            let message = format!("the table of modules lacks `{name}`");
            findings.push(Finding::at("tables", &file.path, start + 1, message));
        }
        for name in listed
            .iter()
            .filter(|name| !modules.iter().any(|(module, _)| module == *name))
        {
            let message =
                format!("the table of modules has `{name}`, which is not a module of this file");
            findings.push(Finding::at("tables", &file.path, start + 1, message));
        }
    }
    findings
}

/// The modules that `code` declares, and whether they are neither hidden nor conditional.
fn modules(code: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let mut is_hidden = false;
    for line in code.lines().filter(|line| !line.trim().is_empty()) {
        let declared = line
            .strip_prefix("pub(crate) ")
            .or_else(|| line.strip_prefix("pub "))
            .unwrap_or(line);
        let name = declared
            .strip_prefix("mod ")
            .and_then(|rest| rest.strip_suffix(';'));
        found.extend(name.map(|name| (name.to_owned(), !is_hidden)));
        is_hidden = line.starts_with("#[cfg(") || line.starts_with("#[doc(hidden)]");
    }
    found
}

/// The words in backticks, as links or not.
fn quoted(text: &str) -> Vec<String> {
    let words = text.split('`').skip(1).step_by(2);
    words
        .map(|word| word.trim_start_matches("mod@").to_owned())
        .collect()
}

/// Each crate describes itself and uses the workspace's lints.
pub(super) fn manifests(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let own = |path: &str| !path.starts_with("fuzz/") && !path.starts_with("tools/");
    for file in tree
        .files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml") && own(&file.path))
    {
        for wanted in [
            "description = ",
            "license.workspace = true",
            "[lints]\nworkspace = true",
        ] {
            if !file.text.contains(wanted) {
                findings.push(Finding::of(
                    "manifests",
                    &file.path,
                    format!("has no `{}`", wanted.replace('\n', " ")),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_document_is_found() {
        let found = documents(&Tree::of(&[("README.md", "text"), ("CHANGELOG.md", " \n")]));
        assert_eq!(found.len(), DOCUMENTS.len() - 1);
    }

    #[test]
    fn a_file_without_a_header_comment_is_found() {
        assert_eq!(headers(&Tree::of(&[("a.rs", "fn f() {}")])).len(), 1);
        assert_eq!(
            headers(&Tree::of(&[(
                "a.rs",
                "//! What this file is for.\nfn f() {}"
            )]))
            .len(),
            0
        );
    }

    #[test]
    fn a_table_that_differs_from_the_modules_is_found() {
        let found = |rows: &str, code: &str| {
            let text = format!("//! Head.\n//!\n//! | module | what it is |\n{rows}\n\n{code}");
            tables(&Tree::of(&[("a.rs", &text)])).len()
        };
        let rows = "//! | [`a`], [`mod@b`] | both |\n//! | `c` | with `d` |";
        let code = "mod a;\npub mod b;\npub(crate) mod c;\nmod d;\n";
        assert_eq!(found(rows, code), 0);
        assert_eq!(found(rows, &format!("{code}mod e;\n")), 1);
        assert_eq!(found(rows, &format!("{code}#[cfg(test)]\nmod e;\n")), 0);
        assert_eq!(
            found(
                rows,
                &code.replace("pub(crate) mod c", "#[cfg(unix)]\npub(crate) mod c")
            ),
            0
        );
        assert_eq!(found(rows, "mod b;\nmod c;\nmod d;\n"), 1);
        assert_eq!(
            tables(&Tree::of(&[("a.rs", "//! Head.\n\nmod a;\n")])).len(),
            0
        );
    }

    #[test]
    fn a_manifest_without_the_required_fields_is_found() {
        assert_eq!(
            manifests(&Tree::of(&[(
                "crates/a/Cargo.toml",
                "[package]\nname = \"a\""
            )]))
            .len(),
            3
        );
        let good = "description = \"d\"\nlicense.workspace = true\n[lints]\nworkspace = true\n";
        assert_eq!(
            manifests(&Tree::of(&[("crates/a/Cargo.toml", good)])).len(),
            0
        );
    }
}

//! Checks that everything that a reader needs exists: the documents, a paragraph at the head of each source file, and
//! manifests that describe the crates.

use super::Finding;
use crate::source::Tree;

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

/// The documents that the project promises.
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

/// Each source file opens with a `//!` paragraph for a newcomer.
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
    fn a_file_without_a_paragraph_is_found() {
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
    fn a_bare_manifest_is_found() {
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

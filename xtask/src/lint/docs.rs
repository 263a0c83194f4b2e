//! What a reader needs is there: the documents, a paragraph at the head of each source file, links
//! that lead somewhere, manifests that say what a crate is.

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
        // Samples of programs that must not compile are read beside the message they give.
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
        if file.text.contains(concat!("//! (being ", "written)")) {
            findings.push(Finding::at(
                "headers",
                &file.path,
                1,
                "the file's paragraph is a placeholder",
            ));
        }
    }
    findings
}

/// Relative links in documents point at files that exist.
pub(super) fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (index, line) in file.text.lines().enumerate() {
            for target in targets(line) {
                if !resolves(tree, &file.path, target) {
                    let message = format!("link to `{target}`, which does not exist");
                    findings.push(Finding::at("links", &file.path, index + 1, message));
                }
            }
        }
    }
    findings
}

/// The relative targets of `](target)` in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|target| {
            !target.is_empty()
                && !target.starts_with('#')
                && !target.contains("://")
                && !target.starts_with("mailto:")
        })
}

fn resolves(tree: &Tree, from: &str, target: &str) -> bool {
    let target = target
        .split(['#', ' '])
        .next()
        .unwrap_or(target)
        .trim_end_matches('/');
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return false;
                }
            }
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    let folder = format!("{path}/");
    let known = tree
        .files
        .iter()
        .any(|file| file.path == path || file.path.starts_with(&folder));
    known
        || path.is_empty()
        || path.ends_with(".svg")
        || path.ends_with(".png")
        || path.ends_with(".json")
}

/// Each crate says what it is and takes the workspace's lints.
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
            headers(&Tree::of(&[("a.rs", concat!("//! (being ", "written)\n"))])).len(),
            1
        );
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
    fn a_dead_link_is_found() {
        let tree = |target: &str| {
            let text = format!("see [it]({target}) and [web](https://example.org/x)");
            Tree::of(&[("docs/a.md", &text), ("README.md", "r"), ("docs/b.md", "b")])
        };
        assert_eq!(links(&tree("c.md")).len(), 1);
        assert_eq!(links(&tree("../../README.md")).len(), 1);
        for good in ["b.md", "b.md#part", "../README.md", "../docs", "#here"] {
            assert_eq!(links(&tree(good)).len(), 0, "{good}");
        }
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

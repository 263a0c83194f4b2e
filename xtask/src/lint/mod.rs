//! The rules that protect the project's structure. Each rule is a function from the tree to findings, with a sample
//! below it that it must reject.

mod calls;
mod circles;
#[cfg(test)]
mod clippy;
mod docs;
mod layers;
mod links;
mod roots;
mod size;
mod unsafety;
mod words;

use crate::source::Tree;
use anyhow::Result;
use std::path::Path;

/// One violation of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The rule's name.
    pub(crate) rule: &'static str,
    /// The location: `path:line`, or a crate.
    pub(crate) place: String,
    /// What is wrong and what to do.
    pub(crate) message: String,
}

impl Finding {
    fn at(rule: &'static str, path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            rule,
            place: format!("{path}:{line}"),
            message: message.into(),
        }
    }

    fn of(rule: &'static str, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            rule,
            place: place.into(),
            message: message.into(),
        }
    }
}

/// Crates that do no I/O, start no thread, read no clock and contain no unsafe code.
const SANS_IO: &[&str] = &[
    "crates/cm/src/",
    "crates/core/src/",
    "crates/engine/src/",
    "crates/rdm/src/",
    "crates/roce/src/",
];

type Rule = (&'static str, fn(&Tree) -> Vec<Finding>);

const RULES: &[Rule] = &[
    ("leftovers", words::leftovers),
    ("paths", words::paths),
    ("dialect", words::dialect),
    ("unsafety", unsafety::reasons),
    ("roots", roots::roots),
    ("size", size::files),
    ("circles", circles::rooms),
    ("reexports", layers::reexports),
    ("named once", layers::named_once),
    ("calls", calls::named),
    ("headers", docs::headers),
    ("tables", docs::tables),
    ("documents", docs::documents),
    ("links", links::links),
    ("manifests", docs::manifests),
];

/// Runs every rule; returns true if nothing was found.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let tree = Tree::read(root)?;
    let mut findings = layers::check(root, &tree)?;
    println!("lint {:<10} {}", "layers", verdict(findings.len()));
    for (name, rule) in RULES {
        let found = rule(&tree);
        println!("lint {name:<10} {}", verdict(found.len()));
        findings.extend(found);
    }
    for finding in &findings {
        println!(
            "error[{}]: {}: {}",
            finding.rule, finding.place, finding.message
        );
    }
    println!(
        "lint: {} files, {} rules, {} findings",
        tree.files.len(),
        RULES.len() + 1,
        findings.len()
    );
    Ok(findings.is_empty())
}

fn verdict(count: usize) -> String {
    if count == 0 {
        "ok".to_owned()
    } else {
        format!("{count} findings")
    }
}

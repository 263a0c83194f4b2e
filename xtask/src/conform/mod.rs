//! `cargo xtask conform`: which clause of the four documents is shown by which test. A clause that no
//! test shows is listed as open, with the reason; it is never left out.

mod clauses;
mod proofs;
mod reasons;
mod render;

use crate::source::Tree;
use crate::testbin::{self, Listed};
use anyhow::{Context, Result};
use clauses::Section;
use proofs::Proof;
use std::collections::BTreeSet;
use std::path::Path;

const CLAUSES: &str = "docs/spec/clauses.md";
const TABLE: &str = "docs/conformance.md";

/// Options of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Changes nothing; fails when the table is out of date or a cited test is not run.
    #[arg(long)]
    check: bool,
}

impl Args {
    /// As `cargo xtask conform --check`.
    pub(crate) fn checking() -> Self {
        Self { check: true }
    }
}

/// Writes or checks the table.
pub(crate) fn run(root: &Path, args: &Args) -> Result<bool> {
    let tree = Tree::read(root)?;
    let clauses = &tree
        .get(CLAUSES)
        .with_context(|| format!("{CLAUSES} is missing"))?
        .text;
    let sections = clauses::parse(clauses);
    let proofs = proofs::find(&tree);
    let mut problems = unknown(&sections, &proofs);
    problems.extend(shown_after_all(&proofs));
    if args.check {
        let built = testbin::build_tests(root)?;
        problems.extend(not_run(&proofs, &testbin::list(&built.tests)?));
    }
    let table = render::table(&sections, &proofs);
    if args.check {
        if tree.get(TABLE).map(|file| file.text.as_str()) != Some(table.as_str()) {
            problems.push(format!("{TABLE} is out of date: run `cargo xtask conform`"));
        }
    } else {
        std::fs::write(root.join(TABLE), &table).with_context(|| TABLE.to_owned())?;
    }
    for problem in &problems {
        println!("error[conform]: {problem}");
    }
    let total: usize = sections.iter().map(|s| s.clauses.len()).sum();
    let shown = shown_ids(&sections, &proofs);
    println!(
        "conform: {total} clauses, {} cited by {} tests, {} open",
        shown,
        proofs.len(),
        total - shown
    );
    Ok(problems.is_empty())
}

fn shown_ids(sections: &[Section], proofs: &[Proof]) -> usize {
    let cited: BTreeSet<&str> = proofs
        .iter()
        .flat_map(|p| p.ids.iter().map(String::as_str))
        .collect();
    sections
        .iter()
        .flat_map(|s| &s.clauses)
        .filter(|c| cited.contains(c.id.as_str()))
        .count()
}

/// Citations of ids that the clause list does not have.
fn unknown(sections: &[Section], proofs: &[Proof]) -> Vec<String> {
    let known: BTreeSet<&str> = sections
        .iter()
        .flat_map(|s| s.clauses.iter().map(|c| c.id.as_str()))
        .collect();
    let mut problems = Vec::new();
    for proof in proofs {
        for id in proof.ids.iter().filter(|id| !known.contains(id.as_str())) {
            problems.push(format!(
                "{}: cites {id}, which {CLAUSES} does not have",
                proof.place
            ));
        }
        if proof.test.is_none() {
            problems.push(format!(
                "{}: a `Proves:` line that stands above no test",
                proof.place
            ));
        }
    }
    problems
}

/// Clauses that are said to be open for a reason, while a test shows them.
fn shown_after_all(proofs: &[Proof]) -> Vec<String> {
    let cited: BTreeSet<&str> = proofs
        .iter()
        .flat_map(|proof| proof.ids.iter().map(String::as_str))
        .collect();
    reasons::explained()
        .filter(|id| cited.contains(id))
        .map(|id| {
            format!("{id} has a reason for being open (xtask/src/conform/reasons.rs), and a test")
        })
        .collect()
}

/// Cited tests that an ordinary run does not execute.
fn not_run(proofs: &[Proof], listed: &[Listed]) -> Vec<String> {
    let runs = |package: &str, test: &str| {
        let suffix = format!("::{test}");
        listed.iter().any(|l| {
            !l.ignored && l.package == package && (l.name == test || l.name.ends_with(&suffix))
        })
    };
    let mut problems = Vec::new();
    for proof in proofs.iter().filter(|proof| !proof.of_stage) {
        if let Some(test) = proof
            .test
            .as_deref()
            .filter(|test| !runs(&proof.package, test))
        {
            problems.push(format!(
                "{}: {test} is not among the tests of {} that run",
                proof.place, proof.package
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAUSES: &str = "# VB: verbs\n\n## VB 1. Keys\n\n| id | clause | observed by | kind | source |\n|---|---|---|---|---|\n\
        | VB-001 | A \\| B | look | MUST | 001 |\n| VB-002 | C | look | MAY | 001 |\n# Count of clauses\n| VB-009 | no | | | |\n";

    fn sample(test: &str) -> (Vec<Section>, Vec<Proof>) {
        let tree = Tree::of(&[
            (
                "crates/core/Cargo.toml",
                "[package]\nname = \"rkey-core\"\n",
            ),
            ("crates/core/src/a.rs", test),
        ]);
        (clauses::parse(CLAUSES), proofs::find(&tree))
    }

    #[test]
    fn the_list_ends_where_the_counts_begin() {
        let (sections, _) = sample("");
        let ids: Vec<&str> = sections
            .iter()
            .flat_map(|s| s.clauses.iter().map(|c| c.id.as_str()))
            .collect();
        assert_eq!(ids, ["VB-001", "VB-002"]);
    }

    #[test]
    fn an_open_clause_is_shown_as_open() {
        let (sections, proofs) = sample("/// Proves: VB-001\n#[test]\nfn keys_differ() {}\n");
        let table = render::table(&sections, &proofs);
        assert!(
            table.contains("| VB-001 | MUST | A \\| B | rule: `rkey-core`: `keys_differ` |"),
            "{table}"
        );
        assert!(table.contains("| VB-002 | MAY | C | open |"), "{table}");
        assert_eq!(shown_ids(&sections, &proofs), 1);
    }

    #[test]
    fn only_a_test_of_the_front_end_shows_a_clause() {
        let test = "/// Proves: VB-001\n#[test]\nfn a() {}\n";
        let tree = Tree::of(&[
            ("abi/verbs/tests/a.rs", test),
            ("abi/verbs/Cargo.toml", "name = \"rkey-verbs\"\n"),
        ]);
        let table = render::table(&clauses::parse(CLAUSES), &proofs::find(&tree));
        assert!(table.contains("shown: `rkey-verbs`: `a`"), "{table}");
    }

    #[test]
    fn a_check_in_c_shows_its_clauses() {
        let check = "CHECK(keys, \"VB-001 VB-002\", \"keys differ\",\n      .needs = 1) {\n}\n";
        let tree = Tree::of(&[("abi/fabric/tests/clauses/a.c", check)]);
        let proofs = proofs::find(&tree);
        let table = render::table(&clauses::parse(CLAUSES), &proofs);
        assert!(table.contains("shown: `stage fabric`: `keys`"), "{table}");
        assert_eq!(not_run(&proofs, &[]), Vec::<String>::new());
    }

    #[test]
    fn a_citation_of_nothing_is_a_problem() {
        let (sections, proofs) = sample(
            "/// Proves: VB-077\n#[test]\nfn a() {}\n\n/// Proves: VB-001\nstruct NoTest;\n",
        );
        let problems = unknown(&sections, &proofs);
        assert_eq!(problems.len(), 2, "{problems:?}");
    }

    #[test]
    fn a_cited_test_must_run() {
        let (_, proofs) = sample("/// Proves: VB-001\n#[test]\nfn a() {}\n");
        let listed = |name: &str, ignored| Listed {
            package: "rkey-core".into(),
            name: name.into(),
            ignored,
        };
        assert_eq!(
            not_run(&proofs, &[listed("x::a", false)]),
            Vec::<String>::new()
        );
        assert_eq!(not_run(&proofs, &[listed("x::a", true)]).len(), 1);
        assert_eq!(not_run(&proofs, &[listed("x::b", false)]).len(), 1);
    }
}

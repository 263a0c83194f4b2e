//! `cargo xtask conform`: which tests prove which clauses of the four documents. A clause that no test proves is listed as
//! open, with the reason; it is never omitted.

mod clauses;
mod proofs;
mod reasons;
mod render;
mod state;

use crate::source::Tree;
use crate::testbin::{self, Listed};
use anyhow::{Context, Result};
use clauses::Section;
use proofs::Proof;
use state::Evidence;
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
    /// Like `cargo xtask conform --check`.
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
    let evidence = Evidence::of(&proofs);
    problems.extend(evidence.contradictions(&sections));
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
        std::fs::write(root.join(TABLE), &table)
            .with_context(|| format!("cannot write {TABLE}"))?;
    }
    for problem in &problems {
        println!("error[conform]: {problem}");
    }
    let ids = sections
        .iter()
        .flat_map(|s| &s.clauses)
        .map(|c| c.id.as_str());
    let counts: Vec<String> = evidence
        .counts(ids)
        .iter()
        .map(|(state, count)| format!("{count} {}", state.name()))
        .collect();
    println!(
        "conform: {} tests cite clauses: {}",
        proofs.len(),
        counts.join(", ")
    );
    Ok(problems.is_empty())
}

/// Citations of ids that the clause list does not have.
fn unknown(sections: &[Section], proofs: &[Proof]) -> Vec<String> {
    let known: BTreeSet<&str> = sections
        .iter()
        .flat_map(|s| s.clauses.iter().map(|c| c.id.as_str()))
        .collect();
    let mut problems = Vec::new();
    for proof in proofs {
        if let Some(problem) = &proof.problem {
            problems.push(format!("{}: {problem}", proof.place));
        }
        for id in proof.ids().filter(|id| !known.contains(id)) {
            problems.push(format!(
                "{}: cites {id}, which {CLAUSES} does not have",
                proof.place
            ));
        }
        if proof.test.is_none() {
            problems.push(format!(
                "{}: no test follows this `Proves:` line",
                proof.place
            ));
        }
    }
    problems
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
                "{}: the suite does not run the cited test {test} of {}",
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
    fn the_list_of_clauses_ends_where_the_counts_begin() {
        let (sections, _) = sample("");
        let ids: Vec<&str> = sections
            .iter()
            .flat_map(|s| s.clauses.iter().map(|c| c.id.as_str()))
            .collect();
        assert_eq!(ids, ["VB-001", "VB-002"]);
    }

    #[test]
    fn an_open_clause_is_listed_as_open() {
        let (sections, proofs) = sample("/// Proves: VB-001\n#[test]\nfn keys_differ() {}\n");
        let table = render::table(&sections, &proofs);
        assert!(
            table.contains("| VB-001 | MUST | A \\| B | rule: `rkey-core`: `keys_differ` |"),
            "{table}"
        );
        assert!(table.contains("| VB-002 | MAY | C | open |"), "{table}");
    }

    /// The sentences of sections and the totals count the same states as the rows.
    #[test]
    fn a_sections_summary_matches_its_rows() {
        let (sections, proofs) = sample("/// Proves: VB-001\n#[test]\nfn keys_differ() {}\n");
        let table = render::table(&sections, &proofs);
        assert!(
            table.contains(
                "2 clauses: 1 rule, 1 open. An open clause without a reason has no test yet."
            ),
            "{table}"
        );
        let all = "/// Proves: VB-001, VB-002\n#[test]\nfn a() {}\n";
        let (sections, proofs) = sample(all);
        let table = render::table(&sections, &proofs);
        assert!(table.contains("\n2 clauses: 2 rules.\n"), "{table}");
        assert!(
            table.contains("| all | 2 | 0 | 0 | 0 | 2 | 0 | 0 |"),
            "{table}"
        );
    }

    #[test]
    fn partial_and_strict_mode_proofs_have_their_own_states() {
        let tests = "/// Proves in strict mode: VB-001\n/// Proves partly: VB-002 (the error code)\n#[test]\nfn a() {}\n\
            /// Proves partly: VB-001\n#[test]\nfn b() {}\n";
        let below = "/// Proves: VB-002\n#[test]\nfn c() {}\n";
        let tree = Tree::of(&[
            ("abi/verbs/tests/a.rs", tests),
            ("abi/verbs/Cargo.toml", "name = \"rkey-verbs\"\n"),
            ("crates/core/src/a.rs", below),
            ("crates/core/Cargo.toml", "name = \"rkey-core\"\n"),
        ]);
        let table = render::table(&clauses::parse(CLAUSES), &proofs::find(&tree));
        assert!(
            table.contains("| strict: `rkey-verbs`: `a`; partly: `rkey-verbs`: `b` |"),
            "{table}"
        );
        assert!(
            table
                .contains("| rule: `rkey-core`: `c`; partly: `rkey-verbs`: `a` (the error code) |"),
            "{table}"
        );
        assert!(
            table.contains("2 clauses: 1 in strict mode, 1 partly."),
            "{table}"
        );
    }

    #[test]
    fn only_checks_in_c_may_cite_a_clause_that_does_not_apply() {
        let list = "# FI\n\n## FI 1. A\n\n| FI-262 | names | look | MUST | 000 |\n";
        let sections = clauses::parse(list);
        let rust = "/// Proves: FI-262\n#[test]\nfn a() {}\n";
        let check = "CHECK(names, \"FI-262\", \"names\") {\n}\n";
        for (path, text, problems) in [
            ("abi/fabric/tests/a.rs", rust, 1),
            ("abi/fabric/tests/clauses/a.c", check, 0),
        ] {
            let proofs = proofs::find(&Tree::of(&[(path, text)]));
            let found = Evidence::of(&proofs).contradictions(&sections);
            assert_eq!(found.len(), problems, "{found:?}");
            let table = render::table(&sections, &proofs);
            assert!(table.contains("| does not apply: "), "{table}");
            assert!(table.contains("\n1 clause: 1 does not apply.\n"), "{table}");
        }
    }

    #[test]
    fn a_check_in_c_may_prove_a_part_of_a_clause() {
        let check = "CHECK(keys, \"VB-001 partly VB-002\", \"keys differ\") {\n}\n";
        let tree = Tree::of(&[("abi/fabric/tests/clauses/a.c", check)]);
        let table = render::table(&clauses::parse(CLAUSES), &proofs::find(&tree));
        assert!(
            table.contains("| shown: `stage fabric`: `keys` |"),
            "{table}"
        );
        assert!(
            table.contains("| partly: `stage fabric`: `keys` |"),
            "{table}"
        );
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
    fn a_citation_without_clause_or_test_is_a_problem() {
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

//! The conformance table as a document: totals first, then every clause.

use super::clauses::Section;
use super::proofs::Proof;
use super::reasons::{of_clause, of_section};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The whole document.
pub(super) fn table(sections: &[Section], proofs: &[Proof]) -> String {
    let mut by_id: BTreeMap<&str, Vec<&Proof>> = BTreeMap::new();
    for proof in proofs {
        for id in &proof.ids {
            by_id.entry(id).or_default().push(proof);
        }
    }
    let mut out = String::from(HEAD);
    totals(&mut out, sections, &by_id);
    for section in sections {
        let states: Vec<State> = section
            .clauses
            .iter()
            .map(|c| State::of(by_id.get(c.id.as_str())))
            .collect();
        let count = |state| states.iter().filter(|s| **s == state).count();
        let _ = write!(out, "\n## {}\n\n", section.title);
        if count(State::Shown) < states.len() {
            let (all, rules, open) = (states.len(), count(State::Rule), count(State::Open));
            let _ = writeln!(
                out,
                "{all} clauses: {rules} rules, {open} open: {}.\n",
                of_section(&section.title)
            );
        }
        out.push_str("| id | kind | clause | state |\n| --- | --- | --- | --- |\n");
        for clause in &section.clauses {
            let state = by_id
                .get(clause.id.as_str())
                .map_or_else(|| open(&clause.id), |found| shown(found));
            let _ = writeln!(
                out,
                "| {} | {} | {} | {state} |",
                clause.id, clause.kind, clause.text
            );
        }
    }
    out
}

/// How far a clause is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Through the API that it is about.
    Shown,
    /// The rule that it states, below the API.
    Rule,
    /// Not at all.
    Open,
}

impl State {
    fn of(proofs: Option<&Vec<&Proof>>) -> Self {
        match proofs {
            Some(proofs) if proofs.iter().any(|proof| proof.through_api()) => Self::Shown,
            Some(_) => Self::Rule,
            None => Self::Open,
        }
    }
}

const HEAD: &str = "# Conformance\n\n\
    Written by `cargo xtask conform`; do not edit. The clauses are those of [the list](spec/clauses.md): what the manual pages of\n\
    `fi_mr`, `ibv_reg_mr` and `dat_rmr_bind` require, in our words. Tests that run in `cargo xtask test` cite clauses (`/// Proves: ID`);\n\
    so do the checks in C of its stage `fabric`, which run [with other providers](fabric-differences.md) too.\n\n\
    * **shown**: a test shows it through the API that the clause is about.\n\
    * **rule**: tests of the core, the engine or the device show the rule that the clause states. The call, its flags and its error codes\n\
      are not shown; they wait for the front end.\n\
    * **open**: nothing shows it. Where no reason stands beside it, that of its section holds.\n\n";

fn open(id: &str) -> String {
    of_clause(id).map_or_else(|| "open".to_owned(), |reason| format!("open: {reason}"))
}

fn shown(proofs: &[&Proof]) -> String {
    let mut tests: Vec<String> = proofs
        .iter()
        .map(|p| format!("`{}`: `{}`", p.package, p.test.as_deref().unwrap_or("?")))
        .collect();
    tests.sort();
    tests.dedup();
    let word = if proofs.iter().any(|proof| proof.through_api()) {
        "shown"
    } else {
        "rule"
    };
    format!("{word}: {}", tests.join(", "))
}

fn totals(out: &mut String, sections: &[Section], by_id: &BTreeMap<&str, Vec<&Proof>>) {
    out.push_str(
        "| documents | clauses | shown | rule | open |\n| --- | ---: | ---: | ---: | ---: |\n",
    );
    let families = [
        ("libfabric `fi_mr`", "FI-"),
        ("verbs `ibv_reg_mr`", "VB-"),
        ("uDAPL `dat_rmr_bind`", "DA-"),
        ("across the three", "X-"),
        ("all", ""),
    ];
    for (name, prefix) in families {
        let ids = sections
            .iter()
            .flat_map(|s| &s.clauses)
            .map(|c| c.id.as_str());
        let states: Vec<State> = ids
            .filter(|id| id.starts_with(prefix))
            .map(|id| State::of(by_id.get(id)))
            .collect();
        let count = |state| states.iter().filter(|s| **s == state).count();
        let (shown, rules, open) = (count(State::Shown), count(State::Rule), count(State::Open));
        let _ = writeln!(
            out,
            "| {name} | {} | {shown} | {rules} | {open} |",
            states.len()
        );
    }
}

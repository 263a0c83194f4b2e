//! The conformance table as a document: totals first, then every clause.

use super::clauses::Section;
use super::proofs::{Extent, Proof};
use super::reasons;
use super::state::{Evidence, State};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The whole document.
pub(super) fn table(sections: &[Section], proofs: &[Proof]) -> String {
    let evidence = Evidence::of(proofs);
    let mut out = String::from(HEAD);
    totals(&mut out, sections, &evidence);
    for section in sections {
        let _ = write!(
            out,
            "\n## {}\n\n{}\n\n",
            section.title,
            summary(section, &evidence)
        );
        out.push_str("| id | kind | clause | state |\n| --- | --- | --- | --- |\n");
        for clause in &section.clauses {
            let state = row(&clause.id, &evidence);
            let _ = writeln!(
                out,
                "| {} | {} | {} | {state} |",
                clause.id, clause.kind, clause.text
            );
        }
    }
    out
}

const HEAD: &str = "# Conformance\n\n\
    Written by `cargo xtask conform`; do not edit. The clauses are those of [the list](spec/clauses.md): what the manual pages for\n\
    `fi_mr`, `ibv_reg_mr` and `dat_rmr_bind` require, in our words. Tests that `cargo xtask test` runs cite clauses (`/// Proves: ID`);\n\
    so do the C checks of its stage `fabric`, which also run [with other providers](fabric-differences.md).\n\n\
    * **shown**: a test proves the clause through the API that it is about.\n\
    * **strict**: the same, with `FI_RKEY_STRICT=1`. Without it, rkey does what other providers do, and warns.\n\
    * **partly**: tests prove a part; the brackets say which part, or what is missing.\n\
    * **rule**: tests of the core, the engine or the device prove the rule that the clause states, but not the call, its flags and its\n\
      \x20 error codes.\n\
    * **does not apply**: the clause requires nothing of rkey: an unused permission, an absent runtime, a remark about the page itself.\n\
    * **open**: no test proves it. Unless the row gives another reason, there is no test yet.\n\n";

/// The sentence below a section's heading, which counts the states of its rows.
fn summary(section: &Section, evidence: &Evidence<'_>) -> String {
    let ids = || section.clauses.iter().map(|clause| clause.id.as_str());
    let counts: Vec<String> = evidence
        .counts(ids())
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| format!("{count} {}", words(state, count)))
        .collect();
    let all = section.clauses.len();
    let noun = if all == 1 { "clause" } else { "clauses" };
    let mut said = format!("{all} {noun}: {}.", counts.join(", "));
    let unexplained = |id| evidence.state(id) == State::Open && reasons::of_open(id).is_none();
    if ids().any(unexplained) {
        said.push_str(" An open clause without a reason has no test yet.");
    }
    said
}

fn words(state: State, count: usize) -> &'static str {
    match state {
        State::DoesNotApply if count > 1 => "do not apply",
        State::Strict => "in strict mode",
        State::Rule if count > 1 => "rules",
        _ => state.name(),
    }
}

/// The last cell of a clause's row.
fn row(id: &str, evidence: &Evidence<'_>) -> String {
    let state = evidence.state(id);
    let mut parts: Vec<String> = Vec::new();
    match state {
        State::DoesNotApply => {
            let reason = reasons::not_applicable(id).unwrap_or_default();
            return format!("{}: {reason}", state.name());
        }
        // Tests below the API are listed next to those that prove the whole clause through it.
        State::Shown => parts.extend(list("shown", id, evidence, |_, extent| {
            extent == Extent::Whole
        })),
        _ => parts.extend(list("rule", id, evidence, |proof, extent| {
            extent == Extent::Whole && !proof.through_api()
        })),
    }
    parts.extend(list("strict", id, evidence, |_, extent| {
        extent == Extent::Strict
    }));
    let partly = list("partly", id, evidence, |_, extent| extent == Extent::Part);
    parts.extend(partly.map(|list| list + &missing(id, evidence)));
    if state == State::Open {
        let reason = reasons::of_open(id).map(|reason| format!("open: {reason}"));
        parts.push(reason.unwrap_or_else(|| "open".to_owned()));
    }
    parts.join("; ")
}

/// The remark in brackets about tests that prove a part.
fn missing(id: &str, evidence: &Evidence<'_>) -> String {
    let said: BTreeSet<&str> = evidence
        .tests(id)
        .iter()
        .map(|(_, citation)| citation.missing.as_str())
        .chain(reasons::of_open(id))
        .filter(|said| !said.is_empty())
        .collect();
    let said: Vec<&str> = said.into_iter().collect();
    match said.is_empty() {
        true => String::new(),
        false => format!(" ({})", said.join("; ")),
    }
}

/// The tests of a clause that are `wanted`, after the word for what they prove; `None` if there are none.
fn list(
    word: &str,
    id: &str,
    evidence: &Evidence<'_>,
    wanted: impl Fn(&Proof, Extent) -> bool,
) -> Option<String> {
    let names: BTreeSet<String> = evidence
        .tests(id)
        .iter()
        .filter(|(proof, citation)| wanted(proof, citation.extent))
        .map(|(p, _)| format!("`{}`: `{}`", p.package, p.test.as_deref().unwrap_or("?")))
        .collect();
    let names: Vec<String> = names.into_iter().collect();
    (!names.is_empty()).then(|| format!("{word}: {}", names.join(", ")))
}

fn totals(out: &mut String, sections: &[Section], evidence: &Evidence<'_>) {
    let names = State::ALL.map(State::name).join(" | ");
    let _ = writeln!(out, "| documents | clauses | {names} |");
    let _ = writeln!(out, "| --- | ---: |{}", " ---: |".repeat(State::ALL.len()));
    let families = [
        ("libfabric `fi_mr`", "FI-"),
        ("verbs `ibv_reg_mr`", "VB-"),
        ("uDAPL `dat_rmr_bind`", "DA-"),
        ("across the three", "X-"),
        ("all", ""),
    ];
    for (name, prefix) in families {
        let ids = || {
            sections
                .iter()
                .flat_map(|s| &s.clauses)
                .map(|c| c.id.as_str())
                .filter(|id| id.starts_with(prefix))
        };
        let counts: Vec<String> = evidence
            .counts(ids())
            .iter()
            .map(|(_, count)| count.to_string())
            .collect();
        let _ = writeln!(
            out,
            "| {name} | {} | {} |",
            ids().count(),
            counts.join(" | ")
        );
    }
}

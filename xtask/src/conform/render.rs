//! The conformance table as a document: totals first, then every clause.

use super::clauses::Section;
use super::proofs::Proof;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Why a clause that no test shows is open, by the start of its section's title.
const REASONS: &[(&str, &str)] = &[
    ("FI 19.", "the registration cache is not built yet"),
    (
        "FI 15.",
        "the libfabric front end, and with it address vectors, is not built yet",
    ),
    (
        "FI 8.",
        "the libfabric front end and device memory are not built yet",
    ),
    (
        "FI 10b.",
        "the libfabric front end and device memory are not built yet",
    ),
    ("FI 12.", "registration of dma-buf memory is not built yet"),
    ("FI", "the libfabric front end is not built yet"),
    ("VB", "the verbs front end is not built yet"),
    ("DA", "the uDAPL front end is not built yet"),
    ("X", "compares the front ends, which are not built yet"),
];

fn reason(title: &str) -> &'static str {
    REASONS
        .iter()
        .find(|(start, _)| title.starts_with(start))
        .map_or("no test yet", |(_, reason)| reason)
}

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
        let open = section
            .clauses
            .iter()
            .filter(|c| !by_id.contains_key(c.id.as_str()))
            .count();
        let _ = write!(out, "\n## {}\n\n", section.title);
        if open > 0 {
            let _ = writeln!(
                out,
                "{open} of {} open: {}.\n",
                section.clauses.len(),
                reason(&section.title)
            );
        }
        out.push_str("| id | kind | clause | state |\n| --- | --- | --- | --- |\n");
        for clause in &section.clauses {
            let state = by_id
                .get(clause.id.as_str())
                .map_or_else(|| "open".to_owned(), |found| shown(found));
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
    Written by `cargo xtask conform`; do not edit. The clauses are those of [the list](spec/clauses.md): what the manual pages of\n\
    `fi_mr`, `ibv_reg_mr` and `dat_rmr_bind` require, in our words. A clause is *shown* when a test that runs in `cargo xtask test`\n\
    cites it (`/// Proves: ID`), and *open* otherwise. A test of the core shows the rule that a clause states; a clause about a C call\n\
    stays open until that call exists.\n\n";

fn shown(proofs: &[&Proof]) -> String {
    let mut tests: Vec<String> = proofs
        .iter()
        .map(|p| format!("`{}`: `{}`", p.package, p.test.as_deref().unwrap_or("?")))
        .collect();
    tests.sort();
    tests.dedup();
    format!("shown by {}", tests.join(", "))
}

fn totals(out: &mut String, sections: &[Section], by_id: &BTreeMap<&str, Vec<&Proof>>) {
    out.push_str("| documents | clauses | shown | open |\n| --- | ---: | ---: | ---: |\n");
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
        let ids: Vec<&str> = ids.filter(|id| id.starts_with(prefix)).collect();
        let shown = ids.iter().filter(|id| by_id.contains_key(**id)).count();
        let _ = writeln!(
            out,
            "| {name} | {} | {shown} | {} |",
            ids.len(),
            ids.len() - shown
        );
    }
}

//! The page with the results of each check with libfabric's own providers, and the reasons for differences.
//!
//! The last column of its tables of differences is written by hand; everything else is generated.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A check of the program.
pub(super) struct Check {
    pub(super) name: String,
    clauses: String,
    /// The requirement that the check tests.
    what: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Ok,
    Differs,
    Inapplicable,
    Crashes,
    Hangs,
}

const VERDICTS: &[(Verdict, &str)] = &[
    (Verdict::Ok, "ok"),
    (Verdict::Differs, "differs"),
    (Verdict::Inapplicable, "does not apply"),
    (Verdict::Crashes, "crashes"),
    (Verdict::Hangs, "hangs"),
];

impl Verdict {
    fn of(name: &str) -> Result<Self> {
        let known = VERDICTS.iter().find(|(_, known)| *known == name);
        known
            .map(|(verdict, _)| *verdict)
            .with_context(|| format!("{name:?} is not a verdict"))
    }

    pub(super) fn name(self) -> &'static str {
        let known = VERDICTS.iter().find(|(verdict, _)| *verdict == self);
        known.map_or("", |(_, name)| *name)
    }

    fn is_difference(self) -> bool {
        matches!(self, Self::Differs | Self::Crashes | Self::Hangs)
    }
}

/// The outcome of a check.
#[derive(PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// The result if it differs, or why the check does not apply.
    pub(super) came: String,
}

/// By check.
pub(super) type Results = BTreeMap<String, Outcome>;
/// By provider.
pub(super) type Found = BTreeMap<&'static str, Results>;

/// Reads the program's list of its checks, ordered by name.
pub(super) fn checks(list: &str) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for line in list.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, clauses, what] = columns[..] else {
            bail!("{line:?} is not a line of the list of checks");
        };
        checks.push(Check {
            name: name.to_owned(),
            clauses: clauses.to_owned(),
            what: what.to_owned(),
        });
    }
    checks.sort_by(|a, b| a.name.cmp(&b.name));
    let twice = checks.windows(2).find(|two| two[0].name == two[1].name);
    ensure!(
        twice.is_none(),
        "two checks have the name {}",
        twice.map_or("", |two| two[0].name.as_str())
    );
    Ok(checks)
}

/// Reads the output of a run of all checks.
pub(super) fn results(output: &str, checks: &[Check]) -> Result<Results> {
    let mut results = Results::new();
    for line in output.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, verdict, came] = columns[..] else {
            bail!("{line:?} is not a result");
        };
        let outcome = Outcome {
            verdict: Verdict::of(verdict)?,
            came: came.to_owned(),
        };
        results.insert(name.to_owned(), outcome);
    }
    for check in checks {
        ensure!(
            results.contains_key(&check.name),
            "{} was not run",
            check.name
        );
    }
    Ok(results)
}

/// The placeholder for an explanation that is not written yet.
pub(super) const UNEXPLAINED: &str = "(not explained)";

const HEAD: &str = "\
# The clauses of `fi_mr` with other providers

The checks in `abi/fabric/tests/clauses` test the clauses of [the list](spec/clauses.md) with any provider of an installed
libfabric. `cargo xtask test --only fabric` runs them with `rkey` in every registration mode, with API versions from 1.4 to 2.5, as root and as
an ordinary user; `rkey` must pass all of them. The same checks run with `tcp` (under `ofi_rxm`) and `shm` of Debian's libfabric 1.17. This
page shows the results of these two providers, and the stage fails if the results change. `cargo xtask test --only fabric --record` writes the
page, except for the last column of the differences.

A dash means that a check does not apply: it tests a mode bit, a capability or an API version that the provider does not have, or what only
`rkey` allows by default. (If the manual page forbids something that other providers allow, `rkey` refuses it only in strict mode,
`FI_RKEY_STRICT=1`, which has runs of its own.) Where the manual page leaves a choice, the check tests what `rkey` chose; another choice is
not a fault.

";

/// The explanations of a page, by provider and check.
pub(super) fn explanations(text: &str) -> BTreeMap<(String, String), String> {
    let mut explanations = BTreeMap::new();
    let mut provider = String::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## Differences of `") {
            provider = title.trim_end_matches('`').to_owned();
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let ([name, _, why], false) = (&cells[..], provider.is_empty()) {
            let name = name.trim_matches('`').to_owned();
            explanations.insert((provider.clone(), name), (*why).to_owned());
        }
    }
    explanations
}

/// The page.
pub(super) fn render(
    checks: &[Check],
    found: &Found,
    explained: &BTreeMap<(String, String), String>,
) -> String {
    let mut page = HEAD.to_owned();
    page.push_str("| provider | ok | different | does not apply |\n| --- | ---: | ---: | ---: |\n");
    for (provider, results) in found {
        let count = |wanted: fn(Verdict) -> bool| {
            results
                .values()
                .filter(|outcome| wanted(outcome.verdict))
                .count()
        };
        let _ = writeln!(
            page,
            "| `{provider}` | {} | {} | {} |",
            count(|verdict| verdict == Verdict::Ok),
            count(Verdict::is_difference),
            count(|verdict| verdict == Verdict::Inapplicable),
        );
    }
    for (provider, results) in found {
        let _ = write!(
            page,
            "\n## Differences of `{provider}`\n\n| check | result | why |\n| --- | --- | --- |\n"
        );
        for (name, outcome) in results.iter().filter(|row| row.1.verdict.is_difference()) {
            let why = explained.get(&((*provider).to_owned(), name.clone()));
            let why = why.map_or(UNEXPLAINED, String::as_str);
            let came = match outcome.verdict {
                Verdict::Differs => outcome.came.clone(),
                verdict => format!("{}: {}", verdict.name(), outcome.came),
            };
            let _ = writeln!(page, "| `{name}` | {came} | {why} |");
        }
    }
    page.push_str("\n## All checks\n\n| check | requirement | clauses |");
    let rule: String = found.keys().map(|_| " --- |").collect();
    for provider in found.keys() {
        let _ = write!(page, " `{provider}` |");
    }
    let _ = writeln!(page, "\n| --- | --- | --- |{rule}");
    for check in checks {
        let _ = write!(
            page,
            "| `{}` | {} | {} |",
            check.name, check.what, check.clauses
        );
        for results in found.values() {
            let verdict = results
                .get(&check.name)
                .map_or("", |outcome| match outcome.verdict {
                    Verdict::Inapplicable => "-",
                    verdict => verdict.name(),
                });
            let _ = write!(page, " {verdict} |");
        }
        page.push('\n');
    }
    page
}

/// Checks whose verdict depends on how soon `ofi_rxm` reconnects after `tcp` has closed a connection.
pub(super) const UNSTEADY: &[&str] = &["closing", "refusal_and_afterwards"];

/// The part of a page that may not change between runs: the verdicts and the explanations. The text of a difference can
/// depend on the speed of the machine.
pub(super) fn steady(text: &str) -> String {
    let steady = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells[0].trim_matches('`');
        let is_count = cells.len() == 4 && cells[1].parse::<u32>().is_ok();
        if is_count || UNSTEADY.contains(&name) {
            return None;
        }
        Some(match cells[..] {
            [name, _, why] => format!("{name} {why}\n"),
            _ => format!("{line}\n"),
        })
    };
    text.lines().filter_map(steady).collect()
}

/// The lines that only the recorded page has, and those that only the new page has.
pub(super) fn changes(recorded: &str, came: &str) -> Vec<String> {
    let only = |text: &str, other: &str, what: &str| -> Vec<String> {
        text.lines()
            .filter(|line| !other.lines().any(|known| known == *line))
            .map(|line| format!("{what}: {line}"))
            .collect()
    };
    let mut changes = only(recorded, came, "recorded");
    changes.extend(only(came, recorded, "new"));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "b\tFI-002\tB comes\na\tFI-001\tA comes\n";

    fn page(a: &str, text: &str) -> String {
        let checks = checks(LIST).expect("a list");
        let results = results(&format!("{a}\nb\tok\t\n"), &checks).expect("results");
        render(
            &checks,
            &Found::from([("tcp", results)]),
            &explanations(text),
        )
    }

    #[test]
    fn details_may_change_but_verdicts_may_not() {
        let first = page("a\tdiffers\t0 instead of 1", "");
        let reworded = page("a\tdiffers\t2 instead of 1", "");
        assert_ne!(first, reworded);
        assert_eq!(steady(&first), steady(&reworded));
        assert_ne!(steady(&first), steady(&page("a\tok\t", "")));
        assert_ne!(
            steady(&first),
            steady(&page("a\thangs\t0 instead of 1", ""))
        );
    }

    #[test]
    fn an_explanation_stays_with_its_difference() {
        let first = page("a\tdiffers\t0 instead of 1", "");
        assert!(
            first.contains("| `a` | 0 instead of 1 | (not explained) |"),
            "{first}"
        );
        let explained = first.replace(UNEXPLAINED, "it counts from 0");
        assert_eq!(page("a\tdiffers\t0 instead of 1", &explained), explained);
        let now = page("a\tcrashes\tAborted", &explained);
        assert!(
            now.contains("| `a` | crashes: Aborted | it counts from 0 |"),
            "{now}"
        );
        let lines = changes(&explained, &now);
        assert!(
            lines
                .iter()
                .any(|line| line.starts_with("recorded: | `a` | 0")),
            "{lines:?}"
        );
    }

    #[test]
    fn a_check_that_was_not_run_is_reported() {
        let checks = checks(LIST).expect("a list");
        assert!(results("a\tok\t\n", &checks).is_err());
        assert!(results("a\tok\t\nb\tfine\t\n", &checks).is_err());
    }
}

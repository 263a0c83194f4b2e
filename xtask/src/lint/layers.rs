//! Which crate may depend on which: compares the dependencies that cargo sees with the table in docs/architecture.md
//! between the `layers` marks.

use super::Finding;
use crate::source::{File, Tree, code_only, has_word};
use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const DOCUMENT: &str = "docs/architecture.md";
const OPEN: &str = "<!-- layers -->";
const CLOSE: &str = "<!-- /layers -->";

/// Third-party crates with system calls, threads, clocks or logs, which the sans-I/O crates may not use.
const SYSTEM_CRATES: &[&str] = &[
    "libc",
    "rustix",
    "nix",
    "tracing",
    "getrandom",
    "parking_lot",
    "tokio",
];
const SANS_IO_CRATES: &[&str] = &[
    "rkey-cm",
    "rkey-core",
    "rkey-engine",
    "rkey-rdm",
    "rkey-roce",
];

/// A row of the table.
#[derive(Default)]
struct Allowed {
    normal: BTreeSet<String>,
    tests: BTreeSet<String>,
}

/// A crate of the workspace and its dependencies by kind.
struct Crate {
    name: String,
    normal: Vec<String>,
    tests: Vec<String>,
}

/// Finds re-exports of whole crates of this workspace, such as `pub use rkey_core as core`. A layer must list the
/// names that it re-exports from another.
pub(super) fn reexports(tree: &Tree) -> Vec<Finding> {
    let is_whole = |line: &str| {
        let path = line.trim().strip_prefix("pub use rkey_");
        let rest = path.map(|path| path.split_once("::").map_or(";", |(_, rest)| rest));
        line.trim().starts_with("pub extern crate rkey_")
            || rest.is_some_and(|rest| rest == ";" || rest == "*;" || rest.starts_with("{self"))
    };
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        for (index, line) in code_only(&file.text).lines().enumerate() {
            if is_whole(line) {
                let message = "re-exports a whole crate: list the names that others may use";
                findings.push(Finding::at("layers", &file.path, index + 1, message));
            }
        }
    }
    findings
}

/// Paths that only one module may name: the directory, the path, the module.
const NAMED_ONCE: &[(&str, &str, &str)] = &[(
    "crates/device/src/",
    "rkey_link::shm",
    "crates/device/src/peers/handshake.rs",
)];

/// Finds other modules that name such a path: a new kind of link would have to be added to each of them.
pub(super) fn named_once(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folder, path, module) in NAMED_ONCE {
        let inside = |file: &&File| file.path.starts_with(folder) && file.path != *module;
        for file in tree.files.iter().filter(inside) {
            for (index, line) in code_only(&file.text).lines().enumerate() {
                if has_word(line, path) {
                    let message = format!("only {module} may name `{path}`");
                    findings.push(Finding::at("layers", &file.path, index + 1, message));
                }
            }
        }
    }
    findings
}

/// Compares the workspace under `root` with the table.
pub(super) fn check(root: &Path, tree: &Tree) -> Result<Vec<Finding>> {
    let text = &tree
        .get(DOCUMENT)
        .with_context(|| format!("{DOCUMENT} is missing"))?
        .text;
    let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
    let crates: Vec<Crate> = metadata
        .packages
        .iter()
        .map(|package| {
            let of = |tests: bool| {
                let wanted = |kind| (kind == DependencyKind::Development) == tests;
                let of_kind = package.dependencies.iter().filter(move |d| wanted(d.kind));
                of_kind.map(|d| d.name.clone()).collect()
            };
            Crate {
                name: package.name.to_string(),
                normal: of(false),
                tests: of(true),
            }
        })
        .collect();
    Ok(compare(&parse(text)?, &crates))
}

/// Reads `| crate | may use | its tests may also use | ...` rows between the marks.
fn parse(text: &str) -> Result<BTreeMap<String, Allowed>> {
    let Some((_, rest)) = text.split_once(OPEN) else {
        bail!("{DOCUMENT} has no '{OPEN}' mark")
    };
    let Some((table, _)) = rest.split_once(CLOSE) else {
        bail!("{DOCUMENT} has no '{CLOSE}' mark")
    };
    let mut rows = BTreeMap::new();
    for line in table
        .lines()
        .filter(|line| line.trim_start().starts_with("| `"))
    {
        let cells: Vec<&str> = line
            .trim()
            .trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        let [name, normal, tests, ..] = cells[..] else {
            bail!("{DOCUMENT}: a row of the layers table has fewer than three cells: {line}")
        };
        rows.insert(
            name.trim_matches('`').to_owned(),
            Allowed {
                normal: names(normal),
                tests: names(tests),
            },
        );
    }
    Ok(rows)
}

fn names(cell: &str) -> BTreeSet<String> {
    cell.split(',')
        .map(|word| word.trim().trim_matches('`').to_owned())
        .filter(|w| !w.is_empty())
        .collect()
}

fn compare(table: &BTreeMap<String, Allowed>, crates: &[Crate]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let ours: BTreeSet<&str> = crates.iter().map(|c| c.name.as_str()).collect();
    for each in crates {
        let Some(allowed) = table.get(&each.name) else {
            findings.push(Finding::of(
                "layers",
                &each.name,
                format!("not in the table of {DOCUMENT}"),
            ));
            continue;
        };
        let everything = |set: &BTreeSet<String>| set.contains("anything");
        for dependency in each.normal.iter().filter(|d| ours.contains(d.as_str())) {
            if !allowed.normal.contains(dependency) && !everything(&allowed.normal) {
                let message = format!(
                    "may not depend on {dependency}: a lower layer must not depend on a higher one"
                );
                findings.push(Finding::of("layers", &each.name, message));
            }
        }
        for dependency in each.tests.iter().filter(|d| ours.contains(d.as_str())) {
            let known = allowed.normal.contains(dependency) || allowed.tests.contains(dependency);
            if !known
                && !everything(&allowed.tests)
                && !everything(&allowed.normal)
                && *dependency != each.name
            {
                let message = format!("its tests may not depend on {dependency}");
                findings.push(Finding::of("layers", &each.name, message));
            }
        }
        if SANS_IO_CRATES.contains(&each.name.as_str()) {
            for dependency in each
                .normal
                .iter()
                .filter(|d| SYSTEM_CRATES.contains(&d.as_str()))
            {
                let message = format!(
                    "a sans-I/O crate may not depend on {dependency}: no system calls, no threads, no logs"
                );
                findings.push(Finding::of("layers", &each.name, message));
            }
        }
    }
    for name in table.keys().filter(|name| !ours.contains(name.as_str())) {
        findings.push(Finding::of(
            "layers",
            name,
            format!("in the table of {DOCUMENT}, but the crate does not exist"),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "<!-- layers -->\n| crate | may use | tests |\n|---|---|---|\n| `a-base` | | `a-model` |\n\
        | `rkey-core` | `a-base` | |\n| `a-model` | | anything |\n<!-- /layers -->";

    fn krate(name: &str, normal: &[&str], tests: &[&str]) -> Crate {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Crate {
            name: name.into(),
            normal: own(normal),
            tests: own(tests),
        }
    }

    fn messages(crates: &[Crate]) -> Vec<String> {
        let table = parse(TABLE).expect("the sample parses");
        compare(&table, crates)
            .into_iter()
            .map(|f| format!("{}: {}", f.place, f.message))
            .collect()
    }

    #[test]
    fn allowed_dependencies_pass() {
        let good = [
            krate("a-base", &["libc"], &["a-model"]),
            krate("rkey-core", &["a-base", "serde"], &[]),
            krate("a-model", &[], &["rkey-core"]),
        ];
        assert_eq!(messages(&good), Vec::<String>::new());
    }

    #[test]
    fn a_dependency_on_a_higher_layer_is_refused() {
        let bad = [
            krate("a-base", &["rkey-core"], &[]),
            krate("rkey-core", &[], &[]),
            krate("a-model", &[], &[]),
        ];
        assert!(messages(&bad)[0].contains("a-base: may not depend on rkey-core"));
    }

    #[test]
    fn a_sans_io_crate_with_system_calls_is_refused() {
        let bad = [
            krate("a-base", &[], &[]),
            krate("rkey-core", &["rustix"], &[]),
            krate("a-model", &[], &[]),
        ];
        assert!(messages(&bad)[0].contains("may not depend on rustix"));
    }

    #[test]
    fn a_test_only_dependency_is_checked() {
        let bad = [
            krate("a-base", &[], &["rkey-core"]),
            krate("rkey-core", &[], &[]),
            krate("a-model", &[], &[]),
        ];
        assert!(messages(&bad)[0].contains("its tests may not depend on rkey-core"));
    }

    #[test]
    fn the_layer_table_and_the_workspace_must_name_the_same_crates() {
        let bad = [
            krate("a-base", &[], &[]),
            krate("a-new", &[], &[]),
            krate("rkey-core", &[], &[]),
        ];
        let messages = messages(&bad);
        assert!(
            messages
                .iter()
                .any(|m| m.starts_with("a-new: not in the table"))
        );
        assert!(
            messages
                .iter()
                .any(|m| m.starts_with("a-model: in the table"))
        );
    }

    #[test]
    fn re_exporting_a_whole_crate_is_refused() {
        let found = |line: &str| reexports(&Tree::of(&[("crates/a/src/lib.rs", line)])).len();
        for bad in [
            "pub use rkey_core as core;",
            "pub use rkey_core;",
            "pub use rkey_core::*;",
            "    pub use rkey_core::{self as core, Key};",
            "pub extern crate rkey_core as core;",
        ] {
            assert_eq!(found(bad), 1, "{bad}");
        }
        for good in [
            "pub use rkey_core::{Access, Key};",
            "pub use rkey_core::Key;",
            "use rkey_core as core;",
            "// pub use rkey_core as core;",
        ] {
            assert_eq!(found(good), 0, "{good}");
        }
    }

    #[test]
    fn only_one_module_may_name_a_kind_of_link() {
        let text = "use rkey_link::shm::Step; // rkey_link::shm";
        let found = |path| named_once(&Tree::of(&[(path, text)])).len();
        assert_eq!(found("crates/device/src/shared.rs"), 1);
        assert_eq!(found("crates/device/src/peers/handshake.rs"), 0);
        assert_eq!(found("crates/link/src/any.rs"), 0);
    }

    #[test]
    fn a_layer_document_without_marks_is_an_error() {
        assert!(parse("no marks").is_err());
    }
}

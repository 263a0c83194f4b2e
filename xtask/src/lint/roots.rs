//! The lints that the root of each library must turn on, so that rustc and clippy enforce the rules (`clippy.toml` names
//! what `disallowed_methods` and `disallowed_types` refuse: threads, clocks, the standard library's locks; and how long a
//! function may be), and the exceptions.

use super::{Finding, SANS_IO};
use crate::source::{Tree, code_only};
use std::collections::BTreeSet;

const EVERYWHERE: &[&str] = &[
    "clippy::disallowed_types",
    "clippy::too_many_lines",
    "clippy::unwrap_used",
];
const BELOW_AND_ABOVE_THE_DEVICE: &[&str] = &["clippy::disallowed_methods"];
const OF_SANS_IO: &[&str] = &["clippy::print_stderr", "clippy::print_stdout"];

/// Crates that may start threads and read clocks.
const CRATES: &[(&str, &str)] = &[
    ("crates/bench/", "measures time, and runs programs"),
    ("crates/cli/", "is a program"),
    ("crates/device/", "the threads and clocks of all others"),
];

/// Files of other crates that may do so, where an `#[expect]` repeats the reason.
const FILES: &[(&str, &str)] = &[
    (
        "abi/fabric/src/wait.rs",
        "wait objects are descriptors; one is a timer",
    ),
    (
        "abi/verbs/src/device/clock.rs",
        "timestamps of completions, in the clocks that verbs names",
    ),
    (
        "crates/base/src/process/coarse_time.rs",
        "a clock that two processes compare",
    ),
    (
        "crates/base/src/process/watch.rs",
        "compares with the times at which threads started",
    ),
    (
        "crates/cache/src/monitor/userfaultfd/probe.rs",
        "a thread that the kernel lets wait, to see what it answers meanwhile",
    ),
];

/// The lints that a crate must turn on, by its directory.
pub(super) fn required(folder: &str) -> BTreeSet<&'static str> {
    let excepted = CRATES.iter().any(|(name, _)| *name == folder);
    let is_sans_io = SANS_IO.iter().any(|source| source.starts_with(folder));
    let groups = [
        (true, EVERYWHERE),
        (!excepted, BELOW_AND_ABOVE_THE_DEVICE),
        (is_sans_io, OF_SANS_IO),
    ];
    let groups = groups.iter().filter(|(wanted, _)| *wanted);
    groups
        .flat_map(|(_, lints)| lints.iter().copied())
        .collect()
}

/// Roots that lack a lint, and files that turn one off without being listed above.
pub(super) fn roots(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let library = file.path.starts_with("crates/") || file.path.starts_with("abi/");
        let Some((name, inside)) = file.path.split_once("/src/").filter(|_| library) else {
            continue;
        };
        let code: String = code_only(&file.text).split_whitespace().collect();
        if matches!(inside, "lib.rs" | "main.rs") {
            let on = turned_on(&code);
            for lint in required(&format!("{name}/")) {
                if on.contains(lint) {
                    continue;
                }
                let message = format!("must contain #![cfg_attr(not(test), warn({lint}))]");
                findings.push(Finding::of("roots", &file.path, message));
            }
        }
        let excepted = FILES.iter().any(|(path, _)| *path == file.path);
        let turns_off = |word: &str| code.contains(&format!("{word}(clippy::disallowed_methods"));
        if (turns_off("allow") || turns_off("expect")) != excepted {
            let message = "must allow `disallowed_methods` if and only if `FILES` lists this file";
            findings.push(Finding::of("roots", &file.path, message));
        }
    }
    for source in SANS_IO {
        let path = format!("{source}lib.rs");
        let forbids = |text: &str| code_only(text).contains("#![forbid(unsafe_code)]");
        if !tree.get(&path).is_some_and(|file| forbids(&file.text)) {
            let message = "must contain #![forbid(unsafe_code)]";
            findings.push(Finding::of("roots", path, message));
        }
    }
    findings
}

/// The lints that the attributes of a root turn on outside tests; the code has no white space.
fn turned_on(code: &str) -> BTreeSet<&str> {
    let attributes = code.split("#![cfg_attr(not(test),warn(").skip(1);
    attributes
        .filter_map(|rest| rest.split(')').next())
        .flat_map(|lints| lints.split(','))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SANS_IO_ROOT: &str = "#![forbid(unsafe_code)]\n\
        #![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]\n\
        #![cfg_attr(\n    not(test),\n    warn(clippy::print_stdout, clippy::print_stderr, clippy::too_many_lines, clippy::unwrap_used)\n)]";

    fn found(path: &str, text: &str) -> Vec<String> {
        let mut files = vec![(path, text)];
        for krate in ["cm", "core", "engine", "rdm", "roce"] {
            let root = format!("crates/{krate}/src/lib.rs").leak();
            if root != path {
                files.push((root, SANS_IO_ROOT));
            }
        }
        let findings = roots(&Tree::of(&files)).into_iter();
        findings.map(|finding| finding.message).collect()
    }

    #[test]
    fn a_library_must_turn_the_lints_on() {
        let good = "#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]\n\
            #![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]";
        assert_eq!(found("abi/a/src/lib.rs", good), Vec::<String>::new());
        assert_eq!(found("abi/a/src/lib.rs", "mod a;").len(), 4);
        assert_eq!(found("crates/device/src/lib.rs", "mod a;").len(), 3);
        assert_eq!(found("testing/a/src/lib.rs", "mod a;").len(), 0);
    }

    #[test]
    fn sans_io_crates_must_turn_more_lints_on() {
        assert_eq!(found("crates/core/src/lib.rs", SANS_IO_ROOT).len(), 0);
        let (_, unsafe_root) = SANS_IO_ROOT.split_once('\n').expect("three attributes");
        assert_eq!(found("crates/core/src/lib.rs", unsafe_root).len(), 1);
        let in_comment = format!("// {SANS_IO_ROOT}");
        assert_eq!(found("crates/core/src/lib.rs", &in_comment).len(), 1);
        let (less, _) = SANS_IO_ROOT.rsplit_once("#!").expect("three attributes");
        assert_eq!(found("crates/core/src/lib.rs", less).len(), 4);
    }

    #[test]
    fn exceptions_must_be_listed_and_listed_exceptions_must_exist() {
        let off =
            "#[expect(\n    clippy::disallowed_methods,\n    reason = \"a clock\"\n)]\nfn f() {}";
        assert_eq!(found("abi/fabric/src/wait.rs", off).len(), 0);
        assert_eq!(found("abi/fabric/src/cm.rs", off).len(), 1);
        assert_eq!(found("abi/fabric/src/wait.rs", "fn f() {}").len(), 1);
    }
}

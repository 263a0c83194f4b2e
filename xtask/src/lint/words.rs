//! Words that may not occur: system facilities in the heart, leftovers anywhere, unexplained
//! `unwrap` outside tests, paths of a developer's machine, words that the glossary replaces.

use super::{Finding, in_heart};
use crate::source::{File, Tree, code_only, has_word, without_tests};

const HEART_WORDS: &[&str] = &[
    "std::net",
    "std::thread",
    "std::env",
    "std::fs",
    "std::process",
    "Instant::now",
    "SystemTime",
    "tracing",
    "println!",
    "eprintln!",
    "libc",
    "rustix",
];

/// The heart takes time and memory as arguments and gives values: it does not go and fetch them.
pub(super) fn heart(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let tests = tree.test_files();
    for file in tree
        .files
        .iter()
        .filter(|file| file.is_rust() && in_heart(&file.path) && !tests.contains(&file.path))
    {
        let code = without_tests(&code_only(&file.text));
        for (number, line) in lines(&code) {
            for word in HEART_WORDS.iter().filter(|word| has_word(line, word)) {
                let message = format!("`{word}` in the heart: pass it in from the device");
                findings.push(Finding::at("words", &file.path, number, message));
            }
        }
    }
    findings
}

// Written in halves, so that this file passes its own rule.
const LEFTOVER_WORDS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];
const LEFTOVER_CODE: &[&str] = &[
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("db", "g!"),
    "#[ignore",
];

/// Nothing half done stays: no reminders in comments, no placeholder bodies, no switched-off tests.
pub(super) fn leftovers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in lines(&file.text) {
            for word in LEFTOVER_WORDS.iter().filter(|word| has_word(line, word)) {
                let message =
                    format!("`{word}` is left: do it, or write down in the docs that it is open");
                findings.push(Finding::at("leftovers", &file.path, number, message));
            }
        }
        if !file.is_rust() {
            continue;
        }
        let code = code_only(&file.text);
        for (number, line) in lines(&code) {
            for word in LEFTOVER_CODE.iter().filter(|word| has_word(line, word)) {
                findings.push(Finding::at(
                    "leftovers",
                    &file.path,
                    number,
                    format!("`{word}` is left"),
                ));
            }
        }
    }
    findings
}

/// Outside tests an `unwrap()` needs a comment on its line or above it that says why it cannot fail,
/// and `expect` a message.
pub(super) fn unwrap(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let tests = tree.test_files();
    let sources = tree
        .files
        .iter()
        .filter(|file| file.is_rust() && is_library(file) && !tests.contains(&file.path));
    for file in sources {
        let code = without_tests(&code_only(&file.text));
        let original: Vec<&str> = file.text.lines().collect();
        for (number, line) in lines(&code) {
            if !line.contains(".unwrap()") {
                continue;
            }
            let above = if number > 1 {
                original[number - 2].trim_start()
            } else {
                ""
            };
            let explained = original[number - 1].contains("//") || above.starts_with("//");
            if !explained {
                let message = "say why this cannot fail, or return an error";
                findings.push(Finding::at("unwrap", &file.path, number, message));
            }
        }
    }
    findings
}

fn is_library(file: &File) -> bool {
    file.path.starts_with("crates/") && file.path.contains("/src/")
}

/// Paths that exist on one developer's machine only.
pub(super) fn paths(tree: &Tree) -> Vec<Finding> {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let checkout = here.strip_suffix("/xtask").unwrap_or("").to_owned();
    let prefixes = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("/Us", "ers/"),
    ];
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in lines(&file.text) {
            let foreign = prefixes.iter().find(|prefix| starts_a_path(line, prefix));
            let own = checkout.len() > 5 && line.contains(&checkout);
            if let Some(prefix) = foreign {
                let message = format!("a path under {prefix} exists on one machine only");
                findings.push(Finding::at("paths", &file.path, number, message));
            } else if own {
                findings.push(Finding::at(
                    "paths",
                    &file.path,
                    number,
                    "names this checkout's own directory",
                ));
            }
        }
    }
    findings
}

fn starts_a_path(line: &str, prefix: &str) -> bool {
    let before = |at: usize| at.checked_sub(1).map(|i| line.as_bytes()[i]);
    line.match_indices(prefix).any(|(at, _)| {
        !before(at).is_some_and(|b| b.is_ascii_alphanumeric() || b"._-~*/".contains(&b))
    })
}

/// Where [`DIALECT`] is refused: the crates and pages that follow `docs/glossary.md` throughout.
const PLAIN: &[&str] = &[
    "crates/base/",
    "crates/core/",
    "crates/engine/",
    "crates/link/",
    "crates/rkey/",
    "docs/api-",
    "docs/architecture.md",
    "docs/security.md",
    "benches/README.md",
];

/// Words that say less than a name would, and old names of things that the glossary names.
const DIALECT: &[(&str, &str)] = &[
    (
        "whoever",
        "name the actor: the caller, the holder, the peer",
    ),
    ("nobody", "name the actor, or use the passive"),
    ("somebody", "name the actor"),
    ("anybody", "name the actor"),
    ("haunt", "orphaned request"),
    ("ghost", "orphaned request"),
    ("burial", "teardown or drain"),
    ("condemned", "teardown or drain"),
    ("nap", "backoff"),
    ("naps", "backoff"),
    ("behind the end", "past the end"),
    ("bound anew", "rebound"),
    ("in vain", "without success"),
    ("of late", "recently"),
];

/// Terms are those of the glossary, in plain English.
pub(super) fn dialect(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let plain = |path: &str| PLAIN.iter().any(|prefix| path.starts_with(prefix));
    for file in tree.files.iter().filter(|file| plain(&file.path)) {
        for (number, line) in lines(&file.text) {
            let line = line.to_lowercase();
            for (word, better) in DIALECT.iter().filter(|(word, _)| has_word(&line, word)) {
                let message = format!("`{word}`: {better} (docs/glossary.md, CONTRIBUTING.md)");
                findings.push(Finding::at("dialect", &file.path, number, message));
            }
        }
    }
    findings
}

fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rule: fn(&Tree) -> Vec<Finding>, path: &str, text: &str) -> usize {
        rule(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn the_heart_reads_no_clock() {
        let bad = "fn f() { let t = std::time::Instant::now(); }";
        assert_eq!(count(heart, "crates/core/src/a.rs", bad), 1);
        assert_eq!(count(heart, "crates/device/src/a.rs", bad), 0);
    }

    #[test]
    fn the_heart_starts_no_thread_and_logs_nothing() {
        assert_eq!(
            count(
                heart,
                "crates/engine/src/a.rs",
                "use std::thread;\nuse tracing::warn;"
            ),
            2
        );
        assert_eq!(
            count(
                heart,
                "crates/engine/src/a.rs",
                "// std::thread is the device's\n"
            ),
            0
        );
        let in_test = "#[cfg(test)]\nmod tests { use std::thread; }";
        assert_eq!(count(heart, "crates/engine/src/a.rs", in_test), 0);
    }

    #[test]
    fn reminders_and_placeholders_are_found() {
        let bad = format!(
            "// {} later\nfn f() {{ {}() }}",
            LEFTOVER_WORDS[0], LEFTOVER_CODE[0]
        );
        assert_eq!(count(leftovers, "crates/core/src/a.rs", &bad), 2);
        assert_eq!(
            count(
                leftovers,
                "README.md",
                &format!("{} write this", LEFTOVER_WORDS[1])
            ),
            1
        );
        assert_eq!(
            count(
                leftovers,
                "src/a.rs",
                &format!("{} = \"slow\"]\nfn f() {{}}", LEFTOVER_CODE[3])
            ),
            1
        );
    }

    #[test]
    fn an_unexplained_unwrap_is_found() {
        assert_eq!(
            count(unwrap, "crates/core/src/a.rs", "fn f() { x.unwrap(); }"),
            1
        );
        assert_eq!(
            count(
                unwrap,
                "crates/core/src/a.rs",
                "fn f() {\n // never empty: see new()\n x.unwrap(); }"
            ),
            0
        );
        assert_eq!(
            count(
                unwrap,
                "crates/core/src/a.rs",
                "#[cfg(test)]\nmod tests { fn f() { x.unwrap(); } }"
            ),
            0
        );
        assert_eq!(
            count(unwrap, "crates/core/tests/a.rs", "fn f() { x.unwrap(); }"),
            0
        );
    }

    #[test]
    fn words_that_the_glossary_replaces_are_found() {
        let bad = "/// Whoever reads behind the end.";
        assert_eq!(count(dialect, "crates/core/src/a.rs", bad), 2);
        assert_eq!(count(dialect, "docs/security.md", bad), 2);
        assert_eq!(count(dialect, "docs/glossary.md", bad), 0);
        assert_eq!(count(dialect, "crates/core/src/a.rs", "let snap = 1;"), 0);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let bad = format!("see {}me/notes", concat!("/ho", "me/"));
        assert_eq!(count(paths, "docs/a.md", &bad), 1);
        assert_eq!(
            count(paths, "docs/a.md", concat!("see ./wo", "rk/notes")),
            0
        );
    }
}

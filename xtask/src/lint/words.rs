//! Words that must not occur: leftovers, paths of a developer's machine, and words that the glossary replaces.

use super::Finding;
use crate::source::{Tree, code_only, has_word};

// Split, so that this file passes its own rule.
const LEFTOVER_WORDS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];
const SWITCHED_OFF: &str = "#[ignore";

/// Finds unfinished work: reminders in comments, and tests that are disabled.
pub(super) fn leftovers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in lines(&file.text) {
            for word in LEFTOVER_WORDS.iter().filter(|word| has_word(line, word)) {
                let message = format!(
                    "`{word}` marks unfinished work: finish it, or record it in the docs as open"
                );
                findings.push(Finding::at("leftovers", &file.path, number, message));
            }
        }
        if !file.is_rust() {
            continue;
        }
        for (number, line) in lines(&code_only(&file.text)) {
            if line.contains(SWITCHED_OFF) {
                let message = format!("`{SWITCHED_OFF}` disables a test: enable or remove it");
                findings.push(Finding::at("leftovers", &file.path, number, message));
            }
        }
    }
    findings
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
                    "contains the path of this checkout, which exists on one machine only",
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

/// Where [`DIALECT`] is refused: all code, and the pages that follow `docs/glossary.md`.
const PLAIN: &[&str] = &[
    "abi/",
    "benches/",
    "crates/",
    "fuzz/",
    "testing/",
    "tools/",
    "xtask/",
    "README.md",
    "docs/api-",
    "docs/architecture.md",
    "docs/memory-kinds.md",
    "docs/registration-cache.md",
    "docs/security.md",
    "docs/wire.md",
];

/// Contains the words itself.
const THIS_FILE: &str = "xtask/src/lint/words.rs";

/// Vague words, and old names of concepts in the glossary.
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
    ("held back", "paused"),
    ("scatter/gather element", "scatter/gather entry"),
    ("scatter/gather elements", "scatter/gather entries"),
    ("in vain", "without success"),
    ("of late", "recently"),
    ("in one piece", "in one buffer, or in one fragment"),
    ("pieces", "fragments, or segments of a scatter list"),
];

/// Checks that terms are those of the glossary, in plain English.
pub(super) fn dialect(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let plain =
        |path: &str| path != THIS_FILE && PLAIN.iter().any(|prefix| path.starts_with(prefix));
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
    fn reminders_and_disabled_tests_are_found() {
        let [first, second, _] = LEFTOVER_WORDS else {
            panic!("three words")
        };
        let reminder = format!("// {first} later\nfn f() {{}}");
        assert_eq!(count(leftovers, "crates/core/src/a.rs", &reminder), 1);
        let of_page = format!("{second} write this");
        assert_eq!(count(leftovers, "README.md", &of_page), 1);
        let off = format!("{SWITCHED_OFF} = \"slow\"]\nfn f() {{}}");
        assert_eq!(count(leftovers, "src/a.rs", &off), 1);
        let in_text = format!("let a = \"{SWITCHED_OFF}\";");
        assert_eq!(count(leftovers, "src/a.rs", &in_text), 0);
    }

    #[test]
    fn words_that_the_glossary_replaces_are_found() {
        let bad = "/// Whoever reads behind the end.";
        assert_eq!(count(dialect, "crates/core/src/a.rs", bad), 2);
        assert_eq!(count(dialect, "docs/security.md", bad), 2);
        let element = "/// Three scatter/gather elements.";
        assert_eq!(count(dialect, "abi/fabric/src/a.rs", element), 1);
        assert_eq!(count(dialect, THIS_FILE, bad), 0);
        assert_eq!(count(dialect, "docs/glossary.md", bad), 0);
        assert_eq!(count(dialect, "crates/core/src/a.rs", "let snap = 1;"), 0);
    }

    #[test]
    fn machine_specific_paths_are_found() {
        let bad = format!("see {}me/notes", concat!("/ho", "me/"));
        assert_eq!(count(paths, "docs/a.md", &bad), 1);
        assert_eq!(
            count(paths, "docs/a.md", concat!("see ./wo", "rk/notes")),
            0
        );
    }
}

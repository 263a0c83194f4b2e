//! Unsafe code explains itself: each block says why it is sound, each module that opts in says why
//! it must, and the heart forbids it altogether.

use super::{Finding, HEART};
use crate::source::{Tree, code_only, has_word};

/// Every `unsafe` block and impl has a `SAFETY:` comment, every `allow(unsafe_code)` an `UNSAFETY:` one.
pub(super) fn blocks(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let code = code_only(&file.text);
        let code: Vec<&str> = code.lines().collect();
        let text: Vec<&str> = file.text.lines().collect();
        for (index, line) in code.iter().enumerate() {
            if opens_unsafe(line, code.get(index + 1).copied().unwrap_or("")) {
                check_safety(&file.path, index, &code, &text, &mut findings);
            }
            let opts_in =
                line.contains("allow(unsafe_code)") || line.contains("expect(unsafe_code)");
            if opts_in && !comment_near(&text, index, "UNSAFETY:") {
                let message =
                    "say in an `// UNSAFETY:` comment beside this why the module needs unsafe code";
                findings.push(Finding::at("unsafety", &file.path, index + 1, message));
            }
        }
    }
    findings
}

/// Whether the line opens an unsafe block, impl or extern block (an `unsafe fn` documents `# Safety`).
fn opens_unsafe(line: &str, next: &str) -> bool {
    if !has_word(line, "unsafe") {
        return false;
    }
    line.match_indices("unsafe").any(|(at, word)| {
        let after = line[at + word.len()..].trim_start();
        let after = if after.is_empty() {
            next.trim_start()
        } else {
            after
        };
        after.starts_with('{')
            || after.starts_with("impl")
            || after.starts_with("extern \"") && !after.contains("fn ")
    })
}

fn check_safety(
    path: &str,
    index: usize,
    code: &[&str],
    text: &[&str],
    findings: &mut Vec<Finding>,
) {
    match explanation(index, code, text) {
        Some(words) if words.contains("SAFETY:") => {
            let said = words.split("SAFETY:").nth(1).unwrap_or("").trim();
            if said.is_empty() || said.starts_with('?') || said.len() < 8 {
                let message = "the SAFETY comment gives no reason";
                findings.push(Finding::at("unsafety", path, index + 1, message));
            }
        }
        _ => {
            let message =
                "needs a `// SAFETY:` comment above it that argues from the checks nearby";
            findings.push(Finding::at("unsafety", path, index + 1, message));
        }
    }
}

/// The comment that belongs to the statement at `index`: on its line, or above where the statement starts.
fn explanation(index: usize, code: &[&str], text: &[&str]) -> Option<String> {
    let mut words = comment_of(text[index]).unwrap_or("").to_owned();
    let mut at = index;
    while at > 0 && !words.contains("SAFETY:") {
        at -= 1;
        let line = code[at].trim();
        if let Some(comment) = comment_of(text[at]).filter(|_| line.is_empty()) {
            words = format!("{comment} {words}");
        } else if line.is_empty() || ends_statement(line) && !line.starts_with("#[") {
            break;
        }
    }
    (!words.is_empty()).then_some(words)
}

fn ends_statement(line: &str) -> bool {
    // A match arm belongs to the block that it opens.
    line.ends_with([';', '{', '}', ',']) && !line.ends_with("=> {")
}

fn comment_of(line: &str) -> Option<&str> {
    line.find("//").map(|at| &line[at..])
}

fn comment_near(text: &[&str], index: usize, word: &str) -> bool {
    let from = index.saturating_sub(6);
    let to = (index + 4).min(text.len());
    text[from..to]
        .iter()
        .any(|line| comment_of(line).is_some_and(|comment| comment.contains(word)))
}

/// The heart's crates forbid unsafe code at their root.
pub(super) fn forbid(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for prefix in HEART {
        let path = format!("{prefix}lib.rs");
        let forbids = tree.get(&path).is_some_and(|file| {
            code_only(&file.text)
                .lines()
                .any(|line| line.trim() == "#![forbid(unsafe_code)]")
        });
        if !forbids {
            findings.push(Finding::of(
                "forbid",
                path,
                "must say #![forbid(unsafe_code)]",
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        blocks(&Tree::of(&[("crates/base/src/a.rs", text)])).len()
    }

    #[test]
    fn a_block_without_a_reason_is_found() {
        assert_eq!(found("fn f() {\n    unsafe { g() };\n}"), 1);
        assert_eq!(
            found("fn f() {\n    // SAFETY: ?\n    unsafe { g() };\n}"),
            1
        );
        assert_eq!(found("unsafe impl Send for A {}"), 1);
        assert_eq!(
            found(
                "fn f() {\n    // SAFETY: for the first one only\n    unsafe { g() };\n    unsafe { h() };\n}"
            ),
            1
        );
    }

    #[test]
    fn a_block_with_a_reason_passes() {
        assert_eq!(
            found(
                "fn f() {\n    // SAFETY: `p` was checked two lines above\n    unsafe { g(p) };\n}"
            ),
            0
        );
        assert_eq!(
            found(
                "fn f() {\n    // SAFETY: checked in new()\n    let x: u32 =\n        unsafe { g() };\n}"
            ),
            0
        );
        assert_eq!(
            found("// SAFETY: all fields are atomics\n#[rustfmt::skip]\nunsafe impl Send for A {}"),
            0
        );
        assert_eq!(
            found(
                "match a {\n    // SAFETY: checked in new()\n    B => {\n        unsafe { g() }\n    }\n}"
            ),
            0
        );
        assert_eq!(
            found("unsafe fn f() {}\n// unsafe { in a comment }\nlet s = \"unsafe { }\";"),
            0
        );
    }

    #[test]
    fn opting_in_needs_a_reason() {
        assert_eq!(found("#![allow(unsafe_code)]\n\nfn f() {}"), 1);
        assert_eq!(
            found("// UNSAFETY: maps memory.\n#![allow(unsafe_code)]\n"),
            0
        );
        assert_eq!(
            found("#[allow(unsafe_code)] // UNSAFETY: maps memory\nmod map;"),
            0
        );
    }

    #[test]
    fn the_heart_must_forbid() {
        let good = [
            ("crates/core/src/lib.rs", "#![forbid(unsafe_code)]"),
            ("crates/engine/src/lib.rs", "#![forbid(unsafe_code)]"),
            ("crates/rdm/src/lib.rs", "#![forbid(unsafe_code)]"),
        ];
        assert!(forbid(&Tree::of(&good)).is_empty());
        let bad = [
            ("crates/core/src/lib.rs", "// #![forbid(unsafe_code)]"),
            good[1],
            good[2],
        ];
        assert_eq!(forbid(&Tree::of(&bad)).len(), 1);
    }
}

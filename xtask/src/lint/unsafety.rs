//! Unsafe code explains itself. Clippy requires a `SAFETY:` comment for each block; this rule requires that it gives a
//! reason, and that each module that opts in says why.

use super::Finding;
use crate::source::{Tree, code_only};

/// Every `SAFETY:` comment has a text, and every `allow(unsafe_code)` an `UNSAFETY:` comment.
pub(super) fn reasons(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let code = code_only(&file.text);
        let text: Vec<&str> = file.text.lines().collect();
        for (index, line) in code.lines().enumerate() {
            let mut find = |message| {
                findings.push(Finding::at("unsafety", &file.path, index + 1, message));
            };
            let opts_in =
                line.contains("allow(unsafe_code)") || line.contains("expect(unsafe_code)");
            if opts_in && !is_explained(&text, index) {
                find(
                    "say in an `// UNSAFETY:` comment next to this why the module needs unsafe code",
                );
            }
            if comment_of(text[index]).is_some_and(|comment| is_empty(comment, &text, index)) {
                find("the SAFETY comment gives no reason");
            }
        }
    }
    findings
}

fn comment_of(line: &str) -> Option<&str> {
    line.find("// ").map(|at| &line[at + 3..])
}

/// Whether an `UNSAFETY:` comment is near.
fn is_explained(text: &[&str], index: usize) -> bool {
    let near = &text[index.saturating_sub(6)..(index + 4).min(text.len())];
    let mut comments = near.iter().filter_map(|line| comment_of(line));
    comments.any(|comment| comment.contains("UNSAFETY:"))
}

/// Whether a comment is a `SAFETY:` without text, on this line or the next.
fn is_empty(comment: &str, text: &[&str], index: usize) -> bool {
    let Some(said) = comment.strip_prefix("SAFETY:") else {
        return false;
    };
    let goes_on = text
        .get(index + 1)
        .is_some_and(|line| line.trim_start().starts_with("//"));
    said.trim().len() < 8 && !goes_on
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        reasons(&Tree::of(&[("crates/base/src/a.rs", text)])).len()
    }

    #[test]
    fn a_safety_comment_without_words_is_found() {
        let block = "fn f() {\n    // SAFETY: ?\n    unsafe { g() };\n}";
        assert_eq!(found(block), 1);
        assert_eq!(
            found(concat!("unsafe impl Send for A {} // SAFE", "TY:")),
            1
        );
        let block = "fn f() {\n    // SAFETY: checked in new()\n    unsafe { g() };\n}";
        assert_eq!(found(block), 0);
        let block = "// SAFETY:\n// checked in new()\nunsafe impl Send for A {}";
        assert_eq!(found(block), 0);
    }

    #[test]
    fn allowing_unsafe_code_needs_a_reason() {
        assert_eq!(found("#![allow(unsafe_code)]\n\nfn f() {}"), 1);
        let above = "// UNSAFETY: maps memory.\n#![allow(unsafe_code)]\n";
        assert_eq!(found(above), 0);
        let beside = "#[allow(unsafe_code)] // UNSAFETY: maps memory\nmod map;";
        assert_eq!(found(beside), 0);
    }
}

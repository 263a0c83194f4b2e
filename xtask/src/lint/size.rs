//! A file contains one concept, and one concept fits in 600 lines. Generated files are exempt.

use super::Finding;
use crate::bindings::MARK;
use crate::source::Tree;

const LIMIT: usize = 600;

/// Rust and C files longer than the limit.
pub(super) fn files(tree: &Tree) -> Vec<Finding> {
    let source = |path: &str| path.ends_with(".rs") || path.ends_with(".c") || path.ends_with(".h");
    let generated = |text: &str| text.lines().take(5).any(|line| line.contains(MARK));
    let long = tree
        .files
        .iter()
        .filter(|file| source(&file.path) && !generated(&file.text));
    long.map(|file| (file, file.text.lines().count()))
        .filter(|(_, count)| *count > LIMIT)
        .map(|(file, count)| {
            Finding::of(
                "size",
                &file.path,
                format!("{count} lines; the limit is {LIMIT}: split it by concept"),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_found() {
        let long = "// line\n".repeat(LIMIT + 1);
        let fits = "// line\n".repeat(LIMIT);
        assert_eq!(
            files(&Tree::of(&[
                ("a.rs", &long),
                ("b.rs", &fits),
                ("c.md", &long)
            ]))
            .len(),
            1
        );
    }

    #[test]
    fn generated_files_are_exempt_by_the_mark_in_their_first_lines() {
        let long = "// line\n".repeat(LIMIT);
        let early = format!("//! A structure.\n//! {MARK} from a header.\n{long}");
        let late = format!("{long}//! {MARK} from a header.\n");
        let found = files(&Tree::of(&[("early.rs", &early), ("late.rs", &late)]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "late.rs");
    }
}

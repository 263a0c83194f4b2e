//! The tree as text: the files that the rules read, and Rust source with comments, strings and test modules blanked
//! out for rules about code.

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// One file of the repository.
pub(crate) struct File {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    /// Whole text.
    pub(crate) text: String,
}

impl File {
    /// Whether this is Rust source.
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// The files of the repository that people write.
pub(crate) struct Tree {
    /// Sorted by path.
    pub(crate) files: Vec<File>,
}

const SKIPPED_DIRECTORIES: &[&str] = &["target", ".git", "corpus", "artifacts", "mutants.out"];
const EXTENSIONS: &[&str] = &["rs", "md", "toml", "c", "h", "sh", "yml", "yaml", "stderr"];
const NAMES: &[&str] = &["run", "LICENSE-MIT", "LICENSE-APACHE"];

impl Tree {
    /// Reads the repository under `root`.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        collect(root, root, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { files })
    }

    /// The file at `path`, if it exists.
    pub(crate) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Files that are compiled only for tests: `mod name;` under `#[cfg(test)]`, and tests/ directories.
    pub(crate) fn test_files(&self) -> BTreeSet<String> {
        let in_folder = |file: &&File| file.path.contains("/tests/");
        let mut found: BTreeSet<String> = self
            .files
            .iter()
            .filter(in_folder)
            .map(|file| file.path.clone())
            .collect();
        for file in self.files.iter().filter(|file| file.is_rust()) {
            for name in test_modules(&file.text) {
                let (folder, stem) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
                let stem = stem.trim_end_matches(".rs");
                let folder = match stem {
                    "lib" | "main" | "mod" => folder.to_owned(),
                    stem => format!("{folder}/{stem}"),
                };
                found.insert(format!("{folder}/{name}.rs"));
                found.insert(format!("{folder}/{name}/mod.rs"));
            }
        }
        found
    }

    /// A tree of made-up files, for the tests of the rules.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).into(),
            text: (*text).into(),
        };
        Self {
            files: files.iter().map(file).collect(),
        }
    }
}

fn collect(root: &Path, directory: &Path, files: &mut Vec<File>) -> Result<()> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let path: PathBuf = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            if !SKIPPED_DIRECTORIES.contains(&name.as_str()) {
                collect(root, &path, files)?;
            }
            continue;
        }
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        if EXTENSIONS.contains(&extension) || NAMES.contains(&name.as_str()) {
            let relative = path.strip_prefix(root).unwrap_or(&path);
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            files.push(File {
                path: relative.to_string_lossy().replace('\\', "/"),
                text,
            });
        }
    }
    Ok(())
}

/// `text` with comments and literals replaced by spaces; lines keep their numbers. Text that is not Rust stays
/// unchanged.
pub(crate) fn code_only(text: &str) -> String {
    blanked(text, true)
}

/// Also removes items under `#[cfg(test)]` (or `cfg(all(test, ..))`).
pub(crate) fn code_without_tests(text: &str) -> String {
    blanked(text, false)
}

fn blanked(text: &str, with_tests: bool) -> String {
    let Ok(tokens) = text.parse::<TokenStream>() else {
        return text.to_owned();
    };
    let blank = |byte| if byte == b'\n' { byte } else { b' ' };
    let mut code: Vec<u8> = text.bytes().map(blank).collect();
    keep(tokens, with_tests, &mut |span: Span| {
        let place = span.byte_range();
        let from = &text.as_bytes()[place.clone()];
        // The tokens of a documentation comment span the whole comment.
        if !from.starts_with(b"//") && !from.starts_with(b"/*") {
            code[place].copy_from_slice(from);
        }
    });
    String::from_utf8_lossy(&code).into_owned()
}

/// Calls `copy` for text outside literals.
fn keep(tokens: TokenStream, with_tests: bool, copy: &mut impl FnMut(Span)) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if !with_tests && is_hash(&token) && tokens.peek().is_some_and(is_for_tests) {
            // The item ends with its `;` or its braces.
            let is_end = |token: &TokenTree| match token {
                TokenTree::Punct(punct) => punct.as_char() == ';',
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                _ => false,
            };
            tokens.by_ref().find(is_end);
            continue;
        }
        match token {
            TokenTree::Literal(_) => {}
            TokenTree::Group(group) => {
                copy(group.span_open());
                keep(group.stream(), with_tests, copy);
                copy(group.span_close());
            }
            token => copy(token.span()),
        }
    }
}

fn is_hash(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == '#')
}

/// Whether this is the bracket of `#[cfg(test)]` or `#[cfg(all(test, ..))]`.
fn is_for_tests(bracket: &TokenTree) -> bool {
    let text = bracket.to_string().replace(' ', "");
    text.starts_with("[cfg(test") || text.starts_with("[cfg(all(test")
}

/// Names of modules in separate files that are declared only for tests.
fn test_modules(text: &str) -> Vec<String> {
    let tokens: Vec<TokenTree> = match text.parse::<TokenStream>() {
        Ok(tokens) => tokens.into_iter().collect(),
        Err(_) => Vec::new(),
    };
    let mut names = Vec::new();
    for at in 1..tokens.len() {
        if !(is_hash(&tokens[at - 1]) && is_for_tests(&tokens[at])) {
            continue;
        }
        let mut words = tokens[at + 1..].iter().map(TokenTree::to_string);
        let module = words
            .by_ref()
            .find(|word| word != "pub" && !word.starts_with('('));
        if let (Some("mod"), Some(name), Some(";")) =
            (module.as_deref(), words.next(), words.next().as_deref())
        {
            names.push(name);
        }
    }
    names
}

/// Whether `word` occurs in `line` with no letter, digit or underscore on either side.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let is_word = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let bytes = line.as_bytes();
    line.match_indices(word).any(|(at, _)| {
        let starts_word = word.as_bytes()[0].is_ascii_alphanumeric();
        let ends_word = word.as_bytes()[word.len() - 1].is_ascii_alphanumeric();
        let before = starts_word && at > 0 && is_word(bytes.get(at - 1));
        let after = ends_word && is_word(bytes.get(at + word.len()));
        !before && !after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_keep_their_numbers() {
        let text = "let a = \"unsafe { }\"; // unsafe\n/* std::net\n */ let b = 'x';\nlet r = r#\"a \" b\"#;";
        let code = code_only(text);
        assert!(!code.contains("unsafe") && !code.contains("std::net") && !code.contains('x'));
        assert_eq!(code.lines().count(), text.lines().count());
        assert!(code.contains("let b =") && code.ends_with(';'));
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_not_literals() {
        let code = code_only("fn f<'a>(r#type: &'a str) -> &'a str { r#type }");
        assert_eq!(code, "fn f<'a>(r#type: &'a str) -> &'a str { r#type }");
    }

    #[test]
    fn escaped_characters_are_blanked_to_their_end() {
        assert_eq!(
            code_only(r"m('\'', b'\\', '\u{1f}', 'y');").trim_end(),
            "m(    ,      ,         ,    );"
        );
    }

    #[test]
    fn test_modules_are_blanked() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { x.unwrap(); } }\nfn c() {}";
        let kept = code_without_tests(code);
        assert!(kept.contains("fn a()") && kept.contains("fn c()") && !kept.contains("unwrap"));
        assert!(code_only(code).contains("unwrap"));
    }

    #[test]
    fn comments_with_multibyte_characters_are_blanked() {
        let code = code_only("/// \u{e4}\u{20ac} unsafe\nfn a() {} /* \u{1d11e} */ fn b() {}");
        assert!(
            code.contains("fn a() {}") && code.ends_with(" fn b() {}"),
            "{code}"
        );
        assert!(!code.contains("unsafe") && !code.contains("doc"));
    }

    #[test]
    fn test_modules_are_recognised_by_their_declaration() {
        let tree = Tree::of(&[
            (
                "crates/a/src/lib.rs",
                "mod slab;\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\npub(super) mod sample;\n#[cfg(test)]\nmod inner { }\n",
            ),
            (
                "crates/a/src/slab.rs",
                "#[cfg(all(test, loom))]\nmod models;",
            ),
            ("crates/a/tests/whole.rs", ""),
        ]);
        let files = tree.test_files();
        for path in [
            "crates/a/src/tests.rs",
            "crates/a/src/sample.rs",
            "crates/a/src/slab/models.rs",
            "crates/a/tests/whole.rs",
        ] {
            assert!(files.contains(path), "{path} in {files:?}");
        }
        assert!(
            !files.contains("crates/a/src/slab.rs") && !files.contains("crates/a/src/inner.rs")
        );
    }

    #[test]
    fn a_word_is_found_only_at_word_boundaries() {
        assert!(has_word("use tracing::warn;", "tracing"));
        assert!(!has_word("use backtracing::warn;", "tracing"));
        assert!(has_word("a std::env::var", "std::env"));
        assert!(!has_word("std::environment", "std::env"));
    }
}

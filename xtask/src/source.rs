//! The tree as text: the files that the rules look at, and Rust source with comments, strings and
//! test modules blanked out, so that a rule about code does not stumble over prose.

use anyhow::{Context, Result};
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

    /// The file at `path`, if it is there.
    pub(crate) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Files that are compiled for tests only: `mod name;` under `#[cfg(test)]`, and tests/ folders.
    pub(crate) fn test_files(&self) -> BTreeSet<String> {
        let in_folder = |file: &&File| file.path.contains("/tests/");
        let mut found: BTreeSet<String> = self
            .files
            .iter()
            .filter(in_folder)
            .map(|file| file.path.clone())
            .collect();
        for file in self.files.iter().filter(|file| file.is_rust()) {
            for name in test_modules(&code_only(&file.text)) {
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
    let entries = std::fs::read_dir(directory).with_context(|| directory.display().to_string())?;
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
            let text =
                std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            files.push(File {
                path: relative.to_string_lossy().replace('\\', "/"),
                text,
            });
        }
    }
    Ok(())
}

/// `text` with comments, strings and character literals replaced by spaces; lines keep their numbers.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = skip_prose(bytes, at);
        if end == at {
            out.push(bytes[at]);
            at += 1;
        } else {
            out.extend(
                bytes[at..end]
                    .iter()
                    .map(|&b| if b == b'\n' { b'\n' } else { b' ' }),
            );
            at = end;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The end of the comment or literal that starts at `at`; `at` itself when none does.
fn skip_prose(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let word_before = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    match rest {
        [b'/', b'/', ..] => rest
            .iter()
            .position(|&b| b == b'\n')
            .map_or(bytes.len(), |n| at + n),
        [b'/', b'*', ..] => block_comment(bytes, at),
        [b'"', ..] => quoted(bytes, at + 1),
        [b'r', b'"' | b'#', ..] if !word_before => raw_string(bytes, at + 1).unwrap_or(at),
        [b'b' | b'c', b'"', ..] if !word_before => quoted(bytes, at + 2),
        [b'b' | b'c', b'r', b'"' | b'#', ..] if !word_before => {
            raw_string(bytes, at + 2).unwrap_or(at)
        }
        [b'\'', b'\\', ..] => (at + 3..bytes.len())
            .find(|&i| bytes[i] == b'\'')
            .map_or(at, |i| i + 1),
        [b'\'', _, b'\'', ..] => at + 3,
        _ => at,
    }
}

fn block_comment(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn quoted(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_string(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at..].iter().take_while(|&&b| b == b'#').count();
    if bytes.get(at + hashes) != Some(&b'"') {
        return None; // a raw identifier such as r#type
    }
    let mut close = vec![b'"'];
    close.resize(hashes + 1, b'#');
    let start = at + hashes + 1;
    let found = bytes[start..]
        .windows(close.len())
        .position(|window| window == close);
    Some(found.map_or(bytes.len(), |n| start + n + close.len()))
}

/// Blanks out items under `#[cfg(test)]` (or `cfg(all(test, ..))`) in text that is already code only.
pub(crate) fn without_tests(code: &str) -> String {
    let mut out: Vec<u8> = code.as_bytes().to_vec();
    let mut from = 0;
    while let Some(found) = code[from..].find("#[cfg(") {
        let start = from + found;
        let attribute_end = code[start..]
            .find(']')
            .map_or(code.len(), |n| start + n + 1);
        from = attribute_end;
        let condition = &code[start..attribute_end];
        if !(condition.starts_with("#[cfg(test") || condition.starts_with("#[cfg(all(test")) {
            continue;
        }
        let end = item_end(code.as_bytes(), attribute_end);
        for byte in &mut out[start..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        from = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Names of modules that live in files of their own and are declared for tests only.
fn test_modules(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (start, _) in code.match_indices("#[cfg(") {
        let Some(end) = code[start..].find(']') else {
            continue;
        };
        let (condition, rest) = (&code[start..start + end], &code[start + end + 1..]);
        let item = rest.trim_start();
        let item = item.strip_prefix("pub(crate) ").unwrap_or(item);
        if let Some(rest) = item
            .strip_prefix("mod ")
            .filter(|_| has_word(condition, "test"))
        {
            let name: String = rest
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            if rest[name.len()..].trim_start().starts_with(';') {
                names.push(name);
            }
        }
    }
    names
}

/// The end of the item that starts at `at`: its `;` or its closing brace.
fn item_end(bytes: &[u8], at: usize) -> usize {
    let mut depth = 0usize;
    for (index, &byte) in bytes.iter().enumerate().skip(at) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && byte == b'}' {
                    return index + 1;
                }
            }
            b';' if depth == 0 => return index + 1,
            _ => {}
        }
    }
    bytes.len()
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
    fn prose_is_blanked_and_lines_keep_their_numbers() {
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
    fn escaped_characters_end_where_they_end() {
        assert_eq!(
            code_only(r"m('\'', b'\\', '\u{1f}', 'y');").trim_end(),
            "m(    , b    ,         ,    );"
        );
    }

    #[test]
    fn test_modules_are_blanked() {
        let code =
            code_only("fn a() {}\n#[cfg(test)]\nmod tests { fn b() { x.unwrap(); } }\nfn c() {}");
        let kept = without_tests(&code);
        assert!(kept.contains("fn a()") && kept.contains("fn c()") && !kept.contains("unwrap"));
    }

    #[test]
    fn modules_of_tests_are_known_by_their_declaration() {
        let tree = Tree::of(&[
            (
                "crates/a/src/lib.rs",
                "mod slab;\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\nmod inner { }\n",
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
    fn words_have_ends() {
        assert!(has_word("use tracing::warn;", "tracing"));
        assert!(!has_word("use backtracing::warn;", "tracing"));
        assert!(has_word("a std::env::var", "std::env"));
        assert!(!has_word("std::environment", "std::env"));
    }
}

//! Tests that say which clauses they show: `/// Proves: VB-010, FI-098` above a `#[test]`, or the second argument of a
//! `CHECK` in C.

use super::clauses::is_id;
use crate::source::Tree;

/// One such comment.
pub(super) struct Proof {
    /// Crate of the test.
    pub(super) package: String,
    /// `path:line` of the comment.
    pub(super) place: String,
    /// Name of the test function; none when no test follows.
    pub(super) test: Option<String>,
    /// The clauses.
    pub(super) ids: Vec<String>,
    /// A check in C: its stage runs all of them, and cargo knows none.
    pub(super) of_stage: bool,
}

impl Proof {
    /// Whether the test goes through the API that its clauses are about. Front ends live in abi/;
    /// a test of any other crate shows the rule, not the call.
    pub(super) fn through_api(&self) -> bool {
        self.place.starts_with("abi/")
    }
}

/// How far below the comment the function may stand: attributes and more comments lie between.
const REACH: usize = 25;

/// All proofs of the tree, in the order of the files.
pub(super) fn find(tree: &Tree) -> Vec<Proof> {
    let mut proofs: Vec<Proof> = Vec::new();
    for file in tree
        .files
        .iter()
        .filter(|file| file.is_rust() && !file.path.starts_with("xtask/"))
    {
        let lines: Vec<&str> = file.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let Some(list) = line.trim_start().strip_prefix("/// Proves:") else {
                continue;
            };
            let ids = ids(list);
            let test = test_below(&lines[index + 1..]);
            let place = format!("{}:{}", file.path, index + 1);
            // A second line above the same test adds to the first.
            match proofs
                .last_mut()
                .filter(|last| last.test == test && same_file(&last.place, &file.path))
            {
                Some(last) if test.is_some() => last.ids.extend(ids),
                _ => proofs.push(Proof {
                    package: package(tree, &file.path),
                    place,
                    test,
                    ids,
                    of_stage: false,
                }),
            }
        }
    }
    proofs.extend(checks(tree));
    proofs
}

/// Where the checks in C are, and the stage that runs them.
const CHECKS: &str = "abi/fabric/tests/clauses/";
const STAGE: &str = "fabric";

/// The checks in C: `CHECK(name, "FI-001 FI-002", ...`.
fn checks(tree: &Tree) -> Vec<Proof> {
    let mut proofs = Vec::new();
    let files = tree.files.iter();
    for file in files.filter(|file| file.path.starts_with(CHECKS) && file.path.ends_with(".c")) {
        for (index, line) in file.text.lines().enumerate() {
            let Some((name, rest)) = line
                .strip_prefix("CHECK(")
                .and_then(|rest| rest.split_once(','))
            else {
                continue;
            };
            // A line without clauses has them on the next one, where nobody would find them.
            let listed = ids(rest.split('"').nth(1).unwrap_or_default());
            let ids = match listed.is_empty() {
                true => vec![format!("{name} names no clause on its line")],
                false => listed,
            };
            proofs.push(Proof {
                package: format!("stage {STAGE}"),
                place: format!("{}:{}", file.path, index + 1),
                test: Some(name.to_owned()),
                ids,
                of_stage: true,
            });
        }
    }
    proofs
}

fn same_file(place: &str, path: &str) -> bool {
    place
        .rsplit_once(':')
        .is_some_and(|(before, _)| before == path)
}

fn ids(list: &str) -> Vec<String> {
    let words = list.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words
        .filter(|word| is_id(word))
        .map(str::to_owned)
        .collect()
}

/// The function under a comment, if a test attribute stands between.
fn test_below(lines: &[&str]) -> Option<String> {
    let mut is_test = false;
    for line in lines.iter().take(REACH).map(|line| line.trim()) {
        if line.starts_with("#[") && (line.contains("test]") || line.contains("test(")) {
            is_test = true;
        }
        if let Some(rest) = line.split("fn ").nth(1).filter(|_| !line.starts_with("//")) {
            let name: String = rest
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            return is_test.then_some(name);
        }
        if line.starts_with('}') {
            return None;
        }
    }
    None
}

/// The crate that a file belongs to: the name in the nearest manifest above it.
fn package(tree: &Tree, path: &str) -> String {
    let mut folder = path;
    while let Some((parent, _)) = folder.rsplit_once('/') {
        folder = parent;
        if let Some(manifest) = tree.get(&format!("{folder}/Cargo.toml")) {
            let name = manifest
                .text
                .lines()
                .find_map(|line| line.strip_prefix("name = \""));
            return name.unwrap_or("").trim_end_matches('"').to_owned();
        }
    }
    String::new()
}

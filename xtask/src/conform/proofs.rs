//! Tests that say which clauses they prove, above a `#[test]`:
//!
//! * `/// Proves: VB-010, FI-098`
//! * `/// Proves partly: FI-192 (what is missing)`: a part is shown; the words in brackets are optional.
//! * `/// Proves in strict mode: FI-161`: shown with `FI_RKEY_STRICT=1` only.
//!
//! A `CHECK` in C lists clauses in its second argument; those after the word `partly` are shown in part. One with
//! `.strict = true` shows them in strict mode.

use super::clauses::is_id;
use crate::source::Tree;

/// How far a test proves a clause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Extent {
    /// The whole clause.
    Whole,
    /// The whole clause, but only in strict mode.
    Strict,
    /// A part of the clause.
    Part,
}

/// The forms of a citation, by the words after `Proves`.
const FORMS: &[(&str, Extent)] = &[
    (":", Extent::Whole),
    (" in strict mode:", Extent::Strict),
    (" partly:", Extent::Part),
];

/// A clause that a test cites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Citation {
    pub(super) id: String,
    pub(super) extent: Extent,
    /// What the test of a part of a clause omits; empty if the test does not say.
    pub(super) missing: String,
}

/// A comment that cites clauses.
pub(super) struct Proof {
    /// The crate of the test.
    pub(super) package: String,
    /// `path:line` of the comment.
    pub(super) place: String,
    /// The name of the test function; `None` if no test follows.
    pub(super) test: Option<String>,
    /// The clauses.
    pub(super) cited: Vec<Citation>,
    /// Why the comment cannot be parsed, if it cannot.
    pub(super) problem: Option<String>,
    /// Whether this is a check in C. A stage runs all of those; cargo does not list them.
    pub(super) of_stage: bool,
}

impl Proof {
    /// The names of the clauses.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.cited.iter().map(|citation| citation.id.as_str())
    }

    /// Whether the test goes through the API that its clauses are about. Front ends live in abi/;
    /// a test of any other crate proves the rule, not the call.
    pub(super) fn through_api(&self) -> bool {
        self.place.starts_with("abi/")
    }
}

/// How many lines below the comment the function may be; attributes and more comments may be in between.
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
            let Some((cited, problem)) = comment(line.trim_start()) else {
                continue;
            };
            let test = test_below(&lines[index + 1..]);
            let place = format!("{}:{}", file.path, index + 1);
            // A second line above the same test adds to the first.
            match proofs
                .last_mut()
                .filter(|last| last.test == test && same_file(&last.place, &file.path))
            {
                Some(last) if test.is_some() => {
                    last.cited.extend(cited);
                    last.problem = last.problem.take().or(problem);
                }
                _ => proofs.push(Proof {
                    package: package(tree, &file.path),
                    place,
                    test,
                    cited,
                    problem,
                    of_stage: false,
                }),
            }
        }
    }
    proofs.extend(checks(tree));
    proofs
}

/// The clauses that a line of a comment cites, and why it cannot be parsed; `None` if it cites nothing.
fn comment(line: &str) -> Option<(Vec<Citation>, Option<String>)> {
    let rest = line.strip_prefix("/// Proves")?;
    let form = FORMS.iter().find(|(form, _)| rest.starts_with(form));
    let Some((form, extent)) = form else {
        // Prose may begin with this word; a clause in it counts as a citation.
        let problem = format!("`{line}` is not a valid citation");
        return (!ids(rest).is_empty()).then(|| (Vec::new(), Some(problem)));
    };
    let (list, missing) = rest[form.len()..]
        .split_once('(')
        .unwrap_or((&rest[form.len()..], ""));
    let missing = missing.trim().trim_end_matches(['.', ')']);
    let cited: Vec<Citation> = ids(list)
        .into_iter()
        .map(|id| Citation {
            id,
            extent: *extent,
            missing: missing.to_owned(),
        })
        .collect();
    let problem = cited
        .is_empty()
        .then(|| format!("`{line}` names no clause"));
    Some((cited, problem))
}

/// Where the checks in C are, and the stage that runs them.
const CHECKS: &str = "abi/fabric/tests/clauses/";
const STAGE: &str = "fabric";

/// The checks in C: `CHECK(name, "FI-001 FI-002", ...`.
fn checks(tree: &Tree) -> Vec<Proof> {
    let mut proofs = Vec::new();
    let files = tree.files.iter();
    for file in files.filter(|file| file.path.starts_with(CHECKS) && file.path.ends_with(".c")) {
        let lines: Vec<&str> = file.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let Some((name, rest)) = line
                .strip_prefix("CHECK(")
                .and_then(|rest| rest.split_once(','))
            else {
                continue;
            };
            let list = rest.split('"').nth(1).unwrap_or_default();
            let (whole, part) = list.split_once("partly").unwrap_or((list, ""));
            let of = |list, extent| {
                ids(list).into_iter().map(move |id| Citation {
                    id,
                    extent,
                    missing: String::new(),
                })
            };
            let extent = match is_strict(&lines[index..]) {
                true => Extent::Strict,
                false => Extent::Whole,
            };
            let cited: Vec<Citation> = of(whole, extent).chain(of(part, Extent::Part)).collect();
            // The clauses may be on the next line, which is not read.
            let problem = cited
                .is_empty()
                .then(|| format!("{name} names no clause on its line"));
            proofs.push(Proof {
                package: format!("stage {STAGE}"),
                place: format!("{}:{}", file.path, index + 1),
                test: Some(name.to_owned()),
                cited,
                problem,
                of_stage: true,
            });
        }
    }
    proofs
}

/// Whether the check that begins in the first of these lines is for strict mode.
fn is_strict(lines: &[&str]) -> bool {
    let head = lines.iter().position(|line| line.ends_with('{'));
    let head = &lines[..=head.unwrap_or(0)];
    head.iter().any(|line| line.contains(".strict = true"))
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

/// The function under a comment, if there is a test attribute in between.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Vec<(String, Extent, String)> {
        let (cited, problem) = comment(line).expect("a citation");
        assert_eq!(problem, None);
        let fields = |c: Citation| (c.id, c.extent, c.missing);
        cited.into_iter().map(fields).collect()
    }

    #[test]
    fn strict_mode_checks_are_marked_before_their_body() {
        let strict = ["CHECK(a, \"FI-001\", \"words\",", "      .strict = true) {"];
        let plain = ["CHECK(a, \"FI-001\", \"words\") {", "    .strict = true;"];
        assert!(is_strict(&strict) && is_strict(&["CHECK(a, \"\", \"\", .strict = true) {"]));
        assert!(!is_strict(&plain));
    }

    #[test]
    fn the_three_forms_of_citations_are_parsed() {
        let one = |id: &str, extent, missing: &str| (id.to_owned(), extent, missing.to_owned());
        assert_eq!(
            read("/// Proves: VB-010, FI-098"),
            [
                one("VB-010", Extent::Whole, ""),
                one("FI-098", Extent::Whole, "")
            ]
        );
        assert_eq!(
            read("/// Proves in strict mode: FI-161"),
            [one("FI-161", Extent::Strict, "")]
        );
        assert_eq!(
            read("/// Proves partly: FI-192, FI-I10 (not on datagram endpoints, see FI-001)."),
            [
                one(
                    "FI-192",
                    Extent::Part,
                    "not on datagram endpoints, see FI-001"
                ),
                one(
                    "FI-I10",
                    Extent::Part,
                    "not on datagram endpoints, see FI-001"
                )
            ]
        );
        assert_eq!(
            read("/// Proves partly: FI-192"),
            [one("FI-192", Extent::Part, "")]
        );
    }

    #[test]
    fn an_unknown_form_of_citation_is_a_problem() {
        let problem = |line| comment(line).and_then(|(_, problem)| problem);
        assert!(problem("/// Proves mostly: FI-192").is_some());
        assert!(problem("/// Proves: everything").is_some());
        assert_eq!(comment("/// Proves that a key ends"), None);
        assert_eq!(comment("/// Shows: FI-192"), None);
    }

    #[test]
    fn citations_above_one_test_are_merged() {
        let test = "/// Proves: FI-001\n/// Proves partly: FI-002 (the rest)\n#[test]\nfn a() {}\n";
        let proofs = find(&Tree::of(&[("abi/fabric/tests/a.rs", test)]));
        let extents: Vec<Extent> = proofs[0].cited.iter().map(|c| c.extent).collect();
        assert_eq!(proofs.len(), 1);
        assert_eq!(extents, [Extent::Whole, Extent::Part]);
    }
}

//! Refuses dependency cycles between directories: if files of two directories depend on each other, directly or
//! through others, neither directory can be read, tested or moved without the other.

use super::Finding;
use crate::source::{Tree, code_without_tests};
use std::collections::{BTreeMap, BTreeSet};

/// A module, by the directories and the file of its path under `src`; the crate's root is empty.
type Module = Vec<String>;

/// Finds cycles of files that are not all in one directory.
pub(super) fn rooms(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, BTreeMap<Module, String>> = BTreeMap::new();
    let tests = tree.test_files();
    for file in tree
        .files
        .iter()
        .filter(|file| file.is_rust() && !tests.contains(&file.path))
    {
        if let Some((name, inside)) = file.path.split_once("/src/") {
            let code = code_without_tests(&file.text);
            crates.entry(name).or_default().insert(module(inside), code);
        }
    }
    crates
        .iter()
        .flat_map(|(name, files)| {
            circles(files)
                .into_iter()
                .map(move |circle| finding(name, &circle))
        })
        .collect()
}

fn finding(name: &str, circle: &[Module]) -> Finding {
    let names: Vec<String> = circle.iter().map(|module| module.join("/")).collect();
    let message = format!(
        "these files in several directories depend on each other: {}; pass what one side needs as an argument or a trait",
        names.join(", ")
    );
    Finding::of("circles", format!("{name}/src"), message)
}

/// `qp/mod.rs` and `qp.rs` are the module `qp`.
fn module(path: &str) -> Module {
    let mut parts: Module = path
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    if matches!(
        parts.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        parts.pop();
    }
    parts
}

/// The directory of a module: its own, if it has submodules.
fn room<'a>(module: &'a Module, files: &BTreeMap<Module, String>) -> &'a [String] {
    let has_own = |other: &Module| other.len() > module.len() && other.starts_with(module);
    match module.is_empty() || files.keys().any(has_own) {
        true => module,
        false => &module[..module.len() - 1],
    }
}

/// Files that depend on each other, if they are in more than one directory.
fn circles(files: &BTreeMap<Module, String>) -> Vec<Vec<Module>> {
    let uses: BTreeMap<&Module, BTreeSet<&Module>> = files
        .iter()
        .map(|(module, code)| (module, uses(module, code, files)))
        .collect();
    let reach: BTreeMap<&Module, BTreeSet<&Module>> = files
        .keys()
        .map(|module| (module, reachable(module, &uses)))
        .collect();
    let mut known: BTreeSet<&Module> = BTreeSet::new();
    let mut found = Vec::new();
    for module in files.keys() {
        if known.contains(module) {
            continue;
        }
        let back = |other: &&&Module| reach[**other].contains(module);
        let circle: Vec<Module> = reach[module]
            .iter()
            .filter(back)
            .map(|m| (*m).clone())
            .collect();
        known.extend(reach[module].iter().filter(back).copied());
        let rooms: BTreeSet<&[String]> = circle.iter().map(|module| room(module, files)).collect();
        if rooms.len() > 1 {
            found.push(circle);
        }
    }
    found
}

fn reachable<'a>(
    from: &'a Module,
    uses: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
) -> BTreeSet<&'a Module> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        for next in &uses[module] {
            if seen.insert(*next) {
                open.push(next);
            }
        }
    }
    seen
}

/// The modules that a file names with `crate::` or `super::`.
fn uses<'a>(
    module: &Module,
    code: &str,
    files: &'a BTreeMap<Module, String>,
) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    for path in paths(code) {
        let mut names = path.iter().map(String::as_str).peekable();
        let mut target: Module = match names.next() {
            Some("crate") => Vec::new(),
            Some("super") => module[..module.len().saturating_sub(1)].to_vec(),
            _ => module.clone(),
        };
        while names.next_if_eq(&"super").is_some() {
            target.pop();
        }
        target.extend(names.map(str::to_owned));
        while !files.contains_key(&target) && target.pop().is_some() {}
        if let Some((known, _)) = files.get_key_value(&target)
            && known != module
        {
            found.insert(known);
        }
    }
    found
}

/// Paths that begin with `crate`, `super` or `self`, with the braces of imports expanded.
fn paths(code: &str) -> Vec<Vec<String>> {
    let starts = ["crate::", "super::", "self::"];
    let mut found = Vec::new();
    for start in starts
        .iter()
        .flat_map(|word| code.match_indices(word))
        .map(|(at, _)| at)
    {
        let before = code[..start].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '$')) {
            continue;
        }
        expand(&code[start..], &mut Vec::new(), &mut found);
    }
    found
}

/// Reads one path; returns how many bytes it has.
fn expand(code: &str, prefix: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    let own = prefix.len();
    let mut at = 0;
    loop {
        let rest = &code[at..];
        if rest.starts_with('{') {
            at += 1;
            while !code[at..].starts_with('}') {
                at += code[at..].len() - code[at..].trim_start_matches([' ', '\n', ',']).len();
                if code[at..].is_empty() || code[at..].starts_with('}') {
                    break;
                }
                at += expand(&code[at..], prefix, found).max(1);
            }
            at += usize::from(!code[at..].is_empty());
            break;
        }
        let name: String = rest
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        at += name.len();
        if !name.is_empty() {
            prefix.push(name);
        }
        if code[at..].starts_with("::") {
            at += 2;
        } else {
            found.push(prefix.clone());
            // `name as other`
            if code[at..].starts_with(" as ") {
                at += code[at..].find([',', '}', ';']).unwrap_or(0);
            }
            break;
        }
    }
    prefix.truncate(own);
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(files: &[(&str, &str)]) -> Vec<String> {
        rooms(&Tree::of(files))
            .into_iter()
            .map(|found| found.message)
            .collect()
    }

    #[test]
    fn a_cycle_between_directories_is_found() {
        let found = places(&[
            ("crates/a/src/lib.rs", "mod cq;\nmod tables;"),
            (
                "crates/a/src/cq.rs",
                "use crate::{Other, tables::{readers, writers as w}};",
            ),
            ("crates/a/src/tables/mod.rs", "pub mod readers;"),
            ("crates/a/src/tables/readers.rs", "use crate::cq::Cq;"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("cq, tables/readers;"), "{found:?}");
    }

    #[test]
    fn a_cycle_through_a_third_file_is_found() {
        let found = places(&[
            ("crates/a/src/x/one.rs", "fn f() { crate::y::two::g() }"),
            ("crates/a/src/y/two.rs", "use super::three;"),
            ("crates/a/src/y/three.rs", "use super::super::x::one;"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn cycles_inside_a_directory_and_of_tests_are_allowed() {
        let found = places(&[
            ("crates/a/src/x/mod.rs", "pub mod one;\nuse self::one::One;"),
            (
                "crates/a/src/x/one.rs",
                "use super::Two;\n// use crate::y::three;",
            ),
            ("crates/a/src/y/three.rs", "use crate::x::one::One;"),
            (
                "crates/a/src/x/four.rs",
                "#[cfg(test)]\nmod tests { use crate::y::three; }",
            ),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}

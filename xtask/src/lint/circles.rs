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
    let imports = files
        .iter()
        .map(|(module, code)| (module, imports(module, code, files)))
        .collect();
    let uses: BTreeMap<&Module, BTreeSet<&Module>> = files
        .iter()
        .map(|(module, code)| (module, uses(module, code, files, &imports)))
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

/// What the names that a module imports stand for: the path from the crate's root.
type Imports = BTreeMap<String, Vec<String>>;

/// The imports of a module that come from its own crate. Its submodules and, if an import is public, other modules
/// can name the imported item by way of this module.
fn imports(module: &Module, code: &str, files: &BTreeMap<Module, String>) -> Imports {
    let mut found = Imports::new();
    for (at, word) in code.match_indices("use ") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let mut paths = Vec::new();
        expand(&code[at + word.len()..], &mut Vec::new(), &mut paths);
        for Named { path, name } in paths {
            let child = [module.as_slice(), &path[..path.len().min(1)]].concat();
            let is_local = matches!(
                path.first().map(String::as_str),
                Some("crate" | "super" | "self")
            );
            let target = match is_local {
                true => from_root(module, &path),
                false if files.contains_key(&child) => [module.as_slice(), &path].concat(),
                false => continue,
            };
            found.insert(name, target);
        }
    }
    found
}

/// The modules that a file names with `crate::`, `super::` or `self::`. A name that the named module only imports
/// leads to the module where the item is defined.
fn uses<'a>(
    module: &Module,
    code: &str,
    files: &'a BTreeMap<Module, String>,
    imports: &BTreeMap<&Module, Imports>,
) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    for Named { path, .. } in paths(code) {
        let mut target = from_root(module, &path);
        // Names can import each other in a circle (`use super::*` beside `use self::one::*`).
        for _ in 0..8 {
            let Some(known) = longest(&target, files) else {
                break;
            };
            if known != module {
                found.insert(known);
            }
            let Some(name) = target.get(known.len()) else {
                break;
            };
            match imports[known].get(name) {
                Some(defined) => {
                    target = [defined.as_slice(), &target[known.len() + 1..]].concat();
                }
                None => break,
            }
        }
    }
    found
}

/// The module that `path` names, or that its item is in.
fn longest<'a>(path: &[String], files: &'a BTreeMap<Module, String>) -> Option<&'a Module> {
    (0..=path.len())
        .rev()
        .find_map(|length| files.get_key_value(&path[..length]))
        .map(|(module, _)| module)
}

/// A path of `module` that begins with `crate`, `super` or `self`, from the crate's root.
fn from_root(module: &Module, path: &[String]) -> Vec<String> {
    let mut names = path.iter().map(String::as_str).peekable();
    let mut target: Module = match names.next() {
        Some("crate") => Vec::new(),
        Some("super") => module[..module.len().saturating_sub(1)].to_vec(),
        _ => module.clone(),
    };
    while names.next_if_eq(&"super").is_some() {
        target.pop();
    }
    target.extend(names.filter(|name| *name != "self").map(str::to_owned));
    target
}

/// A path, and the name that it has where it stands: its last one, or the one after `as`.
struct Named {
    path: Vec<String>,
    name: String,
}

/// Paths that begin with `crate`, `super` or `self`, with the braces of imports expanded.
fn paths(code: &str) -> Vec<Named> {
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
fn expand(code: &str, prefix: &mut Vec<String>, found: &mut Vec<Named>) -> usize {
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
        let name = identifier(rest);
        at += name.len();
        if !name.is_empty() {
            prefix.push(name.to_owned());
        }
        if code[at..].starts_with("::") {
            at += 2;
        } else {
            let mut name = prefix.last().cloned().unwrap_or_default();
            if let Some(alias) = code[at..].strip_prefix(" as ") {
                name = identifier(alias).to_owned();
                at += code[at..].find([',', '}', ';']).unwrap_or(0);
            }
            found.push(Named {
                path: prefix.clone(),
                name,
            });
            break;
        }
    }
    prefix.truncate(own);
    at
}

/// The identifier at the start of `code`, or nothing.
fn identifier(code: &str) -> &str {
    let is_end = |c: char| !(c.is_alphanumeric() || c == '_');
    &code[..code.find(is_end).unwrap_or(code.len())]
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
    fn a_cycle_through_an_import_of_the_root_or_of_a_parent_is_found() {
        let found = places(&[
            (
                "crates/a/src/lib.rs",
                "mod x;\nmod y;\npub use y::{two::Two as Second};\nuse x::one::One;",
            ),
            ("crates/a/src/x/mod.rs", "pub mod one;"),
            ("crates/a/src/x/one.rs", "use crate::Second;"),
            ("crates/a/src/y/mod.rs", "pub mod two;\nuse crate::One;"),
            ("crates/a/src/y/two.rs", "use super::One;"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("x/one, y, y/two;"), "{found:?}");
    }

    #[test]
    fn an_import_that_leads_to_itself_ends() {
        let found = places(&[
            (
                "crates/a/src/x/mod.rs",
                "pub mod one;\npub use self::one::A;",
            ),
            ("crates/a/src/x/one.rs", "use super::A;"),
            ("crates/a/src/y/two.rs", "use crate::x::A;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
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

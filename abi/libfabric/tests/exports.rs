//! The library exports the symbols of Debian's libfabric and those of later versions, each with its version, and nothing else.

use rkey_kit::delivery::OWN_LIBFABRIC;
use std::path::PathBuf;
use std::process::Command;

/// Added after libfabric 1.17. The versions of `fi_getinfo`, `fi_dupinfo` and `fi_freeinfo` have longer structures.
const LATER: &[&str] = &["fi_fabric2@FABRIC_1.8"];
const LONGER: &[&str] = &["FABRIC_1.7", "FABRIC_1.8", "FABRIC_1.9", "FABRIC_1.10"];

/// The library that cargo built for this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    OWN_LIBFABRIC
        .find(test.parent().expect("in the directory deps"))
        .expect("cargo builds the library for its tests")
}

/// What a tool of binutils prints; `None` if it is not installed.
fn shown(tool: &str, words: &[&str]) -> Option<String> {
    let Ok(output) = Command::new(tool).args(words).arg(library()).output() else {
        println!("skipped: {tool} is not installed");
        return None;
    };
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn exported_symbols_and_versions_match_libfabric() {
    let Some(table) = shown("nm", &["-D", "--defined-only"]) else {
        return;
    };
    let mut ours: Vec<String> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (kind, name) = (words.next()?, words.next()?);
            (kind != "A").then(|| name.replace("@@", "@"))
        })
        .collect();
    ours.sort_unstable();
    let names = ["fi_getinfo", "fi_dupinfo", "fi_freeinfo"];
    let longer = names.iter().flat_map(|name| {
        LONGER
            .iter()
            .map(move |version| format!("{name}@{version}"))
    });
    let debian = include_str!("debian-exports.txt").lines();
    let mut theirs: Vec<String> = debian
        .chain(LATER.iter().copied())
        .map(str::to_owned)
        .chain(longer)
        .collect();
    theirs.sort_unstable();
    assert_eq!(ours, theirs);
}

#[test]
fn the_soname_is_that_of_libfabric() {
    let Some(head) = shown("objdump", &["-p"]) else {
        return;
    };
    let name = head
        .lines()
        .find(|line| line.contains("SONAME"))
        .expect("it has a name");
    assert!(name.ends_with(" libfabric.so.1"), "{name}");
}

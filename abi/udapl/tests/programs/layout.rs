//! The structures and numbers match the installed headers: a C compiler checks the sizes and offsets that the library asserts at
//! its own compilation, and the numbers that are written by hand.

#[path = "../../../../tools/bindings/checks.rs"]
mod checks;

use crate::support::Stage;
use std::process::Command;

const HEADERS: &str = "#include <netinet/in.h>\n#include <dat2/udat.h>\n#include <dat2/dat_registry.h>\n\
    #include <dat2/dat_ib_extensions.h>\n#include <stddef.h>\n";

/// Proves: DA-066
/// Proves partly: DA-006, DA-007, DA-008, DA-011, DA-012, DA-013, DA-014 (the numbers), DA-061 (the layout of its arguments)
#[test]
fn structures_match_debians_headers() {
    let (count, mut assertions) =
        checks::static_assertions(include_str!("../../src/sys/layouts.rs"));
    assert!(count >= 350, "only {count} checks were found");
    for source in [
        include_str!("../../src/sys/consts.rs"),
        include_str!("../../src/sys/mod.rs"),
    ] {
        let (count, more) = numbers(source);
        assert!(count >= 30, "only {count} numbers were found");
        assertions.push_str(&more);
    }
    let stage = Stage::new("layout");
    let file = stage.file("layout.c");
    std::fs::write(&file, format!("{HEADERS}{assertions}")).expect("a file can be written");
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=c11", "-fsyntax-only"]).arg(&file);
    stage.run(compiler);
}

/// An assertion for each constant that is an integer.
fn numbers(source: &str) -> (usize, String) {
    let assertion = |line: &str| {
        let (name, rest) = line.strip_prefix("pub const ")?.split_once(": ")?;
        let value = rest.split_once(" = ")?.1.strip_suffix(';')?;
        let value = value.replace('_', "");
        let is_number = value
            .chars()
            .all(|c| c.is_ascii_hexdigit() || "x <-".contains(c));
        // Addresses, and types that C does not have.
        if !is_number || name.starts_with("EVD_ASYNC") || name.starts_with("EVD_OUT") {
            return None;
        }
        let (name, value) = (c_name(name), value.replace("1 <<", "1ull <<"));
        Some(format!(
            "_Static_assert((long long)({name}) == (long long)({value}), \"{name}\");\n"
        ))
    };
    let found: Vec<String> = source.lines().filter_map(assertion).collect();
    (found.len(), found.concat())
}

/// The name in the headers: with the prefix `DAT_`, except for counters, which have none.
fn c_name(name: &str) -> String {
    if name.starts_with("DCNT_") {
        name.to_owned()
    } else {
        format!("DAT_{name}")
    }
}

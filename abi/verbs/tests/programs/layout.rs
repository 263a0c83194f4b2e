//! Checks with a C compiler that the generated structures match the installed headers, in the sizes and offsets that the library
//! asserts at compile time.

#[path = "../../../../tools/bindings/checks.rs"]
mod checks;

use crate::support::Stage;
use std::process::Command;

const HEADERS: &str = "#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n\
    #include <rdma/ib_user_verbs.h>\n#include <rdma/ib_user_sa.h>\n#include <stddef.h>\n";

#[test]
fn structures_match_debians_headers() {
    let (count, assertions) = checks::static_assertions(include_str!("../../src/sys/layouts.rs"));
    assert!(count >= 400, "only {count} checks were found");
    let stage = Stage::new("layout");
    let file = stage.file("layout.c");
    std::fs::write(&file, format!("{HEADERS}{assertions}")).expect("a file can be written");
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=c11", "-fsyntax-only"]).arg(&file);
    stage.start(compiler, "gcc").succeed();
}

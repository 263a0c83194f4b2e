//! Programs that must not compile, and why: each file in `ui/` is one mistake that the types
//! prevent.

#[test]
fn the_compiler_rejects_each_program_that_misuses_the_api() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}

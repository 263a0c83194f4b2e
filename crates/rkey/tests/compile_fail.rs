//! Programs that must not compile, and why: each file in `ui/` is one mistake that the types
//! prevent.

#[test]
fn mistakes_that_the_compiler_catches() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}

//! Wrong arguments.

use crate::support::Stage;

fn check(name: &str) {
    let stage = Stage::new(name);
    let program = stage.compile(
        "handles",
        include_str!("handles.c"),
        &["-ldat2", "-lpthread"],
    );
    stage.check(&program, name);
}

/// Proves: DA-002, DA-056
#[test]
fn wrong_handles_are_refused() {
    check("wrong_handles_are_refused");
}

/// Proves partly: DA-055 (null pointers)
#[test]
fn null_pointers_are_refused() {
    check("null_pointers_are_refused");
}

#[test]
fn absurd_sizes_are_refused() {
    check("absurd_sizes_are_refused");
}

/// Proves partly: X-06 (uDAPL's side)
#[test]
fn objects_in_use_cannot_be_freed() {
    check("objects_in_use_cannot_be_freed");
}

//! Turns the checks in generated layouts into assertions for a C compiler, so a test can compare the layouts
//! with the installed headers without libclang. The tests of the front ends include this file.

/// Unions that have a name. Everything else is a structure.
const UNIONS: &[&str] = &[
    "dat_context",
    "dat_event_data",
    "dat_region_description",
    "dat_sp_handle",
];

/// The number of checks, and the checks as `_Static_assert`.
pub(super) fn static_assertions(layouts: &str) -> (usize, String) {
    let found: Vec<String> = layouts.split("[\"").skip(1).filter_map(assertion).collect();
    (found.len(), found.concat())
}

/// `Size of ibv_pd"][size_of::<Pd>() - 16usize];...` is an assertion about `struct ibv_pd`.
fn assertion(check: &str) -> Option<String> {
    let (subject, rest) = check.split_once("\"]")?;
    let (rest, _) = rest.split_once("usize]")?;
    let (_, value) = rest.rsplit_once("- ")?;
    let of = |name: &str| match UNIONS.contains(&name) {
        true => format!("union {name}"),
        false => format!("struct {name}"),
    };
    let expression = if let Some(name) = subject.strip_prefix("Size of ") {
        format!("sizeof({})", of(name))
    } else if let Some(name) = subject.strip_prefix("Alignment of ") {
        format!("_Alignof({})", of(name))
    } else {
        let (name, field) = subject
            .strip_prefix("Offset of field: ")?
            .split_once("::")?;
        // bindgen appends '_' to keywords of Rust.
        format!("offsetof({}, {})", of(name), field.trim_end_matches('_'))
    };
    // Types and fields without a name have checks only in Rust.
    (!subject.contains("__bindgen"))
        .then(|| format!("_Static_assert({expression} == {value}, \"{subject}\");\n"))
}

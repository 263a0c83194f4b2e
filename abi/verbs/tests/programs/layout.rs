//! Our structures are those of Debian's headers: a C compiler checks the sizes and offsets that the library was
//! built with. (The library checks at its own compilation that it has them.)

use crate::support::Stage;
use std::fmt::Write;
use std::process::Command;

/// The modules with the checks of our side, `layout!(Type, size, field @ offset, ...)`.
const SOURCES: &[&str] = &[
    include_str!("../../src/sys/mod.rs"),
    include_str!("../../src/sys/attr.rs"),
    include_str!("../../src/sys/context.rs"),
    include_str!("../../src/sys/kern.rs"),
    include_str!("../../src/sys/objects.rs"),
    include_str!("../../src/sys/work.rs"),
];

/// Types whose C name does not follow from ours.
const NAMES: &[(&str, &str)] = &[
    ("Gid", "union ibv_gid"),
    ("VerbsContext", "struct verbs_context"),
    ("KernAhAttr", "struct ib_uverbs_ah_attr"),
    ("KernQpAttr", "struct ib_uverbs_qp_attr"),
    ("KernPathRec", "struct ib_user_path_rec"),
];

/// Fields of a type that are called otherwise in C.
const FIELDS: &[(&str, &str, &str)] = &[
    ("DeviceAttrEx", "odp_general_caps", "odp_caps.general_caps"),
    ("DeviceAttrEx", "max_cq_count", "cq_mod_caps.max_cq_count"),
    ("VerbsContext", "size", "sz"),
    ("VerbsContext", "create_flow", "ibv_create_flow"),
    ("SendWr", "xrc_remote_srqn", "qp_type.xrc.remote_srqn"),
];

/// Types that have grown since: at the end, so that offsets are as they were, or (the extended context) at the
/// front, so that everything has moved by so much.
const GROWN: &[(&str, Option<u64>)] = &[
    ("PortAttr", None),
    ("QpEx", None),
    ("VerbsContext", Some(48)),
];
/// What came later, and private structures that no header describes.
const LATER: &[&str] = &["active_speed_ex", "reg_mr_ex"];
const PRIVATE: &[&str] = &["VerbsDevice"];
/// Types that came after Debian's headers.
const LATER_TYPES: &[&str] = &["MrInitAttr", "MrInitAttrBuf"];

/// `QpInitAttr` is `struct ibv_qp_init_attr`.
fn c_name(ours: &str) -> String {
    if let Some((_, name)) = NAMES.iter().find(|(type_, _)| *type_ == ours) {
        return (*name).to_owned();
    }
    let mut name = "struct ibv".to_owned();
    for letter in ours.chars() {
        if letter.is_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

/// The checks as C, and how many types they are about.
fn checks() -> (String, usize) {
    let mut c = String::from(
        "#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n\
         #include <rdma/ib_user_verbs.h>\n#include <rdma/ib_user_sa.h>\n#include <stddef.h>\n",
    );
    let mut types = 0;
    for line in SOURCES
        .iter()
        .flat_map(|source| source.split("\nlayout!(").skip(1))
    {
        let (inside, _) = line.split_once(");").expect("the macro ends");
        let mut parts = inside.split(',').map(str::trim);
        let ours = parts.next().expect("a type");
        if PRIVATE.contains(&ours) || LATER_TYPES.contains(&ours) {
            continue;
        }
        types += 1;
        let name = c_name(ours);
        let grown = GROWN.iter().find(|(type_, _)| *type_ == ours);
        let moved = grown.and_then(|(_, moved)| *moved).unwrap_or(0);
        let size: u64 = parts.next().and_then(|n| n.parse().ok()).expect("a size");
        if grown.is_none_or(|(_, moved)| moved.is_some()) {
            let size = size - moved;
            let _ = writeln!(
                c,
                "_Static_assert(sizeof({name}) == {size}, \"size of {ours}\");"
            );
        }
        for part in parts.filter(|part| !part.is_empty()) {
            let (field, offset) = part.split_once(" @ ").expect("a field and its offset");
            if LATER.contains(&field) {
                continue;
            }
            let named = |(of, our, _): &&(&str, &str, &str)| *of == ours && *our == field;
            let theirs = FIELDS.iter().find(named).map_or(field, |(_, _, name)| name);
            let offset = offset.parse::<u64>().expect("a number") - moved;
            let _ = writeln!(
                c,
                "_Static_assert(offsetof({name}, {theirs}) == {offset}, \"{field} of {ours}\");"
            );
        }
    }
    (c, types)
}

#[test]
fn structures_are_those_of_debians_headers() {
    let (source, types) = checks();
    assert!(types >= 40, "only {types} types were found in our sources");
    let stage = Stage::new("layout");
    let file = stage.file("layout.c");
    std::fs::write(&file, &source).expect("a file can be written");
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=c11", "-fsyntax-only"]).arg(&file);
    stage.start(compiler, "gcc").succeed();
}

//! The library exports the symbols of Debian's libibverbs and librdmacm and those of later rdma-core releases, with their versions, and
//! the symbols that libfabric and libdat2 look up in a provider. Otherwise it exports only the interposed functions of the C library.

use rkey_kit::delivery::VERBS;
use std::path::PathBuf;
use std::process::Command;

/// Exported without a version: interposed functions of the C library, and one that only some headers declare.
const UNVERSIONED: &[&str] = &[
    "__fxstatat",
    "__fxstatat64",
    "__lxstat",
    "__lxstat64",
    "__realpath_chk",
    "__xstat",
    "__xstat64",
    "access",
    "canonicalize_file_name",
    "faccessat",
    "fstatat",
    "fstatat64",
    "ibv_wr_opcode_str",
    "lstat",
    "lstat64",
    "realpath",
    "stat",
    "stat64",
    "statx",
];

/// The symbols that other libraries look up in a provider. They have a version of their own. Without it, they would interpose on
/// other providers' symbols of the same name in a process that preloads the library.
const PLUGINS: &[&str] = &[
    "dapl_extensions@@RKEY_1",
    "dat_provider_fini@@RKEY_1",
    "dat_provider_init@@RKEY_1",
    "fi_prov_ini@@RKEY_1",
    "rkey_dat_provider@@RKEY_1",
    "rkey_fi_open@@RKEY_1",
];

/// The library that cargo built for this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    VERBS
        .find(test.parent().expect("in the directory deps"))
        .expect("cargo builds the library for its tests")
}

#[test]
fn exported_symbols_and_versions_match_rdma_core() {
    let table = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library())
        .output();
    let Ok(table) = table else {
        println!("skipped: nm is not installed");
        return;
    };
    let table = String::from_utf8(table.stdout).expect("symbols are text");
    let mut ours: Vec<&str> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (kind, name) = (words.next()?, words.next()?);
            (kind != "A").then_some(name)
        })
        .filter(|name| !UNVERSIONED.contains(name))
        .collect();
    ours.sort_unstable();
    let debian = include_str!("debian-exports.txt").lines();
    let mut theirs: Vec<&str> = debian
        .chain(include_str!("debian-rdmacm-exports.txt").lines())
        .chain(include_str!("later-exports.txt").lines())
        .chain(PLUGINS.iter().copied())
        .collect();
    theirs.sort_unstable();
    assert_eq!(ours, theirs);
}

#[test]
fn the_soname_is_that_of_libibverbs() {
    let head = Command::new("objdump").arg("-p").arg(library()).output();
    let Ok(head) = head else {
        println!("skipped: objdump is not installed");
        return;
    };
    let head = String::from_utf8_lossy(&head.stdout).into_owned();
    let name = head
        .lines()
        .find(|line| line.contains("SONAME"))
        .expect("it has a name");
    assert!(name.ends_with("libibverbs.so.1"), "{name}");
}

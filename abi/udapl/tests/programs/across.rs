//! Keys of each API over the connections of each, between two processes that use all three.

use crate::support::Stage;
use std::path::{Path, PathBuf};

const APIS: [&str; 3] = ["verbs", "libfabric", "uDAPL"];
/// An API's word for its domains.
const DOMAINS: [&str; 3] = ["domain", "domain", "PZ"];
/// The keys, and the API that issued each.
const KEYS: [(&str, usize); 4] = [("rkey", 0), ("fi_mr_key", 1), ("LMR", 2), ("RMR", 2)];

/// The device chooses the keys of libfabric, or the program does.
const DEVICE_KEYS: &str = "PROV_KEY,VIRT_ADDR";
const REQUESTED_KEYS: &str = "NONE";

/// Runs the program for a connection and a key. Returns what both sides printed.
fn run(stage: &Stage, program: &Path, [path, key, outcome]: [&str; 3], modes: &str) -> String {
    let mut command = stage.command(program);
    command.args([path, key, outcome]);
    command.env("RKEY_LOG", "warn");
    command.env("FI_RKEY_MR_MODE", modes);
    if outcome == "allowed" {
        command.env("RKEY_CROSS_API", "on");
    }
    stage.run(command)
}

fn program(stage: &Stage) -> PathBuf {
    let libraries = ["-ldat2", "-libverbs", "-lfabric", "-lpthread"];
    stage.compile("across", include_str!("across.c"), &libraries)
}

/// With `RKEY_CROSS_API=on`, every key works over every connection, both ways.
#[test]
fn every_key_works_over_every_connection() {
    let stage = Stage::with_all("across");
    let program = program(&stage);
    let text = run(&stage, &program, ["all", "all", "allowed"], DEVICE_KEYS);
    assert!(text.ends_with("done\n"), "{text}");
    assert!(!text.contains("denied"), "{text}");
}

/// By default a key works only over connections of its own API. The device recognises keys of other APIs and names
/// their owners, in the same words for each pair, on both sides.
#[test]
fn a_key_of_another_api_is_refused_and_explained() {
    let stage = Stage::with_all("apart");
    let program = program(&stage);
    for (path, api) in APIS.iter().enumerate() {
        for (key, owner) in KEYS {
            let text = run(&stage, &program, [api, key, "refused"], DEVICE_KEYS);
            assert!(text.contains("done\n"), "{api} {key}: {text}");
            if owner == path {
                assert!(!text.contains("denied"), "{api} {key}: {text}");
                continue;
            }
            let [own, other] = [path, owner].map(|api| DOMAINS[api]);
            for part in [
                "RDMA write of 64 B at ",
                &format!("denied: the memory is in {other} "),
                &format!(" of {}, but the request came from {own} ", APIS[owner]),
                &format!(
                    " of {}, but the request came from another {own}",
                    APIS[owner]
                ),
                "set RKEY_CROSS_API=on for the owner",
            ] {
                assert!(text.contains(part), "{api} {key}: {part}\n{text}");
            }
        }
    }
}

/// If programs choose libfabric's 64-bit keys, a program can name keys of other APIs as well.
#[test]
fn a_program_that_chooses_its_keys_may_name_others() {
    let stage = Stage::with_all("requested");
    let program = program(&stage);
    let run = |key, outcome| {
        run(
            &stage,
            &program,
            ["libfabric", key, outcome],
            REQUESTED_KEYS,
        )
    };
    let text = run("all", "allowed");
    assert!(text.ends_with("done\n"), "{text}");
    let text = run("RMR", "refused");
    assert!(
        text.contains(" of uDAPL, but the request came from domain "),
        "{text}"
    );
}

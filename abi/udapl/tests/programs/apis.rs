//! The same requests through verbs, libfabric and uDAPL, in one process with all three front ends.

use crate::support::Stage;

fn check(name: &str) {
    let stage = Stage::with_all(name);
    let libraries = ["-ldat2", "-libverbs", "-lfabric", "-lpthread"];
    let program = stage.compile("apis", include_str!("apis.c"), &libraries);
    stage.check(&program, name);
}

/// The benchmark that docs/api-udapl.md cites, with few binds.
#[test]
fn the_benchmark_of_binds_runs() {
    let stage = Stage::with_all("bind-benchmark");
    let source = include_str!("../../../../benches/peers/bind.c");
    let program = stage.compile("benchmark", source, &["-ldat2", "-libverbs"]);
    let mut command = stage.command(&program);
    command.arg("1000");
    let text = stage.run(command);
    assert!(
        text.contains("ibv_bind_mw") && text.contains("dat_rmr_bind"),
        "{text}"
    );
}

/// Proves: X-01
#[test]
fn remote_write_without_local_write_follows_each_apis_rule() {
    check("remote_write_without_local_write_follows_each_apis_rule");
}

/// Proves: X-02
#[test]
fn local_read_follows_each_apis_rule() {
    check("local_read_follows_each_apis_rule");
}

/// Proves: X-03
#[test]
fn addresses_follow_each_apis_rule() {
    check("addresses_follow_each_apis_rule");
}

/// Proves partly: X-03 (libfabric, by mode)
#[test]
fn libfabric_uses_virtual_addresses_by_mode() {
    check("libfabric_uses_virtual_addresses_by_mode");
}

/// Proves: X-04
#[test]
fn keys_follow_each_apis_rule() {
    check("keys_follow_each_apis_rule");
}

/// Proves: X-05
#[test]
fn atomic_rights_follow_each_apis_rule() {
    check("atomic_rights_follow_each_apis_rule");
}

/// Proves: X-06
#[test]
fn objects_in_use_are_refused_as_each_api_says() {
    check("objects_in_use_are_refused_as_each_api_says");
}

/// Proves: X-07
#[test]
fn a_refusal_affects_the_connection_as_each_api_says() {
    check("a_refusal_affects_the_connection_as_each_api_says");
}

/// Proves: X-08
#[test]
fn errors_are_reported_in_each_apis_form() {
    check("errors_are_reported_in_each_apis_form");
}

#[test]
fn a_forked_child_opens_a_device_of_its_own() {
    check("a_forked_child_opens_a_device_of_its_own");
}

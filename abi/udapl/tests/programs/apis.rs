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
fn remote_write_without_local_write() {
    check("remote_write_without_local_write");
}

/// Proves: X-02
#[test]
fn local_read() {
    check("local_read");
}

/// Proves: X-03
#[test]
fn addresses() {
    check("addresses");
}

/// Proves partly: X-03 (libfabric, by mode)
#[test]
fn virtual_addresses() {
    check("virtual_addresses");
}

/// Proves: X-04
#[test]
fn keys() {
    check("keys");
}

/// Proves: X-05
#[test]
fn atomic_rights() {
    check("atomic_rights");
}

/// Proves: X-06
#[test]
fn closing_objects_in_use() {
    check("closing_objects_in_use");
}

/// Proves: X-07
#[test]
fn after_a_refusal() {
    check("after_a_refusal");
}

/// Proves: X-08
#[test]
fn errors_are_reported_in_each_apis_form() {
    check("errors_are_reported_in_each_apis_form");
}

#[test]
fn after_a_fork() {
    check("after_a_fork");
}

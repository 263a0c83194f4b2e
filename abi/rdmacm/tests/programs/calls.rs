//! Every call: what it returns, and the events that follow.

use crate::support::Stage;

/// Runs one of our programs.
fn succeeds(name: &str, source: &str) {
    let stage = Stage::new(name);
    stage.write("common.h", include_str!("common.h"));
    let program = stage.compile(name, source, &["-lpthread"]);
    let said = stage.start(stage.command(&program), name).succeed();
    assert!(said.ends_with("done\n"), "{said}");
}

#[test]
fn calls_return_what_the_manual_pages_say() {
    succeeds("calls", include_str!("calls.c"));
}

#[test]
fn connections_begin_and_end_with_the_events_of_the_manual_pages() {
    succeeds("connections", include_str!("connections.c"));
}

#[test]
fn groups_extended_connections_and_own_events() {
    succeeds("groups", include_str!("groups.c"));
}

#[test]
fn a_server_that_was_stopped_connects_and_ends() {
    succeeds("stopped", include_str!("stopped.c"));
}

#[test]
fn ten_thousand_connections_leave_nothing_behind() {
    succeeds("many", include_str!("many.c"));
}

#[test]
fn a_message_is_complete_when_its_peer_disconnects_after_it() {
    succeeds("last_message", include_str!("last_message.c"));
}

#[test]
fn a_server_has_more_client_processes_than_links() {
    succeeds("processes", include_str!("processes.c"));
}

/// Every symbol of Debian's library and of later versions can be found by its version, as the loader does for a program.
#[test]
fn missing_calls_of_later_versions_say_so() {
    let stage = Stage::new("absent");
    let program = stage.compile("absent", include_str!("absent.c"), &[]);
    let said = stage.start(stage.command(&program), "absent").succeed();
    assert!(said.contains("does not support repoll_*"), "{said}");
    assert!(said.ends_with("done\n"), "{said}");
}

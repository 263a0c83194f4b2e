//! Every call, with its result and the events that follow.

use crate::support::Stage;

/// Compiles and runs one of our programs.
fn succeeds(name: &str, source: &str) {
    let stage = Stage::new(name);
    stage.write("common.h", include_str!("common.h"));
    stage.write("victims.h", include_str!("victims.h"));
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
fn multicast_groups_xrc_and_user_events_work_as_documented() {
    succeeds("groups", include_str!("groups.c"));
}

#[test]
fn a_stopped_server_connects_after_it_continues() {
    succeeds("stopped", include_str!("stopped.c"));
}

/// Both sides, killed and stopped, in each state of a connection.
#[test]
fn a_side_that_is_killed_or_stopped_does_not_block_the_other() {
    succeeds("states", include_str!("states.c"));
}

/// Synchronous identifiers, whose calls wait for the peer, and members of multicast groups.
#[test]
fn calls_that_wait_for_a_side_that_is_killed_or_stopped_return() {
    succeeds("blocked", include_str!("blocked.c"));
}

#[test]
fn ten_thousand_connections_leak_nothing() {
    succeeds("many", include_str!("many.c"));
}

#[test]
fn a_message_completes_although_its_peer_disconnects_at_once() {
    succeeds("last_message", include_str!("last_message.c"));
}

#[test]
fn a_server_serves_more_client_processes_than_it_keeps_links() {
    succeeds("processes", include_str!("processes.c"));
}

//! `dat_rmr_bind` does what its manual page says.

use crate::support::Stage;

fn check(name: &str) {
    let stage = Stage::new(name);
    let program = stage.compile("bind", include_str!("bind.c"), &["-ldat2", "-lpthread"]);
    stage.check(&program, name);
}

/// Refusals give the reason, in DAT's terms.
#[test]
fn refused_binds_are_explained() {
    let stage = Stage::new("refused-binds");
    let program = stage.compile("bind", include_str!("bind.c"), &["-ldat2", "-lpthread"]);
    for (check, sentence) in [
        (
            "a_bind_needs_local_privileges",
            "dat_rmr_bind refused: to grant peers DAT_MEM_PRIV_REMOTE_WRITE_FLAG, the LMR needs DAT_MEM_PRIV_LOCAL_WRITE_FLAG; it has ",
        ),
        (
            "zones_must_match",
            "dat_rmr_bind refused: the EP and the RMR are in different PZs",
        ),
        (
            "zones_must_match",
            "dat_rmr_bind refused: the LMR and the RMR are in different PZs",
        ),
        ("errors_have_their_codes", " are not inside the LMR ("),
    ] {
        let mut command = stage.command(&program);
        command.arg(check);
        let text = stage.run(command);
        assert!(text.contains(sentence), "{check}: {text}");
    }
}

/// Proves: DA-001, DA-003, DA-018, DA-021, DA-053, DA-I18
#[test]
fn a_bind_covers_only_its_part() {
    check("a_bind_covers_only_its_part");
}

/// Proves: DA-004, DA-005, DA-006, DA-007, DA-008, DA-027, DA-065
#[test]
fn privileges_limit_peers() {
    check("privileges_limit_peers");
}

/// Proves: DA-009, DA-010, DA-020, DA-041, DA-043, DA-044, DA-045, DA-062, DA-068, DA-I13, DA-I15
#[test]
fn a_bind_completes_with_its_cookie() {
    check("a_bind_completes_with_its_cookie");
}

/// Proves: DA-012, DA-I20
#[test]
fn a_suppressed_bind_reports_only_failure() {
    check("a_suppressed_bind_reports_only_failure");
}

/// Proves: DA-011, DA-026
#[test]
fn a_bind_wakes_the_waiting_thread() {
    check("a_bind_wakes_the_waiting_thread");
}

/// Proves: DA-013
#[test]
fn an_unsignalled_bind_wakes_no_thread() {
    check("an_unsignalled_bind_wakes_no_thread");
}

/// Proves: DA-042
#[test]
fn an_unsignalled_bind_needs_the_eps_attribute() {
    check("an_unsignalled_bind_needs_the_eps_attribute");
}

/// Proves: DA-014, DA-I14
#[test]
fn a_bind_with_a_barrier_waits_for_reads() {
    check("a_bind_with_a_barrier_waits_for_reads");
}

/// Proves: DA-015, DA-019, DA-023, DA-024, DA-033, DA-034, DA-035, DA-036
#[test]
fn a_context_may_be_sent_after_its_bind() {
    check("a_context_may_be_sent_after_its_bind");
}

/// Proves: DA-025, DA-I17
#[test]
fn old_contexts_stay_refused() {
    check("old_contexts_stay_refused");
}

/// Proves: DA-039, DA-040, DA-I03, DA-I08
#[test]
fn a_bind_of_length_zero_unbinds() {
    check("a_bind_of_length_zero_unbinds");
}

/// Proves: DA-028, DA-029, DA-030, DA-032, DA-059, DA-064
#[test]
fn a_bind_needs_local_privileges() {
    check("a_bind_needs_local_privileges");
}

/// Proves: DA-049, DA-050, DA-051, DA-052, DA-057, DA-063
#[test]
fn a_bind_needs_an_ep_that_is_or_was_connected() {
    check("a_bind_needs_an_ep_that_is_or_was_connected");
}

/// Proves: DA-054
#[test]
fn a_full_queue_refuses_a_bind() {
    check("a_full_queue_refuses_a_bind");
}

/// Proves: DA-055, DA-058, DA-061, DA-067, DA-I19
#[test]
fn errors_have_their_codes() {
    check("errors_have_their_codes");
}

/// Proves: DA-060, DA-I09, DA-I10
#[test]
fn zones_must_match() {
    check("zones_must_match");
}

/// Proves: DA-046, DA-047, DA-048
#[test]
fn a_failed_bind_breaks_the_connection() {
    check("a_failed_bind_breaks_the_connection");
}

/// Proves: DA-I05, DA-I06
#[test]
fn freeing_an_rmr_unbinds_it() {
    check("freeing_an_rmr_unbinds_it");
}

/// Proves: DA-I07
#[test]
fn a_query_returns_what_was_bound() {
    check("a_query_returns_what_was_bound");
}

/// Proves: DA-I16
#[test]
fn a_rebind_releases_the_first_lmr() {
    check("a_rebind_releases_the_first_lmr");
}

#[test]
fn many_binds_leave_nothing_behind() {
    check("many_binds_leave_nothing_behind");
}

/// Proves: DA-017
#[test]
fn threads_may_bind_at_once() {
    check("threads_may_bind_at_once");
}

/// Proves: DA-I01, DA-I02
/// Proves partly: DA-I12 (all but local read)
#[test]
fn lmrs_have_their_contexts() {
    check("lmrs_have_their_contexts");
}

/// Proves: DA-I04
#[test]
fn freed_lmrs_are_refused() {
    check("freed_lmrs_are_refused");
}

/// Proves: DA-022, DA-I11
#[test]
fn a_refusal_breaks_the_connection() {
    check("a_refusal_breaks_the_connection");
}

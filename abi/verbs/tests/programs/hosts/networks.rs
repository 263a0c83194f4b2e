//! Programs on two hosts with a bad network between them, which treats the packets of all senders alike.

use super::{ADDRESSES, Hosts, PORT, words_of};
use crate::support::Stage;
use rkey_harness::hosts;
use rkey_harness::network::{Conditions, Counts, role, serve};

/// Everything happens to packets but loss and damage.
const ROUGH: Conditions = Conditions {
    spared: PORT,
    ..Conditions::ROUGH
};

/// This is not a separate test but the network of the others, in a process of its own.
#[test]
fn the_network() {
    serve();
}

/// Two hosts with the same network in both directions.
fn over(conditions: Conditions, mtu: u32) -> Option<Hosts> {
    let role = role("hosts::networks::the_network");
    hosts::Hosts::over(&conditions.both_ways(), &role, mtu, &ADDRESSES).map(Hosts::of)
}

/// Runs a program on both hosts with the GID of this index.
fn run(hosts: &Hosts, stage: &Stage, line: &str, gid: &str) -> [String; 2] {
    let port = PORT.to_string();
    hosts.pair(stage, &words_of(line, gid, &port), ADDRESSES[0][0])
}

/// Checks that each of these has happened in both directions.
fn assert_happened(hosts: &Hosts, what: &[fn(&Counts) -> u64]) {
    let counts = hosts.hosts.counts();
    let all = counts.iter().all(|of| what.iter().all(|it| it(of) > 0));
    assert!(all, "{counts:?}");
}

/// The ping-pongs compare the data (`-c`). They do not agree on their end, so nothing is lost.
#[test]
fn ping_pongs_carry_the_right_data_over_a_network_that_repeats_and_reorders() {
    let stage = Stage::new("networks-rough");
    stage.copy_libraries();
    let Some(hosts) = over(ROUGH, 1500) else {
        return;
    };
    for line in [
        "ibv_rc_pingpong -c -s 100000 -n 50",
        "ibv_rc_pingpong -c -e -s 3000 -n 100",
        "ibv_srq_pingpong -c -s 20000 -n 100",
    ] {
        for gid in ["1", "2"] {
            run(&hosts, &stage, line, gid);
        }
    }
    assert_happened(&hosts, &[|it| it.duplicated, |it| it.reordered]);
}

/// Only the invariant checksum can detect the damage, whose UDP checksum is right. Over IPv6, it detects each flipped bit.
#[test]
fn perftest_runs_over_a_network_that_damages_packets_behind_the_udp_checksum() {
    let stage = Stage::new("networks-damage");
    stage.copy_libraries();
    let bad = Conditions {
        loss: Conditions::percent(1),
        corrupt: Conditions::percent(1),
        mends_checksum: true,
        ..ROUGH
    };
    let Some(hosts) = over(bad, 1500) else {
        return;
    };
    for line in [
        "ib_write_bw -F -n 60 -b -s 20000",
        "ib_send_bw -F -n 60 -e -s 20000",
        "ib_read_bw -F -n 60 -s 20000",
        "ib_atomic_bw -F -n 200 -A FETCH_AND_ADD",
        "ib_write_lat -F -n 100",
    ] {
        run(&hosts, &stage, line, "2");
    }
    let all: [fn(&Counts) -> u64; 4] = [
        |it| it.lost,
        |it| it.duplicated,
        |it| it.reordered,
        |it| it.corrupted,
    ];
    assert_happened(&hosts, &all);
}

/// The UDP checksum detects the damage, and the damaged packets of other protocols are refused as well.
#[test]
fn perftest_runs_over_a_network_that_damages_packets() {
    let stage = Stage::new("networks-checksum");
    stage.copy_libraries();
    let bad = Conditions {
        loss: Conditions::percent(1),
        corrupt: Conditions::percent(2),
        ..ROUGH
    };
    let Some(hosts) = over(bad, 4400) else {
        return;
    };
    for line in [
        "ib_write_bw -F -n 60 -s 65536 -q 2",
        "ib_read_bw -F -n 60 -b -s 20000",
        "ib_atomic_bw -F -n 200 -A CMP_AND_SWAP",
    ] {
        run(&hosts, &stage, line, "1");
    }
    assert_happened(&hosts, &[|it| it.lost, |it| it.corrupted]);
}

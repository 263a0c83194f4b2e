//! Failures of hosts and programs in the middle of fi_pingpong's traffic.

use super::{ADDRESSES, start};
use crate::program;
use rkey_harness::hosts::Hosts;
use rkey_harness::outage::{self, Outage};

/// Our endpoints for connections and for reliable datagrams.
const KINDS: [&[&str]; 2] = [&["-e", "msg"], &["-e", "rdm", "-m", "tagged"]];

/// fi_pingpong compares the data, and both sides succeed.
#[test]
fn fi_pingpong_survives_outages() {
    if program("fi_pingpong").is_none() {
        return;
    }
    for (number, outage) in Outage::ALL.into_iter().enumerate() {
        let Some(hosts) = Hosts::new(outage::MTU, &ADDRESSES) else {
            return;
        };
        let (kind, at) = (KINDS[number % 2], number / 2);
        let words = [&["-p", "rkey", "-I", "1500", "-S", "20000"], kind].concat();
        let mut programs = start(&hosts, &words, "");
        let [server, client] = &mut programs;
        outage.hits(&hosts, at, [&mut server.0, &mut client.0]);
        for (side, program) in ["server", "client"].into_iter().zip(&mut programs) {
            assert!(program.wait(), "{outage:?} of host {at}, {kind:?}: {side}");
        }
    }
}

/// The survivor neither hangs nor succeeds.
#[test]
fn fi_pingpong_fails_if_its_peer_is_killed() {
    if program("fi_pingpong").is_none() {
        return;
    }
    for kind in KINDS {
        for at in [0, 1] {
            let Some(hosts) = Hosts::new(outage::MTU, &ADDRESSES) else {
                return;
            };
            let words = [&["-p", "rkey", "-I", "1000000", "-S", "20000"], kind].concat();
            let mut programs = start(&hosts, &words, "");
            let [server, client] = &mut programs;
            outage::kill_in_traffic(&hosts, at, [&mut server.0, &mut client.0]);
            let ended = programs[1 - at].end();
            // A program that crashes has no code.
            let code = ended.and_then(|status| status.code());
            assert!(
                code.is_some_and(|code| code != 0),
                "{kind:?}, host {at} is gone: {ended:?}"
            );
        }
    }
}

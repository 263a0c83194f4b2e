//! Failures of hosts and programs in the middle of perftest's traffic.

use super::{ADDRESSES, Hosts, PORT};
use crate::support::Stage;
use rkey_harness::outage::{self, Outage};

/// The server of a stock program is stopped while data moves. The client gets `IBV_WC_RETRY_EXC_ERR` (12) when the retries are used up,
/// and exits.
#[test]
fn a_program_whose_peer_is_stopped_fails_with_retry_exceeded() {
    // Timeouts of 33 ms, so a request fails after 0.9 s.
    let lines = [
        "ib_write_bw -F -D 1000 -u 13 -x 1",
        "ib_send_bw -F -D 1000 -u 13 -x 2",
        "ib_read_bw -F -D 1000 -u 13 -x 1",
    ];
    let stage = Stage::new("hosts-stopped");
    stage.copy_libraries();
    let Some(hosts) = Hosts::new(1500) else {
        return;
    };
    let port = PORT.to_string();
    for line in lines {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.extend(["-p", &port]);
        let mut server = hosts.start(&stage, 0, &words);
        server.wait_until_it_listens(PORT);
        words.push(ADDRESSES[0][0]);
        let mut client = hosts.start(&stage, 1, &words);
        // The server gets at least a datagram for each read, and acknowledges all of them.
        outage::wait_for_traffic(&hosts.hosts, 0, &mut [server.child(), client.child()]);
        server.stop();
        let status = client.wait();
        let text = client.text();
        let has_failed = status.is_some_and(|status| !status.success());
        assert!(has_failed && text.contains("Failed status 12"), "{text}");
        server.kill();
    }
}

/// Requests are repeated until the outage is over. Both sides succeed, and the client's data have arrived.
#[test]
fn programs_survive_outages() {
    // The packets of atomics fit into any MTU.
    let lines = [
        "ib_write_bw -F -n 16000 -s 20000 -x 1",
        "ib_read_bw -F -n 16000 -s 20000 -x 2",
        "ib_atomic_bw -F -n 100000 -x 1",
        "ib_send_bw -F -n 16000 -s 20000 -x 2",
    ];
    let stage = Stage::new("hosts-outage");
    stage.copy_libraries();
    for ((number, outage), line) in Outage::ALL.into_iter().enumerate().zip(lines) {
        let Some(hosts) = Hosts::new(outage::MTU) else {
            return;
        };
        let port = PORT.to_string();
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.extend(["-p", &port]);
        let mut server = hosts.start(&stage, 0, &words);
        server.wait_until_it_listens(PORT);
        words.push(ADDRESSES[0][0]);
        let mut client = hosts.start(&stage, 1, &words);
        let at = number % 2;
        outage.hits(&hosts.hosts, at, [server.child(), client.child()]);
        for program in [client, server] {
            let (status, text) = program.end();
            let succeeded = status.is_some_and(|status| status.success());
            assert!(
                succeeded,
                "{outage:?} of host {at}, {line}: {status:?}, {text}"
            );
        }
    }
}

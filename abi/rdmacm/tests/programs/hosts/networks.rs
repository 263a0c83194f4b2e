//! `rping` and perftest's connections on two hosts with a bad network between them, which treats the packets of all senders alike:
//! the messages of the connection manager, too.

use super::{ADDRESSES, Hosts, LISTENS, PORT, Ready, TCP, words};
use crate::support::Stage;
use rkey_harness::hosts;
use rkey_harness::network::{Conditions, role, serve};

/// This is not a separate test but the network of the others, in a process of its own.
#[test]
fn the_network() {
    serve();
}

fn rough(seed: u64) -> Conditions {
    Conditions {
        seed,
        ..Conditions::ROUGH
    }
}

/// A network that also loses packets, and damages others so that only the invariant checksum can tell.
fn bad(seed: u64) -> Conditions {
    Conditions {
        loss: Conditions::percent(1),
        corrupt: Conditions::percent(1),
        mends_checksum: true,
        ..rough(seed)
    }
}

/// Two hosts; the conditions are those of the server's packets, and of the client's.
fn over(conditions: [Conditions; 2]) -> Option<Hosts> {
    let role = role("hosts::networks::the_network");
    hosts::Hosts::over(&conditions, &role, 1500, &ADDRESSES).map(Hosts)
}

/// `rping` compares the data. The client exits without waiting until its last packets have arrived, so these are not lost.
#[test]
fn rping_carries_the_right_data_over_a_bad_network() {
    let stage = Stage::new("rping-networks");
    let Some(hosts) = over([bad(1), rough(2)]) else {
        return;
    };
    let options = format!("-a {} -C 40 -v -V -S 30000 -p {PORT}", ADDRESSES[0][1]);
    let [of_server, of_client] = ["-s", "-c"].map(|side| format!("rping {side} {options}"));
    let said = hosts.pair(&stage, &words(&of_server), &words(&of_client), LISTENS);
    let pings = said.map(|text| text.matches("ping data: rdma-ping").count());
    assert_eq!(pings, [40, 40]);
    let [server, client] = hosts.0.counts();
    assert!(server.lost > 0 && server.corrupted > 0, "{server:?}");
    assert!(client.duplicated > 0 && client.reordered > 0, "{client:?}");
}

/// perftest's programs agree on their end over their own connection.
#[test]
fn perftest_connects_and_transfers_over_a_bad_network() {
    let stage = Stage::new("perftest-networks");
    // perftest's addresses are IPv4's, for which the invariant checksum is too weak.
    let plainly = |seed| Conditions {
        mends_checksum: false,
        ..bad(seed)
    };
    let Some(hosts) = over([3, 4].map(plainly)) else {
        return;
    };
    let port = 18_515;
    for line in [
        "ib_write_bw -R -F -n 60 -s 20000",
        "ib_atomic_bw -R -F -n 100 -A FETCH_AND_ADD",
    ] {
        let server = format!("{line} -p {port}");
        let client = format!("{server} {}", ADDRESSES[0][0]);
        hosts.lines(&stage, &server, &client, Ready::Cm(TCP, port));
    }
    let counts = hosts.0.counts();
    let happened = counts.iter().all(|of| of.lost > 0 && of.corrupted > 0);
    assert!(happened, "{counts:?}");
}

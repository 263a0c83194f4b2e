//! Failures of hosts and programs in the middle of dapltest's traffic.

use super::{ADDRESSES, has_passed, start_dapltest, start_dapltest_client};
use crate::support::Stage;
use rkey_harness::hosts::Hosts;
use rkey_harness::outage::{self, Outage};

/// Messages, RDMA reads and RDMA writes, whose data dapltest compares.
const TRAFFIC: &str =
    "T -i 1000 -V client SR 20000 1 server SR 20000 1 client RW 20000 1 server RR 20000 1";

#[test]
fn dapltest_survives_outages() {
    for (number, outage) in Outage::ALL.into_iter().enumerate() {
        let stage = Stage::new("dapltest-outage");
        let Some(hosts) = Hosts::new(outage::MTU, &ADDRESSES) else {
            return;
        };
        let mut server = start_dapltest(&stage, &hosts);
        let mut client = start_dapltest_client(&stage, &hosts, TRAFFIC);
        let at = number % 2;
        outage.hits(&hosts, at, [&mut server.child, &mut client.child]);
        let said = client.wait();
        assert!(has_passed(&said), "{outage:?} of host {at}: {said}");
    }
}

/// A client whose server is killed ends with an error. A server whose client is killed serves the next one.
#[test]
fn dapltest_fails_if_its_peer_is_killed() {
    for at in [0, 1] {
        let stage = Stage::new("dapltest-killed");
        let Some(hosts) = Hosts::new(outage::MTU, &ADDRESSES) else {
            return;
        };
        let mut server = start_dapltest(&stage, &hosts);
        let mut client = start_dapltest_client(&stage, &hosts, TRAFFIC);
        outage::kill_in_traffic(&hosts, at, [&mut server.child, &mut client.child]);
        if at == 0 {
            let (code, said) = client.end();
            // A program that crashes has no code.
            assert!(code.is_some() && !has_passed(&said), "{code:?}: {said}");
        } else {
            let next =
                start_dapltest_client(&stage, &hosts, "T -i 10 client SR 256 1 server SR 256 1");
            let said = next.wait();
            assert!(has_passed(&said), "{said}\nserver: {}", server.text());
        }
    }
}

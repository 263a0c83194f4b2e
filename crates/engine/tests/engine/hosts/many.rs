//! Many connections over one network. `cargo bench -p rkey-engine --bench connections` measures what they cost.

use super::*;

const CONNECTIONS: u64 = if cfg!(miri) { 20 } else { 10_000 };
/// The bytes that each connection writes, so that all of them fit into a region.
const BYTES: u64 = 6;

#[test]
fn ten_thousand_connections_share_a_bad_network() {
    let weather = Weather {
        lost: 2,
        doubled: 2,
        late: 10,
        most_lost: 3,
    };
    let mut hosts = Hosts::new(3, weather);
    let regions = hosts.regions();
    let qps: Vec<Qp> = (0..CONNECTIONS)
        .map(|_| {
            let [own, _] = hosts.connect_with(
                |_, config| config.signal_all = true,
                |_, step| {
                    step.retry_count = step.retry_count.map(|_| 7);
                    step.timeout = step.timeout.map(|_| 6);
                },
            );
            own
        })
        .collect();
    for (n, qp) in qps.iter().enumerate() {
        let place = n as u64 * BYTES;
        let remote = hosts.nodes[1].target(&regions[1], place);
        let sge = hosts.nodes[0].sge(&regions[0], place, BYTES as u32);
        let work = Work::Write { remote, imm: None };
        hosts.send(0, qp, &SendRequest::new(n as u64, work, &[sge]));
    }
    assert!(hosts.run());
    for (n, qp) in qps.iter().enumerate() {
        assert_eq!(statuses(&qp.poll()), [(n as u64, Status::Success)]);
    }
    let written = (CONNECTIONS * BYTES) as usize;
    assert_eq!(
        hosts.nodes[1].bytes(0, written),
        hosts.nodes[0].bytes(0, written)
    );
}

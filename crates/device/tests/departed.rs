//! A peer that has exited is named next to the queue pairs that were connected to it.

mod common;

use common::{Peer, Side, role, sleep_in_read, until};

#[test]
fn an_inspection_names_a_peer_that_has_exited() {
    const TEST: &str = "an_inspection_names_a_peer_that_has_exited";
    if role().is_some() {
        let side = Side::open();
        let (_qp, _) = side.connect();
        return sleep_in_read();
    }
    let side = Side::open();
    let listener = side.listen();
    let mut peer = Peer::start(TEST, "peer", listener.local_address());
    let (qp, remote) = side.accept(&listener);
    side.set(0, 7);
    let write = rkey_engine::Work::Write {
        remote: remote.at(1),
        imm: None,
    };
    side.run(&qp, write, &[side.sge(0, 8)]);
    let inspect = || side.device.inspect().unwrap();
    assert_eq!(inspect().departed, []);
    let pid = peer.0.id();
    let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    peer.kill();
    until("the news", || !inspect().departed.is_empty());
    let seen = inspect();
    let [departed] = &seen.departed[..] else {
        panic!("{:?}", seen.departed)
    };
    assert_eq!(seen.qps[0].peer, Some(departed.node));
    assert_eq!(
        departed.to_string(),
        format!("PID {pid} ({})", program.trim())
    );
    // Without a queue pair that was connected to it, the peer is not named.
    drop(qp);
    assert_eq!(inspect().departed, []);
}

/// A peer that dies as soon as it is connected, often before there is a link to it, is also named.
#[test]
fn an_inspection_names_a_peer_that_exits_at_once() {
    const TEST: &str = "an_inspection_names_a_peer_that_exits_at_once";
    if role().is_some() {
        let side = Side::open();
        let _qp = side.connect();
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    let side = Side::open();
    let listener = side.listen();
    for _ in 0..8 {
        let peer = Peer::start(TEST, "peer", listener.local_address());
        let (_qp, _) = side.accept(&listener);
        let pid = peer.0.id();
        until("the news", || {
            let departed = side.device.inspect().unwrap().departed;
            departed.iter().any(|one| one.pid == Some(pid))
        });
    }
}

//! A peer that guesses keys loses its warrants.

use super::*;
use rkey_device::QpOptions;
use rkey_engine::guesses::ALLOWANCE;

/// A queue pair that survives refusals.
fn hardy(side: &Side) -> Qp {
    let options = QpOptions {
        survive_remote_error: true,
        ..QpOptions::new(side.domain, &side.cq)
    };
    side.device.create_qp(&options).unwrap()
}

/// The requests of a process that has guessed too many keys wait. It cannot go on to write with a warrant from before, and gets a
/// new one only after the pause.
#[test]
fn a_process_that_is_paused_loses_its_warrants() {
    const TEST: &str = "throttled::a_process_that_is_paused_loses_its_warrants";
    if role().is_some() {
        return target(|side, _qp| {
            let other = hardy(side);
            let connected = side.device.connect(common::address(), &[&other], &[], LONG);
            connected.unwrap();
            sleep_in_read();
        });
    }
    let side = open();
    let listener = side.listen();
    let peer = Peer::start(TEST, "target", listener.local_address());
    let (qp, remote) = side.accept(&listener);
    let guesser = hardy(&side);
    let incoming = listener.accept(Some(LONG)).unwrap();
    incoming.accept(&[&guesser], &[]).unwrap();
    if !permits_copies(&peer) {
        return;
    }
    get_warrant(&side, &peer, &qp, remote.at(0));
    for number in 0..=ALLOWANCE {
        let key = RKey::Device(Key(number.wrapping_mul(0x9e37_79b9) + 1));
        let before = pushed(&side);
        side.run(&qp, write_to(remote.at(0)), &[side.sge(0, 8)]);
        assert_eq!(pushed(&side), before + 1, "after {number} guesses");
        let addr = remote.at(0).addr;
        let guess = write_to(Target { addr, key });
        guesser
            .post_send(&SendRequest::new(1, guess, &[side.sge(0, 8)]))
            .unwrap();
        assert_eq!(side.next().status, Status::RemoteAccess);
    }
    // The last guess was one too many.
    let before = pushed(&side);
    side.run(&qp, write_to(remote.at(0)), &[side.sge(0, 8)]);
    assert_eq!(pushed(&side), before);
    // The allowance is used up, but the pause is over: the process may write, and is given a warrant.
    get_warrant(&side, &peer, &qp, remote.at(0));
    peer.finish();
}

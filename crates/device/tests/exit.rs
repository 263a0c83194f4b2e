//! Processes that exit without closing their device: what they have received is acknowledged.
// UNSAFETY: the process forks, and the child exits.
#![allow(unsafe_code)]

mod common;

use common::{Peer, Side, role};
use rkey_engine::{CompletionOp, SendRequest, Status, Work};

/// How many messages are outstanding at once. Only the first of them asks for a prompt acknowledgement.
const BURST: u64 = 5;

/// Exits in a forked child, which does not map the rings of its parent's device.
fn exit_in_child() {
    // SAFETY: the child only exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: the exit handlers of this library wait for no lock, because a thread that holds one may not exist here.
        unsafe { libc::exit(7) };
    }
    let mut status = 0;
    // SAFETY: waits for the child; `status` is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7,
        "{status}"
    );
}

/// As with a NIC, which acknowledges a message when it arrives.
#[test]
fn all_messages_that_an_exiting_process_received_are_acknowledged() {
    let test = "all_messages_that_an_exiting_process_received_are_acknowledged";
    if role().is_some() {
        let side = Side::open();
        let (qp, _) = side.connect();
        for id in 0..BURST {
            side.receive(&qp, id, 0, 8);
        }
        // Tells the peer that the receives are posted.
        side.set(1, 1);
        let ready = Work::Send {
            imm: None,
            invalidate: None,
        };
        qp.post_send(&SendRequest::new(77, ready, &[side.sge(1, 8)]))
            .unwrap();
        let mut received = 0;
        while received < BURST {
            let done = side.next();
            assert_eq!(done.status, Status::Success, "{done:?}");
            received += u64::from(done.opcode == CompletionOp::Recv);
        }
        exit_in_child();
        std::process::exit(0);
    }
    let side = Side::open();
    let listener = side.listen();
    for round in 0..20 {
        let peer = Peer::start(test, "target", listener.local_address());
        let (qp, _) = side.accept(&listener);
        side.receive(&qp, 50, 100, 8);
        assert_eq!(side.next().id, 50);
        let send = Work::Send {
            imm: None,
            invalidate: None,
        };
        for id in 0..BURST {
            qp.post_send(&SendRequest::new(id, send, &[side.sge(0, 8)]))
                .unwrap();
        }
        for id in 0..BURST {
            let done = side.next();
            assert_eq!((done.id, done.status), (id, Status::Success), "{round}");
        }
        peer.finish();
    }
}

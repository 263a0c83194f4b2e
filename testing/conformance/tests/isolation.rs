//! Isolation: other users and other network namespaces cannot be reached unless both ends allow it.
#![allow(unsafe_code)] // UNSAFETY: a child enters another network namespace before it runs the test.

mod common;

use std::os::unix::process::CommandExt;
use std::time::Duration;

use common::process::{OtherUser, Peer, address, command, is_root, role, sleep_in_read};
use common::side::{Remote, Side, seed_of};
use common::until;
use rkey_device::names::{Scope, block_name, block_of};
use rkey_device::{Config, DeviceError, Qp, QpAddress, QpOptions, Share, list_devices};
use rkey_engine::{QpState, RecvRequest, Status, Work};
use rkey_link::shm::{Connector, HandshakeError, LinkConfig, LocalNode, Policy, ShmLink, Step};
use rkey_link::{Link, NodeId};

const OTHER_UID: u32 = 65534;

fn shared() -> Config {
    let mut config = Config::default();
    config.set("RKEY_SHARE", "all").unwrap();
    config
}

/// A user without access finds no listener and no device.
fn stranger() {
    let side = Side::with(Config::default(), seed_of(9));
    let (offer, qp) = (side.offer(), side.qp());
    let invitation = side.invitation(&offer);
    let error = side
        .device
        .connect(address(), &[&qp], &invitation, Duration::from_millis(200))
        .unwrap_err();
    assert!(matches!(error, DeviceError::NotListening { .. }), "{error}");
    // This process may see the devices of other tests of its own user, but not those of its parent.
    let test = std::os::unix::process::parent_id();
    let (own, all) = (
        std::process::id(),
        list_devices(&Config::default()).unwrap(),
    );
    assert!(all.iter().any(|device| device.pid == own), "{all:?}");
    assert!(all.iter().all(|device| device.pid != test), "{all:?}");
}

/// A user that connects directly to another user's device, through a block of queue pair numbers that it knows.
fn intruder() {
    let name = std::env::var("RKEY_TEST_NAME").unwrap();
    match knock(&name, NodeId { pid: 1, nonce: 1 }) {
        Ok(link) => panic!("let in: {}", link.node()),
        Err(HandshakeError::Closed | HandshakeError::Io(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Connects to the device at `name` as the device `id`. Returns the device's response.
fn knock(name: &str, id: NodeId) -> Result<ShmLink, HandshakeError> {
    let config = LinkConfig {
        policy: Policy::Any,
        ..LinkConfig::default()
    };
    let local = LocalNode::new(id, config).unwrap();
    let mut connector = Connector::start(name.as_bytes(), &local, b"")?;
    let deadline = std::time::Instant::now() + common::LONG;
    loop {
        match connector.advance()? {
            Step::Done(link) => return Ok(link),
            Step::Pending => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(
            std::time::Instant::now() < deadline,
            "the device sent no response"
        );
    }
}

/// A process that claims the identity of another one.
fn impostor() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let word = |name: &str| variable(name).parse::<u64>().unwrap();
    let name = variable("RKEY_TEST_NAME");
    let own = NodeId {
        pid: std::process::id(),
        nonce: word("RKEY_TEST_NONCE"),
    };
    let other = NodeId {
        pid: word("RKEY_TEST_PID") as u32,
        ..own
    };
    let answer = knock(&name, other);
    assert!(
        matches!(answer, Err(HandshakeError::Refused(_))),
        "{answer:?}"
    );
    // Under its own identity it is accepted.
    knock(&name, own).unwrap();
}

/// A device that is shared with all users, like the test's.
fn guest() {
    let side = Side::with(shared(), seed_of(10));
    let (offer, qp) = (side.offer(), side.qp());
    let remote = side.connect_to_test(&qp, &offer);
    side.verify(&qp, &remote, "as a guest");
    sleep_in_read();
}

fn run_role() -> bool {
    match role().as_deref() {
        Some("stranger") => stranger(),
        Some("intruder") => intruder(),
        Some("impostor") => impostor(),
        Some("guest") => guest(),
        _ => return false,
    }
    true
}

/// Another user finds neither our listener nor our device; if it knows the name anyway, the device closes the
/// connection. With `RKEY_SHARE=all` at both ends the two can connect.
#[test]
fn other_users_reach_no_device_unless_both_sides_share() {
    const TEST: &str = "other_users_reach_no_device_unless_both_sides_share";
    if run_role() {
        return;
    }
    if !is_root() {
        eprintln!("SKIP: not root, so this test cannot become another user");
        return;
    }
    let side = Side::with(Config::default(), seed_of(11));
    let (offer, qp) = (side.offer(), side.qp());
    let listener = side.listen();
    let place = listener.local_address();
    for role in ["stranger", "intruder"] {
        let mut other =
            OtherUser::new(OTHER_UID, TEST, role, place).expect("a copy of this program");
        let name = block_name(Scope::of(Share::User), block_of(qp.qpn()));
        let status = other.command.env("RKEY_TEST_NAME", name).status().unwrap();
        assert!(status.success(), "{role}: {status}");
    }
    // No access succeeded.
    assert!(listener.accept(Some(Duration::from_millis(1))).is_err());
    assert_eq!(side.device.inspect().unwrap().links.len(), 1);
    assert_eq!(qp.query().unwrap().state, QpState::Reset);
    drop((qp, listener));
    side.withdraw(&offer);

    let side = Side::with(shared(), seed_of(12));
    let (offer, qp) = (side.offer(), side.qp());
    let listener = side.listen();
    let mut guest = OtherUser::new(OTHER_UID, TEST, "guest", listener.local_address()).unwrap();
    let peer = Peer(guest.command.spawn().unwrap());
    let remote = side.accept(&listener, &qp, &offer);
    side.verify(&qp, &remote, "with a guest");
    peer.finish();
    drop(qp);
    side.withdraw(&offer);
}

/// A peer's identity belongs to its process: a process of any user that knows it can neither make a link with it nor
/// pose as the device itself. The peer is not disturbed.
#[test]
fn no_process_can_use_the_identity_of_another_process() {
    const TEST: &str = "no_process_can_use_the_identity_of_another_process";
    if run_role() {
        return;
    }
    let side = Side::with(shared(), seed_of(13));
    let (offer, qp) = (side.offer(), side.qp());
    let listener = side.listen();
    let place = listener.local_address();
    let peer = Peer(command(TEST, "guest", place).spawn().unwrap());
    let incoming = listener.accept(Some(common::LONG)).unwrap();
    let node = incoming.peer().node;
    let met = incoming.accept(&[&qp], &side.invitation(&offer)).unwrap();
    let remote = Remote::from(&met.private_data[..]);
    let name = block_name(Scope::of(Share::All), block_of(qp.qpn()));
    for claimed in [node, side.device.node()] {
        let answer = knock(&name, claimed);
        assert!(
            matches!(answer, Err(HandshakeError::Refused(_))),
            "{claimed}: {answer:?}"
        );
    }
    let own = NodeId {
        pid: std::process::id(),
        nonce: 1,
    };
    knock(&name, own).unwrap();
    let mut same = command(TEST, "impostor", place);
    let mut other = is_root().then(|| OtherUser::new(OTHER_UID, TEST, "impostor", place).unwrap());
    let other = other.as_mut().map(|other| &mut other.command);
    for impostor in [&mut same].into_iter().chain(other) {
        impostor.env("RKEY_TEST_NAME", &name);
        impostor.env("RKEY_TEST_PID", node.pid.to_string());
        impostor.env("RKEY_TEST_NONCE", node.nonce.to_string());
        let status = impostor.status().unwrap();
        assert!(status.success(), "{status}");
    }
    side.verify(&qp, &remote, "after the impostors");
    peer.finish();
    drop(qp);
    side.withdraw(&offer);
}

/// The command for a role in its own network namespace; `None` if that is not permitted.
fn elsewhere(test: &str, role: &str, place: std::net::SocketAddr) -> Option<std::process::Command> {
    let unshare = || {
        // SAFETY: unshare touches no memory.
        let mut done = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        if done != 0 {
            // SAFETY: as above.
            done = unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) };
        }
        match done {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    let mut probe = std::process::Command::new("/proc/self/exe");
    probe.arg("--list").stdout(std::process::Stdio::null());
    // SAFETY: the closure only makes system calls.
    unsafe { probe.pre_exec(unshare) };
    match probe.status() {
        Ok(status) if status.success() => {}
        outcome => {
            eprintln!("SKIP: no network namespace of its own is permitted here: {outcome:?}");
            return None;
        }
    }
    let mut command = command(test, role, place);
    // SAFETY: as above.
    unsafe { command.pre_exec(unshare) };
    Some(command)
}

/// The same user in another network namespace cannot be reached, even with `RKEY_SHARE=all`.
#[test]
fn processes_in_other_network_namespaces_cannot_connect() {
    const TEST: &str = "processes_in_other_network_namespaces_cannot_connect";
    match role().as_deref() {
        Some("shared") => {
            let side = Side::with(shared(), seed_of(13));
            let qp = side.qp();
            let time = Duration::from_millis(200);
            let error = side
                .device
                .connect(address(), &[&qp], &[], time)
                .unwrap_err();
            assert!(matches!(error, DeviceError::NotListening { .. }), "{error}");
            return;
        }
        _ if run_role() => return,
        _ => {}
    }
    for (config, role) in [(Config::default(), "stranger"), (shared(), "shared")] {
        let side = Side::with(config, seed_of(14));
        let listener = side.listen();
        let Some(mut command) = elsewhere(TEST, role, listener.local_address()) else {
            return;
        };
        let status = command.status().unwrap();
        assert!(status.success(), "{role}: {status}");
        assert!(listener.accept(Some(Duration::from_millis(1))).is_err());
        assert_eq!(side.device.inspect().unwrap().links.len(), 1);
    }
}

/// A queue pair that does not fail when its peer is lost: it reports the loss only in completions.
fn patient_qp(side: &Side) -> Qp {
    let options = QpOptions {
        fail_with_peer: false,
        ..QpOptions::new(side.domain, &side.cq)
    };
    side.device.create_qp(&options).unwrap()
}

/// Another user that has a queue pair's number cannot reach it, either: its requests time out, and our receive stays
/// posted.
///
/// A queue pair that must fail with its peer detects without sending that the peer is absent, and goes to the error state.
/// Like a timeout, that may happen before or after the program posts: earlier requests end with `RetryExceeded` because
/// no peer responded, and later ones are flushed. So the test queries this queue pair only after it has failed.
#[test]
fn a_known_number_does_not_reach_another_users_queue_pair() {
    const TEST: &str = "a_known_number_does_not_reach_another_users_queue_pair";
    let send = Work::Send {
        imm: None,
        invalidate: None,
    };
    if role().is_some() {
        let side = Side::with(Config::default(), seed_of(15));
        let qpn = std::env::var("RKEY_TEST_NAME").unwrap().parse().unwrap();
        let number = QpAddress { qpn, msn: 0 };
        let absent = NodeId { pid: 1, nonce: 2 };
        let qp = patient_qp(&side);
        qp.connect(absent, number).unwrap();
        let done = side.finish(&qp, send, &[side.sge(0, 1)]);
        assert_eq!(done.status, Status::RetryExceeded, "{done:?}");

        let qp = side.qp();
        qp.connect(absent, number).unwrap();
        until("the queue pair to detect that it has no peer", || {
            qp.query().unwrap().state == QpState::Error
        });
        let done = side.finish(&qp, send, &[side.sge(0, 1)]);
        assert_eq!(done.status, Status::Flushed, "{done:?}");
        return;
    }
    if !is_root() {
        eprintln!("SKIP: not root, so this test cannot become another user");
        return;
    }
    let side = Side::with(Config::default(), seed_of(16));
    let qp = patient_qp(&side);
    let absent = NodeId { pid: 1, nonce: 3 };
    let number = QpAddress {
        qpn: 0x77_0001,
        msn: 0,
    };
    qp.connect(absent, number).unwrap();
    let sges = [side.sge(common::side::RECEIVES, 8)];
    qp.post_recv(&RecvRequest { id: 1, sges: &sges }).unwrap();
    let place = "127.0.0.1:1".parse().unwrap();
    let mut other = OtherUser::new(OTHER_UID, TEST, "sender", place).unwrap();
    let status = other
        .command
        .env("RKEY_TEST_NAME", qp.qpn().to_string())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let done = side.next_within(Duration::from_millis(10));
    assert_eq!(done.map(|done| done.status), None);
    assert_eq!(qp.query().unwrap().state, QpState::Rts);
    side.check_memory(0, "after the requests of another user");
}

/// Connecting to a number without an owner is not an error, even if the device detects it at once; a peer that never
/// sends is treated in the same way. A queue pair that must fail with its peer flushes its receives and later requests.
#[test]
fn a_number_without_an_owner_fails_the_queue_pair() {
    let side = Side::with(Config::default(), seed_of(17));
    let absent = NodeId { pid: 1, nonce: 4 };
    for _ in 0..10 {
        let qp = side.qp();
        let sges = [side.sge(common::side::RECEIVES, 8)];
        let number = QpAddress {
            qpn: 0x77_0001,
            msn: 0,
        };
        qp.connect(absent, number).unwrap();
        qp.post_recv(&RecvRequest { id: 1, sges: &sges }).unwrap();
        let done = side.next();
        assert_eq!((done.id, done.status), (1, Status::Flushed));
        assert_eq!(qp.query().unwrap().state, QpState::Error);
        let write = Work::Send {
            imm: None,
            invalidate: None,
        };
        let done = side.finish(&qp, write, &[side.sge(0, 1)]);
        assert_eq!(done.status, Status::Flushed);
    }
}

//! Finding peers by queue pair number alone, for programs that exchange the numbers themselves.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Peer, Side, command, role, sleep_in_read, until};
use rkey_device::{ConnectOptions, Device, DeviceError, Qp, QpOptions};
use rkey_engine::{
    CompletionFlags, QpAttributes, QpState, QpType, SendRequest, Status, UdAddress, Work,
};

const NOWHERE: &str = "127.0.0.1:1";

/// Moves a queue pair to INIT, RTR and RTS, knowing only the number of the peer.
fn bring_up(qp: &Qp, peer: u32) {
    to_init(qp);
    go_on(qp, peer);
}

fn to_init(qp: &Qp) {
    let rights = rkey_core::Access::REMOTE;
    qp.modify(&QpAttributes::init(rights)).unwrap();
}

fn go_on(qp: &Qp, peer: u32) {
    let peer = rkey_engine::Peer {
        qpn: peer,
        node: None,
    };
    qp.modify(&QpAttributes::rtr(peer, 7)).unwrap();
    qp.modify(&QpAttributes::rts(7)).unwrap();
}

/// The lines that a peer prints.
type Words = std::io::Lines<BufReader<std::process::ChildStdout>>;

/// Starts a peer that prints its number and key. Returns both, with the peer and its remaining output.
fn start_talker(test: &str, role: &str) -> (Peer, u32, common::Remote, Words) {
    let mut command = command(test, role, NOWHERE.parse().unwrap());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines
        .find_map(|l| l.unwrap().strip_prefix("QP ").map(str::to_owned))
        .unwrap();
    let words: Vec<u64> = line.split(' ').map(|w| w.parse().unwrap()).collect();
    let remote = common::Remote {
        base: words[1],
        key: rkey_core::RKey::Device(rkey_core::Key(words[2] as u32)),
    };
    (Peer(child), words[0] as u32, remote, lines)
}

/// Like [`start_talker`], but drops the peer's remaining output.
fn start(test: &str, role: &str) -> (Peer, u32, common::Remote) {
    let (peer, number, remote, lines) = start_talker(test, role);
    std::thread::spawn(move || lines.for_each(drop));
    (peer, number, remote)
}

fn tell(side: &Side, qp: &Qp) {
    println!(
        "\nQP {} {} {}",
        qp.qpn(),
        side.address_of(0),
        side.region.key.0
    );
}

fn hear() -> u32 {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().parse().unwrap()
}

fn say(peer: &mut Peer, number: u32) {
    writeln!(peer.0.stdin.as_mut().unwrap(), "{number}").unwrap();
}

/// The initiator posts before the target is ready to receive, and tries again until it is.
#[test]
fn requests_wait_until_the_peer_is_ready() {
    if role().is_some() {
        let side = Side::open();
        let qp = side.qp();
        to_init(&qp);
        tell(&side, &qp);
        let peer = hear();
        std::thread::sleep(Duration::from_millis(100));
        go_on(&qp, peer);
        return sleep_in_read();
    }
    let side = Side::open();
    let qp = side.qp();
    let (mut peer, number, remote) = start("requests_wait_until_the_peer_is_ready", "target");
    bring_up(&qp, number);
    say(&mut peer, qp.qpn());
    side.set(0, 55);
    side.run(
        &qp,
        Work::Write {
            remote: remote.at(1),
            imm: None,
        },
        &[side.sge(0, 8)],
    );
    side.run(
        &qp,
        Work::Read {
            remote: remote.at(1),
        },
        &[side.sge(2, 8)],
    );
    assert_eq!(side.word(2), 55);
    peer.finish();
}

/// `rkey ls` names a stopped process, whose device cannot answer.
#[test]
fn a_stopped_process_is_listed() {
    if role().is_some() {
        let side = Side::open();
        let qp = side.qp();
        tell(&side, &qp);
        return sleep_in_read();
    }
    let (peer, ..) = start("a_stopped_process_is_listed", "target");
    let pid = peer.0.id();
    let config = rkey_device::Config::default();
    let list = || rkey_device::list_all(&config).unwrap();
    peer.stop();
    until("the listing as stopped", || {
        let silent = list().silent;
        silent
            .iter()
            .any(|process| process.pid == pid && process.stopped)
    });
    peer.signal(libc::SIGCONT);
    until("the listing of its device", || {
        let listing = list();
        let is_silent = listing.silent.iter().any(|process| process.pid == pid);
        !is_silent && listing.devices.iter().any(|device| device.pid == pid)
    });
    peer.finish();
}

/// Claims a free block of numbers for the test itself, by binding its name. Returns the socket, which does not listen, and a
/// number of the block.
fn claim() -> (OwnedFd, u32) {
    let (family, kind) = (
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
    );
    let socket = rustix::net::socket(family, kind, None).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let free = (0x3333..0xffff).find(|block| {
        let name = format!("rkey/1/{uid}/qp/{block:04x}");
        let address = rustix::net::SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        match rustix::net::bind(&socket, &address) {
            Ok(()) => true,
            Err(rustix::io::Errno::ADDRINUSE) => false,
            Err(error) => panic!("{error}"),
        }
    });
    (socket, free.expect("a free block") << 8 | 0x33)
}

/// A number without a queue pair: the timeout of the queue pair decides, and the search ends with it.
#[test]
fn a_number_without_a_queue_pair_causes_a_timeout() {
    let side = Side::hasty();
    let qp = side.qp();
    let (_claimed, number) = claim();
    bring_up(&qp, number);
    let remote = common::Remote::from(&side.invitation()[..]);
    let write = Work::Write {
        remote: remote.at(0),
        imm: None,
    };
    qp.post_send(&SendRequest::new(1, write, &[side.sge(0, 8)]))
        .unwrap();
    assert_eq!(side.next_asleep().status, Status::RetryExceeded);
    assert_eq!(qp.query().unwrap().state, QpState::Error);
}

/// The owner of the number exists, but closes every connection before it answers, while a thread of its process waits
/// for a processor: the queue pair keeps waiting, even between two attempts. When the owner closes its socket, the owner
/// counts as gone.
#[test]
fn requests_wait_while_the_owner_of_the_number_cannot_answer() {
    let side = Side::hasty();
    let qp = side.qp();
    let (owner, number) = claim();
    rustix::net::listen(&owner, 8).unwrap();
    bring_up(&qp, number);
    let remote = common::Remote::from(&side.invitation()[..]);
    let write = Work::Write {
        remote: remote.at(0),
        imm: None,
    };
    qp.post_send(&SendRequest::new(1, write, &[side.sge(0, 8)]))
        .unwrap();
    let (early, dials) = std::thread::scope(|scope| {
        // The thread that judges the owner belongs to the same process here, and it runs.
        let answers = scope.spawn(|| {
            let mut dials = 0;
            while let Ok(client) = rustix::net::accept(&owner) {
                dials += 1;
                // The device learns whom it has reached once its first message is sent.
                let _ = rustix::net::recv(
                    &client,
                    &mut [0u8; 4096][..],
                    rustix::net::RecvFlags::empty(),
                );
            }
            dials
        });
        let early = side.next_within(Duration::from_secs(4));
        rustix::net::shutdown(&owner, rustix::net::Shutdown::Both).unwrap();
        (early, answers.join().unwrap())
    });
    assert!(early.is_none() && dials > 1, "{early:?}, {dials} dials");
    drop(owner);
    assert_eq!(side.next_asleep().status, Status::RetryExceeded);
}

/// Two queue pairs of one device, and of two devices of one process.
#[test]
fn queue_pairs_of_one_process_find_each_other() {
    let near = Side::open();
    let other = Side::open();
    for far in [&near, &other] {
        let (a, b) = (near.qp(), far.qp());
        bring_up(&a, b.qpn());
        bring_up(&b, a.qpn());
        let remote = common::Remote::from(&far.invitation()[..]);
        for round in 1..500u64 {
            near.set(0, round);
            near.run(
                &a,
                Work::Write {
                    remote: remote.at(9),
                    imm: None,
                },
                &[near.sge(0, 8)],
            );
            assert_eq!(far.word(9), round);
        }
        near.run(
            &a,
            Work::FetchAdd {
                remote: remote.at(9),
                add: 1,
            },
            &[near.sge(1, 8)],
        );
        assert_eq!((near.word(1), far.word(9)), (499, 500));
        // And asleep.
        let write = Work::Write {
            remote: remote.at(9),
            imm: None,
        };
        std::thread::sleep(Duration::from_millis(30));
        for id in 0..50 {
            a.post_send(&SendRequest::new(id, write, &[near.sge(0, 8)]))
                .unwrap();
            assert_eq!(near.next_asleep().id, id);
        }
    }
}

fn datagram_qp(device: &Device, side: &Side) -> Qp {
    let options = QpOptions {
        qp_type: QpType::Ud,
        ..QpOptions::new(side.domain, &side.cq)
    };
    let qp = device.create_qp(&options).unwrap();
    let qkey = Some(0x1234);
    qp.modify(&QpAttributes {
        state: Some(QpState::Init),
        qkey,
        ..QpAttributes::default()
    })
    .unwrap();
    qp.modify(&QpAttributes::to(QpState::Rtr)).unwrap();
    let rts = QpAttributes {
        state: Some(QpState::Rts),
        send_msn: Some(0),
        ..Default::default()
    };
    qp.modify(&rts).unwrap();
    qp
}

/// Sends 8 bytes as a datagram.
fn send_datagram(side: &Side, qp: &Qp, qpn: u32, route: rkey_engine::Route, word: usize) {
    let sges = [side.sge(word, 8)];
    let work = Work::Send {
        imm: None,
        invalidate: None,
    };
    let mut request = SendRequest::new(1, work, &sges);
    request.ud = Some(UdAddress {
        link: None,
        wire: false,
        qpn,
        qkey: 0x1234,
        route,
    });
    qp.post_send(&request).unwrap();
}

fn send_to_group(side: &Side, qp: &Qp, group: [u8; 16]) {
    let route = rkey_engine::Route {
        target: group,
        ..Default::default()
    };
    send_datagram(side, qp, rkey_engine::groups::GROUP_QPN, route, 0);
}

/// Datagrams arrive by number; those to unused numbers complete and are lost.
#[test]
fn datagrams_arrive_at_the_addressed_queue_pair() {
    let send = |side: &Side, qp: &Qp, to: u32, word: usize| {
        send_datagram(side, qp, to, rkey_engine::Route::default(), word);
    };
    if role().is_some() {
        let side = Side::open();
        let qp = datagram_qp(&side.device, &side);
        for id in 0..16 {
            side.receive(&qp, id, id as usize * 64, 512);
        }
        tell(&side, &qp);
        // Answer the first.
        let done = side.next();
        assert!(done.flags.contains(CompletionFlags::GRH));
        assert_eq!(done.bytes, 48);
        side.set(1000, side.word(done.id as usize * 64 + 5) + 1);
        send(&side, &qp, done.src_qpn, 1000);
        assert_eq!(side.next().status, Status::Success);
        return sleep_in_read();
    }
    let side = Side::open();
    let qp = datagram_qp(&side.device, &side);
    // To an unused number.
    send(&side, &qp, qp.qpn() ^ 0x55_5500, 0);
    assert_eq!(side.next_asleep().status, Status::Success);
    let (peer, number, _) = start("datagrams_arrive_at_the_addressed_queue_pair", "target");
    side.receive(&qp, 2, 100, 512);
    side.set(0, 41);
    send(&side, &qp, number, 0);
    let (mut sent, mut received) = (false, false);
    while !(sent && received) {
        let done = side.next_asleep();
        assert_eq!(done.status, Status::Success, "{done:?}");
        sent |= done.id == 1;
        if done.id == 2 {
            assert_eq!((done.bytes, done.src_qpn, side.word(105)), (48, number, 42));
            received = true;
        }
    }
    peer.finish();
}

/// Datagrams that wait for the link to their destination are sent before their queue pair is destroyed, and received although
/// the sender closes its device at once.
#[test]
fn destroying_a_queue_pair_sends_its_datagrams() {
    if role().is_some() {
        let side = Side::open();
        let qp = datagram_qp(&side.device, &side);
        for id in 0..4 {
            side.receive(&qp, id, id as usize * 64, 512);
        }
        tell(&side, &qp);
        for _ in 0..4 {
            assert_eq!(side.next().status, Status::Success);
        }
        return;
    }
    let (peer, number, _) = start("destroying_a_queue_pair_sends_its_datagrams", "target");
    let side = Side::open();
    let qp = datagram_qp(&side.device, &side);
    for word in 0..4 {
        send_datagram(&side, &qp, number, rkey_engine::Route::default(), word);
    }
    drop(qp);
    drop(side);
    peer.finish();
}

/// A group address that only this test and its peers use, because other tests may run at the same time.
fn group(which: u8) -> [u8; 16] {
    let test = match role() {
        None => std::process::id(),
        Some(_) => std::os::unix::process::parent_id(),
    };
    let mut group = [0; 16];
    (group[0], group[1], group[11]) = (0xff, 0x0e, which);
    group[12..].copy_from_slice(&test.to_be_bytes());
    group
}

/// Datagrams to a group reach its members in other processes, in other devices of this process, and the sender itself, until they
/// leave it.
#[test]
fn datagrams_reach_the_whole_group() {
    const READY: &str = "ready to receive";
    const LOOKING: u64 = 1;
    let receive = |side: &Side, qp: &Qp| {
        (2..10).for_each(|id| side.receive(qp, id, id as usize * 64, 512));
    };
    // The next completion, and what was received. The datagrams that look for the members may arrive late, and do not count.
    let next = |side: &Side| {
        let id = std::iter::repeat_with(|| side.next_asleep().id);
        let mut words = id.map(|id| (id != 1).then(|| side.word(id as usize * 64 + 5)));
        words.find(|word| *word != Some(LOOKING)).unwrap()
    };
    let group = group(1);
    if role().is_some() {
        let side = Side::open();
        let qp = datagram_qp(&side.device, &side);
        qp.join(group).unwrap();
        tell(&side, &qp);
        hear();
        receive(&side, &qp);
        println!("\n{READY}");
        assert_eq!(next(&side), Some(4711));
        return;
    }
    let sides = [0, 1].map(|_| Side::open());
    let qps = [0, 1].map(|at| datagram_qp(&sides[at].device, &sides[at]));
    for qp in &qps {
        assert!(!qp.leave(group).unwrap());
        qp.join(group).unwrap();
        qp.join(group).unwrap();
        assert_eq!(qp.memberships(), 1);
    }
    let (mut peer, .., mut words) = start_talker("datagrams_reach_the_whole_group", "member");
    let send = |word| {
        let (side, qp) = (&sides[0], &qps[0]);
        side.set(0, word);
        send_to_group(side, qp, group);
    };
    // A member that takes long to reach, on a busy machine, misses the datagrams sent until then. So the test waits until
    // all of them are reached.
    let members = [sides[1].device.node().pid, peer.0.id()];
    until("the links to the members", || {
        send(LOOKING);
        assert_eq!(sides[0].next_asleep().id, 1);
        let links = sides[0].device.inspect().unwrap().links;
        let asked = links.iter().filter(|link| link.role == "requester");
        let pids: Vec<u32> = asked.map(|link| link.node.pid).collect();
        members.iter().all(|pid| pids.contains(pid))
    });
    say(&mut peer, 0);
    assert!(words.any(|line| line.unwrap() == READY));
    (sides.iter().zip(&qps)).for_each(|(side, qp)| receive(side, qp));
    send(4711);
    let mut seen = [next(&sides[0]), next(&sides[0])];
    seen.sort_unstable();
    assert_eq!(seen, [None, Some(4711)], "sent, and heard by the sender");
    assert_eq!(next(&sides[1]), Some(4711));
    peer.finish();
    assert!(qps[0].leave(group).unwrap() && !qps[0].leave(group).unwrap());
    send(4712);
    assert_eq!(next(&sides[1]), Some(4712));
    assert_eq!(next(&sides[0]), None);
    assert!(
        sides[0]
            .next_within(std::time::Duration::from_millis(20))
            .is_none()
    );
}

/// A member that does not answer does not delay every datagram to the group.
#[test]
fn a_stopped_member_does_not_delay_the_group() {
    const SENDS: u32 = 600;
    let group = group(2);
    let test = "a_stopped_member_does_not_delay_the_group";
    if role().is_some() {
        let side = Side::open();
        let qp = datagram_qp(&side.device, &side);
        qp.join(group).unwrap();
        tell(&side, &qp);
        return sleep_in_read();
    }
    let (peer, ..) = start(test, "member");
    peer.stop();
    let side = Side::open();
    let qp = datagram_qp(&side.device, &side);
    let send = || {
        send_to_group(&side, &qp, group);
        assert_eq!(side.next_asleep().status, Status::Success);
    };
    let started = Instant::now();
    for _ in 0..SENDS {
        send();
        // The list of members is cached for a millisecond.
        std::thread::sleep(Duration::from_millis(2));
    }
    // If each of them waited for the device, this would take longer.
    assert!(started.elapsed() < SENDS * Duration::from_millis(100));
    peer.signal(libc::SIGCONT);
    peer.finish();
}

/// A program's claim to listen at an address counts only if the kernel confirms it, unless the device admits no other
/// user.
#[test]
fn a_peers_claim_to_listen_at_an_address_is_verified() {
    let test = "a_peers_claim_to_listen_at_an_address_is_verified";
    if role().is_some() {
        let side = Side::open();
        let (mine, taken) = (side.listen(), common::address());
        let qp = side.qp();
        let name = mine.local_address().to_string();
        let answer = side
            .device
            .connect(taken, &[&qp], name.as_bytes(), common::LONG);
        answer.unwrap();
        return sleep_in_read();
    }
    for share in [rkey_device::Share::All, rkey_device::Share::User] {
        let mut config = rkey_device::Config::from_env().unwrap();
        config.share = share;
        let side = Side::with(config);
        let listener = side.listen();
        let mut command = command(test, "client", listener.local_address());
        if share == rkey_device::Share::All {
            command.env("RKEY_SHARE", "all");
        }
        let peer = Peer(command.spawn().unwrap());
        let incoming = listener.accept(Some(common::LONG)).unwrap();
        let theirs = std::str::from_utf8(&incoming.peer().private_data).unwrap();
        let theirs = theirs.parse().unwrap();
        let trusted = share == rkey_device::Share::User;
        assert!(incoming.listens_at(theirs), "{share:?}");
        assert_eq!(incoming.listens_at(listener.local_address()), trusted);
        assert_eq!(incoming.listens_at(NOWHERE.parse().unwrap()), trusted);
        let qp = side.qp();
        incoming.accept(&[&qp], &[]).unwrap();
        peer.finish();
    }
}

/// The caller can refuse the peer that answers before the queue pair accepts that peer's requests.
#[test]
fn the_caller_can_refuse_the_peer_that_answers() {
    let (near, far) = (Side::open(), Side::open());
    let listener = far.listen();
    for welcome in [true, false] {
        std::thread::scope(|scope| {
            let answers = scope.spawn(|| {
                let qp = far.qp();
                let incoming = listener.accept(Some(common::LONG)).unwrap();
                assert_eq!(incoming.local_address(), listener.local_address());
                incoming.accept(&[&qp], b"an answer").map(|_| qp)
            });
            let qp = near.qp();
            let admit = |peer: &rkey_device::Peer| {
                assert_eq!(peer.node, far.device.node());
                assert_eq!(peer.private_data, b"an answer");
                assert_eq!(qp.query().unwrap().state, QpState::Reset);
                welcome
                    .then_some(())
                    .ok_or(DeviceError::Handshake("the wrong peer"))
            };
            let how = ConnectOptions {
                local: None,
                find: common::LONG,
                answer: common::LONG,
            };
            let address = listener.local_address();
            let made = near.device.connect_as(&how, address, &[&qp], &[], admit);
            let state = qp.query().unwrap().state;
            if welcome {
                made.unwrap();
                assert_eq!(state, QpState::Rts);
            } else {
                let error = made.unwrap_err();
                assert!(
                    matches!(error, rkey_device::DeviceError::Handshake("the wrong peer")),
                    "{error}"
                );
                assert_eq!(state, QpState::Reset);
            }
            assert_eq!(answers.join().unwrap().is_ok(), welcome);
        });
    }
}

//! A hostile process of the same user: garbage in handshakes, garbage in the rings, a thousand silent
//! connections. The device keeps working, an honest peer is not affected, and no byte outside the granted
//! regions changes.
// UNSAFETY: writes to mappings that belong to the library.
#![allow(unsafe_code)]

mod common;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use common::garbage::scribble;
use common::process::{
    Holdings, Peer, Warrants, alone, command, name_is_taken, quietest, role, sleep_in_read,
};
use common::side::{Remote, Side, seed_of};
use common::traffic::{HANG, atomics};
use common::{LONG, Random, until};
use rkey_device::names::{Scope, block_name, block_of, listen_name};
use rkey_device::{Config, QpAddress, Share, list_devices};
use rkey_engine::{SendRequest, Work};
use rkey_link::shm::{Connector, Greeting, LinkConfig, Listener, LocalNode, ShmLink, Step};
use rkey_link::{Header, Link, NodeId, Op};
use rustix::fs::SealFlags;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

const TEST: &str = "a_hostile_process_does_no_harm";

// ---- the honest peer

/// Moves and checks data until its standard input ends; counts its rounds in our memory.
fn honest() {
    let side = Side::open(seed_of(30));
    let (offer, qp) = (side.offer(), side.qp());
    let remote = side.connect_to_test(&qp, &offer);
    let eof = std::thread::spawn(sleep_in_read);
    while !eof.is_finished() {
        side.verify(&qp, &remote, "the honest peer");
        let count = Work::FetchAdd {
            remote: remote.atomic(0),
            add: 1,
        };
        side.run(&qp, count, &[side.sge(common::side::SINK, 1)]);
        std::thread::sleep(Duration::from_millis(1));
    }
}

// ---- the hostile process

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

fn socket_to(name: &str) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let deadline = Instant::now() + LONG;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Some(socket),
            // The backlog is full.
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return None,
        }
        assert!(
            Instant::now() < deadline,
            "{name} no longer accepts connections"
        );
    }
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    // The device may have hung up already, as it should.
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags);
}

fn local_node(random: &mut Random) -> LocalNode {
    let id = NodeId {
        pid: std::process::id(),
        nonce: random.next(),
    };
    LocalNode::new(id, LinkConfig::default()).unwrap()
}

/// A valid hello, as the library sends it: captured by our own socket.
fn good_hello(random: &mut Random) -> Vec<u8> {
    let name = format!("rkey-test/{}/hello", std::process::id());
    let flags = SocketFlags::CLOEXEC;
    let door =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::bind(&door, &address).unwrap();
    rustix::net::listen(&door, 8).unwrap();
    let _asking = Connector::start(name.as_bytes(), &local_node(random), b"").unwrap();
    let asked = rustix::net::accept(&door).unwrap();
    let mut packet = vec![0; 1 << 14];
    let (len, _) =
        rustix::net::recv(&asked, &mut packet[..], rustix::net::RecvFlags::empty()).unwrap();
    packet.truncate(len);
    packet
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("hostile", flags).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// Descriptors that are not segments, and descriptors of invalid segments.
fn bad_descriptors() -> Vec<OwnedFd> {
    let good = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .unwrap();
    let program = std::fs::File::open("/proc/self/exe").unwrap();
    vec![
        reader,
        writer,
        null.into(),
        program.into(),
        memfd(1 << 20, SealFlags::empty()),
        memfd(1 << 20, SealFlags::SHRINK),
        memfd(0, good),
        memfd(4096, good),
        // A memfd of the right size, but without an identity.
        memfd(20480 + 256 * 256 + (256 << 10), good),
        memfd(1 << 40, good),
    ]
}

/// Invalid first packets of every kind.
fn bad_hellos(random: &mut Random) {
    let names = [variable("RKEY_TEST_BLOCK"), variable("RKEY_TEST_LISTENER")];
    let hello = good_hello(random);
    let descriptors = bad_descriptors();
    for turn in 0..600u64 {
        let Some(socket) = socket_to(&names[usize::from(turn % 20 == 3)]) else {
            panic!("the listener is closed");
        };
        let mut packet = hello.clone();
        match random.below(6) {
            // Arbitrary bytes.
            0 => {
                packet = vec![0; random.below(20_000) as usize];
                random.bytes(&mut packet);
            }
            1 => packet.truncate(random.below(packet.len() as u64) as usize),
            2 => packet.resize(16 << 10, 0xee),
            // The right header, and arbitrary bytes after it.
            3 => random.bytes(&mut packet[8..]),
            4 => {
                for _ in 0..=random.below(4) {
                    let at = random.below(packet.len() as u64) as usize;
                    packet[at] = random.next() as u8;
                }
            }
            _ => {}
        }
        let fds: Vec<BorrowedFd> = match random.below(8) {
            0 => Vec::new(),
            1 => descriptors.iter().map(AsFd::as_fd).collect(),
            _ => vec![descriptors[random.below(descriptors.len() as u64) as usize].as_fd()],
        };
        send(&socket, &packet, &fds);
        // Sometimes followed by a second packet, sometimes by a pause.
        match random.below(4) {
            0 => send(&socket, &hello, &[]),
            1 => std::thread::sleep(Duration::from_micros(random.below(500))),
            _ => {}
        }
    }
}

fn finish_connecting(name: &str, random: &mut Random) -> Option<ShmLink> {
    let deadline = Instant::now() + LONG;
    let mut connector = loop {
        match Connector::start(name.as_bytes(), &local_node(random), b"") {
            Ok(connector) => break connector,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    loop {
        match connector.advance() {
            Ok(Step::Done(link)) => return Some(link),
            Ok(Step::Pending) => std::thread::sleep(Duration::from_micros(100)),
            Err(_) => return None,
        }
        assert!(Instant::now() < deadline, "no response from {name}");
    }
}

/// Valid handshakes as the requester, then arbitrary bytes in the rings.
fn bad_requester(random: &mut Random) {
    let name = variable("RKEY_TEST_BLOCK");
    let qpn: u32 = variable("RKEY_TEST_QPN").parse().unwrap();
    let word = |name: &str| variable(name).parse::<u64>().unwrap();
    let (base, key) = (word("RKEY_TEST_BASE"), word("RKEY_TEST_KEY"));
    for turn in 0..40 {
        let Some(mut link) = finish_connecting(&name, random) else {
            continue;
        };
        for _ in 0..20 {
            // Requests that would be valid from the queue pair's own peer.
            for _ in 0..random.below(8) {
                let op = [Op::Write, Op::Send, Op::Read, Op::FetchAdd, Op::CompareSwap]
                    [random.below(5) as usize];
                let len = if matches!(op, Op::Write | Op::Send) {
                    64
                } else {
                    0
                };
                let head = Header {
                    dst_qp: qpn,
                    src_qp: random.next() as u32 & 0xff_ffff,
                    msn: random.below(4) as u32,
                    len,
                    total: 64,
                    addr: base + random.below(4096) * 8,
                    key,
                    ..Header::new(op)
                };
                let _ = link.send_request(&head, |mut place| {
                    place.put(0, &[0x66; 64]);
                    Ok(())
                });
            }
            link.end_burst();
            if turn % 4 != 0 {
                scribble(random, 1 + turn);
            }
            link.kick();
            let mut noise = vec![0; random.below(2000) as usize];
            random.bytes(&mut noise);
            if turn % 3 == 0 {
                let _ = link.send_control(&noise, &[]);
            }
            std::thread::sleep(Duration::from_micros(random.below(400)));
        }
    }
}

/// Sends garbage as the responder: one of the device's queue pairs believes that its peer is here.
fn bad_responder(random: &mut Random) {
    let name = variable("RKEY_TEST_OURS");
    let listener = Listener::bind(name.as_bytes()).unwrap();
    let local = local_node(random);
    let mut acceptors = Vec::new();
    let mut links: Vec<ShmLink> = Vec::new();
    let end = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < end {
        if let Ok(Some(acceptor)) = listener.accept(&local) {
            acceptors.push(acceptor);
        }
        acceptors.retain_mut(|acceptor| match acceptor.advance() {
            Ok(Step::Pending) => true,
            Ok(Step::Done(Greeting::Link(request))) => {
                links.extend(request.accept());
                false
            }
            _ => false,
        });
        for link in &mut links {
            // Takes some requests, responds to some, then fills the rings with garbage.
            while random.below(4) != 0
                && let Ok(Some(_)) = link.next_request()
            {
                let op = [Op::ReadData, Op::AtomicResult, Op::Nak][random.below(3) as usize];
                let head = Header {
                    dst_qp: random.next() as u32 & 0xff_ffff,
                    imm: random.next() as u32,
                    ..Header::new(op)
                };
                let _ = link.send_response(&head, |_| Ok(()));
                link.request_done();
            }
            link.end_burst();
            link.kick();
        }
        if random.below(3) == 0 {
            scribble(random, 4);
        }
        std::thread::sleep(Duration::from_micros(random.below(2000)));
    }
}

/// Silent connections.
fn silence() {
    let name = variable("RKEY_TEST_BLOCK");
    let listener = variable("RKEY_TEST_LISTENER");
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
    let mut sockets = Vec::new();
    let most = limit.current.unwrap_or(1100).min(1100) as usize - 60;
    for turn in 0..1000 {
        // The listener's program accepts no connection here, so its own backlog fills up.
        let place = if turn % 20 == 19 { &listener } else { &name };
        sockets.push(socket_to(place).expect("no listener there"));
        if sockets.len() >= most {
            sockets.remove(0);
        }
    }
    std::thread::sleep(Duration::from_millis(500));
}

fn hostile(role: &str) {
    let mut random = Random::from(variable("RKEY_TEST_SEED").parse().unwrap());
    match role {
        "hellos" => bad_hellos(&mut random),
        "requester" => bad_requester(&mut random),
        "responder" => bad_responder(&mut random),
        "silence" => silence(),
        other => panic!("no such role: {other}"),
    }
}

// ---- the device under attack

struct Attacked<'a> {
    side: &'a Side,
    honest: Remote,
    holdings: Holdings,
    links: usize,
    address: SocketAddr,
    variables: Vec<(&'static str, String)>,
}

impl Attacked<'_> {
    fn rounds(&self) -> u64 {
        atomics(self.side).0
    }

    /// Runs the hostile process, and checks that it does no harm.
    fn by(&self, role: &str, seed: u64, meanwhile: impl FnOnce()) {
        let mut command = command(TEST, role, self.address);
        command.env("RKEY_TEST_SEED", seed.to_string());
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        let before = self.rounds();
        let mut peer = Peer(command.spawn().unwrap());
        meanwhile();
        let status = peer.wait();
        assert!(
            status.success(),
            "{role}: the hostile process failed: {status}"
        );
        // Dropping `peer` closes our end of its standard input.
        drop(peer);
        let during = self.rounds() - before;
        // The honest peer also continues afterwards.
        let after = self.rounds();
        until(
            &format!("more rounds of the honest peer after {role}"),
            || self.rounds() > after + 3,
        );
        until(&format!("the links of {role} to close"), || {
            self.side.device.inspect().unwrap().links.len() == self.links
        });
        self.holdings.wait_for(role);
        Warrants::settle(&self.side.device, role);
        self.side.check_memory(self.honest.seed, role);
        eprintln!("{TEST}: {role}: {during} rounds of the honest peer during that time");
    }
}

/// Random, truncated, oversized and altered first packets with every kind of wrong descriptor; valid handshakes,
/// followed by arbitrary bytes in the rings, in both roles; a thousand silent connections. Throughout, an honest peer uses
/// the same device undisturbed.
#[test]
fn a_hostile_process_does_no_harm() {
    match role().as_deref() {
        None | Some("alone") => {}
        Some("honest") => return honest(),
        Some(other) => return hostile(other),
    }
    if !alone(TEST) {
        return;
    }
    let mut random = Random::seeded(TEST);
    let side = Side::open(seed_of(31));
    let (offer, qp) = (side.offer(), side.qp());
    let listener = side.listen();
    let peer = Peer::start(TEST, "honest", listener.local_address());
    let honest = side.accept(&listener, &qp, &offer);
    side.verify(&qp, &honest, "before");
    until("rounds of the honest peer", || atomics(&side).0 > 2);
    let scope = Scope::of(Share::User);
    // Queue pair numbers that no device has: the hostile process will claim them.
    let block = loop {
        let block = random.next() as u16 | 1;
        if !name_is_taken(&block_name(scope, block)) {
            break block;
        }
    };
    let ours = block_name(scope, block);
    let attacked = Attacked {
        side: &side,
        honest,
        holdings: Holdings::settled(),
        links: side.device.inspect().unwrap().links.len(),
        address: listener.local_address(),
        variables: vec![
            ("RKEY_TEST_BLOCK", block_name(scope, block_of(qp.qpn()))),
            (
                "RKEY_TEST_LISTENER",
                listen_name(scope, listener.local_address()),
            ),
            ("RKEY_TEST_QPN", qp.qpn().to_string()),
            (
                "RKEY_TEST_BASE",
                side.address_of(common::side::INBOX).to_string(),
            ),
            ("RKEY_TEST_KEY", offer.inbox.key.0.to_string()),
            ("RKEY_TEST_OURS", ours.clone()),
        ],
    };
    attacked.by("hellos", random.next(), || {});
    attacked.by("requester", random.next(), || {});
    attacked.by("responder", random.next(), || {
        until("the hostile process to take the name", || {
            name_is_taken(&ours)
        });
        for turn in 0..4u32 {
            talk_to(&side, &honest, (u32::from(block) << 8) | (turn + 1), turn);
            // A device that does not respond does not delay the listing.
            let all = list_devices(&Config::default()).unwrap();
            assert!(all.iter().any(|device| device.pid == std::process::id()));
        }
    });
    attacked.by("silence", random.next(), || {});
    // The machine is quiet again.
    let Attacked { honest, .. } = attacked;
    side.verify(&qp, &honest, "after");
    peer.finish();
    let nothing = Duration::from_millis(30);
    let used = quietest(&[std::process::id()], Duration::from_secs(1), nothing);
    assert!(used <= nothing, "{used:?} of processor time while idle");
    drop((qp, listener));
    side.withdraw(&offer);
}

/// Posts every kind of request to a queue pair that a hostile process claims to have: whatever it responds,
/// each request completes once.
fn talk_to(side: &Side, honest: &Remote, qpn: u32, turn: u32) {
    let cq = side.device.create_cq(64, None).unwrap();
    let qp = side.qp_on(&cq);
    // A program that has only the number does not know the device's name.
    let mut attributes = rkey_engine::QpAttributes::init(rkey_core::Access::empty());
    qp.modify(&attributes).unwrap();
    let node = (turn % 2 == 1).then_some(NodeId { pid: 1, nonce: 1 });
    let to = QpAddress { qpn, msn: 0 };
    match node {
        Some(node) => qp.connect(node, to).unwrap(),
        None => {
            attributes = rkey_engine::QpAttributes::rtr(rkey_engine::Peer { qpn, node: None }, 0);
            qp.modify(&attributes).unwrap();
            attributes = rkey_engine::QpAttributes::rts(0);
            attributes.timeout = Some(14);
            attributes.retry_count = Some(3);
            attributes.rnr_retry = Some(3);
            // A peer that writes garbage at once may have ended the connection between the two steps.
            match qp.modify(&attributes) {
                Ok(()) | Err(rkey_device::DeviceError::Modify(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    // The keys of the honest peer are invalid here.
    for id in 0..16 {
        let work = match id % 4 {
            0 => Work::Write {
                remote: honest.inbox(0),
                imm: None,
            },
            1 => Work::Read {
                remote: honest.pattern(0),
            },
            2 => Work::FetchAdd {
                remote: honest.atomic(0),
                add: 1,
            },
            _ => Work::Send {
                imm: Some(1),
                invalidate: None,
            },
        };
        let words = [1, 64, 1024, 8192][(id / 4) as usize];
        let words = if id % 4 == 2 { 1 } else { words };
        let from = if matches!(id % 4, 1 | 2) {
            common::side::SINK
        } else {
            0
        };
        qp.post_send(&SendRequest::new(id, work, &[side.sge(from, words)]))
            .unwrap();
    }
    let deadline = Instant::now() + HANG;
    let mut next = 0;
    while next < 16 {
        let mut batch = [rkey_engine::Completion::default(); 16];
        cq.wait(Some(Duration::from_millis(100))).unwrap();
        let count = cq.poll(&mut batch).unwrap();
        for done in &batch[..count] {
            assert_eq!(done.id, next, "{done:?}");
            next += 1;
        }
        assert!(Instant::now() < deadline, "{next} of 16 completed");
    }
    assert!(cq.is_empty());
}

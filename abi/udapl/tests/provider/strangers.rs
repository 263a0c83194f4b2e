//! Peers that are not uDAPL programs, or make false claims, are refused and harm no other peer.

use crate::world::*;
use daplrkey::handles::object::find;
use daplrkey::objects::ep::Ep;
use daplrkey::sys::*;
use daplrkey::values::ep_state::{State, Step};
use daplrkey::values::hello::{Hello, Purpose};
use rkey_device::base::VaRange;
use rkey_device::core::{Access, DomainId, RegionSpec};
use rkey_device::engine::{Completion, QpAttributes, QpState, SendRequest, Status, Work};
use rkey_device::{Config, Device, DeviceError, Peer, Qp, QpAddress, QpOptions};
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_secs(30);

/// A peer that uses a device directly, without the provider.
struct Stranger {
    device: Device,
    domain: DomainId,
}

impl Stranger {
    fn new() -> Self {
        let device = Device::open(Config::default()).unwrap();
        let domain = device.create_domain().unwrap();
        Self { device, domain }
    }

    fn qp(&self) -> Qp {
        let cq = self.device.create_cq(64, None).unwrap();
        let qp = self
            .device
            .create_qp(&QpOptions::new(self.domain, &cq))
            .unwrap();
        qp.modify(&QpAttributes::init(Access::REMOTE)).unwrap();
        qp
    }

    fn hello(purpose: Purpose, qp: QpAddress, data: &[u8]) -> Vec<u8> {
        let hello = Hello {
            purpose,
            control: "127.0.0.1:9".parse().unwrap(),
            address: [127, 0, 0, 1].into(),
            port: 1,
            qpn: qp.qpn,
            msn: qp.msn,
            data: data.to_vec(),
        };
        hello.encode()
    }

    fn connect(&self, port: u64, qps: &[&Qp], data: &[u8]) -> Result<Peer, DeviceError> {
        let address = SocketAddr::from(([127, 0, 0, 1], port as u16));
        self.device.connect(address, qps, data, TIME)
    }

    /// Connects as a uDAPL program would; returns the answer as well.
    fn connect_properly(&self, world: &World, end: &End, qp: &Qp) -> (Peer, Hello) {
        let (psp, evd, conn_qual) = world.psp();
        let hello = Self::hello(Purpose::Request, qp.address(), b"x");
        let connected = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| self.connect(conn_qual, &[qp], &hello).unwrap());
            let cr = world.request(evd);
            ok!(cr_accept_func(cr, end.ep, 0, null_mut()));
            connecting.join().unwrap()
        });
        expect(end.connect, CONNECTION_EVENT_ESTABLISHED);
        ok!(psp_free_func(psp));
        let answer = Hello::decode(&connected.private_data).unwrap();
        (connected, answer)
    }

    /// Sends the message that a connection has ended, and waits until it is read.
    fn say_farewell(&self, control: SocketAddr, purpose: Purpose, qp: QpAddress) {
        let hello = Self::hello(purpose, qp, &[]);
        let mut farewell = self.device.begin_connect(control, &[], &hello).unwrap();
        let end = Instant::now() + TIME;
        while let Ok(None) = farewell.try_finish() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn malformed_requests_are_refused_and_valid_ones_are_served() {
    let (world, stranger) = (World::open(), Stranger::new());
    let (_, evd, conn_qual) = world.psp();
    let (first, second) = (stranger.qp(), stranger.qp());
    let hello = |purpose| Stranger::hello(purpose, first.address(), b"data");
    let garbage = [&b""[..], b"rkeyDAT1", &[0xff; 4096]];
    let mut bad: Vec<(Vec<&Qp>, Vec<u8>)> = Vec::new();
    bad.extend(garbage.map(|data| (vec![&first], data.to_vec())));
    bad.push((vec![], hello(Purpose::Request)));
    bad.push((vec![&first, &second], hello(Purpose::Request)));
    bad.push((vec![&first], hello(Purpose::DatagramRequest)));
    // A datagram request, while the program has no datagram EP.
    bad.push((vec![], hello(Purpose::DatagramRequest)));
    bad.push((vec![&first], hello(Purpose::Answer)));
    bad.push((vec![], hello(Purpose::Disconnect)));
    for (qps, data) in bad {
        let refused = stranger.connect(conn_qual, &qps, &data);
        assert!(
            matches!(refused, Err(DeviceError::Refused { .. })),
            "{refused:?}"
        );
    }
    assert!(empty(evd));
    // Private data beyond the maximum is truncated.
    let long = Stranger::hello(Purpose::Request, first.address(), &[7; 4000]);
    let mut last = stranger
        .device
        .begin_connect(([127, 0, 0, 1], conn_qual as u16).into(), &[&first], &long)
        .unwrap();
    assert!(last.try_finish().unwrap().is_none());
    let cr = world.request(evd);
    // SAFETY: all zeros is a valid value.
    let mut param: CrParam = unsafe { std::mem::zeroed() };
    ok!(cr_query_func(cr, CR_FIELD_ALL, &raw mut param));
    assert_eq!(param.private_data_size, 256);
    ok!(cr_reject_func(cr, 0, null_mut()));
}

#[test]
fn a_disconnect_counts_only_from_the_peer_and_for_its_connection() {
    let (world, peer, other) = (World::open(), Stranger::new(), Stranger::new());
    let (end, qp) = (world.end(), peer.qp());
    let (connected, answer) = peer.connect_properly(&world, &end, &qp);
    let ours = connected.qps[0];
    assert_eq!((answer.qpn, answer.msn), (ours.qpn, ours.msn));
    let wrong = QpAddress {
        msn: ours.msn ^ 1,
        ..ours
    };
    other.say_farewell(answer.control, Purpose::Disconnect, ours);
    other.say_farewell(answer.control, Purpose::Break, ours);
    peer.say_farewell(answer.control, Purpose::Disconnect, wrong);
    peer.say_farewell(answer.control, Purpose::Request, ours);
    assert!(empty(end.connect));
    assert_eq!(world.state(&end), EP_STATE_CONNECTED);
    peer.say_farewell(answer.control, Purpose::Disconnect, ours);
    expect(end.connect, CONNECTION_EVENT_DISCONNECTED);
    assert_eq!(world.state(&end), EP_STATE_DISCONNECTED);
}

#[test]
fn a_peer_that_exits_silently_breaks_the_connection() {
    let (world, peer) = (World::open(), Stranger::new());
    let (end, qp) = (world.end(), peer.qp());
    let memory = world.memory(64, MEM_PRIV_ALL_FLAG);
    peer.connect_properly(&world, &end, &qp);
    // The link comes up with the first message.
    assert_eq!(end.recv(memory.local(0, 8), 1, 0), SUCCESS);
    let remote = RmrTriplet {
        rmr_context: 1,
        ..memory.remote(0, 8)
    };
    drop((qp, peer));
    let _ = end.write(memory.local(0, 8), &remote, 2, 0);
    expect(end.connect, CONNECTION_EVENT_BROKEN);
    assert_ne!(completion(end.request, 2).0, DTO_SUCCESS);
    assert_eq!(completion(end.recv, 1).0, DTO_ERR_FLUSHED);
}

#[test]
fn a_denied_access_breaks_the_connection_on_both_sides() {
    let (world, peer) = (World::open(), Stranger::new());
    let (end, qp) = (world.end(), peer.qp());
    peer.connect_properly(&world, &end, &qp);
    let region = RmrTriplet {
        virtual_address: 0,
        segment_length: 8,
        rmr_context: 0x1234_5678,
    };
    let remote = daplrkey::calls::post::target(&region);
    let request = SendRequest {
        inline: Some(&[7; 8]),
        ..SendRequest::new(1, Work::Write { remote, imm: None }, &[])
    };
    qp.post_send(&request).unwrap();
    expect(end.connect, CONNECTION_EVENT_BROKEN);
    let end_time = Instant::now() + TIME;
    while qp.query().unwrap().state != QpState::Error {
        assert!(Instant::now() < end_time);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A queue pair of the device (as verbs and the Rust API use) and an EP use each other's keys.
#[test]
fn an_ep_and_a_queue_pair_of_another_api_use_each_others_keys() {
    let (world, peer) = (World::open(), Stranger::new());
    let (end, qp) = (world.end(), peer.qp());
    peer.connect_properly(&world, &end, &qp);
    let mut memory = world.memory(4096, MEM_PRIV_LOCAL_READ_FLAG | MEM_PRIV_LOCAL_WRITE_FLAG);
    let mut rmr = null_mut();
    ok!(rmr_create_func(world.pz, &raw mut rmr));
    let part = memory.local(64, 8);
    let mut context = 0;
    ok!(rmr_bind_func(
        rmr,
        memory.lmr,
        &raw const part,
        MEM_PRIV_REMOTE_WRITE_FLAG,
        VA_TYPE_VA,
        end.ep,
        cookie(1),
        0,
        &raw mut context
    ));
    expect(end.request, RMR_BIND_COMPLETION_EVENT);
    // The other side's region, and a write by the EP with its key.
    let mut theirs = vec![0u8; 64];
    let range = VaRange::new(theirs.as_mut_ptr() as u64, 64).unwrap();
    let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    let ranges = [range];
    let spec = RegionSpec::new(peer.domain, &ranges, access);
    // SAFETY: the test reads the bytes only after the writes have completed.
    let region = unsafe { peer.device.register(&spec) }.unwrap();
    memory.bytes[..8].copy_from_slice(b"from DAT");
    let to = RmrTriplet {
        virtual_address: range.start() + 8,
        segment_length: 8,
        rmr_context: region.key.0,
    };
    assert_eq!(end.write(memory.local(0, 8), &to, 2, 0), SUCCESS);
    assert_eq!(completion(end.request, 2), (DTO_SUCCESS, 8));
    assert_eq!(theirs[8..16], *b"from DAT");
    // The queue pair writes through the RMR, and then outside it.
    let write = |address: u64| {
        let triplet = RmrTriplet {
            virtual_address: address,
            segment_length: 8,
            rmr_context: context,
        };
        let remote = daplrkey::calls::post::target(&triplet);
        let request = SendRequest {
            inline: Some(b"to DAT!!"),
            ..SendRequest::new(3, Work::Write { remote, imm: None }, &[])
        };
        qp.post_send(&request).unwrap();
        let mut done = [Completion::default()];
        let cq = &qp.options().send_cq;
        while cq.poll(&mut done).unwrap() == 0 {}
        done[0].status
    };
    assert_eq!(write(part.virtual_address), Status::Success);
    assert_eq!(memory.bytes[64..72], *b"to DAT!!");
    assert_eq!(write(part.virtual_address + 1), Status::RemoteAccess);
    expect(end.connect, CONNECTION_EVENT_BROKEN);
    peer.device.deregister(region).unwrap();
}

/// An RSP takes one request. A stranger cannot use it up by requesting a datagram address.
#[test]
fn a_datagram_request_does_not_use_up_an_rsp() {
    let (one, two, stranger) = (World::open(), World::open(), Stranger::new());
    let (active, passive) = (one.end(), two.end());
    let (psp, evd, conn_qual) = two.psp();
    ok!(psp_free_func(psp));
    let mut rsp = null_mut();
    ok!(rsp_create_func(
        two.ia,
        conn_qual,
        passive.ep,
        evd,
        &raw mut rsp
    ));
    let qp = stranger.qp();
    let hello = Stranger::hello(Purpose::DatagramRequest, qp.address(), &[]);
    let refused = stranger.connect(conn_qual, &[], &hello);
    assert!(
        matches!(refused, Err(DeviceError::Refused { .. })),
        "{refused:?}"
    );
    assert_eq!(two.state(&passive), EP_STATE_RESERVED);
    one.connect(&active, conn_qual, &[]);
    ok!(cr_accept_func(two.request(evd), null_mut(), 0, null_mut()));
    expect(active.connect, CONNECTION_EVENT_ESTABLISHED);
}

/// The provider's object for an EP.
fn object(end: &End) -> Arc<Ep> {
    // SAFETY: nothing frees the EP while the reference is used.
    Arc::clone(unsafe { find::<Ep>(end.ep) }.unwrap())
}

/// The program disconnects while the worker takes the last step of connecting. The peer has already accepted, so it
/// must be notified.
#[test]
fn a_disconnect_in_the_last_step_of_connecting_reaches_the_peer() {
    let (world, stranger) = (World::open(), Stranger::new());
    let (end, qp) = (world.end(), stranger.qp());
    let listener = stranger.device.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let hello = Hello {
        control: listener.local_address(),
        ..Hello::decode(&Stranger::hello(Purpose::Answer, qp.address(), &[])).unwrap()
    };
    let peer = Peer {
        host: None,
        node: stranger.device.node(),
        uid: 0,
        pid: std::process::id(),
        qps: vec![qp.address()],
        private_data: hello.encode(),
    };
    let ep = object(&end);
    let attempt = ep.control.lock().attempt();
    ep.connected(attempt, &peer);
    let farewell = listener.accept(Some(TIME)).unwrap();
    let said = Hello::decode(&farewell.peer().private_data).unwrap();
    assert_eq!(said.purpose, Purpose::Disconnect);
    assert_eq!((said.qpn, said.msn), (qp.address().qpn, qp.address().msn));
    assert_eq!(world.state(&end), EP_STATE_UNCONNECTED);
    assert!(empty(end.connect));
}

/// A peer's message also counts if it arrives while the program is accepting the peer's request.
#[test]
fn a_connection_that_breaks_before_confirmation_is_reported_broken() {
    let (world, stranger) = (World::open(), Stranger::new());
    let (end, qp) = (world.end(), stranger.qp());
    let ep = object(&end);
    ep.take_step(Step::Accept).unwrap();
    let attempt = ep.control.lock().attempt();
    ep.end(Step::Break, Some(CONNECTION_EVENT_BROKEN));
    expect(end.connect, CONNECTION_EVENT_BROKEN);
    assert_eq!(ep.state(), State::Disconnected);
    let hello = Stranger::hello(Purpose::Request, qp.address(), &[]);
    ep.accepted(attempt, &Hello::decode(&hello).unwrap());
    assert_eq!(ep.state(), State::Disconnected);
    assert!(empty(end.connect));
}

const WHO_LISTENS: &str = "strangers::with_several_users_a_control_listeners_owner_is_checked";

/// With several users, a peer cannot make us send disconnect messages to a process that is not its own.
#[test]
fn with_several_users_a_control_listeners_owner_is_checked() {
    if std::env::var("RKEY_SHARE").as_deref() != Ok("all") {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args([WHO_LISTENS, "--exact", "--nocapture"]);
        let output = again.env("RKEY_SHARE", "all").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    let device = Device::open(Config::from_env().unwrap()).unwrap();
    let domain = device.create_domain().unwrap();
    let (world, stranger) = (World::open(), Stranger { device, domain });
    let (_, evd, conn_qual) = world.psp();
    let qp = stranger.qp();
    let listener = stranger.device.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let nowhere = Stranger::hello(Purpose::Request, qp.address(), &[]);
    let refused = stranger.connect(conn_qual, &[&qp], &nowhere);
    assert!(
        matches!(refused, Err(DeviceError::Refused { .. })),
        "{refused:?}"
    );
    assert!(empty(evd));
    let hello = Hello {
        control: listener.local_address(),
        ..Hello::decode(&nowhere).unwrap()
    };
    let to = ([127, 0, 0, 1], conn_qual as u16).into();
    let mut honest = stranger
        .device
        .begin_connect(to, &[&qp], &hello.encode())
        .unwrap();
    assert!(honest.try_finish().unwrap().is_none());
    ok!(cr_reject_func(world.request(evd), 0, null_mut()));
}

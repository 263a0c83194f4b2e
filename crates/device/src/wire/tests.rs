//! Several wires in one process that share an address.

use super::*;
use crate::peers::names::Scope;
use crate::peers::qp_numbers::QpNumbers;
use rkey_roce::packet::{Body, Headers, Packet, Psn, Request, Service, Tail};
use std::time::Duration;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A received packet: our address, the sender's address, the PSN, the payload, and whether it is marked.
type Received = (IpAddr, IpAddr, u32, Vec<u8>, bool);

/// A device that records the packets it receives.
pub(super) struct Recorder {
    numbers: QpNumbers,
    pub(super) packets: Mutex<Vec<Received>>,
    /// The thread that has received the last packets.
    pub(super) thread: Mutex<Option<std::thread::ThreadId>>,
    /// How often the wire has asked for acknowledgements that wait.
    pub(super) asked: AtomicU32,
    failure: Mutex<Option<String>>,
}

impl Receiver for Recorder {
    fn owns(&self, block: u16) -> bool {
        self.numbers.owns(block)
    }

    fn receive(&self, packets: &[Arrived<'_>], _: bool) {
        let kept = packets.iter().map(|it| {
            let psn = it.packet.headers.psn.get();
            let payload = it.packet.payload.to_vec();
            (it.local, it.remote, psn, payload, it.is_marked)
        });
        *self.thread.lock() = Some(std::thread::current().id());
        self.packets.lock().extend(kept);
    }

    fn send_held(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self, why: &str) {
        *self.failure.lock() = Some(why.to_owned());
    }
}

impl Recorder {
    /// A recorder with queue pair numbers that no other device has.
    pub(super) fn new() -> Arc<Self> {
        let numbers = QpNumbers::new(Scope::of(crate::Share::User));
        numbers.claim_first(|_, _| Ok(())).unwrap();
        Arc::new(Self {
            numbers,
            packets: Mutex::default(),
            thread: Mutex::default(),
            asked: AtomicU32::new(0),
            failure: Mutex::default(),
        })
    }

    fn block(&self) -> u16 {
        self.numbers.numbers()[0]
    }

    /// The number of one of the receiver's queue pairs.
    pub(super) fn qp(&self) -> u32 {
        u32::from(self.block()) << 8 | 7
    }

    pub(super) fn add_to(self: &Arc<Self>, wire: &Wire) {
        let receiver: Arc<dyn Receiver> = Arc::<Self>::clone(self);
        wire.add_receiver(&receiver);
    }
}

/// A device whose code for packets has a bug.
struct Panicking(QpNumbers);

impl Receiver for Panicking {
    fn owns(&self, block: u16) -> bool {
        self.0.owns(block)
    }

    fn receive(&self, _: &[Arrived<'_>], _: bool) {
        panic!("a test: in the wire's thread");
    }

    fn send_held(&self) {}

    fn failed(&self, _: &str) {}
}

/// Makes the thread of a wire panic. `ip` is one of its addresses.
pub(crate) fn make_panic(wire: &Wire, ip: IpAddr) {
    let numbers = QpNumbers::new(Scope::of(crate::Share::User));
    let claim = |number, _: std::os::fd::BorrowedFd<'_>| wire.claim_block(number);
    numbers.claim_first(claim).unwrap();
    let qp = u32::from(numbers.numbers()[0]) << 8;
    let receiver: Arc<dyn Receiver> = Arc::new(Panicking(numbers));
    wire.add_receiver(&receiver);
    let mut outgoing = OutgoingPackets::default();
    outgoing.push(ip, ip, &packet(qp, 1, b"data"));
    wire.send(&mut outgoing);
    wait_until(|| wire.core.failure.get().is_some());
}

/// Stands for a process: a wire and a device of its own.
pub(super) fn process(ip: IpAddr) -> (Wire, Arc<Recorder>) {
    process_with(ip, &WireConfig::OFF)
}

pub(super) fn process_with(ip: IpAddr, setting: &WireConfig) -> (Wire, Arc<Recorder>) {
    let wire = Wire::open(&[ip], setting).unwrap();
    assert!(wire.serves(ip), "{:?}", wire.describe().refused);
    let recorder = Recorder::new();
    recorder.add_to(&wire);
    wire.claim_block(recorder.block()).unwrap();
    (wire, recorder)
}

pub(super) fn packet(destination: u32, psn: u32, payload: &[u8]) -> Vec<u8> {
    let body = Body::Request(Service::Rc, Request::SendOnly(Tail::None));
    let mut bytes = Vec::new();
    let headers = Headers::new(destination, Psn::new(psn), body);
    Packet { headers, payload }.encode(&mut bytes).unwrap();
    bytes
}

pub(crate) fn wait_until(mut what: impl FnMut() -> bool) {
    let begun = crate::time::now();
    while !what() {
        assert!(crate::time::since(begun) < PATIENCE);
        crate::time::sleep(Duration::from_millis(1));
    }
}

/// An address of this host that is ours until this process ends: no other test or program receives packets there.
pub(crate) fn address() -> IpAddr {
    for _ in 0..1000 {
        let [a, b, c, _] = getrandom::u32().unwrap().to_ne_bytes();
        // Not the first or the last address of a network.
        let ip = IpAddr::from([127, a.clamp(1, 254), b, c.clamp(1, 254)]);
        if take_address(ip) {
            return ip;
        }
    }
    panic!("no address of the loopback interface is free");
}

/// Returns `false` if another test or a program has the address.
fn take_address(ip: IpAddr) -> bool {
    static TAKEN: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    let Some(ours) = crate::cm::socket::bind(&format!("rkey/test/wire/{ip}")).unwrap() else {
        return false;
    };
    // This socket does not share the address, so binding fails if any program uses it.
    let is_free = std::net::UdpSocket::bind((ip, icrc::PORT)).is_ok();
    TAKEN.lock().extend(is_free.then_some(ours));
    is_free
}

#[test]
fn each_process_receives_the_packets_of_its_queue_pairs() {
    three_processes_share(address());
}

#[test]
fn each_process_receives_the_packets_of_its_queue_pairs_and_their_marks_over_ipv6() {
    let ip: IpAddr = "::1".parse().unwrap();
    if std::net::UdpSocket::bind((ip, 0)).is_err() {
        eprintln!("SKIP: this host has no address {ip}");
        return;
    }
    // There is only one such address, so wait until other runs of this test release it.
    wait_until(|| take_address(ip));
    three_processes_share(ip);
    marks_reach(ip, ip);
}

fn three_processes_share(ip: IpAddr) {
    let processes = [(); 3].map(|()| process(ip));
    let sender = &processes[0].0;
    let mut outgoing = OutgoingPackets::default();
    // In bursts, so that packets travel together; the last packet of a burst is shorter.
    for psn in 0..48_u32 {
        let qp = processes[psn as usize / 16].1.qp();
        let length = if psn % 16 == 15 { 5 } else { 256 };
        let bytes = packet(qp, psn, &vec![psn as u8; length]);
        outgoing.push(ip, ip, &bytes);
    }
    sender.send(&mut outgoing);
    assert!(outgoing.is_empty());
    for (index, (_, recorder)) in processes.iter().enumerate() {
        wait_until(|| recorder.packets.lock().len() == 16);
        let packets = recorder.packets.lock();
        for (number, (local, remote, psn, payload, _)) in packets.iter().enumerate() {
            assert_eq!((*local, *remote), (ip, ip));
            assert_eq!(*psn as usize, 16 * index + number, "in order");
            assert!(payload.iter().all(|it| u32::from(*it) == *psn));
        }
    }
    let counts = processes.iter().map(|(wire, _)| wire.describe().counts);
    let counts: Vec<Counts> = counts.collect();
    assert_eq!(counts.iter().map(|it| it.received).sum::<u64>(), 48);
    assert!(counts.iter().all(|it| it.dropped.is_empty()), "{counts:?}");
    assert_eq!(counts[0].sent, 48);
}

#[test]
fn a_wire_whose_thread_panics_leaves_its_packets_to_other_processes() {
    let ip = address();
    let ((failing, its_device), (other, recorder)) = (process(ip), process(ip));
    let to = SocketAddr::new(ip, icrc::PORT);
    let from_each_port = |wanted: usize| {
        for psn in 0..64 {
            let stranger = std::net::UdpSocket::bind((address(), 0)).unwrap();
            let flow = Flow::new(stranger.local_addr().unwrap(), to).unwrap();
            let mut datagram = packet(recorder.qp(), psn, b"data");
            flow.seal(&mut datagram, 0);
            stranger.send_to(&datagram, to).unwrap();
        }
        wait_until(|| recorder.packets.lock().len() == wanted);
    };
    from_each_port(64);
    assert!(other.describe().counts.received == 64);
    assert!(failing.describe().counts.forwarded > 0, "it has a share");
    make_panic(&failing, ip);
    wait_until(|| its_device.failure.lock().is_some());
    from_each_port(128);
    let failure = its_device.failure.lock().clone().unwrap();
    assert!(failure.contains("panicked: a test: in"), "{failure}");
    let description = failing.describe();
    assert!(description.addresses.is_empty() && !failing.serves(ip));
    assert_eq!(description.refused, [(ip, failure.clone())]);
    // A device that is added later is told at once.
    let late = Recorder::new();
    late.add_to(&failing);
    assert_eq!(late.failure.lock().as_ref(), Some(&failure));
    assert!(recorder.failure.lock().is_none());
}

#[test]
fn a_process_whose_wire_has_failed_opens_a_new_wire() {
    let ip = address();
    let setting = WireSetting::Addresses(vec![ip]).into();
    let failed = Wire::of_process(&setting).unwrap();
    make_panic(&failed, ip);
    let again = Wire::of_process(&setting).unwrap();
    assert!(!Arc::ptr_eq(&failed, &again) && again.serves(ip));
}

#[test]
fn a_child_does_not_touch_its_parents_wire() {
    use crate::cm::fork::tests::{is_set, succeeds_in_child};
    let ip = address();
    let (wire, recorder) = process(ip);
    let mut slot = Some(wire);
    let set = slot.as_ref().unwrap().core.reactor.descriptor();
    let done = succeeds_in_child(|| {
        let wire = slot.take().unwrap();
        let mut outgoing = OutgoingPackets::default();
        outgoing.push(ip, ip, &packet(recorder.qp(), 1, b"of the child"));
        wire.send(&mut outgoing);
        wire.release_block(recorder.block());
        let is_alone = !is_set(&set) && !wire.serves(ip);
        drop(wire);
        // The child can open a wire of its own.
        is_alone && wire_of_child_serves(address())
    });
    assert!(done && is_set(&set));
    let wire = slot.unwrap();
    let mut outgoing = OutgoingPackets::default();
    outgoing.push(ip, ip, &packet(recorder.qp(), 2, b"of the parent"));
    wire.send(&mut outgoing);
    wait_until(|| !recorder.packets.lock().is_empty());
    let packets = recorder.packets.lock();
    assert!(packets.iter().all(|it| it.2 == 2));
    // The block's name is still taken, too.
    let other = Wire::open(&[ip], &WireConfig::OFF).unwrap();
    assert!(other.claim_block(recorder.block()).is_err());
}

fn wire_of_child_serves(ip: IpAddr) -> bool {
    Wire::open(&[ip], &WireConfig::OFF).is_ok_and(|wire| wire.serves(ip))
}

#[test]
fn dropped_packets_are_counted_and_not_answered() {
    let ip = address();
    let (wire, recorder) = process(ip);
    let stranger = std::net::UdpSocket::bind((address(), 0)).unwrap();
    let to = SocketAddr::new(ip, icrc::PORT);
    let flow = Flow::new(stranger.local_addr().unwrap(), to).unwrap();
    let dropped = |why: Dropped| {
        let counts = wire.describe().counts.dropped;
        counts.iter().find(|it| it.0 == why).map_or(0, |it| it.1)
    };
    let send = |bytes: &[u8], why: Dropped| {
        let before = dropped(why);
        assert_eq!(stranger.send_to(bytes, to).unwrap(), bytes.len());
        wait_until(|| dropped(why) == before + 1);
    };
    let sealed = |packet: &[u8]| {
        let mut datagram = packet.to_vec();
        flow.seal(&mut datagram, 0);
        datagram
    };
    for nonsense in [&[0; 3][..], &[0xff; 9000]] {
        send(nonsense, Dropped::Malformed);
    }
    send(&[], Dropped::Empty);
    let good = sealed(&packet(recorder.qp(), 1, b"data"));
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    // On IPv4, one damaged datagram in 65,536 still has a valid checksum.
    damaged[13] ^= 0xff;
    send(&damaged, Dropped::Checksum);
    let mut version = packet(recorder.qp(), 1, b"data");
    version[1] |= 1;
    send(&sealed(&version), Dropped::Malformed);
    let mut partition = packet(recorder.qp(), 1, b"data");
    partition[2] = 0x12;
    send(&sealed(&partition), Dropped::Partition);
    send(
        &sealed(&packet(0x00_0001, 1, &[0; 256])),
        Dropped::Management,
    );
    // No device claims block 0.
    send(&sealed(&packet(0x00_0007, 1, b"data")), Dropped::NoReceiver);
    // A message of the connection manager from an address of this host.
    let mad = rkey_cm::wire::Mad::new(
        1,
        rkey_cm::wire::Message::Drep(rkey_cm::wire::Drep {
            local: 1,
            remote: 2,
            data: rkey_cm::wire::PrivateData::default(),
        }),
    );
    send(&datagram::write(&flow, &mad.encode(), 1), Dropped::Source);
    assert!(recorder.packets.lock().is_empty());
    stranger.send_to(&good, to).unwrap();
    wait_until(|| recorder.packets.lock().len() == 1);
    stranger.set_nonblocking(true).unwrap();
    let answer = stranger.recv(&mut [0; 16]);
    assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn marks_reach_the_process_of_the_queue_pair() {
    marks_reach(address(), address());
}

/// Marks survive coalescing by the kernel, and forwarding by another process.
fn marks_reach(ip: IpAddr, from: IpAddr) {
    let processes = [(); 2].map(|()| process(ip));
    let to = SocketAddr::new(ip, icrc::PORT);
    let mut expected = 0;
    // From many ports, so that each process gets some of the datagrams.
    for number in 0..32_u32 {
        let stranger = std::net::UdpSocket::bind((from, 0)).unwrap();
        let (address, stranger) = (stranger.local_addr().unwrap(), stranger);
        let flow = Flow::new(address, to).unwrap();
        let state = quinn_udp::UdpSocketState::new((&stranger).into()).unwrap();
        let recorder = &processes[(number % 2) as usize].1;
        for (psn, ecn) in (0..4).map(|bits| (number * 4 + u32::from(bits), bits)) {
            // Three datagrams of one length in one call, if the kernel can do that.
            let count = state.max_gso_segments().min(3);
            let mut datagrams = Vec::new();
            for identification in 0..count as u16 {
                let mut datagram = packet(recorder.qp(), psn, &[7; 100]);
                flow.seal(&mut datagram, identification);
                datagrams.extend(datagram);
            }
            let transmit = quinn_udp::Transmit {
                destination: to,
                ecn: quinn_udp::EcnCodepoint::from_bits(ecn),
                segment_size: (count > 1).then_some(datagrams.len() / count),
                contents: &datagrams,
                src_ip: None,
            };
            state.try_send((&stranger).into(), &transmit).unwrap();
            expected += count;
        }
    }
    let received = || -> usize {
        let all = processes.iter();
        all.map(|(_, recorder)| recorder.packets.lock().len()).sum()
    };
    wait_until(|| received() == expected);
    for (wire, recorder) in &processes {
        assert!(wire.describe().counts.forwarded > 0);
        for (_, _, psn, _, is_marked) in recorder.packets.lock().iter() {
            assert_eq!(*is_marked, psn % 4 == 3, "{psn}");
        }
    }
}

/// A wire whose packets get these faults, and the address that it sends from.
fn faulty(faults: &str) -> (Wire, IpAddr) {
    let mut config = crate::Config::default();
    config.set("RKEY_FAULT", faults).unwrap();
    let ip = address();
    (Wire::open(&[ip], &config.wire).unwrap(), ip)
}

/// Sends 48 packets of two lengths. Twice as many fit into the buffer of a socket, so that none is lost if the receiver has to wait
/// for a processor.
fn send_some(wire: &Wire, from: IpAddr, to: IpAddr, qp: u32) {
    let mut outgoing = OutgoingPackets::default();
    for psn in 0..48_u32 {
        let length = if psn % 16 == 15 { 5 } else { 1024 };
        outgoing.push(from, to, &packet(qp, psn, &vec![psn as u8; length]));
    }
    wire.send(&mut outgoing);
    assert!(outgoing.is_empty());
}

#[test]
fn packets_with_injected_faults_arrive_twice_and_out_of_order() {
    let (sender, from) = faulty("duplicate=100%,reorder=50%,delay=2ms,seed=1");
    let ip = address();
    let (wire, recorder) = process(ip);
    send_some(&sender, from, ip, recorder.qp());
    wait_until(|| recorder.packets.lock().len() == 96);
    let packets = recorder.packets.lock();
    let mut order: Vec<u32> = packets.iter().map(|it| it.2).collect();
    assert!(!order.is_sorted());
    order.sort_unstable();
    assert_eq!(order, (0..96).map(|n| n / 2).collect::<Vec<u32>>());
    for (_, remote, psn, payload, _) in packets.iter() {
        assert_eq!(*remote, from);
        assert!(payload.iter().all(|it| u32::from(*it) == *psn));
    }
    assert!(wire.describe().counts.dropped.is_empty());
    // The delayed packets are counted after they are sent.
    wait_until(|| sender.describe().counts.sent == 96);
    let description = sender.describe();
    let faults = description.faults.unwrap();
    assert_eq!(faults.faults, "duplicate=100%,reorder=50%,delay=2ms,seed=1");
    assert_eq!((faults.counts.duplicated, faults.counts.lost), (48, 0));
}

#[test]
fn the_checksum_detects_injected_damage() {
    let (sender, from) = faulty("corrupt=100%,seed=1");
    let ip = address();
    let (wire, recorder) = process(ip);
    send_some(&sender, from, ip, recorder.qp());
    let dropped = || wire.describe().counts.dropped;
    wait_until(|| dropped() == [(Dropped::Checksum, 48)]);
    assert!(recorder.packets.lock().is_empty());
    // Messages of the connection manager get faults, too.
    sender.send_message(from, ip, &[0; MAD]);
    wait_until(|| dropped() == [(Dropped::Checksum, 49)]);
}

#[test]
fn a_wire_that_closes_sends_the_packets_that_it_delayed() {
    let (sender, from) = faulty("delay=10s,seed=1");
    let ip = address();
    let (_wire, recorder) = process(ip);
    send_some(&sender, from, ip, recorder.qp());
    assert_eq!(sender.describe().counts.sent, 0);
    drop(sender);
    wait_until(|| recorder.packets.lock().len() == 48);
}

#[test]
fn captures_contain_the_packets_that_were_sent_and_received() {
    capture_on_both_sides(&WireConfig::OFF);
}

/// Both sides capture: what one sends, the other receives. The packets in the files are packets of RoCEv2 with valid checksums.
pub(super) fn capture_on_both_sides(setting: &WireConfig) {
    let kind = setting.key.is_some();
    let name = |side| format!("rkey-wire-{side}-{kind}-{}.pcap", std::process::id());
    let files = ["a", "b"].map(|side| std::env::temp_dir().join(name(side)));
    let open = |file: &std::path::PathBuf| {
        let ip = address();
        let config = WireConfig {
            capture: Some(file.clone()),
            ..setting.clone()
        };
        let wire = Wire::open(&[ip], &config).unwrap();
        let recorder = Recorder::new();
        recorder.add_to(&wire);
        (ip, wire, recorder)
    };
    let [(from, sender, _), (to, receiver, recorder)] = files.each_ref().map(open);
    send_some(&sender, from, to, recorder.qp());
    wait_until(|| recorder.packets.lock().len() == 48);
    // For another process, which does not exist.
    send_some(&sender, from, to, 0x0000_0007);
    wait_until(|| !receiver.describe().counts.dropped.is_empty());
    drop((sender, receiver));
    let [sent, received] = files
        .each_ref()
        .map(|it| rkey_harness::pcap::read(&std::fs::read(it).unwrap()));
    assert_eq!((sent.len(), received.len()), (96, 48));
    for (number, (one, other)) in sent.iter().zip(&received).enumerate() {
        assert_eq!(one.flow, other.flow);
        assert_eq!((one.flow.0.ip(), one.flow.1.ip()), (from, to));
        assert_eq!(one.datagram, other.datagram);
        assert_eq!(one.identification, other.identification);
        assert!(one.at <= other.at);
        let flow = Flow::new(one.flow.0, one.flow.1).unwrap();
        let opened = flow.open(&one.datagram).unwrap();
        assert_eq!(opened.identification, Some(one.identification));
        let packet = Packet::decode(opened.packet).unwrap();
        assert_eq!(packet.headers.psn.get() as usize, number);
    }
    for file in files {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn a_child_drops_packets_that_would_get_faults() {
    let (sender, from) = faulty("loss=1%,seed=1");
    let injector = sender.core.faults.as_ref().unwrap();
    let sent = crate::cm::fork::tests::succeeds_in_child(|| {
        send_some(&sender, from, from, 0x1207);
        sender.send_message(from, from, &[0; MAD]);
        sender.core.counters.now().sent == 0
    });
    assert!(sent && injector.describe().counts == FaultCounts::default());
}

#[test]
fn unusable_addresses_are_reported() {
    let foreign = "192.0.2.77".parse().unwrap();
    let ours = address();
    let wire = Wire::open(&[foreign, ours], &WireConfig::OFF).unwrap();
    assert!(wire.serves(ours) && !wire.serves(foreign));
    let description = wire.describe();
    assert_eq!(description.refused.len(), 1);
    assert!(
        description.refused[0]
            .1
            .contains("not an address of this host")
    );
    assert_eq!(
        description.addresses[0].gid.to_string(),
        format!("::ffff:{ours}")
    );
    assert_eq!(wire.mtu(ours), Some(Mtu::Bytes4096));
    assert_eq!(wire.mtu(foreign), None);
    // A socket that does not share the address, like that of the kernel's RoCE device.
    let taken = address();
    let other = std::net::UdpSocket::bind((taken, icrc::PORT)).unwrap();
    let wire = Wire::open(&[taken], &WireConfig::OFF).unwrap();
    assert!(wire.describe().refused[0].1.contains("4791 is taken"));
    drop(other);
}

#[test]
fn devices_with_the_same_setting_share_a_wire() {
    assert!(Wire::of_process(&WireConfig::OFF).is_none());
    let ours = address();
    let setting = WireSetting::Addresses(vec![ours]).into();
    let one = Wire::of_process(&setting).unwrap();
    let again = Wire::of_process(&setting).unwrap();
    assert!(Arc::ptr_eq(&one, &again));
    let other = WireSetting::Addresses(vec![address()]).into();
    assert!(!Arc::ptr_eq(&one, &Wire::of_process(&other).unwrap()));
    let weak = Arc::downgrade(&one);
    drop((one, again));
    assert!(weak.upgrade().is_none());
    assert!(Wire::of_process(&setting).unwrap().serves(ours));
}

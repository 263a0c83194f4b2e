//! Several wires in one process that share an address.

use super::*;
use rkey_roce::packet::{Body, Headers, Psn, Request, Service, Tail};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A received packet: our address, the sender's address, the PSN and the payload.
type Received = (IpAddr, IpAddr, u32, Vec<u8>);

/// A device that records the packets it receives.
struct Recorder {
    block: u16,
    packets: Mutex<Vec<Received>>,
}

impl Receiver for Recorder {
    fn owns(&self, block: u16) -> bool {
        block == self.block
    }

    fn receive(&self, packets: &[Arrived<'_>]) {
        let kept = packets.iter().map(|it| {
            let psn = it.packet.headers.psn.get();
            (it.local, it.remote, psn, it.packet.payload.to_vec())
        });
        self.packets.lock().extend(kept);
    }
}

/// Stands for a process: a wire and a device of its own.
fn process(ip: IpAddr, block: u16) -> (Wire, Arc<Recorder>) {
    let wire = Wire::open(&[ip]).unwrap();
    assert!(wire.serves(ip), "{:?}", wire.describe().refused);
    let recorder = Arc::new(Recorder {
        block,
        packets: Mutex::default(),
    });
    let as_receiver: Arc<dyn Receiver> = Arc::<Recorder>::clone(&recorder);
    wire.add_receiver(Arc::downgrade(&as_receiver));
    wire.claim_block(block).unwrap();
    (wire, recorder)
}

fn packet(destination: u32, psn: u32, payload: &[u8]) -> Vec<u8> {
    let body = Body::Request(Service::Rc, Request::SendOnly(Tail::None));
    let mut bytes = Vec::new();
    let headers = Headers::new(destination, Psn::new(psn), body);
    Packet { headers, payload }.encode(&mut bytes).unwrap();
    bytes
}

fn wait_until(what: impl Fn() -> bool) {
    let begun = crate::time::now();
    while !what() {
        assert!(crate::time::since(begun) < PATIENCE);
        crate::time::sleep(Duration::from_millis(1));
    }
}

/// Each test has its own address, so that it does not receive the packets of the others.
fn address(last: u8) -> IpAddr {
    [127, 47, 91, last].into()
}

#[test]
fn each_process_receives_the_packets_of_its_queue_pairs() {
    for ip in [address(1), "::1".parse().unwrap()] {
        if std::net::UdpSocket::bind((ip, 0)).is_err() {
            eprintln!("SKIP: this host has no address {ip}");
            continue;
        }
        // Numbers that devices of other tests are unlikely to claim.
        let blocks = [0xfff0, 0xfff1, 0xfff2];
        let processes = blocks.map(|block| process(ip, block));
        let sender = &processes[0].0;
        let mut outgoing = Outgoing::default();
        // In bursts, so that packets travel together; the last packet of a burst is shorter.
        for psn in 0..48_u32 {
            let block = u32::from(blocks[psn as usize / 16]);
            let length = if psn % 16 == 15 { 5 } else { 1024 };
            let bytes = packet(block << 8 | 7, psn, &vec![psn as u8; length]);
            outgoing.push(ip, ip, &bytes);
        }
        sender.send(&mut outgoing);
        assert!(outgoing.is_empty());
        for (index, (_, recorder)) in processes.iter().enumerate() {
            wait_until(|| recorder.packets.lock().len() == 16);
            let packets = recorder.packets.lock();
            for (number, (local, remote, psn, payload)) in packets.iter().enumerate() {
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
}

#[test]
fn dropped_packets_are_counted_and_not_answered() {
    let ip = address(2);
    let (wire, recorder) = process(ip, 0xfff3);
    let stranger = std::net::UdpSocket::bind((address(3), 0)).unwrap();
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
    for nonsense in [&[][..], &[0; 3], &[0xff; 9000]] {
        send(nonsense, Dropped::Malformed);
    }
    let good = sealed(&packet(0xff_f301, 1, b"data"));
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    // On IPv4, one damaged datagram in 65,536 still has a valid checksum.
    damaged[13] ^= 0xff;
    send(&damaged, Dropped::Checksum);
    let mut version = packet(0xff_f301, 1, b"data");
    version[1] |= 1;
    send(&sealed(&version), Dropped::Malformed);
    let mut partition = packet(0xff_f301, 1, b"data");
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
fn unusable_addresses_are_reported() {
    let foreign = "192.0.2.77".parse().unwrap();
    let ours = address(4);
    let wire = Wire::open(&[foreign, ours]).unwrap();
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
        "::ffff:127.47.91.4"
    );
    assert_eq!(wire.mtu(ours), Some(Mtu::Bytes4096));
    assert_eq!(wire.mtu(foreign), None);
    // A socket that does not share the address, like that of the kernel's RoCE device.
    let taken = address(5);
    let other = std::net::UdpSocket::bind((taken, icrc::PORT)).unwrap();
    let wire = Wire::open(&[taken]).unwrap();
    assert!(wire.describe().refused[0].1.contains("4791 is taken"));
    drop(other);
}

#[test]
fn users_of_one_setting_share_a_wire() {
    assert!(Wire::of_process(&WireSetting::Off).is_none());
    let setting = WireSetting::Addresses(vec![address(6)]);
    let one = Wire::of_process(&setting).unwrap();
    let again = Wire::of_process(&setting).unwrap();
    assert!(Arc::ptr_eq(&one, &again));
    let other = WireSetting::Addresses(vec![address(7)]);
    assert!(!Arc::ptr_eq(&one, &Wire::of_process(&other).unwrap()));
    let weak = Arc::downgrade(&one);
    drop((one, again));
    assert!(weak.upgrade().is_none());
    assert!(Wire::of_process(&setting).unwrap().serves(address(6)));
}

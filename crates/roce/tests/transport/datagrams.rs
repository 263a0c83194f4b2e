//! Datagram queue pairs.

use crate::program::Program;
use rkey_roce::packet::{Body, Deth, Headers, Mtu, Packet, Psn, Request, Service, Tail};
use rkey_roce::transport::{
    DatagramConfig, DatagramQueuePair, DatagramRequest, Event, GRH_LEN, PacketBuffer, Status,
};

const QKEY: u32 = 0x1111_1111;

fn queue_pair(number: u32) -> DatagramQueuePair<&'static str> {
    DatagramQueuePair::new(DatagramConfig {
        number,
        mtu: Mtu::Bytes1024,
        pkey: 0x8001,
        qkey: QKEY,
        send_psn: Psn::new(0xff_ffff),
    })
}

fn datagram(id: u64, length: u32) -> DatagramRequest<&'static str> {
    DatagramRequest {
        id,
        address: "b",
        destination: 0xb,
        qkey: QKEY,
        length,
        immediate: None,
        solicited: false,
    }
}

fn events(queue_pair: &mut DatagramQueuePair<&'static str>) -> Vec<Event> {
    std::iter::from_fn(|| queue_pair.next_event()).collect()
}

fn ended(id: u64, status: Status) -> Event {
    Event::Completed { id, status }
}

#[test]
fn a_datagram_is_stored_after_the_space_for_its_route_header() {
    let (mut a, mut b) = (queue_pair(0xa), queue_pair(0xb));
    let (mut sender, mut receiver) = (Program::new(), Program::new());
    sender.requests.insert(1, b"hello".to_vec());
    sender.requests.insert(2, vec![]);
    receiver.receives.push_back((7, vec![0; 100]));
    receiver.receives.push_back((8, vec![0; 40]));
    let mut first = datagram(1, 5);
    (first.immediate, first.solicited) = (Some(9), true);
    a.post(first);
    a.post(datagram(2, 0));
    let mut psns = Vec::new();
    let mut buffer: PacketBuffer = [0; _];
    while let Some((length, address)) = a.transmit(&mut sender, &mut buffer) {
        assert_eq!(address, "b");
        let packet = Packet::decode(&buffer[..length]).unwrap();
        psns.push(packet.headers.psn.get());
        assert_eq!(packet.headers.pkey, 0x8001);
        b.receive(&mut receiver, &packet);
    }
    assert_eq!(psns, [0xff_ffff, 0]);
    let ends = [ended(1, Status::Success), ended(2, Status::Success)];
    assert_eq!(events(&mut a), ends);
    let arrived = events(&mut b);
    let [Event::Received(first), Event::Received(second)] = arrived[..] else {
        panic!("{arrived:?}")
    };
    assert_eq!(
        (first.id, first.bytes, first.source),
        (7, GRH_LEN + 5, Some(0xa))
    );
    assert_eq!((first.immediate, first.solicited), (Some(9), true));
    assert_eq!(
        (second.id, second.bytes, second.immediate),
        (8, GRH_LEN, None)
    );
    assert_eq!(&receiver.taken[&7][..45], [&[0; 40][..], b"hello"].concat());
}

#[test]
fn wrong_keys_and_short_receives_drop_a_datagram() {
    let mut b = queue_pair(0xb);
    let mut receiver = Program::new();
    receiver.receives.push_back((7, vec![0; 43]));
    receiver.receives.push_back((8, vec![0; 40 + 1024]));
    let mut give = |service, request, payload: &[u8]| {
        let headers = Headers::new(0xb, Psn::new(0), Body::Request(service, request));
        b.receive(&mut receiver, &Packet { headers, payload });
        (events(&mut b), b.counters().dropped)
    };
    let ud = |qkey| Service::Ud(Deth { qkey, source: 3 });
    let only = Request::SendOnly(Tail::None);
    assert_eq!(give(ud(QKEY + 1), only, b"abc"), (vec![], 1));
    assert_eq!(give(ud(QKEY), only, b"abcd"), (vec![], 2));
    assert_eq!(give(ud(QKEY), only, &[0; 1025]), (vec![], 3));
    assert_eq!(give(Service::Uc, only, b"abc"), (vec![], 4));
    assert_eq!(give(ud(QKEY), Request::SendFirst, b"abc"), (vec![], 5));
    assert_eq!(give(ud(QKEY), only, b"abc").0.len(), 1);
    assert_eq!(give(ud(QKEY), only, &[0; 1024]).0.len(), 1);
    assert_eq!(give(ud(QKEY), only, b"abc"), (vec![], 6));
}

#[test]
fn a_receive_that_cannot_be_written_fails_the_queue_pair() {
    let mut b = queue_pair(0xb);
    let mut receiver = Program::new();
    receiver.receives.push_back((7, vec![0; 100]));
    receiver.unmapped = true;
    b.post(datagram(1, 1));
    let deth = Deth {
        qkey: QKEY,
        source: 3,
    };
    let body = Body::Request(Service::Ud(deth), Request::SendOnly(Tail::None));
    let headers = Headers::new(0xb, Psn::new(0), body);
    let payload = b"abc";
    b.receive(&mut receiver, &Packet { headers, payload });
    // The owner may handle more packets before it fetches the events.
    receiver.receives.push_back((8, vec![0; 100]));
    receiver.unmapped = false;
    b.receive(&mut receiver, &Packet { headers, payload });
    b.post(datagram(2, 1));
    let failed = Event::ReceiveFailed {
        id: 7,
        status: Status::LocalProtection,
    };
    let flushed = |id| ended(id, Status::Flushed);
    let ends = [failed, flushed(1), Event::Failed, flushed(2)];
    assert_eq!(events(&mut b), ends);
    assert_eq!((receiver.receives.len(), b.counters().dropped), (1, 1));
}

#[test]
fn a_queue_key_with_the_top_bit_set_selects_the_queue_pairs_own_key() {
    let mut a = queue_pair(0xa);
    let mut sender = Program::new();
    sender.requests.insert(1, vec![1]);
    for qkey in [0x8000_0000, 0x1234] {
        a.post(DatagramRequest {
            qkey,
            ..datagram(1, 1)
        });
    }
    let mut buffer: PacketBuffer = [0; _];
    for expected in [QKEY, 0x1234] {
        let (length, _) = a.transmit(&mut sender, &mut buffer).unwrap();
        let packet = Packet::decode(&buffer[..length]).unwrap();
        let deth = Deth {
            qkey: expected,
            source: 0xa,
        };
        let Body::Request(Service::Ud(found), _) = packet.headers.body else {
            panic!("{packet:?}")
        };
        assert_eq!((found, packet.headers.destination), (deth, 0xb));
    }
}

#[test]
fn datagrams_that_cannot_be_sent_end_with_their_status() {
    let mut a = queue_pair(0xa);
    let mut sender = Program::new();
    sender.requests.insert(1, vec![0; 1025]);
    a.post(datagram(1, 1025));
    a.post(datagram(1, 1024));
    a.post(datagram(2, 1));
    a.post(datagram(1, 1));
    let mut buffer: PacketBuffer = [0; _];
    assert_eq!(
        a.transmit(&mut sender, &mut buffer).unwrap().0,
        12 + 8 + 1024
    );
    assert_eq!(a.transmit(&mut sender, &mut buffer), None);
    let ends = [
        ended(1, Status::LocalLength),
        ended(1, Status::Success),
        ended(2, Status::LocalProtection),
        ended(1, Status::Flushed),
        Event::Failed,
    ];
    assert_eq!(events(&mut a), ends);
}

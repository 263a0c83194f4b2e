//! Random packets round-trip; random and damaged bytes decode to packets or errors and never panic.

use crate::captures::CAPTURED;
use proptest::prelude::*;
use rkey_roce::packet::{
    Aeth, AtomicAckEth, AtomicEth, Body, Class, Deth, Headers, Ieth, ImmDt, MAX_PAYLOAD, Malformed,
    Mtu, Packet, Psn, Reliable, Request, Response, Reth, Service, Syndrome, Tail, Unencodable,
    XrcEth, padding,
};

/// A 24-bit field.
fn u24() -> impl Strategy<Value = u32> {
    0..1_u32 << 24
}

fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(address, rkey, length)| Reth {
        address,
        rkey,
        length,
    })
}

fn atomic() -> impl Strategy<Value = AtomicEth> {
    any::<(u64, u32, u64, u64)>().prop_map(|(address, rkey, swap_or_add, compare)| AtomicEth {
        address,
        rkey,
        swap_or_add,
        compare,
    })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    (any::<u8>(), u24()).prop_map(|(byte, msn)| Aeth {
        syndrome: Syndrome::from_byte(byte),
        msn,
    })
}

fn immediate() -> impl Strategy<Value = ImmDt> {
    any::<u32>().prop_map(|data| ImmDt { data })
}

fn tail() -> impl Strategy<Value = Tail> {
    prop_oneof![
        Just(Tail::None),
        immediate().prop_map(Tail::Immediate),
        any::<u32>().prop_map(|rkey| Tail::Invalidate(Ieth { rkey })),
    ]
}

fn service() -> impl Strategy<Value = Service> {
    let deth = (any::<u32>(), u24()).prop_map(|(qkey, source)| Deth { qkey, source });
    prop_oneof![
        Just(Service::Rc),
        Just(Service::Uc),
        deth.prop_map(Service::Ud),
        u24().prop_map(|srq| Service::Xrc(XrcEth { srq })),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::SendFirst),
        Just(Request::SendMiddle),
        tail().prop_map(Request::SendLast),
        tail().prop_map(Request::SendOnly),
        reth().prop_map(Request::WriteFirst),
        Just(Request::WriteMiddle),
        prop::option::of(immediate()).prop_map(Request::WriteLast),
        (reth(), prop::option::of(immediate()))
            .prop_map(|(reth, imm)| Request::WriteOnly(reth, imm)),
        reth().prop_map(Request::Read),
        atomic().prop_map(Request::CompareSwap),
        atomic().prop_map(Request::FetchAdd),
    ]
}

fn response() -> impl Strategy<Value = Response> {
    let atomic = (aeth(), any::<u64>())
        .prop_map(|(aeth, original)| Response::AtomicAcknowledge(aeth, AtomicAckEth { original }));
    prop_oneof![
        aeth().prop_map(Response::ReadFirst),
        Just(Response::ReadMiddle),
        aeth().prop_map(Response::ReadLast),
        aeth().prop_map(Response::ReadOnly),
        aeth().prop_map(Response::Acknowledge),
        atomic,
    ]
}

fn body() -> impl Strategy<Value = Body> {
    let reliable = prop_oneof![Just(Reliable::Rc), Just(Reliable::Xrc)];
    prop_oneof![
        6 => (service(), request()).prop_map(|(service, request)| Body::Request(service, request)),
        3 => (reliable, response()).prop_map(|(service, response)| Body::Response(service, response)),
        1 => Just(Body::Congestion),
    ]
}

fn headers() -> impl Strategy<Value = Headers> {
    let flags = any::<[bool; 5]>();
    let words = (any::<u16>(), 0..1u16 << 13);
    (u24(), u24(), words, flags, body()).prop_map(|(destination, psn, words, flags, body)| {
        let ((pkey, reserved), [ack_request, solicited, migrated, fecn, becn]) = (words, flags);
        Headers {
            destination,
            psn: Psn::new(psn),
            pkey,
            ack_request,
            solicited,
            migrated,
            fecn,
            becn,
            reserved,
            body,
        }
    })
}

/// Whether the specification has this operation for this service (IBA volume 1, 9.2, table "OpCode field").
fn exists(body: Body) -> bool {
    let invalidates = |tail| matches!(tail, Tail::Invalidate(_));
    match body {
        Body::Request(Service::Uc, Request::SendLast(tail) | Request::SendOnly(tail)) => {
            !invalidates(tail)
        }
        Body::Request(Service::Uc, request) => request.has_payload(),
        Body::Request(Service::Ud(_), Request::SendOnly(tail)) => !invalidates(tail),
        Body::Request(Service::Ud(_), _) => false,
        _ => true,
    }
}

proptest! {
    #[test]
    fn a_packet_round_trips(
        headers in headers(),
        payload in prop::collection::vec(any::<u8>(), 0..1100),
    ) {
        let payload = if headers.body.has_payload() { payload } else { Vec::new() };
        let packet = Packet { headers, payload: &payload };
        let mut bytes = vec![0xee];
        if !exists(headers.body) {
            let class = headers.body.class();
            prop_assert_eq!(packet.encode(&mut bytes), Err(Unencodable::Operation(class)));
            prop_assert_eq!(bytes, [0xee]);
            return Ok(());
        }
        prop_assert_eq!(packet.encode(&mut bytes), Ok(()));
        let bytes = &bytes[1..];
        prop_assert!(bytes.len().is_multiple_of(4));
        prop_assert!(bytes.len() <= Headers::MAX + payload.len() + padding(payload.len()));
        prop_assert_eq!(Packet::decode(bytes), Ok(packet));
        // Without its last word, the bytes are a different packet or none.
        if let Ok(shorter) = Packet::decode(&bytes[..bytes.len() - 4]) {
            prop_assert!(shorter.payload.len() < payload.len());
        }
        for length in 0..bytes.len() - payload.len() - padding(payload.len()) {
            prop_assert_eq!(Packet::decode(&bytes[..length]), Err(Malformed::Short(length)));
        }
    }

    /// Bytes that are a packet are encoded with the same meaning, and to the same bytes except for reserved bits.
    #[test]
    fn bytes_that_decode_are_encoded_with_the_same_meaning(
        bytes in prop::collection::vec(any::<u8>(), 0..128),
    ) {
        same_meaning(&bytes)?;
    }

    /// The same for captured packets in which a few bytes are changed.
    #[test]
    fn damaged_packets_that_decode_are_encoded_with_the_same_meaning(
        which: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = which.get(&CAPTURED).datagram.clone();
        for (at, value) in changes {
            // Half of the changes are in the headers.
            let end = if value & 1 == 0 { bytes.len() } else { bytes.len().min(28) };
            bytes[at.index(end)] = value;
        }
        if let Some(length) = length {
            bytes.truncate(length.index(bytes.len()));
        }
        same_meaning(&bytes)?;
    }
}

fn same_meaning(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Ok(packet) = Packet::decode(bytes) else {
        return Ok(());
    };
    prop_assert!(packet.payload.len() <= MAX_PAYLOAD);
    let mut again = Vec::new();
    prop_assert_eq!(packet.encode(&mut again), Ok(()));
    prop_assert_eq!(again.len(), bytes.len());
    prop_assert_eq!(Packet::decode(&again), Ok(packet));
    // Bits without a field are written as 0.
    let lost = again
        .iter()
        .zip(bytes)
        .filter(|(new, old)| *new & !*old != 0);
    prop_assert_eq!(lost.count(), 0);
    Ok(())
}

#[test]
fn malformed_packets_are_refused() {
    let bth = |opcode, flags| [opcode, flags, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0];
    let send = |flags, rest: &[u8]| Packet::decode(&[&bth(4, flags)[..], rest].concat()).err();
    assert_eq!(send(0, &[]), None);
    assert_eq!(send(0x30, &[1, 0, 0, 0]), None);
    assert_eq!(send(0x0f, &[]), Some(Malformed::Version(15)));
    // More padding than bytes, and lengths that are not a multiple of 4.
    let wrong = |length, pad| Some(Malformed::Payload { length, pad });
    assert_eq!(send(0x10, &[]), wrong(0, 1));
    assert_eq!(send(0x10, &[0; 3]), wrong(3, 1));
    assert_eq!(send(0, &[0; MAX_PAYLOAD]), None);
    assert_eq!(send(0x10, &[0; MAX_PAYLOAD + 4]), wrong(MAX_PAYLOAD + 4, 1));
    for opcode in [0x15, 0x18, 0x2c, 0x44, 0x60, 0x80, 0xb5, 0xc0, 0xff] {
        let packet = Packet::decode(&[bth(opcode, 0), [0; 12], [0; 12]].concat()).err();
        assert_eq!(packet, Some(Malformed::Opcode(opcode)));
    }
    // An acknowledgement, an atomic operation and a notification with a payload, and one whose payload is all padding.
    for (opcode, headers) in [(0x11, 4), (0x12, 12), (0x13, 28), (0x0c, 16), (0x81, 16)] {
        let bytes = [&bth(opcode, 0)[..], &vec![0; headers + 4]].concat();
        assert_eq!(Packet::decode(&bytes[..bytes.len() - 4]).err(), None);
        let error = Packet::decode(&bytes).unwrap_err();
        assert!(
            matches!(error, Malformed::Unexpected { length: 4, .. }),
            "{error}"
        );
    }
}

#[test]
fn impossible_packets_are_not_encoded() {
    let encoded = |service, request, length| {
        let headers = Headers::new(1, Psn::new(0), Body::Request(service, request));
        headers.encode(length).map(|bytes| bytes.as_ref().len())
    };
    let send = Request::SendOnly(Tail::None);
    assert_eq!(encoded(Service::Rc, send, MAX_PAYLOAD), Ok(12));
    let error = encoded(Service::Rc, send, MAX_PAYLOAD + 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a payload of 4097 B is too long for RC SEND Only"
    );
    let read = Request::Read(Reth {
        address: 0,
        rkey: 0,
        length: 0,
    });
    let error = encoded(Service::Rc, read, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a payload of 1 B is too long for RC RDMA READ Request"
    );
    assert_eq!(
        encoded(Service::Uc, read, 0),
        Err(Unencodable::Operation(Class::Uc))
    );
}

/// IBA volume 1, 9.7.4.1, from C9-92 on.
#[test]
fn payload_lengths_must_fit_the_position_in_the_message() {
    let reth = Reth {
        address: 0,
        rkey: 0,
        length: 0,
    };
    let aeth = Aeth {
        syndrome: Syndrome::from_byte(0),
        msn: 0,
    };
    let request = |request| Body::Request(Service::Rc, request);
    let response = |response| Body::Response(Reliable::Rc, response);
    for mtu in Mtu::ALL {
        let full = mtu.bytes();
        let (first, last, only) = (full..=full, 1..=full, 0..=full);
        for (body, lengths) in [
            (request(Request::SendFirst), &first),
            (request(Request::SendMiddle), &first),
            (request(Request::SendLast(Tail::None)), &last),
            (request(Request::SendOnly(Tail::None)), &only),
            (request(Request::WriteFirst(reth)), &first),
            (request(Request::WriteMiddle), &first),
            (request(Request::WriteLast(None)), &last),
            (request(Request::WriteOnly(reth, None)), &only),
            (request(Request::Read(reth)), &(0..=0)),
            (response(Response::ReadFirst(aeth)), &first),
            (response(Response::ReadMiddle), &first),
            (response(Response::ReadLast(aeth)), &last),
            (response(Response::ReadOnly(aeth)), &only),
            (response(Response::Acknowledge(aeth)), &(0..=0)),
            (Body::Congestion, &(0..=0)),
        ] {
            assert_eq!(&body.lengths(mtu), lengths, "{body:?}");
            for length in [0, 1, full - 1, full, full + 1] {
                let checked = body.check_length(length, mtu);
                assert_eq!(checked.is_ok(), lengths.contains(&length), "{checked:?}");
            }
        }
    }
    let error = request(Request::SendLast(Tail::None)).check_length(0, Mtu::Bytes256);
    assert_eq!(
        error.unwrap_err().to_string(),
        "the payload is 0 B long, but must be 1 to 256 B long in this packet"
    );
}

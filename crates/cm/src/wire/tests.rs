//! Messages compared byte by byte with those of Linux's connection manager (rxe) and its peers, and hostile bytes.

use super::*;
use crate::address::{Gid, Guid, PortSpace, ServiceId};
use core::net::IpAddr;
use proptest::prelude::*;

/// A message from hexadecimal digits, padded with zeros to 256 bytes.
fn mad(hex: &str) -> [u8; MAD] {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut mad = [0; MAD];
    for (byte, pair) in mad.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    }
    mad
}

fn decoded(hex: &str) -> Mad {
    let bytes = mad(hex);
    let it = Mad::decode(&bytes).expect("a message");
    assert_eq!(it.encode(), bytes, "{it:?} does not round-trip");
    it
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// From `rping` over rxe.
const REQ: &str = "010702030000000000000004ca772d4f0010000000000000
    4f2d77ca00000000 0000000001061c06 505400fffe770002 0000000000000000
    00001701 00000001 000000a0 a11099a7 ffff37f0 ffffffff
    00000000000000000000ffff0a4d0002 00000000000000000000ffff0a4d0001
    04f7c000 00400098
    00000000 00000000000000000000000000000000 00000000000000000000000000000000 0000000000000000
    004085ca 0000000000000000000000000a4d0002 0000000000000000000000000a4d0001";

#[test]
fn a_captured_req_round_trips() {
    let it = decoded(REQ);
    assert_eq!((it.tid, it.modifier), (0x4_ca77_2d4f, 0));
    let Message::Req(req) = it.message else {
        panic!("{it:?}")
    };
    let header = IpHeader {
        source_port: 0x85ca,
        source: address("10.77.0.2"),
        destination: address("10.77.0.1"),
    };
    let wanted = Req {
        local: 0x4f2d_77ca,
        ece_vendor: 0,
        service: ServiceId::new(PortSpace::Tcp, 7174),
        guid: Guid([0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 2]),
        qpn: 0x17,
        responder_resources: 1,
        initiator_depth: 1,
        remote_response: 20,
        transport: (0, 0),
        flow_control: false,
        starting_psn: 0xa1_1099,
        local_response: 20,
        retry_count: 7,
        pkey: 0xffff,
        mtu: 3,
        rnr_retry: 7,
        max_retries: 15,
        srq: false,
        path: Path {
            local: Gid::from(address("10.77.0.2")),
            remote: Gid::from(address("10.77.0.1")),
            flow_label: 0x4f7c,
            traffic_class: 0,
            hop_limit: 64,
            rate: 0,
            service_level: 0,
            ack_timeout: 19,
        },
        has_alternate_path: false,
        data: Req::with_header(&header, &PrivateData::default()),
    };
    assert_eq!(req, wanted);
    assert_eq!(req.ip_data(), Some((header, PrivateData::default())));
    assert_eq!(req.check(), Ok(()));
    assert_eq!(req.transport(), Some(Transport::Rc));
    assert_eq!(req.path_mtu(), Some(Mtu::B1024));
    // The flow label is computed from the two ports.
    let label = (u32::from(header.source_port) * 31 + 7174) & 0xf_ffff;
    assert_eq!(req.path.flow_label, label & 0xf_ffff);
}

#[test]
fn captured_answers_round_trip() {
    let rep = decoded(
        "010702030000000000000000000000520013000000000000 4d2d77ca 00000052 00000000 00001800 00000000 7e97bb00 040478e0 505400fffe770002",
    );
    let Message::Rep(rep) = rep.message else {
        panic!("{rep:?}")
    };
    let wanted = Rep {
        local: 0x4d2d_77ca,
        remote: 0x52,
        qpn: 0x18,
        eecn: 0,
        ece_vendor: 0,
        starting_psn: 0x7e_97bb,
        responder_resources: 4,
        initiator_depth: 4,
        target_ack_delay: 15,
        failover: 0,
        flow_control: false,
        rnr_retry: 7,
        srq: false,
        guid: Guid([0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 2]),
        data: PrivateData::default(),
    };
    assert_eq!(rep, wanted);
    assert_eq!(rep.queue_pair(Transport::Rc), 0x18);

    let rej =
        decoded("010702030000000000000000000000510012000000000000 00000000 00000051 0000 0008");
    let wanted = Rej::bare(0, 0x51, About::Req, RejectReason::SERVICE_ID);
    assert_eq!(rej, Mad::new(0x51, Message::Rej(wanted)));

    let rtu = decoded("010702030000000000000004ca772d4f0014000000000000 4f2d77ca 00007001");
    let wanted = Rtu {
        local: 0x4f2d_77ca,
        remote: 0x7001,
        data: PrivateData::default(),
    };
    assert_eq!(rtu, Mad::new(0x4_ca77_2d4f, Message::Rtu(wanted)));

    let mra = decoded("010702030000000000000004ca772d4f0011000000000000 70014f2d 77ca0000 00a0");
    let Message::Mra(mra) = mra.message else {
        panic!("{mra:?}")
    };
    assert_eq!((mra.about, mra.service_timeout), (About::Req, 20));
}

#[test]
fn captured_disconnects_round_trip() {
    let dreq =
        decoded("010702030000000000000004ca772d4d0015000000000000 4d2d77ca 00000052 00034200");
    let wanted = Dreq {
        local: 0x4d2d_77ca,
        remote: 0x52,
        remote_qpn: 0x342,
        data: PrivateData::default(),
    };
    assert_eq!(dreq, Mad::new(0x4_ca77_2d4d, Message::Dreq(wanted)));
    let drep = decoded("010702030000000000000000000000630016000000000000 4f2d77ca 00007001");
    let wanted = Drep {
        local: 0x4f2d_77ca,
        remote: 0x7001,
        data: PrivateData::default(),
    };
    assert_eq!(drep, Mad::new(0x63, Message::Drep(wanted)));
}

#[test]
fn captured_datagram_resolutions_round_trip() {
    let asked = decoded(
        "010702030000000000000000000000620017000000000000 00000062 ffff0000 0000000001111c06
         0040beef 0000000000000000000000000a4d0001 0000000000000000000000000a4d0002 78",
    );
    let Message::SidrReq(asked) = asked.message else {
        panic!("{asked:?}")
    };
    assert_eq!((asked.request, asked.pkey), (0x62, 0xffff));
    assert_eq!(asked.service, ServiceId::new(PortSpace::Udp, 7174));
    let (header, data) = asked.ip_data().expect("a header");
    assert!(header.agrees_with(address("10.77.0.1"), address("10.77.0.2")));
    assert_eq!((header.source_port, data.as_bytes()[0]), (0xbeef, b'x'));
    assert_eq!(SidrReq::with_header(&header, &data), asked.data);

    let good = decoded(
        "010702030000000000000000000000620018000000000000 00000062 00000000 00001900 0000000001111c06 01234567",
    );
    let Message::SidrRep(good) = good.message else {
        panic!("{good:?}")
    };
    assert_eq!((good.checked_status(), good.qpn), (SidrStatus::VALID, 0x19));
    assert_eq!((good.service, good.qkey), (asked.service, 0x0123_4567));

    let bad = decoded(
        "010702030000000000000000000000610018000000000000 00000061 01000000 00000000 000000000111270e",
    );
    let Message::SidrRep(bad) = bad.message else {
        panic!("{bad:?}")
    };
    assert_eq!(bad.checked_status(), SidrStatus::UNSUPPORTED);
}

#[test]
fn invalid_lengths_headers_and_attributes_are_dropped() {
    let good = mad(REQ);
    for len in [0, 24, 200, 255, 257, 300, 4096] {
        let mut bytes = good.to_vec();
        bytes.resize(len, 0);
        assert_eq!(Mad::decode(&bytes), Err(Malformed::Length(len)));
    }
    for (at, value) in [(0, 2), (1, 3), (2, 1), (2, 3), (3, 0x81)] {
        let mut bytes = good;
        bytes[at] = value;
        assert_eq!(Mad::decode(&bytes), Err(Malformed::Header), "byte {at}");
    }
    for attribute in [0, 0x0f, 0x19, 0x1a, 0x1b, 0x110, 0xffff_u16] {
        let mut bytes = good;
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        assert_eq!(Mad::decode(&bytes), Err(Malformed::Attribute(attribute)));
    }
}

#[test]
fn impossible_requests_are_refused_with_their_reason() {
    let body = |at: usize| HEADER + at;
    let impossible: [(usize, u8, RejectReason); 13] = [
        (body(34), 0, RejectReason::UNSUPPORTED),
        (body(34), 1, RejectReason::UNSUPPORTED),
        (body(43), 20 << 3 | 2 << 1, RejectReason::TRANSPORT),
        (body(43), 20 << 3 | 3 << 1, RejectReason::TRANSPORT),
        (body(48), 0x12, RejectReason::UNSUPPORTED),
        (body(50), 0x07, RejectReason::MTU),
        (body(50), 0x67, RejectReason::MTU),
        (body(50), 0xf7, RejectReason::MTU),
        (body(96), 1, RejectReason::ALTERNATE_GID),
        (body(97), 1, RejectReason::ALTERNATE_GID),
        (body(100), 1, RejectReason::ALTERNATE_GID),
        (body(115), 1, RejectReason::ALTERNATE_GID),
        (body(33), 0, RejectReason::UNSUPPORTED),
    ];
    for (at, value, reason) in impossible {
        let mut bytes = mad(REQ);
        // Clear the whole queue pair number: its low byte is 0x17 in the captured REQ.
        if at == body(33) {
            bytes[body(34)] = 0;
        }
        bytes[at] = value;
        let Ok(Mad {
            message: Message::Req(req),
            ..
        }) = Mad::decode(&bytes)
        else {
            panic!("byte {at}")
        };
        assert_eq!(req.check(), Err(reason), "byte {at} = {value:#x}");
    }
    let mut multicast = mad(REQ);
    multicast[body(32)..body(35)].fill(0xff);
    let Ok(Mad {
        message: Message::Req(req),
        ..
    }) = Mad::decode(&multicast)
    else {
        panic!("a REQ")
    };
    assert_eq!(req.check(), Err(RejectReason::UNSUPPORTED));
}

#[test]
fn every_transport_has_its_own_codes() {
    let it = decoded(REQ);
    let Message::Req(req) = it.message else {
        panic!("{it:?}")
    };
    for transport in [Transport::Rc, Transport::Uc, Transport::Xrc] {
        let codes = Req::transport_code(transport);
        let other = Req {
            transport: codes,
            ..req
        };
        let mad = Mad::new(1, Message::Req(other));
        assert_eq!(Mad::decode(&mad.encode()), Ok(mad));
        assert_eq!(other.transport(), Some(transport));
    }
}

/// A REP contains the ECE vendor in three separate bytes; the ECE options are in the header.
#[test]
fn ece_round_trips() {
    let rep = decoded(
        "0107020300000000000000000000005200130000aabbccdd 4d2d77ca 00000052 00000000 00001812 00000034 7e97bb56 040478e0",
    );
    assert_eq!(rep.modifier, 0xaabb_ccdd);
    let Message::Rep(rep) = rep.message else {
        panic!("{rep:?}")
    };
    assert_eq!((rep.ece_vendor, rep.qpn, rep.eecn), (0x12_3456, 0x18, 0));
}

#[test]
fn the_info_of_a_refusal_never_exceeds_its_field() {
    let refusal =
        |info: &[u8]| Rej::bare(1, 2, About::Other, RejectReason::TIMEOUT).with_info(info);
    assert_eq!(refusal(&[1; 100]).info_len, 72);
    assert_eq!(refusal(&[1; 8]).guid(), Some(Guid([1; 8])));
    assert_eq!(refusal(&[1; 7]).guid(), None);
    let mut bytes = Mad::new(0, Message::Rej(refusal(&[1; 72]))).encode();
    bytes[HEADER + 9] = 0xff;
    let Ok(Mad {
        message: Message::Rej(read),
        ..
    }) = Mad::decode(&bytes)
    else {
        panic!("a REJ")
    };
    assert_eq!(read.info_len, 72);
}

#[test]
fn refusal_reasons_have_descriptions() {
    assert_eq!(
        RejectReason::SERVICE_ID.to_string(),
        "nothing listens on this port"
    );
    assert_eq!(RejectReason(77).to_string(), "reason 77");
    assert_eq!(SidrStatus(9).to_string(), "status 9");
}

proptest! {
    /// Only reserved bits are lost.
    #[test]
    fn any_message_means_the_same_after_a_round_trip(
        body in proptest::array::uniform32(any::<[u8; 7]>()),
        attribute in 0x10_u16..0x19,
        tid: u64,
        modifier: u32,
    ) {
        let mut bytes = mad("01070203");
        bytes[8..16].copy_from_slice(&tid.to_be_bytes());
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        bytes[20..24].copy_from_slice(&modifier.to_be_bytes());
        for (part, random) in bytes[HEADER..].chunks_mut(7).zip(body) {
            part.copy_from_slice(&random[..part.len()]);
        }
        let first = Mad::decode(&bytes).expect("every body is valid");
        prop_assert_eq!(Mad::decode(&first.encode()), Ok(first));
        prop_assert_eq!((first.tid, first.modifier), (tid, modifier));
        if let Message::Req(req) = first.message {
            let _ = (req.check(), req.ip_data());
        }
    }
}

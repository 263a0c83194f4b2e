//! A hostile RoCEv2 datagram: the reader returns, and what it accepts encodes to bytes with the same meaning.

use rkey_roce::icrc::{Flow, LEN, PORT};
use rkey_roce::packet::{
    Body, Deth, Headers, Ieth, ImmDt, Mtu, Packet, Psn, Request, Reth, Service, Tail, XrcEth,
};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

/// The addresses of captured datagrams, and the same port over IPv6.
fn flows() -> [Flow; 2] {
    let v4 = |last| SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, last), PORT);
    let v6 = |last| {
        let address = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last);
        SocketAddrV6::new(address, PORT, 0, 0)
    };
    [
        Flow::V4 {
            source: v4(1),
            destination: v4(2),
        },
        Flow::V6 {
            source: v6(1),
            destination: v6(2),
        },
    ]
}

/// Reads a datagram: its checksum, and its packet, whether the checksum is right or not.
pub fn datagram(bytes: &[u8]) {
    for flow in flows() {
        let Ok(opened) = flow.open(bytes) else {
            continue;
        };
        let mut again = opened.packet.to_vec();
        flow.seal(&mut again, opened.identification.unwrap_or(0));
        assert_eq!(again, bytes, "sealing a datagram again changes it");
    }
    packet(bytes);
    if let Some((bytes, _)) = bytes.split_last_chunk::<LEN>() {
        packet(bytes);
    }
}

fn packet(bytes: &[u8]) {
    let Ok(packet) = Packet::decode(bytes) else {
        return;
    };
    let mut again = Vec::new();
    packet
        .encode(&mut again)
        .expect("a decoded packet can be encoded");
    assert_eq!(again.len(), bytes.len());
    assert_eq!(Packet::decode(&again), Ok(packet));
    let (body, length) = (packet.headers.body, packet.payload.len());
    for mtu in Mtu::ALL {
        assert!(length <= mtu.bytes() || body.check_length(length, mtu).is_err());
    }
}

/// Packets that are not among the captured ones, with a right checksum.
pub fn samples() -> Vec<Vec<u8>> {
    let immediate = ImmDt { data: 0x1234_5678 };
    let reth = Reth {
        address: 0x7f12_a000,
        rkey: 0x5a_03c1,
        length: 8,
    };
    let deth = Deth {
        qkey: 0x1111_1111,
        source: 0x17,
    };
    let xrc = Service::Xrc(XrcEth { srq: 5 });
    let bodies = [
        Body::Request(Service::Rc, Request::SendOnly(Tail::Immediate(immediate))),
        Body::Request(
            Service::Rc,
            Request::SendLast(Tail::Invalidate(Ieth { rkey: 7 })),
        ),
        Body::Request(Service::Uc, Request::WriteLast(Some(immediate))),
        Body::Request(
            Service::Ud(deth),
            Request::SendOnly(Tail::Immediate(immediate)),
        ),
        Body::Request(xrc, Request::WriteOnly(reth, Some(immediate))),
        Body::Request(xrc, Request::SendMiddle),
        Body::Congestion,
    ];
    let sealed = |body: Body| {
        let payload: &[u8] = if body.has_payload() { b"payload" } else { b"" };
        let headers = Headers::new(0x11, Psn::new(0xff_ffff), body);
        let mut bytes = Vec::new();
        let packet = Packet { headers, payload };
        packet.encode(&mut bytes).expect("the operation exists");
        flows()[0].seal(&mut bytes, 0xbd23);
        bytes
    };
    bodies.map(sealed).to_vec()
}

//! The packets of whole exchanges, and of what a stranger may send.

use super::*;
use Direction::{Received, Sent};

#[derive(Default)]
struct Seen(Vec<(Direction, String)>);

impl Sink for Seen {
    fn packet(&mut self, direction: Direction, headers: &Headers, payload: &[u8]) {
        let opcode = headers.body.opcode();
        let opcode = opcode.map_or("nothing".to_owned(), |it| it.to_string());
        let psn = headers.psn.get();
        let line = format!(
            "{opcode} {psn} to {}: {} B",
            headers.destination,
            payload.len()
        );
        self.0.push((direction, line));
    }
}

impl Seen {
    fn take(&mut self, direction: Direction) -> Vec<String> {
        let seen = std::mem::take(&mut self.0);
        assert!(seen.iter().all(|(it, _)| *it == direction), "{seen:?}");
        seen.into_iter().map(|(_, line)| line).collect()
    }
}

/// A request of queue pair 1 to queue pair 2.
fn request(op: Op, msn: u32, total: usize) -> Header {
    Header {
        src_qp: 1,
        dst_qp: 2,
        msn,
        len: total as u32,
        total: total as u32,
        ..Header::new(op)
    }
}

fn response(op: Op, msn: u32, total: usize) -> Header {
    Header {
        src_qp: 2,
        dst_qp: 1,
        ..request(op, msn, total)
    }
}

const RC: Option<QpType> = Some(QpType::Rc);

/// A fragment becomes packets of 4 KiB. A read leaves numbers for its responses, and one acknowledgement is for all requests.
#[test]
fn sequence_numbers_count_packets_as_on_a_network() {
    let (mut packets, mut seen) = (Packets::default(), Seen::default());
    let mut send = request(Op::Send, 7, 9000);
    packets.fragment(Sent, RC, &send, &[0; 9000], &mut seen);
    let mut read = request(Op::Read, 8, 5000);
    read.len = 0;
    packets.fragment(Sent, RC, &read, &[], &mut seen);
    send = request(Op::Send, 9, 0);
    packets.fragment(Sent, RC, &send, &[], &mut seen);
    assert_eq!(
        seen.take(Sent),
        [
            "RC SEND First 0 to 2: 4096 B",
            "RC SEND Middle 1 to 2: 4096 B",
            "RC SEND Last 2 to 2: 808 B",
            "RC RDMA READ Request 3 to 2: 0 B",
            "RC SEND Only 5 to 2: 0 B",
        ]
    );
    let mut data = response(Op::ReadData, 8, 5000);
    data.flags = HeaderFlags::FIRST;
    packets.fragment(Received, RC, &data, &[0; 4096], &mut seen);
    (data.flags, data.addr) = (HeaderFlags::LAST, 4096);
    packets.fragment(Received, RC, &data, &[0; 904], &mut seen);
    packets.acknowledged(Received, 3, &mut seen);
    packets.acknowledged(Received, 3, &mut seen);
    assert_eq!(
        seen.take(Received),
        [
            "RC RDMA READ response First 3 to 1: 4096 B",
            "RC RDMA READ response Last 4 to 1: 904 B",
            "RC Acknowledge 5 to 1: 0 B",
        ]
    );
}

/// Nothing from a refused message on is acknowledged, until the message is sent again.
#[test]
fn a_refused_message_is_not_acknowledged() {
    let (mut packets, mut seen) = (Packets::default(), Seen::default());
    for msn in [0xff_ffff, 0, 1] {
        packets.fragment(Received, RC, &request(Op::Send, msn, 1), &[0], &mut seen);
    }
    seen.take(Received);
    let mut nak = response(Op::Nak, 0, 0);
    nak.imm = Nak::ReceiverNotReady as u32 | 12 << 8;
    packets.fragment(Sent, RC, &nak, &[], &mut seen);
    // What follows is refused because of that.
    nak = response(Op::Nak, 1, 0);
    nak.imm = Nak::Sequence as u32;
    packets.fragment(Sent, RC, &nak, &[], &mut seen);
    packets.acknowledged(Sent, 3, &mut seen);
    assert_eq!(
        seen.take(Sent),
        ["RC Acknowledge 1 to 1: 0 B", "RC Acknowledge 0 to 1: 0 B"]
    );
    for msn in [0, 1] {
        packets.fragment(Received, RC, &request(Op::Send, msn, 1), &[0], &mut seen);
    }
    assert_eq!(
        seen.take(Received),
        ["RC SEND Only 1 to 2: 1 B", "RC SEND Only 2 to 2: 1 B"]
    );
    packets.acknowledged(Sent, 5, &mut seen);
    assert_eq!(seen.take(Sent), ["RC Acknowledge 2 to 1: 0 B"]);
}

/// A queue pair that survives a refused access executes what follows.
#[test]
fn what_follows_a_refused_access_is_acknowledged() {
    let (mut packets, mut seen) = (Packets::default(), Seen::default());
    for msn in 5..8 {
        packets.fragment(Received, RC, &request(Op::Write, msn, 1), &[0], &mut seen);
    }
    seen.take(Received);
    let mut nak = response(Op::Nak, 6, 0);
    nak.imm = Nak::RemoteAccess as u32;
    packets.fragment(Sent, RC, &nak, &[], &mut seen);
    seen.take(Sent);
    for (ticket, lines) in [
        (1, &["RC Acknowledge 0 to 1: 0 B"][..]),
        (2, &[]),
        (3, &["RC Acknowledge 2 to 1: 0 B"]),
    ] {
        packets.acknowledged(Sent, ticket, &mut seen);
        assert_eq!(seen.take(Sent), lines);
    }
}

/// After a reset, a queue pair may use the same message numbers again.
#[test]
fn a_message_number_that_is_used_again_gets_new_sequence_numbers() {
    let (mut packets, mut seen) = (Packets::default(), Seen::default());
    for msn in [0, 1, 0, 1] {
        packets.fragment(Sent, RC, &request(Op::Send, msn, 0), &[], &mut seen);
    }
    let expected = [0, 1, 2, 3].map(|psn| format!("RC SEND Only {psn} to 2: 0 B"));
    assert_eq!(seen.take(Sent), expected);
}

#[test]
fn only_reliable_connections_acknowledge() {
    for qp_type in QpType::ALL {
        let (mut packets, mut seen) = (Packets::default(), Seen::default());
        let send = request(Op::Send, 0, 50);
        packets.fragment(Sent, Some(qp_type), &send, &[0; 50], &mut seen);
        let expected: &[&str] = match qp_type {
            QpType::Rc => &["RC SEND Only 0 to 2: 50 B"],
            QpType::Uc => &["UC SEND Only 0 to 2: 50 B"],
            QpType::XrcSend | QpType::XrcRecv => &["XRC SEND Only 0 to 2: 50 B"],
            // Without the global route header.
            QpType::Ud => &["UD SEND Only 0 to 2: 10 B"],
            QpType::Raw => &[],
        };
        assert_eq!(seen.take(Sent), expected);
        packets.acknowledged(Received, 1, &mut seen);
        let acknowledges = matches!(qp_type, QpType::Rc | QpType::XrcSend | QpType::XrcRecv);
        assert_eq!(seen.take(Received).len(), usize::from(acknowledges));
    }
}

/// A peer chooses the numbers in its fragments. Whatever they are, the memory for them is limited.
#[test]
fn fragments_of_a_stranger_are_harmless() {
    use proptest::prelude::*;
    let ops = [1, 2, 3, 4, 5, 6, 64, 65, 66].map(|code| Op::from_code(code).unwrap());
    let fragment = (
        prop::sample::select(ops.to_vec()),
        any::<u8>(),
        (0..4_u32, 0..4_u32, 0..4_u32),
        (0..20_000_usize, any::<u32>(), any::<u64>(), any::<u32>()),
        (any::<bool>(), 0..6_usize, any::<bool>()),
    );
    proptest!(|(all in prop::collection::vec(fragment, 1..40))| {
        let (mut packets, mut seen) = (Packets::default(), Seen::default());
        let mut tickets = [0; 2];
        for (op, flags, (src_qp, dst_qp, msn), (len, total, addr, imm), how) in all {
            let header = Header {
                flags: HeaderFlags::from_bits_retain(flags),
                src_qp,
                dst_qp,
                msn,
                len: len as u32,
                total,
                addr,
                imm,
                ..Header::new(op)
            };
            let (received, qp_type, acknowledged) = how;
            let direction = if received { Received } else { Sent };
            let qp_type = QpType::ALL.get(qp_type).copied();
            packets.fragment(direction, qp_type, &header, &vec![0; len], &mut seen);
            if acknowledged {
                let ticket = &mut tickets[usize::from(received)];
                *ticket += 1;
                packets.acknowledged(direction, *ticket, &mut seen);
            }
        }
        prop_assert!(packets.sent.flows.len() + packets.received.flows.len() <= 32);
    });
    let (mut packets, mut seen) = (Packets::default(), Seen::default());
    let mut header = request(Op::Send, 0, 0);
    for qp in 0..FLOWS as u32 + 10 {
        header.src_qp = qp;
        packets.fragment(Received, RC, &header, &[], &mut seen);
    }
    assert_eq!(packets.received.flows.len(), 10);
    for msn in (0..10_000).step_by(2) {
        header.msn = msn;
        packets.fragment(Received, RC, &header, &[], &mut seen);
    }
    let flows = packets.received.flows.values();
    let remembered: usize = flows.map(|flow| flow.messages.len()).sum();
    assert!(remembered <= 10 + MESSAGES, "{remembered}");
}

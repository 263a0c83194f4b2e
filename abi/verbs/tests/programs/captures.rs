//! Capture files: what programs send to other hosts, and what passes between programs of one host, as packets.

use crate::support::Stage;
use rkey_harness::pcap;
use rkey_roce::icrc::{Flow, PORT};
use rkey_roce::packet::{Body, Packet, Request};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// A captured packet: its addresses and its encoding without the checksum, which is correct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Captured {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    bytes: Vec<u8>,
}

impl Captured {
    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet::decode(&self.bytes).unwrap()
    }

    pub(crate) fn is_request(&self) -> bool {
        matches!(self.packet().headers.body, Body::Request(..))
    }

    fn opcode(&self) -> String {
        self.packet().headers.body.opcode().unwrap().to_string()
    }
}

/// The packets in a capture file. Panics unless all are packets of RoCEv2 and have a correct checksum.
pub(crate) fn read(file: &Path) -> Vec<Captured> {
    let mut all = Vec::new();
    for record in pcap::read(&std::fs::read(file).unwrap()) {
        let (from, to) = record.flow;
        assert_eq!(to.port(), PORT);
        let opened = Flow::new(from, to).unwrap().open(&record.datagram);
        let opened = opened.unwrap();
        if from.is_ipv4() {
            assert_eq!(opened.identification, Some(record.identification));
        }
        let bytes = opened.packet.to_vec();
        Packet::decode(&bytes).unwrap();
        all.push(Captured { from, to, bytes });
    }
    all
}

/// Runs a server and a client that capture their links, and returns what each of them captured.
fn capture(program: &str, words: &[&str]) -> [Vec<Captured>; 2] {
    let stage = Stage::new(&format!("capture-{program}"));
    let folder = stage.file("captures");
    std::fs::create_dir(&folder).unwrap();
    stage.pair(program, words, |command| {
        command.env("RKEY_CAPTURE", folder.join("%p.pcap"));
    });
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let files: [_; 2] = files.try_into().unwrap();
    files.map(|file| read(&file))
}

/// The packets with data, or that request some, from one process to the other. Acknowledgements are combined differently on the two
/// sides.
fn without_acknowledgements(all: &[Captured], from: IpAddr) -> Vec<Captured> {
    let of_sender = all.iter().filter(|it| it.from.ip() == from);
    let of_sender = of_sender.filter(|it| it.opcode() != "RC Acknowledge");
    of_sender.cloned().collect()
}

/// Both programs capture the same packets, in each direction, and their payloads are what the programs sent.
fn both_capture(program: &str, words: &[&str], opcodes: &[&str]) {
    let both = capture(program, words);
    let addresses = both.each_ref().map(|all| all[0].from.ip());
    let ends = [addresses[0], both[0][0].to.ip()];
    assert!(ends[0] != ends[1], "{program}");
    for end in ends {
        let [one, other] = both
            .each_ref()
            .map(|all| without_acknowledgements(all, end));
        assert_eq!(one.len(), other.len(), "{program}");
        for (one, other) in one.iter().zip(&other) {
            assert_eq!(one, other, "{program}");
        }
    }
    for all in &both {
        let mut seen: Vec<String> = all.iter().map(Captured::opcode).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen, opcodes, "{program}");
    }
}

#[test]
fn programs_of_one_host_capture_what_passes_between_them() {
    let sends = ["RC Acknowledge", "RC SEND First", "RC SEND Last"];
    both_capture("ibv_rc_pingpong", &["-n", "20", "-s", "6000"], &sends);
    both_capture(
        "ibv_uc_pingpong",
        &["-n", "20", "-s", "100"],
        &["UC SEND Only"],
    );
    both_capture(
        "ibv_ud_pingpong",
        &["-n", "20", "-g", "0"],
        &["UD SEND Only"],
    );
    let messages = ["-n", "10", "-s", "70000"];
    let write = [
        "RC Acknowledge",
        "RC RDMA WRITE First",
        "RC RDMA WRITE Last",
        "RC RDMA WRITE Middle",
    ];
    both_capture("ib_write_bw", &messages, &write);
    let read = [
        "RC RDMA READ Request",
        "RC RDMA READ response First",
        "RC RDMA READ response Last",
        "RC RDMA READ response Middle",
    ];
    both_capture("ib_read_bw", &messages, &read);
    let atomic = ["RC ATOMIC Acknowledge", "RC FetchAdd"];
    both_capture("ib_atomic_bw", &["-n", "10"], &atomic);
}

/// A program that does not capture may send the addresses of its memory instead of a payload.
#[test]
fn one_program_can_capture_what_it_exchanges_with_others() {
    let stage = Stage::new("capture-one");
    let file = stage.file("one.pcap");
    let server = AtomicBool::new(true);
    stage.pair("ib_write_bw", &["-n", "10", "-s", "4000000"], |command| {
        if server.swap(false, Ordering::Relaxed) {
            command.env("RKEY_CAPTURE", &file);
        }
    });
    let all = read(&file);
    let wrote = |it: &&Captured| it.opcode().starts_with("RC RDMA WRITE");
    let first = all.iter().find(wrote).unwrap().packet().headers.body;
    let Body::Request(_, Request::WriteFirst(reth) | Request::WriteOnly(reth, _)) = first else {
        panic!("{first:?}");
    };
    assert_eq!(reth.length, 4_000_000);
}

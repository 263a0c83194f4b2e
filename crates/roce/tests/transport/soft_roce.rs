//! Recorded conversations of Linux's Soft-RoCE with one side replaced: rkey's responder gives the same responses, and its
//! requester sends the same packets.

use rkey_roce::packet::{
    AtomicAckEth, Body, Headers, Mtu, Packet, Request, Response, Reth, Service,
};
use rkey_roce::transport::{
    Access, Atomic, Config, Connection, ConnectionType, Event, Host, LocalFault, Operation,
    PacketBuffer, Receive, Refusal, RemoteRange, Status, Target, WorkRequest,
};
use std::collections::{BTreeMap, VecDeque};

const RECORDED: &str = include_str!("soft-roce.txt");

/// The packets of a conversation, as bytes.
#[derive(Default)]
struct Conversation {
    name: String,
    requests: Vec<Vec<u8>>,
    responses: Vec<Vec<u8>>,
}

fn bytes(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

fn conversations() -> Vec<Conversation> {
    let mut all: Vec<Conversation> = Vec::new();
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let (mark, rest) = line.split_once(' ').unwrap();
        if mark == "conversation" {
            all.push(Conversation {
                name: rest.into(),
                ..Conversation::default()
            });
            continue;
        }
        let (start, run) = rest.split_once(' ').unwrap_or((rest, "00*0"));
        let (byte, count) = run.split_once('*').unwrap();
        let mut packet = bytes(start);
        packet.resize(
            packet.len() + count.parse::<usize>().unwrap(),
            bytes(byte)[0],
        );
        let last = all.last_mut().unwrap();
        match mark {
            ">" => last.requests.push(packet),
            _ => last.responses.push(packet),
        }
    }
    all
}

fn decoded(packets: &[Vec<u8>]) -> Vec<Packet<'_>> {
    let packets = packets.iter();
    packets
        .map(|bytes| Packet::decode(bytes).unwrap())
        .collect()
}

/// The data of a conversation: the responder's memory by address, the results of atomics, and the memory of requests.
#[derive(Default)]
struct Replay {
    exposed: BTreeMap<u64, Vec<u8>>,
    results: VecDeque<u64>,
    requests: BTreeMap<u64, Vec<u8>>,
    received: Vec<u8>,
    atomics: Vec<Atomic>,
}

impl Host for Replay {
    fn load(&mut self, request: u64, offset: u32, to: &mut [u8]) -> Result<(), LocalFault> {
        to.copy_from_slice(&self.requests[&request][offset as usize..][..to.len()]);
        Ok(())
    }

    fn store(&mut self, request: u64, offset: u32, bytes: &[u8]) -> Result<(), LocalFault> {
        let memory = self.requests.entry(request).or_default();
        memory.resize(offset as usize + bytes.len(), 0);
        memory[offset as usize..].copy_from_slice(bytes);
        Ok(())
    }

    fn take_receive(&mut self, _least: u64) -> Option<Receive> {
        Some(Receive {
            id: 0,
            capacity: 1 << 20,
        })
    }

    fn fill(&mut self, _receive: u64, _offset: u32, bytes: &[u8]) -> Result<(), LocalFault> {
        self.received.extend_from_slice(bytes);
        Ok(())
    }

    fn check(&mut self, _range: &RemoteRange, _access: Access) -> Result<(), Refusal> {
        Ok(())
    }

    fn write(&mut self, range: &RemoteRange, bytes: &[u8]) -> Result<(), Refusal> {
        self.exposed.insert(range.address, bytes.to_vec());
        Ok(())
    }

    fn read(&mut self, range: &RemoteRange, to: &mut [u8]) -> Result<(), Refusal> {
        to.copy_from_slice(&self.exposed[&range.address]);
        Ok(())
    }

    fn atomic(&mut self, _range: &RemoteRange, operation: Atomic) -> Result<u64, Refusal> {
        self.atomics.push(operation);
        self.results.pop_front().ok_or(Refusal::Operation)
    }

    fn invalidate(&mut self, _rkey: u32) -> Result<(), Refusal> {
        Err(Refusal::Access)
    }
}

fn config(requests: &[Packet<'_>], responses: &[Packet<'_>]) -> Config {
    let first = requests[0].headers;
    let peer = responses.first().map_or(first, |packet| packet.headers);
    let mut config = Config::reliable(peer.destination, first.psn, first.psn);
    config.mtu = Mtu::Bytes1024;
    if matches!(first.body, Body::Request(Service::Uc, _)) {
        config.connection = ConnectionType::Unreliable;
    }
    config
}

fn request(packet: &Packet<'_>) -> Request {
    match packet.headers.body {
        Body::Request(_, request) => request,
        other => panic!("{other:?}"),
    }
}

fn response(packet: &Packet<'_>) -> Response {
    match packet.headers.body {
        Body::Response(_, response) => response,
        other => panic!("{other:?}"),
    }
}

/// All packets that the queue pair sends.
fn sent(connection: &mut Connection, host: &mut Replay) -> Vec<Vec<u8>> {
    let mut buffer: PacketBuffer = [0; _];
    let next = || {
        connection
            .transmit(0, host, &mut buffer)
            .map(|length| buffer[..length].to_vec())
    };
    std::iter::from_fn(next).collect()
}

/// Reconstructs the responder's memory and the results of its atomics from its responses.
fn responder_of(requests: &[Packet<'_>], responses: &[Packet<'_>]) -> Replay {
    let mut host = Replay::default();
    for packet in requests {
        if let Request::Read(reth) = request(packet) {
            let first = packet.headers.psn;
            for data in responses {
                let index = data.headers.psn.distance_from(first);
                if (0..Mtu::Bytes1024.packets(reth.length) as i32).contains(&index) {
                    let address = reth.address + 1024 * index as u64;
                    host.exposed.insert(address, data.payload.to_vec());
                }
            }
        }
    }
    let results = responses
        .iter()
        .filter_map(|packet| match response(packet) {
            Response::AtomicAcknowledge(_, AtomicAckEth { original }) => Some(original),
            _ => None,
        });
    host.results = results.collect();
    host
}

#[test]
fn the_responder_answers_like_soft_roce() {
    for conversation in conversations() {
        let (requests, responses) = (
            decoded(&conversation.requests),
            decoded(&conversation.responses),
        );
        let mut host = responder_of(&requests, &responses);
        let mut connection = Connection::new(&config(&requests, &responses));
        let (mut answers, mut payload) = (Vec::new(), Vec::new());
        for packet in &requests {
            connection.receive(0, &mut host, packet);
            answers.extend(sent(&mut connection, &mut host));
            payload.extend_from_slice(packet.payload);
        }
        assert!(answers == conversation.responses, "{}", conversation.name);
        if matches!(
            request(&requests[0]),
            Request::SendFirst | Request::SendOnly(_)
        ) {
            assert!(host.received == payload, "{}", conversation.name);
        }
        let atomics = responses
            .iter()
            .filter(|packet| matches!(response(packet), Response::AtomicAcknowledge(..)));
        assert_eq!(host.atomics.len(), atomics.count());
    }
}

/// Reconstructs the work request that a message's first packet starts.
fn work(id: u64, first: &Request) -> WorkRequest {
    let target = |reth: &Reth| Target {
        address: reth.address,
        rkey: reth.rkey,
    };
    let (operation, length) = match first {
        Request::WriteFirst(reth) | Request::WriteOnly(reth, None) => {
            let write = Operation::Write {
                target: target(reth),
                immediate: None,
            };
            (write, reth.length)
        }
        Request::Read(reth) => {
            let read = Operation::Read {
                target: target(reth),
            };
            (read, reth.length)
        }
        Request::CompareSwap(atomic) | Request::FetchAdd(atomic) => {
            let operation = match first {
                Request::CompareSwap(_) => Atomic::CompareSwap {
                    compare: atomic.compare,
                    swap: atomic.swap_or_add,
                },
                _ => Atomic::FetchAdd {
                    add: atomic.swap_or_add,
                },
            };
            let target = Target {
                address: atomic.address,
                rkey: atomic.rkey,
            };
            (Operation::Atomic { target, operation }, 8)
        }
        Request::SendFirst | Request::SendOnly(_) => {
            let send = Operation::Send {
                immediate: None,
                invalidate: None,
            };
            (send, 0)
        }
        other => panic!("{other:?}"),
    };
    WorkRequest::new(id, operation, length)
}

#[test]
fn the_requester_sends_like_soft_roce() {
    for conversation in conversations() {
        let (requests, responses) = (
            decoded(&conversation.requests),
            decoded(&conversation.responses),
        );
        let mut config = config(&requests, &responses);
        config.peer = requests[0].headers.destination;
        let mut connection = Connection::new(&config);
        let mut host = Replay::default();
        let mut message: Option<(WorkRequest, Vec<u8>)> = None;
        let mut posted = 0;
        for packet in &requests {
            let request = request(packet);
            let (work, bytes) = message.get_or_insert_with(|| (work(posted, &request), Vec::new()));
            bytes.extend_from_slice(packet.payload);
            if matches!(work.operation, Operation::Send { .. }) {
                work.length = bytes.len() as u32;
            }
            if request.position().ends() {
                host.requests.insert(posted, std::mem::take(bytes));
                connection.post(*work);
                message = None;
                posted += 1;
            }
        }
        let ours = sent(&mut connection, &mut host);
        let ours = decoded(&ours);
        // Soft-RoCE requests an acknowledgement of each message.
        let plain = |packet: &Packet<'_>| Headers {
            ack_request: false,
            ..packet.headers
        };
        assert_eq!(ours.len(), requests.len(), "{}", conversation.name);
        for (ours, theirs) in ours.iter().zip(&requests) {
            assert_eq!(plain(ours), plain(theirs), "{}", conversation.name);
            assert!(ours.payload == theirs.payload, "{}", conversation.name);
        }
        for packet in &responses {
            connection.receive(0, &mut host, packet);
        }
        for id in 0..posted {
            let status = Status::Success;
            assert_eq!(
                connection.next_event(),
                Some(Event::Completed { id, status })
            );
        }
        assert_eq!(connection.next_deadline(), None);
        let data: Vec<u8> = responses
            .iter()
            .flat_map(|packet| packet.payload)
            .copied()
            .collect();
        if !data.is_empty() {
            let stored: Vec<u8> = (0..posted)
                .flat_map(|id| host.requests[&id].clone())
                .collect();
            assert!(stored == data, "{}", conversation.name);
        }
    }
}

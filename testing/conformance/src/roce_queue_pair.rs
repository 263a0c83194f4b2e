//! Scripts for a queue pair of RoCEv2: packets of a hostile peer, what the program does, and time. The queue pair survives them,
//! touches only memory that was granted, holds a bounded amount, and ends each work request once and in order.
//!
//! A script is a sequence of steps: a byte that says what happens, a byte with a number, and for packets two bytes with
//! their length, and their bytes. The first byte of a script is the service, and whether both sides have agreed to selective
//! retransmission.

use rkey_roce::icrc::LEN;
use rkey_roce::packet::{
    Aeth, AtomicAckEth, AtomicEth, Body, Credits, Headers, Mtu, NakCode, Packet, Psn, Reliable,
    Request, Response, Reth, RnrTimer, Service, Syndrome, Tail,
};
use rkey_roce::transport::{
    Access, Atomic, Config, Connection, ConnectionType, Event, Host, LocalFault, Operation,
    PacketBuffer, Receive, Refusal, RemoteRange, Target, WorkRequest, early_mark,
};
use std::ops::Range;

const KEY: u32 = 7;
const BASE: u64 = 0x1000;
const SIZE: usize = 2048;
const READS: u8 = 3;
const SEND_PSN: u32 = 0xff_fffa;
const RECEIVE_PSN: u32 = 0xff_fff0;

/// The kinds of steps: the two low bits. The number of a request or response is the distance of its PSN from the first
/// one, and requests have the mark of the peer; the packets of kind 2 have their own PSN and mark.
const REQUEST: u8 = 0;
const RESPONSE: u8 = 1;
/// A step without a packet, whose number says what happens.
const ACT: u8 = 3;
/// Everything that must be sent leaves after the step.
const TAKE: u8 = 4;
/// The packet was marked in the network, because it was congested.
const MARKED: u8 = 8;
/// The request's mark says that an acknowledgement is attached.
const ATTACHED: u8 = 16;
const WAIT: u8 = 0;
const RECEIVE: u8 = 1;
const POST: u8 = 2;
const FLUSH: u8 = 3;

/// The bits of a script's first byte.
const UNRELIABLE: u8 = 1;
const SELECTIVE: u8 = 2;

/// Memory for everything.
struct Arena {
    exposed: Vec<u8>,
    receives: u64,
    next_receive: u64,
}

impl Arena {
    fn find(range: &RemoteRange) -> Result<Range<usize>, Refusal> {
        let start = range.address.checked_sub(BASE).ok_or(Refusal::Access)?;
        let end = start.checked_add(range.length.into());
        let end = end.filter(|end| *end <= SIZE as u64 && range.rkey == KEY);
        Ok(start as usize..end.ok_or(Refusal::Access)? as usize)
    }
}

impl Host for Arena {
    fn load(&mut self, request: u64, _offset: u32, to: &mut [u8]) -> Result<(), LocalFault> {
        to.fill(request as u8);
        if request % 16 == 15 {
            return Err(LocalFault);
        }
        Ok(())
    }

    fn store(&mut self, request: u64, offset: u32, bytes: &[u8]) -> Result<(), LocalFault> {
        assert!(offset as usize + bytes.len() <= length(request).max(8) as usize);
        Ok(())
    }

    fn take_receive(&mut self, _least: u64) -> Option<Receive> {
        self.receives = self.receives.checked_sub(1)?;
        self.next_receive += 1;
        Some(Receive {
            id: self.next_receive,
            capacity: 700,
        })
    }

    fn fill(&mut self, receive: u64, offset: u32, bytes: &[u8]) -> Result<(), LocalFault> {
        assert!(receive == self.next_receive && offset as usize + bytes.len() <= 700);
        Ok(())
    }

    fn check(&mut self, range: &RemoteRange, _access: Access) -> Result<(), Refusal> {
        Self::find(range).map(drop)
    }

    fn write(&mut self, range: &RemoteRange, bytes: &[u8]) -> Result<(), Refusal> {
        self.exposed[Self::find(range)?].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, range: &RemoteRange, to: &mut [u8]) -> Result<(), Refusal> {
        to.copy_from_slice(&self.exposed[Self::find(range)?]);
        Ok(())
    }

    fn atomic(&mut self, range: &RemoteRange, _operation: Atomic) -> Result<u64, Refusal> {
        assert!(range.address.is_multiple_of(8));
        Self::find(range).map(|word| word.start as u64)
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Refusal> {
        if rkey == KEY {
            Err(Refusal::Access)
        } else {
            Ok(())
        }
    }
}

/// The length of a work request, which depends on its id.
fn length(id: u64) -> u32 {
    [0, 1, 256, 1000][id as usize / 4 % 4]
}

fn work(id: u64) -> WorkRequest {
    let target = Target {
        address: BASE,
        rkey: KEY,
    };
    let operation = match id % 4 {
        0 => Operation::Send {
            immediate: None,
            invalidate: None,
        },
        1 => Operation::Write {
            target,
            immediate: Some(1),
        },
        2 => Operation::Read { target },
        _ => Operation::Atomic {
            target,
            operation: Atomic::FetchAdd { add: 1 },
        },
    };
    WorkRequest {
        fence: id % 32 == 16,
        ..WorkRequest::new(id, operation, length(id))
    }
}

/// A queue pair, its host, and its output.
struct Stage {
    connection: Connection,
    arena: Arena,
    now: u64,
    posted: u64,
    ended: u64,
    /// The bytes of the marked packets, and of the notifications.
    marked: usize,
    notified: usize,
    /// Whether the peer's packets say that it has agreed to selective retransmission.
    is_selective: bool,
}

impl Stage {
    fn new(service: u8) -> Self {
        let mut config = Config::reliable(1, Psn::new(SEND_PSN), Psn::new(RECEIVE_PSN));
        if service & UNRELIABLE != 0 {
            config.connection = ConnectionType::Unreliable;
        }
        config.selective = service & SELECTIVE != 0;
        config.mtu = Mtu::Bytes256;
        config.window = 8;
        config.max_reads_in = READS;
        Self {
            connection: Connection::new(&config),
            arena: Arena {
                exposed: vec![0; SIZE],
                receives: 0,
                next_receive: 0,
            },
            now: 1,
            posted: 0,
            ended: 0,
            marked: 0,
            notified: 0,
            is_selective: config.selective,
        }
    }

    fn act(&mut self, number: u8) {
        match number % 4 {
            WAIT => {
                self.now = self.connection.next_deadline().unwrap_or(self.now);
                self.connection.advance(self.now);
            }
            RECEIVE => self.arena.receives += 1,
            POST => {
                self.connection.post(work(self.posted));
                self.posted += 1;
            }
            _ => self.connection.flush(),
        }
    }

    fn arrive(&mut self, step: u8, number: u8, bytes: &[u8]) {
        let Ok(mut packet) = Packet::decode(bytes) else {
            return;
        };
        match step & 3 {
            REQUEST => {
                packet.headers.psn = Psn::new(RECEIVE_PSN).plus(number.into());
                if self.is_selective {
                    let inverted = u16::from(step & ATTACHED != 0);
                    packet.headers.reserved = early_mark(Psn::new(RECEIVE_PSN)) ^ inverted;
                }
            }
            RESPONSE => packet.headers.psn = Psn::new(SEND_PSN).plus(number.into()),
            _ => {}
        }
        packet.headers.migrated |= self.is_selective;
        if step & MARKED != 0 {
            self.connection.receive_mark(self.now, &packet);
            self.marked += bytes.len() + LEN;
        }
        let arena = &mut self.arena;
        self.connection.receive(self.now, arena, &packet);
        while self.connection.receive_kept(self.now, arena) {}
    }

    fn take(&mut self) {
        let mut buffer: PacketBuffer = [0; _];
        // A read of all memory has 8 packets, and a window 8.
        for _ in 0..1000 {
            let sent = (self.connection).transmit(self.now, &mut self.arena, &mut buffer);
            let Some(length) = sent else { return };
            let packet = Packet::decode(&buffer[..length]).expect("a packet");
            if packet.headers.body == Body::Congestion {
                self.notified += length + LEN;
            }
        }
        panic!("the queue pair sent 1000 packets and did not stop");
    }

    fn verify(&mut self) {
        while let Some(event) = self.connection.next_event() {
            if let Event::Completed { id, .. } = event {
                assert_eq!(id, self.ended);
                self.ended += 1;
            }
        }
        let (own, peers) = self.connection.held();
        assert_eq!(own as u64, self.posted - self.ended);
        let reports = if self.is_selective { 8 } else { 0 };
        assert!(peers <= 3 * usize::from(READS) + 2 + reports);
        let (kept, remembered) = self.connection.kept();
        assert!(kept <= 8192 && remembered <= 1024 + 100);
        assert!(self.is_selective || (kept, remembered) == (0, 0));
        assert!(self.notified <= self.marked);
    }
}

/// Runs a script.
pub fn script(bytes: &[u8]) {
    let Some((service, steps)) = bytes.split_first() else {
        return;
    };
    let mut stage = Stage::new(*service);
    run(&mut stage, steps);
    stage.connection.flush();
    stage.verify();
    assert_eq!(stage.posted, stage.ended);
}

fn run(stage: &mut Stage, mut rest: &[u8]) {
    while let Some(([step, number], after)) = rest.split_first_chunk() {
        rest = after;
        if step & 3 == ACT {
            stage.act(*number);
        } else if let Some((length, after)) = rest.split_first_chunk() {
            let length = usize::from(u16::from_be_bytes(*length)).min(after.len());
            let (packet, after) = after.split_at(length);
            stage.arrive(*step, *number, packet);
            rest = after;
        }
        if step & TAKE != 0 {
            stage.take();
        }
        stage.verify();
    }
}

/// Writes a script.
struct Script(Vec<u8>);

impl Script {
    fn act(mut self, what: u8) -> Self {
        self.0.extend([ACT | TAKE, what]);
        self
    }

    fn packet(mut self, kind: u8, number: u8, body: Body, payload: &[u8]) -> Self {
        let mut headers = Headers::new(1, Psn::new(0), body);
        headers.ack_request = true;
        let mut bytes = Vec::new();
        let packet = Packet { headers, payload };
        packet.encode(&mut bytes).expect("the operation exists");
        self.0.extend([kind | TAKE, number]);
        self.0.extend((bytes.len() as u16).to_be_bytes());
        self.0.extend(bytes);
        self
    }

    fn request(self, number: u8, request: Request, length: usize) -> Self {
        let body = Body::Request(Service::Rc, request);
        self.packet(REQUEST, number, body, &vec![9; length])
    }

    fn marked(self, number: u8, request: Request, length: usize) -> Self {
        let body = Body::Request(Service::Rc, request);
        self.packet(REQUEST | MARKED, number, body, &vec![9; length])
    }

    /// A request with an attached acknowledgement.
    fn attached(self, number: u8, request: Request, acknowledged: u32) -> Self {
        let aeth = Aeth {
            syndrome: Syndrome::Ack(Credits::UNLIMITED),
            msn: 1,
        };
        let body = Body::Response(Reliable::Rc, Response::Acknowledge(aeth));
        let headers = Headers::new(1, Psn::new(SEND_PSN).plus(acknowledged), body);
        let mut payload = vec![9];
        let acknowledgement = Packet {
            headers,
            payload: &[],
        };
        let encoded = acknowledgement.encode(&mut payload);
        encoded.expect("the operation exists");
        let body = Body::Request(Service::Rc, request);
        self.packet(REQUEST | ATTACHED, number, body, &payload)
    }

    fn notification(self) -> Self {
        self.packet(REQUEST, 0, Body::Congestion, &[])
    }

    fn unreliable(self, number: u8, request: Request, length: usize) -> Self {
        let body = Body::Request(Service::Uc, request);
        self.packet(REQUEST, number, body, &vec![9; length])
    }

    fn response(self, number: u8, response: Response, length: usize) -> Self {
        let body = Body::Response(Reliable::Rc, response);
        self.packet(RESPONSE, number, body, &vec![9; length])
    }

    fn acknowledge(self, number: u8, syndrome: Syndrome) -> Self {
        self.response(number, Response::Acknowledge(Aeth { syndrome, msn: 1 }), 0)
    }
}

/// Scripts in which requests of all kinds are executed, repeated and refused.
pub fn samples() -> Vec<Vec<u8>> {
    let reth = |length| Reth {
        address: BASE,
        rkey: KEY,
        length,
    };
    let atomic = AtomicEth {
        address: BASE,
        rkey: KEY,
        swap_or_add: 1,
        compare: 0,
    };
    let syndrome = Syndrome::Ack(Credits::UNLIMITED);
    let aeth = Aeth { syndrome, msn: 1 };
    let (last, only) = (Request::SendLast(Tail::None), Request::SendOnly(Tail::None));
    let responder = Script(vec![0])
        .act(RECEIVE)
        .marked(0, Request::SendFirst, 256)
        .request(2, only, 1)
        .request(1, last, 5)
        .request(2, only, 1)
        .act(RECEIVE)
        .request(2, only, 1)
        .request(3, Request::WriteFirst(reth(257)), 256)
        .request(4, Request::WriteLast(None), 1)
        .request(5, Request::Read(reth(600)), 0)
        .request(8, Request::FetchAdd(atomic), 0)
        .request(8, Request::FetchAdd(atomic), 0)
        .request(5, Request::Read(reth(600)), 0)
        .request(9, Request::WriteOnly(reth(0), None), 0)
        .request(10, Request::Read(Reth { rkey: 1, ..reth(5) }), 0);
    let mut requester = Script(vec![0]);
    for _ in 0..8 {
        requester = requester.act(POST);
    }
    let result = Response::AtomicAcknowledge(aeth, AtomicAckEth { original: 1 });
    requester = (requester.notification().notification()).acknowledge(1, syndrome);
    // Six probes, each after twice the time, and then the timeout.
    for _ in 0..7 {
        requester = requester.act(WAIT);
    }
    let requester = requester
        .response(2, Response::ReadOnly(aeth), 0)
        .response(3, result, 0)
        .acknowledge(5, Syndrome::Nak(NakCode::PsnSequenceError))
        .acknowledge(5, Syndrome::RnrNak(RnrTimer::new(1).expect("a code")))
        .act(WAIT)
        .acknowledge(5, syndrome)
        .response(6, Response::ReadOnly(aeth), 1)
        .acknowledge(7, Syndrome::Nak(NakCode::RemoteAccessError));
    let uc = Script(vec![1])
        .act(RECEIVE)
        .act(POST)
        .unreliable(0, Request::SendFirst, 256)
        .unreliable(1, last, 1)
        .unreliable(3, Request::WriteOnly(reth(1), None), 1)
        .unreliable(4, Request::SendMiddle, 256)
        .act(FLUSH);
    let [kept, repaired] = selective_samples(reth(700));
    [responder, requester, uc, kept, repaired]
        .map(|script| script.0)
        .to_vec()
}

/// Scripts in which both sides have agreed to selective retransmission: requests that arrive early, and reports and responses that do.
fn selective_samples(reth: Reth) -> [Script; 2] {
    let only = Request::SendOnly(Tail::None);
    let kept = Script(vec![SELECTIVE])
        .act(RECEIVE)
        .act(RECEIVE)
        .request(1, only, 1)
        .request(3, Request::Read(reth), 0)
        .act(POST)
        .act(WAIT)
        .request(0, only, 1)
        .request(2, Request::WriteOnly(Reth { length: 1, ..reth }, None), 1)
        .request(
            4,
            Request::Read(Reth {
                address: reth.address + 256,
                length: 256,
                ..reth
            }),
            0,
        )
        .act(RECEIVE)
        .attached(6, only, 0);
    let mut repaired = Script(vec![SELECTIVE]);
    // The last one is a read of 1000 bytes.
    for _ in 0..15 {
        repaired = repaired.act(POST);
    }
    let syndrome = Syndrome::Ack(Credits::UNLIMITED);
    let aeth = Aeth { syndrome, msn: 1 };
    let report = Aeth {
        syndrome: Syndrome::from_byte(0x7f),
        msn: 2,
    };
    let first_is_lost = AtomicAckEth { original: 1 };
    let result = Response::AtomicAcknowledge(aeth, AtomicAckEth { original: 1 });
    let repaired = repaired
        .response(0, Response::AtomicAcknowledge(report, first_is_lost), 0)
        .response(3, result, 0)
        .response(2, Response::ReadOnly(aeth), 0)
        .acknowledge(5, syndrome)
        .response(7, result, 0)
        .act(WAIT)
        .response(6, Response::ReadOnly(aeth), 1);
    [kept, repaired]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requests in the samples are executed: otherwise, mutation would start from nothing useful.
    #[test]
    fn samples_execute_their_requests() {
        let stages = samples().into_iter().map(|sample| {
            let mut stage = Stage::new(sample[0]);
            run(&mut stage, &sample[1..]);
            stage
        });
        let stages: Vec<Stage> = stages.collect();
        let [responder, requester, uc, kept, repaired] = &stages[..] else {
            panic!("five samples")
        };
        let seen = responder.connection.counters();
        let executed = (responder.arena.next_receive, responder.arena.exposed[256]);
        assert_eq!((executed, seen.refused, seen.duplicates), ((2, 9), 1, 2));
        assert_eq!((seen.out_of_sequence, seen.rnr_naks_sent), (1, 1));
        assert_eq!((seen.marked, seen.cnps_sent), (1, 1));
        let seen = requester.connection.counters();
        let naks = (seen.sequence_naks, seen.rnr_naks, seen.implied_naks);
        assert_eq!((naks, requester.ended), ((1, 1, 0), 8));
        assert_eq!((seen.probes, seen.timeouts), (6, 1));
        assert_eq!((seen.cnps_received, seen.slowed), (2, 1));
        let seen = uc.connection.counters();
        assert_eq!((seen.out_of_sequence, seen.dropped, uc.ended), (1, 1, 1));
        assert_eq!((uc.arena.next_receive, uc.arena.exposed[0]), (1, 9));
        let seen = kept.connection.counters();
        assert_eq!((seen.out_of_sequence, seen.duplicates), (2, 1));
        let executed = (kept.arena.next_receive, kept.arena.exposed[0]);
        // The last message acknowledges the request of this side.
        assert_eq!((executed, kept.ended), ((3, 9), 1));
        assert_eq!(kept.connection.kept(), (0, 0));
        let seen = repaired.connection.counters();
        assert_eq!((seen.sequence_naks, seen.implied_naks), (1, 2));
        assert_eq!((seen.retransmitted, repaired.ended), (3, 8));
    }
}

//! The packets of RoCEv2 that would carry what passes a link between two processes.
//!
//! A link has no packets: a fragment is up to 16 KiB long, and one word acknowledges many requests. So a capture shows each fragment
//! as packets of at most 4 KiB, and an acknowledgement for each queue pair. Sequence numbers begin at 0 with the link.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use rkey_engine::ud::GRH_LEN;
use rkey_engine::{Nak, QpType};
use rkey_link::observed::Direction;
use rkey_link::{Header, HeaderFlags, Op, Ticket};
use rkey_roce::packet::{
    Aeth, AtomicAckEth, AtomicEth, Body, Credits, Deth, Headers, Ieth, ImmDt, Mtu, NakCode,
    Position, Psn, Reliable, Request, Response, Reth, RnrTimer, Service, Syndrome, Tail, XrcEth,
};

/// How many messages of a queue pair are remembered: as many as a ring has slots.
const MESSAGES: usize = 256;
/// How many pairs of queue pairs are remembered. A peer can name any numbers of its own.
const FLOWS: usize = 4096;
/// A capture splits payloads as this path MTU demands.
const MTU: Mtu = Mtu::Bytes4096;

/// Receives packets: their direction, headers and payload.
pub(super) trait Sink {
    fn packet(&mut self, direction: Direction, headers: &Headers, payload: &[u8]);
}

/// What the packets of a link depend on.
#[derive(Debug, Default)]
pub(super) struct Packets {
    sent: Requests,
    received: Requests,
}

/// The requests in one direction.
#[derive(Debug, Default)]
struct Requests {
    flows: HashMap<FlowId, FlowState>,
    /// For each request from ticket `first` on: what its acknowledgement acknowledges.
    unacknowledged: VecDeque<Option<Due>>,
    first: Ticket,
}

/// The numbers of the requesting and the responding queue pair.
type FlowId = (u32, u32);

#[derive(Debug, Default)]
struct FlowState {
    /// The sequence number of the next packet.
    next: Psn,
    /// The latest messages: their numbers, and the sequence numbers of their first packets.
    messages: VecDeque<(u32, Psn)>,
    /// The first message that must be sent again: until then, nothing from it on is acknowledged.
    again: Option<u32>,
    /// The last message that was refused for good, and is not acknowledged.
    refused: Option<u32>,
    /// How many messages have been acknowledged.
    completed: Psn,
}

/// An acknowledgement that is due when a request has been executed.
#[derive(Clone, Copy, Debug)]
struct Due {
    flow: FlowId,
    msn: u32,
    psn: Psn,
    transport: Reliable,
}

impl Packets {
    /// The packets of a fragment. `qp_type` is the type of this side's queue pair; nothing is shown of one that does not exist.
    pub(super) fn fragment(
        &mut self,
        direction: Direction,
        qp_type: Option<QpType>,
        header: &Header,
        payload: &[u8],
        sink: &mut impl Sink,
    ) {
        if header.op.is_response() {
            let requests = self.requests(direction.reverse());
            requests.respond(direction, reliable(qp_type), header, payload, sink);
            return;
        }
        let requests = self.requests(direction);
        let due = match qp_type {
            // A frame of Ethernet is not a packet of RoCEv2.
            None | Some(QpType::Raw) => None,
            Some(qp_type) => requests.request(direction, qp_type, header, payload, sink),
        };
        requests.unacknowledged.push_back(due);
    }

    /// The acknowledgements of the requests below a ticket.
    pub(super) fn acknowledged(
        &mut self,
        direction: Direction,
        ticket: Ticket,
        sink: &mut impl Sink,
    ) {
        let requests = self.requests(direction.reverse());
        // One for each queue pair: it acknowledges everything before it.
        let mut last: Vec<(Due, Psn)> = Vec::new();
        while requests.first < ticket {
            let Some(request) = requests.unacknowledged.pop_front() else {
                requests.first = ticket;
                break;
            };
            requests.first += 1;
            let Some(due) = request else { continue };
            let Some(flow) = requests.flows.get_mut(&due.flow) else {
                continue;
            };
            let waits = flow
                .again
                .is_some_and(|again| !message(due.msn).is_before(message(again)));
            if waits || flow.refused == Some(due.msn) {
                continue;
            }
            flow.completed = flow.completed.next();
            match last.iter_mut().find(|(it, _)| it.flow == due.flow) {
                Some(earlier) => *earlier = (due, flow.completed),
                None => last.push((due, flow.completed)),
            }
        }
        for (due, completed) in last {
            let response = Response::Acknowledge(acknowledges(completed));
            let body = Body::Response(due.transport, response);
            sink.packet(direction, &Headers::new(due.flow.0, due.psn, body), &[]);
        }
    }

    fn requests(&mut self, direction: Direction) -> &mut Requests {
        match direction {
            Direction::Sent => &mut self.sent,
            Direction::Received => &mut self.received,
        }
    }
}

impl Requests {
    fn request(
        &mut self,
        direction: Direction,
        qp_type: QpType,
        header: &Header,
        payload: &[u8],
        sink: &mut impl Sink,
    ) -> Option<Due> {
        let id = (header.src_qp, header.dst_qp);
        if self.flows.len() >= FLOWS && !self.flows.contains_key(&id) {
            self.flows.clear();
        }
        let flow = self.flows.entry(id).or_default();
        if header.flags.contains(HeaderFlags::FIRST) {
            flow.begin(header.msn);
        }
        let (service, payload) = match qp_type {
            QpType::Uc => (Service::Uc, payload),
            QpType::Ud => {
                let deth = Deth {
                    qkey: header.addr as u32,
                    source: header.src_qp,
                };
                (
                    Service::Ud(deth),
                    payload.get(GRH_LEN as usize..).unwrap_or_default(),
                )
            }
            QpType::XrcSend | QpType::XrcRecv => {
                let srq = (header.key >> 32) as u32;
                (Service::Xrc(XrcEth { srq }), payload)
            }
            QpType::Rc | QpType::Raw => (Service::Rc, payload),
        };
        let mut psn = flow.next;
        for (position, part) in parts(header, payload) {
            let request = request_of(header, position)?;
            psn = flow.next;
            let mut headers = Headers::new(header.dst_qp, psn, Body::Request(service, request));
            let is_last = matches!(position, Position::Last | Position::Only);
            headers.ack_request = is_last && !matches!(service, Service::Uc | Service::Ud(_));
            headers.solicited = is_last && header.flags.contains(HeaderFlags::SOLICITED);
            sink.packet(direction, &headers, part);
            flow.next = psn.plus(match header.op {
                Op::Read => MTU.packets(header.total),
                _ => 1,
            });
        }
        let is_acknowledged = matches!(header.op, Op::Send | Op::Write)
            && header.flags.contains(HeaderFlags::LAST)
            && matches!(service, Service::Rc | Service::Xrc(_));
        is_acknowledged.then_some(Due {
            flow: id,
            msn: header.msn,
            psn,
            transport: reliable(Some(qp_type)),
        })
    }

    fn respond(
        &mut self,
        direction: Direction,
        transport: Reliable,
        header: &Header,
        payload: &[u8],
        sink: &mut impl Sink,
    ) {
        let Some(flow) = self.flows.get_mut(&(header.dst_qp, header.src_qp)) else {
            return;
        };
        let Some(first) = flow.first_of(header.msn) else {
            return;
        };
        let mut respond = |psn, response, payload: &[u8]| {
            let body = Body::Response(transport, response);
            sink.packet(direction, &Headers::new(header.dst_qp, psn, body), payload);
        };
        let is_last = header.flags.contains(HeaderFlags::LAST);
        if header.op != Op::Nak && is_last {
            flow.completed = flow.completed.next();
        }
        let ok = acknowledges(flow.completed);
        match header.op {
            Op::ReadData if header.flags.contains(HeaderFlags::REMOTE_IOVEC) => {
                // The bytes went into the requester's memory directly. Without `LAST`, the response only reports progress.
                let response = is_last.then_some(Response::ReadOnly(ok));
                response.into_iter().for_each(|it| respond(first, it, &[]));
            }
            Op::ReadData => {
                let mut psn = first.plus((header.addr / MTU.bytes() as u64) as u32);
                for (position, part) in parts(header, payload) {
                    let response = match position {
                        Position::First => Response::ReadFirst(ok),
                        Position::Middle => Response::ReadMiddle,
                        Position::Last => Response::ReadLast(ok),
                        Position::Only => Response::ReadOnly(ok),
                    };
                    respond(psn, response, part);
                    psn = psn.next();
                }
            }
            Op::AtomicResult => {
                let original = header.operands[0];
                let response = Response::AtomicAcknowledge(ok, AtomicAckEth { original });
                respond(first, response, &[]);
            }
            Op::Nak => {
                let Some(nak) = Nak::from_code(header.imm) else {
                    return;
                };
                // The messages after a refused one are refused as well. On a network, only the first would be.
                let is_known = flow.refuse(nak, header.msn);
                if let Some(syndrome) = syndrome_of(nak, header.imm)
                    && !is_known
                {
                    let refuses = Aeth { syndrome, ..ok };
                    respond(first, Response::Acknowledge(refuses), &[]);
                }
            }
            _ => {}
        }
    }
}

impl FlowState {
    /// A message begins. If it was sent before, it has the same sequence numbers again.
    fn begin(&mut self, msn: u32) {
        let follows = |&(last, _): &(u32, Psn)| message(msn) == message(last).next();
        if !self.messages.back().is_some_and(follows)
            && let Some(first) = self.first_of(msn)
        {
            if self.again == Some(msn) {
                // It is sent again, and then everything after it.
                self.again = None;
                self.next = first;
                while self
                    .messages
                    .back()
                    .is_some_and(|&(last, _)| !message(last).is_before(message(msn)))
                {
                    self.messages.pop_back();
                }
            } else {
                // The queue pair was reset, or another one has its number.
                self.messages.clear();
            }
        }
        if self.messages.len() == MESSAGES {
            self.messages.pop_front();
        }
        self.messages.push_back((msn, self.next));
    }

    /// A message is refused. Returns whether an earlier refusal includes this one.
    fn refuse(&mut self, nak: Nak, msn: u32) -> bool {
        let is_known = self
            .again
            .is_some_and(|again| message(again).is_before(message(msn)));
        match nak {
            Nak::ReceiverNotReady
            | Nak::Sequence
            | Nak::NotReady
            | Nak::Searching
            | Nak::NoRemoteIovec => {
                if !is_known {
                    self.again = Some(msn);
                }
            }
            Nak::InvalidRequest
            | Nak::RemoteAccess
            | Nak::RemoteOperation
            | Nak::RequesterFault => self.refused = Some(msn),
        }
        is_known
    }

    /// The sequence number of a message's first packet.
    fn first_of(&self, msn: u32) -> Option<Psn> {
        let mut latest_first = self.messages.iter().rev();
        let found = latest_first.find(|(number, _)| *number == msn);
        found.map(|&(_, first)| first)
    }
}

/// The parts of a fragment's payload, each with its position in the message.
fn parts<'a>(header: &Header, payload: &'a [u8]) -> impl Iterator<Item = (Position, &'a [u8])> {
    let flags = header.flags;
    let count = payload.len().div_ceil(MTU.bytes()).max(1);
    (0..count).map(move |index| {
        let from = index * MTU.bytes();
        let to = payload.len().min(from + MTU.bytes());
        let first = index == 0 && flags.contains(HeaderFlags::FIRST);
        let last = index + 1 == count && flags.contains(HeaderFlags::LAST);
        let position = match (first, last) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        };
        (position, &payload[from..to])
    })
}

/// The operation of a packet; `None` if RoCEv2 has none.
fn request_of(header: &Header, position: Position) -> Option<Request> {
    let flags = header.flags;
    let immediate = flags
        .contains(HeaderFlags::IMMEDIATE)
        .then_some(ImmDt { data: header.imm });
    let tail = match immediate {
        Some(immediate) => Tail::Immediate(immediate),
        None if flags.contains(HeaderFlags::INVALIDATE) => {
            Tail::Invalidate(Ieth { rkey: header.imm })
        }
        None => Tail::None,
    };
    // A packet has room for 32 bits of a key.
    let rkey = header.key as u32;
    let reth = Reth {
        address: header.addr,
        rkey,
        length: header.total,
    };
    let atomic = |swap_or_add, compare| AtomicEth {
        address: header.addr,
        rkey,
        swap_or_add,
        compare,
    };
    let [one, other] = header.operands;
    Some(match (header.op, position) {
        (Op::Send, Position::First) => Request::SendFirst,
        (Op::Send, Position::Middle) => Request::SendMiddle,
        (Op::Send, Position::Last) => Request::SendLast(tail),
        (Op::Send, Position::Only) => Request::SendOnly(tail),
        (Op::Write, Position::First) => Request::WriteFirst(reth),
        (Op::Write, Position::Middle) => Request::WriteMiddle,
        (Op::Write, Position::Last) => Request::WriteLast(immediate),
        (Op::Write, Position::Only) => Request::WriteOnly(reth, immediate),
        (Op::Read, _) => Request::Read(reth),
        (Op::CompareSwap, _) => Request::CompareSwap(atomic(other, one)),
        (Op::FetchAdd, _) => Request::FetchAdd(atomic(one, 0)),
        _ => return None,
    })
}

/// What a refusal looks like; `None` if a device on a network would not answer.
fn syndrome_of(nak: Nak, imm: u32) -> Option<Syndrome> {
    let code = match nak {
        Nak::ReceiverNotReady => {
            return RnrTimer::new((imm >> 8) as u8 & 31).map(Syndrome::RnrNak);
        }
        Nak::Sequence => NakCode::PsnSequenceError,
        Nak::InvalidRequest => NakCode::InvalidRequest,
        Nak::RemoteAccess => NakCode::RemoteAccessError,
        Nak::RemoteOperation => NakCode::RemoteOperationalError,
        Nak::NotReady | Nak::Searching | Nak::NoRemoteIovec | Nak::RequesterFault => return None,
    };
    Some(Syndrome::Nak(code))
}

fn acknowledges(completed: Psn) -> Aeth {
    Aeth {
        syndrome: Syndrome::Ack(Credits::UNLIMITED),
        msn: completed.get(),
    }
}

fn reliable(qp_type: Option<QpType>) -> Reliable {
    match qp_type {
        Some(QpType::XrcSend | QpType::XrcRecv) => Reliable::Xrc,
        _ => Reliable::Rc,
    }
}

/// The number of a message. It wraps around like a packet's sequence number.
fn message(msn: u32) -> Psn {
    Psn::new(msn)
}

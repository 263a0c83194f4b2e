//! One queue pair and its program, with packets that the test constructs.

use crate::program::Program;
use rkey_roce::packet::{
    Aeth, Body, Credits, Headers, NakCode, Packet, Psn, Reliable, Request, Response, Service,
    Syndrome,
};
use rkey_roce::transport::{
    Config, Connection, Event, PacketBuffer, Status, WorkRequest, early_mark,
};

/// A packet that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
}

impl Sent {
    pub(crate) fn psn(&self) -> u32 {
        self.headers.psn.get()
    }

    pub(crate) fn response(&self) -> Response {
        match self.headers.body {
            Body::Response(_, response) => response,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn request(&self) -> Request {
        match self.headers.body {
            Body::Request(_, request) => request,
            other => panic!("{other:?}"),
        }
    }
}

/// A queue pair without a peer.
pub(crate) struct Lone {
    pub(crate) connection: Connection,
    pub(crate) program: Program,
    pub(crate) now: u64,
    /// Whether the peer's packets say that it has agreed to selective retransmission, and that they are sent again.
    pub(crate) marks: (bool, bool),
    /// The reserved bits of the peer's marked packets.
    pub(crate) mark: u16,
}

impl Lone {
    /// Creates a queue pair that sends from PSN 100 and expects PSN 500.
    pub(crate) fn new(change: impl Fn(&mut Config)) -> Self {
        let mut config = Config::reliable(0xb, Psn::new(100), Psn::new(500));
        config.probe_after = None;
        change(&mut config);
        Self {
            connection: Connection::new(&config),
            program: Program::new(),
            now: 1_000_000,
            marks: (false, false),
            mark: early_mark(Psn::new(500)),
        }
    }

    pub(crate) fn post(&mut self, request: WorkRequest, memory: Vec<u8>) {
        self.program.requests.insert(request.id, memory);
        self.connection.post(request);
    }

    /// Receives a packet.
    pub(crate) fn give(&mut self, psn: u32, body: Body, ack_request: bool, payload: &[u8]) {
        let mut headers = Headers::new(0xa, Psn::new(psn), body);
        headers.ack_request = ack_request;
        (headers.migrated, headers.becn) = self.marks;
        if self.marks.0 {
            headers.reserved = self.mark;
        }
        let packet = Packet { headers, payload };
        self.connection
            .receive(self.now, &mut self.program, &packet);
        while self.connection.receive_kept(self.now, &mut self.program) {}
        assert!(!self.connection.may_receive_kept());
    }

    /// Receives a request that requests an acknowledgement.
    pub(crate) fn request(&mut self, psn: u32, request: Request, payload: &[u8]) {
        self.give(psn, Body::Request(Service::Rc, request), true, payload);
    }

    /// Receives a response.
    pub(crate) fn response(&mut self, psn: u32, response: Response, payload: &[u8]) {
        self.give(psn, Body::Response(Reliable::Rc, response), false, payload);
    }

    /// Receives an acknowledgement.
    pub(crate) fn acknowledge(&mut self, psn: u32, syndrome: Syndrome) {
        self.response(psn, Response::Acknowledge(Aeth { syndrome, msn: 0 }), &[]);
    }

    /// Takes the next packet sent.
    pub(crate) fn sent_one(&mut self) -> Option<Sent> {
        let mut buffer: PacketBuffer = [0; _];
        let may = self.connection.may_transmit();
        let sent = self
            .connection
            .transmit(self.now, &mut self.program, &mut buffer);
        assert!(may || sent.is_none());
        let packet = Packet::decode(&buffer[..sent?]).unwrap();
        Some(Sent {
            headers: packet.headers,
            payload: packet.payload.to_vec(),
        })
    }

    /// Takes all packets sent.
    pub(crate) fn sent(&mut self) -> Vec<Sent> {
        std::iter::from_fn(|| self.sent_one()).collect()
    }

    /// The PSNs of the packets sent.
    pub(crate) fn psns(&mut self) -> Vec<u32> {
        self.sent().iter().map(Sent::psn).collect()
    }

    /// The acknowledgements sent: PSN, syndrome and message number.
    pub(crate) fn answers(&mut self) -> Vec<(u32, Syndrome, u32)> {
        let sent = self.sent();
        let answers = sent.iter().map(|sent| match sent.response() {
            Response::Acknowledge(aeth) => (sent.psn(), aeth.syndrome, aeth.msn),
            other => panic!("{other:?}"),
        });
        answers.collect()
    }

    /// Takes all events.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.connection.next_event()).collect()
    }

    /// Takes all events, which must be completions.
    pub(crate) fn completed(&mut self) -> Vec<(u64, Status)> {
        let events = self.events().into_iter();
        let completed = events.filter_map(|event| match event {
            Event::Completed { id, status } => Some((id, status)),
            Event::Failed => None,
            other => panic!("{other:?}"),
        });
        completed.collect()
    }

    /// Advances the time to the next deadline.
    pub(crate) fn wait(&mut self) {
        self.now = self.connection.next_deadline().expect("a deadline");
        self.connection.advance(self.now);
        let next = self.connection.next_deadline();
        assert!(
            next.is_none_or(|next| next > self.now),
            "a timer that has run is still due"
        );
    }
}

pub(crate) const ACK: Syndrome = Syndrome::Ack(Credits::UNLIMITED);
pub(crate) const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
pub(crate) const INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
pub(crate) const ACCESS: Syndrome = Syndrome::Nak(NakCode::RemoteAccessError);

//! A datagram queue pair (UD): each message is one packet, which the network may lose or duplicate.

use super::buffer::{PacketBuffer, write_packet};
use super::event::{Counters, Event, Received, Status};
use super::host::Host;
use super::step::Output;
use crate::packet::{Body, Deth, Headers, ImmDt, Mtu, Packet, Psn, Request, Service, Tail};
use std::collections::VecDeque;

/// How many bytes precede each received datagram: the space for its global route header.
pub const GRH_LEN: u32 = 40;

/// The attributes of a datagram queue pair.
#[derive(Clone, Copy, Debug)]
pub struct DatagramConfig {
    /// The queue pair number (24 bits).
    pub number: u32,
    /// The path MTU, which limits the length of a datagram.
    pub mtu: Mtu,
    /// The partition key of every packet.
    pub pkey: u16,
    /// The queue key that received datagrams must have.
    pub qkey: u32,
    /// The PSN of the first packet sent.
    pub send_psn: Psn,
}

/// A datagram to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramRequest<A> {
    /// Identifies the request's memory in calls to the [`Host`], and the request in its event.
    pub id: u64,
    /// The destination address, which [`DatagramQueuePair::transmit`] returns.
    pub address: A,
    /// The number of the destination queue pair.
    pub destination: u32,
    /// The queue key; if its most significant bit is set, the queue pair's own key is used (IBA volume 1, 10.2.5).
    pub qkey: u32,
    /// The length in bytes, at most the path MTU.
    pub length: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Raises a solicited event at the receiver.
    pub solicited: bool,
}

/// A datagram queue pair that is ready to send and receive. `A` is the owner's type for destination addresses.
#[derive(Debug)]
pub struct DatagramQueuePair<A> {
    config: DatagramConfig,
    next: Psn,
    requests: VecDeque<DatagramRequest<A>>,
    out: Output,
    /// Nothing more is sent or received.
    has_ended: bool,
}

impl<A: Copy> DatagramQueuePair<A> {
    /// Creates a queue pair.
    #[must_use]
    pub fn new(config: DatagramConfig) -> Self {
        Self {
            config,
            next: config.send_psn,
            requests: VecDeque::new(),
            out: Output::default(),
            has_ended: false,
        }
    }

    /// Changes the queue key that received datagrams must have.
    pub fn set_qkey(&mut self, qkey: u32) {
        self.config.qkey = qkey;
    }

    /// Adds a datagram to the send queue. Its completion is an [event](Self::next_event): success means that it was sent.
    pub fn post(&mut self, request: DatagramRequest<A>) {
        match self.has_ended {
            true => self.out.complete(request.id, Status::Flushed),
            false => self.requests.push_back(request),
        }
    }

    /// Writes the next packet to `to`; returns its length and its destination address.
    pub fn transmit<H: Host>(&mut self, host: &mut H, to: &mut PacketBuffer) -> Option<(usize, A)> {
        while let Some(request) = self.requests.pop_front() {
            if request.length as usize > self.config.mtu.bytes() {
                self.out.complete(request.id, Status::LocalLength);
                continue;
            }
            let headers = self.headers(&request);
            let written = write_packet(to, &headers, request.length, |payload| {
                host.load(request.id, 0, payload)
            });
            match written {
                Ok(Some(length)) => {
                    self.next = self.next.next();
                    self.out.complete(request.id, Status::Success);
                    return Some((length, request.address));
                }
                Ok(None) | Err(_) => {
                    self.out.complete(request.id, Status::LocalProtection);
                    self.flush();
                    self.out.events.push_back(Event::Failed);
                }
            }
        }
        None
    }

    fn headers(&self, request: &DatagramRequest<A>) -> Headers {
        let own_key = request.qkey >> 31 == 1;
        let deth = Deth {
            qkey: if own_key {
                self.config.qkey
            } else {
                request.qkey
            },
            source: self.config.number,
        };
        let tail = request
            .immediate
            .map_or(Tail::None, |data| Tail::Immediate(ImmDt { data }));
        let body = Body::Request(Service::Ud(deth), Request::SendOnly(tail));
        let mut headers = Headers::new(request.destination, self.next, body);
        headers.pkey = self.config.pkey;
        headers.solicited = request.solicited;
        headers
    }

    /// Receives a datagram, or drops it (IBA volume 1, 9.8.3) if its queue key is wrong, or if the next receive is missing or too
    /// short. The payload is stored after the first [`GRH_LEN`] bytes of the receive, which the owner fills.
    pub fn receive<H: Host>(&mut self, host: &mut H, packet: &Packet<'_>) {
        let headers = &packet.headers;
        let (deth, tail) = match headers.body {
            Body::Request(Service::Ud(deth), Request::SendOnly(tail))
                if !self.has_ended
                    && deth.qkey == self.config.qkey
                    && packet.payload.len() <= self.config.mtu.bytes() =>
            {
                (deth, tail)
            }
            _ => return self.out.counters.dropped += 1,
        };
        let bytes = GRH_LEN + packet.payload.len() as u32;
        let Some(receive) = host.take_receive(bytes.into()) else {
            self.out.counters.dropped += 1;
            return;
        };
        let stored =
            packet.payload.is_empty() || (host.fill(receive.id, GRH_LEN, packet.payload)).is_ok();
        if !stored {
            self.out.fail_receive(receive.id, Status::LocalProtection);
            self.flush();
            self.out.events.push_back(Event::Failed);
            return;
        }
        self.out.receive(Received {
            id: receive.id,
            bytes,
            is_write: false,
            immediate: match tail {
                Tail::Immediate(immediate) => Some(immediate.data),
                Tail::None | Tail::Invalidate(_) => None,
            },
            invalidated: None,
            solicited: headers.solicited,
            source: Some(deth.source),
        });
    }

    /// Removes the oldest event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// Moves the queue pair to the error state: all requests end with [`Status::Flushed`], and nothing more is sent or received.
    pub fn flush(&mut self) {
        self.has_ended = true;
        for request in self.requests.drain(..) {
            self.out.complete(request.id, Status::Flushed);
        }
    }

    /// The network counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.out.counters
    }
}

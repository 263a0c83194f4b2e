//! Congestion notification packets (CNPs): what a receiver tells a sender whose packets meet congestion.
//!
//! A router whose queue grows marks packets instead of dropping them (ECN, RFC 3168), if their IP header says that the sender reacts.
//! The receiver answers marked packets with CNPs (annex A17.9.3), at most one in [`INTERVAL`], as DCQCN's notification point does
//! ("Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, 3.1). The sender then lowers its window
//! (`requester/congestion.rs`).
//!
//! A CNP is never longer than the marked packets that it answers: a packet without data is answered only together with others.
//! So this side cannot be used to multiply traffic.

use super::buffer::{PacketBuffer, write_packet};
use super::config::Config;
use crate::icrc;
use crate::packet::{Aeth, Body, Bth, Class, Headers, Opcode, Packet, Psn};
use std::convert::Infallible;

/// The minimum time between two notifications, in nanoseconds.
const INTERVAL: u64 = 50_000;
/// The length of a CNP with its checksum, in bytes.
const CNP: usize = Bth::LEN + 16 + icrc::LEN;
/// The length of an acknowledgement with its checksum, in bytes. A packet may get one besides the CNP.
const ACKNOWLEDGEMENT: usize = Bth::LEN + Aeth::LEN + icrc::LEN;

/// Whether the sender of a packet obeys congestion notifications, so that routers may mark the packet: a packet of a reliable
/// connection. `packet` begins with its base transport header.
///
/// ```
/// assert!(rkey_roce::transport::obeys_notifications(&[0x04])); // RC SEND Only
/// assert!(!rkey_roce::transport::obeys_notifications(&[0x81])); // CNP
/// ```
#[must_use]
pub fn obeys_notifications(packet: &[u8]) -> bool {
    let opcode = packet.first().copied().and_then(Opcode::from_byte);
    opcode.is_some_and(|opcode| opcode.class() == Class::Rc)
}

/// Decides when a queue pair notifies its peer.
#[derive(Debug)]
pub(super) struct Notifier {
    peer: u32,
    pkey: u16,
    /// How many bytes of marked packets no notification has answered, at most [`CNP`].
    credit: usize,
    /// When the last notification was sent.
    last: Option<u64>,
    is_due: bool,
}

impl Notifier {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            peer: config.peer,
            pkey: config.pkey,
            credit: 0,
            last: None,
            is_due: false,
        }
    }

    /// Records that a marked packet has arrived.
    pub(super) fn marked(&mut self, now: u64, packet: &Packet<'_>) {
        let Ok(headers) = packet.headers.encode(packet.payload.len()) else {
            return;
        };
        let length = headers.as_ref().len() + packet.payload.len() + icrc::LEN;
        self.credit = (self.credit + length.saturating_sub(ACKNOWLEDGEMENT)).min(CNP);
        let is_early = self.last.is_some_and(|last| now < last + INTERVAL);
        self.is_due |= self.credit == CNP && !is_early;
    }

    /// Sends no more notifications of what has arrived so far.
    pub(super) fn stop(&mut self) {
        self.is_due = false;
    }

    /// Whether a notification is due.
    pub(super) fn may_transmit(&self) -> bool {
        self.is_due
    }

    /// Writes a notification to `to`, if one is due, and returns its length.
    pub(super) fn transmit(&mut self, now: u64, to: &mut PacketBuffer) -> Option<usize> {
        if !std::mem::take(&mut self.is_due) {
            return None;
        }
        (self.credit, self.last) = (0, Some(now));
        let mut headers = Headers::new(self.peer, Psn::new(0), Body::Congestion);
        (headers.pkey, headers.becn) = (self.pkey, true);
        let Ok(length) = write_packet::<Infallible>(to, &headers, 0, |_| Ok(()));
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Request, Service, Tail};

    /// A send of this many bytes.
    fn packet(payload: &[u8]) -> Packet<'_> {
        let body = Body::Request(Service::Rc, Request::SendOnly(Tail::None));
        Packet {
            headers: Headers::new(0xa, Psn::new(5), body),
            payload,
        }
    }

    fn notifier() -> Notifier {
        let psn = Psn::new(0);
        Notifier::new(&Config::reliable(0xb, psn, psn))
    }

    /// How many bytes are sent after a packet has arrived.
    fn after(notifier: &mut Notifier, now: u64, payload: &[u8]) -> usize {
        notifier.marked(now, &packet(payload));
        let mut buffer: PacketBuffer = [0; _];
        let sent = notifier.transmit(now, &mut buffer);
        assert_eq!(notifier.transmit(now, &mut buffer), None);
        let Some(length) = sent else { return 0 };
        let sent = Packet::decode(&buffer[..length]).unwrap();
        assert_eq!(buffer[0], 0x81);
        assert_eq!((sent.headers.destination, sent.headers.pkey), (0xb, 0xffff));
        assert!(sent.headers.becn && !sent.headers.fecn);
        assert!(buffer[Bth::LEN..length].iter().all(|byte| *byte == 0));
        length + icrc::LEN
    }

    #[test]
    fn notifications_have_a_distance_in_time() {
        let mut notifier = notifier();
        assert_eq!(after(&mut notifier, 7, &[1; 100]), CNP);
        for time in [7, 8, 7 + INTERVAL - 1] {
            assert_eq!(after(&mut notifier, time, &[1; 100]), 0);
        }
        assert_eq!(after(&mut notifier, 7 + INTERVAL, &[1; 100]), CNP);
    }

    #[test]
    fn marked_packets_have_more_bytes_than_their_answers() {
        for length in 0..64 {
            let (mut notifier, payload) = (notifier(), vec![1; length]);
            let (mut received, mut sent) = (0, 0);
            for count in 1..100 {
                received += Bth::LEN + length + icrc::LEN;
                let notification = after(&mut notifier, count * INTERVAL, &payload);
                sent += notification;
                // Shorter packets are acknowledged with more bytes than they have, with or without marks.
                let acknowledged = if length >= Aeth::LEN {
                    ACKNOWLEDGEMENT * count as usize
                } else {
                    0
                };
                assert!(sent + acknowledged <= received, "{length}");
            }
            assert_eq!(sent > 0, length > Aeth::LEN);
        }
    }
}

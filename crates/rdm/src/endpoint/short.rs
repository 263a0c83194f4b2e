//! The express lane of messages: a short message in one buffer goes straight to its connection, as a plain operation.
//!
//! The lane has no refusals and no waiting. If a message needs anything that the lane does not do, or if the connection cannot
//! send it at once, the lane changes nothing, and [`Endpoint::send`] decides.

use super::{Endpoint, Host, Outbox, Service};
use crate::header::{Header, Kind};
use rkey_engine::Sge;

/// The maximum length of a message in the express lane, in bytes: with its header, it fits into a slot of a link.
pub const SHORT_MAX: u32 = 176;

/// A message for the express lane. Its operation is plain, and needs no confirmation from the peer.
#[derive(Clone, Copy, Debug)]
pub struct ShortMessage {
    /// The connection to the peer.
    pub connection: usize,
    /// The id of the plain operation ([`Plain::number`](crate::operation_id::Plain::number)).
    pub id: u64,
    /// The tag, unless the message matches untagged receives.
    pub tag: Option<u64>,
    /// Remote completion data.
    pub data: Option<u64>,
    /// The memory of the message: 1 to [`SHORT_MAX`] bytes.
    pub sge: Sge,
}

impl<H: Host> Outbox<H> {
    /// Sends a message at once; returns false, with nothing changed, if [`Endpoint::send`] must decide.
    #[inline]
    fn send_short(&mut self, host: &H, it: &ShortMessage) -> bool {
        let len = it.sge.len;
        if self.service() != Service::ReliableDatagram
            || !(1..=SHORT_MAX).contains(&len)
            || !self.has_room(it.connection, 1)
        {
            return false;
        }
        let connection = self.connection(it.connection);
        let mut credit = connection.credit;
        let Some(qp) = connection.qp.as_ref().filter(|_| credit.spend(len)) else {
            return false;
        };
        let header = Header {
            tagged: it.tag.is_some(),
            has_data: it.data.is_some(),
            tag: it.tag.unwrap_or(0),
            data: it.data.unwrap_or(0),
            len,
            ..Header::new(Kind::Message)
        };
        let Some(header) = header.encode_message() else {
            return false;
        };
        if !host.post_short(qp, it.id, &header, it.sge) {
            return false;
        }
        connection.credit = credit;
        connection.outstanding += 1;
        true
    }
}

impl<H: Host> Endpoint<H> {
    /// Sends a short message at once. Returns false, with nothing changed, if [`Endpoint::send`] must decide.
    #[inline]
    #[must_use = "a message that was not sent must be passed to `send`"]
    pub fn send_short(&mut self, host: &H, it: &ShortMessage) -> bool {
        self.outbox.send_short(host, it)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_host::{TestHost, outbox};
    use super::*;
    use crate::connection::Event;
    use crate::credit;
    use crate::limits::{RESERVE, SENDS};
    use rkey_core::LKey;

    fn message(len: u32) -> ShortMessage {
        let (addr, key) = (0, LKey(0));
        ShortMessage {
            connection: 0,
            id: 5,
            tag: Some(7),
            data: None,
            sge: Sge { addr, len, key },
        }
    }

    /// What a message changes: the credit, and the number of posted requests.
    fn state(outbox: &Outbox<TestHost>) -> ((u32, u32), u32) {
        let it = &outbox.connections()[0];
        (it.credit.left(), it.outstanding)
    }

    #[test]
    fn a_short_message_takes_credit_and_room_like_any_other() {
        let host = TestHost::default();
        let mut outbox = outbox(&host);
        assert!(outbox.send_short(&host, &message(8)));
        assert!(outbox.send_short(&host, &message(SHORT_MAX)));
        assert_eq!(host.take(), ["post short 7: 0x5", "post short 7: 0x5"]);
        let bytes = credit::BYTES - 8 - SHORT_MAX;
        assert_eq!(state(&outbox), ((credit::MESSAGES - 2, bytes), 2));
    }

    /// Checks that a message is not sent, and that nothing changes.
    fn stays_out(host: &TestHost, outbox: &mut Outbox<TestHost>, len: u32, why: &str) {
        let before = state(outbox);
        assert!(!outbox.send_short(host, &message(len)), "{why}");
        assert_eq!(state(outbox), before, "{why}");
        assert!(host.take().is_empty(), "{why}");
    }

    #[test]
    fn other_messages_leave_the_lane_unchanged() {
        let host = TestHost::default();
        let mut all = outbox(&host);
        stays_out(&host, &mut all, 0, "an empty message");
        stays_out(&host, &mut all, SHORT_MAX + 1, "a long message");
        host.refuses.set(Some(crate::error::Error::NoMemory));
        stays_out(&host, &mut all, 8, "the queue pair cannot send at once");
        host.refuses.set(None);
        all.connection(0).outstanding = SENDS - RESERVE;
        stays_out(&host, &mut all, 8, "no room");
        all.connection(0).outstanding = 0;
        while all.connection(0).credit.spend(0) {}
        stays_out(&host, &mut all, 8, "no credit for messages");
        all.connection(0).credit.add(1, 0);
        assert!(all.send_short(&host, &message(8)));
        host.take();
        all.connection(0).credit.add(credit::MESSAGES, 0);
        let (_, bytes) = all.connection(0).credit.left();
        assert!(all.connection(0).credit.spend(bytes - 8));
        stays_out(&host, &mut all, 9, "no credit for bytes");
        all.connection(0)
            .credit
            .add(credit::MESSAGES, credit::BYTES);
        all.apply(0, Event::Lost);
        all.connection(0).qp = None;
        stays_out(&host, &mut all, 8, "no queue pair");
        for service in [Service::Connected, Service::Datagram] {
            let mut other = Outbox::new(service);
            other.add_connection(&host, 7, super::super::test_host::address(1), ());
            other.apply(0, Event::Made);
            stays_out(&host, &mut other, 8, "another service");
        }
    }
}

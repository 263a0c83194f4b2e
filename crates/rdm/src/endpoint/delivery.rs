//! Delivers payloads and the data of writes to the program. A connected endpoint delivers in the order in which the
//! transfers began: what is ready early waits for its turn.

use super::Host;
use super::receive::Landing;
use super::{ReceiveOutcome, Service};
use crate::error::{Error, Result};
use crate::order::InOrder;
use rkey_core::LocalUse;
use rkey_engine::Sge;

/// What is delivered to the program.
enum Delivered<H: Host> {
    /// A message in its receive, or why it failed.
    Message(Landing<H>, Option<Error>),
    /// The data of a write, and its length.
    Data { len: u32, data: u64 },
}

/// The deliveries that wait for their turn.
pub(super) struct Delivery<H: Host> {
    service: Service,
    turns: InOrder<Delivered<H>>,
}

impl<H: Host> Delivery<H> {
    /// No delivery waits.
    pub(super) fn new(service: Service) -> Self {
        Self {
            service,
            turns: InOrder::default(),
        }
    }

    /// The turn of a delivery; `None` if it can be made at once.
    #[inline]
    fn turn(&mut self, takes_time: bool) -> Option<u64> {
        let waits = takes_time || !self.turns.is_empty();
        (self.service.is_ordered() && waits).then(|| self.turns.enter())
    }

    /// Reserves the turn of a message whose payload must first be read.
    pub(super) fn reserve(&mut self, landing: &mut Landing<H>) {
        landing.turn = self.turn(true);
    }

    /// Copies a payload to its receive, and completes the receive.
    pub(super) fn copy(&mut self, host: &H, landing: Landing<H>, payload: &[u8]) {
        self.copy_with(host, landing, payload.len(), |sges, fits| {
            host.store(sges, &payload[..fits], LocalUse::Recv)
        });
    }

    /// Completes a receive with a payload of this length; `copy` copies as much as fits.
    #[inline]
    pub(super) fn copy_with(
        &mut self,
        host: &H,
        mut landing: Landing<H>,
        len: usize,
        copy: impl FnOnce(&[Sge], usize) -> Result<()>,
    ) {
        landing.turn = self.turn(false);
        let fits = len.min(landing.room);
        landing.len = fits;
        let error = copy(&landing.sges, fits).err();
        if error.is_none() {
            landing.overflow = len - fits;
        }
        self.complete(host, landing, error);
    }

    /// Completes a receive when its turn comes.
    #[inline]
    pub(super) fn complete(&mut self, host: &H, mut landing: Landing<H>, error: Option<Error>) {
        match landing.turn.take() {
            None => Self::complete_now(host, landing, error),
            turn => self.in_turn(host, turn, Delivered::Message(landing, error)),
        }
    }

    /// Completes a receive.
    #[inline]
    fn complete_now(host: &H, landing: Landing<H>, error: Option<Error>) {
        let (len, overflow) = (landing.len, landing.overflow);
        let (matched, last) = landing.finish();
        let how = ReceiveOutcome {
            len,
            overflow,
            error: error.or_else(|| (overflow > 0).then_some(Error::Truncated)),
            last,
        };
        host.received(matched, how);
    }

    /// Reports the data of a peer's write of `len` bytes when its turn comes.
    pub(super) fn written(&mut self, host: &H, len: u32, data: u64) {
        let turn = self.turn(false);
        self.in_turn(host, turn, Delivered::Data { len, data });
    }

    /// Delivers to the program, and then what waited for it.
    fn in_turn(&mut self, host: &H, turn: Option<u64>, it: Delivered<H>) {
        let deliver = |it| match it {
            Delivered::Message(landing, error) => Self::complete_now(host, landing, error),
            Delivered::Data { len, data } => host.written(len, data),
        };
        let Some(turn) = turn else {
            return deliver(it);
        };
        self.turns.finish(turn, it);
        while let Some(it) = self.turns.pop() {
            deliver(it);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Receive;
    use super::super::test_host::TestHost;
    use super::*;
    use crate::header::{Header, Kind};
    use core::net::SocketAddr;

    fn landing(host: &TestHost, receive: &mut Receive<TestHost>, len: u32) -> Landing<TestHost> {
        let header = Header {
            len,
            ..Header::new(Kind::Message)
        };
        let source = SocketAddr::from(([127, 0, 0, 1], 1));
        receive.landing(host, &source, &header).0
    }

    fn receive(number: u32, room: usize, several: bool) -> Receive<TestHost> {
        Receive::new(TestHost::sges(room), room, several, number)
    }

    #[test]
    fn a_connected_endpoint_delivers_in_order() {
        for service in [Service::Connected, Service::ReliableDatagram] {
            let (host, mut delivery) = (TestHost::default(), Delivery::new(service));
            let mut long = landing(&host, &mut receive(1, 8, false), 8);
            delivery.reserve(&mut long);
            delivery.copy(&host, landing(&host, &mut receive(2, 8, false), 3), &[0; 3]);
            delivery.written(&host, 5, 77);
            let later = ["received 2: 3", "written 5 77"];
            let early = host.take();
            match service {
                Service::Connected => assert!(early.is_empty(), "{early:?}"),
                _ => assert_eq!(early, later),
            }
            long.len = 8;
            delivery.complete(&host, long, None);
            match service {
                Service::Connected => {
                    assert_eq!(host.take(), ["received 1: 8", later[0], later[1]]);
                }
                _ => assert_eq!(host.take(), ["received 1: 8"]),
            }
            delivery.written(&host, 0, 1);
            assert_eq!(host.take(), ["written 0 1"], "nothing waits");
        }
    }

    #[test]
    fn bytes_without_room_are_reported_as_overflow() {
        let (host, mut delivery) = (TestHost::default(), Delivery::new(Service::Connected));
        delivery.copy(&host, landing(&host, &mut receive(1, 4, false), 6), &[0; 6]);
        assert_eq!(host.take(), ["received 1: 4 +2 Truncated"]);
        let whole = landing(&host, &mut receive(2, 4, false), 6);
        delivery.copy_with(&host, whole, 6, |_, _| Err(Error::Fault));
        assert_eq!(host.take(), ["received 2: 4 Fault"], "nothing was copied");
    }

    #[test]
    fn the_last_message_of_a_full_buffer_is_marked() {
        let (host, mut delivery) = (TestHost::default(), Delivery::new(Service::Connected));
        let mut buffer = receive(1, 8, true);
        let [first, second] = [5, 3].map(|len| landing(&host, &mut buffer, len));
        delivery.copy(&host, second, &[0; 3]);
        delivery.copy(&host, first, &[0; 5]);
        assert_eq!(host.take(), ["received 1: 3", "received 1: 5 last"]);
    }
}

//! Payloads that are read from the sender's memory (rendezvous).

use super::operation::OperationKind;
use super::receive::Landing;
use super::{Endpoint, Host};
use crate::error::Error;
use crate::header::Header;
use crate::sges::part;

impl<H: Host> Endpoint<H> {
    /// Starts to read the payload of an RTS from its sender.
    pub(super) fn fetch(
        &mut self,
        host: &H,
        mut landing: Landing<H>,
        header: &Header,
        key: u32,
        connection: usize,
    ) {
        self.delivery.reserve(&mut landing);
        let len = header.len as usize;
        let fits = len.min(landing.room);
        // If nothing fits, there is nothing to read, and the sender gets its answer now.
        landing.len = fits;
        landing.overflow = len - fits;
        landing.sges = part(&landing.sges, 0, fits);
        if fits == 0 || self.connections()[connection].state().is_lost() {
            let error = match len {
                0 => None,
                _ if fits == 0 => Some(Error::Truncated),
                _ => Some(Error::ConnectionReset),
            };
            self.confirm(host, connection, header);
            return self.delivery.complete(host, landing, error);
        }
        let what = OperationKind::Fetch {
            landing: Box::new(landing),
            id: header.id,
            key,
        };
        let (id, next) = self.outbox.fetch(host, connection, what);
        self.carry_out(host, id, next);
    }

    /// Acts on the end of the read of a payload: answers the RTS with FIN, and completes the receive.
    pub(super) fn fetch_over(
        &mut self,
        host: &H,
        connection: usize,
        id: u64,
        landing: Landing<H>,
        error: Option<Error>,
    ) {
        self.send_fin(host, connection, id, error);
        self.delivery.complete(host, landing, error);
    }
}

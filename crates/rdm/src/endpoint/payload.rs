//! Payloads that are read from the sender's memory (rendezvous).

use super::operation::{Operation, OperationKind};
use super::receive::Landing;
use super::{Endpoint, Host};
use crate::backlog::Later;
use crate::error::Error;
use crate::header::Header;
use crate::sges::{Sges, part};
use rkey_core::{Key, RKey};
use rkey_engine::{SendFlags, SendRequest, Target, Work};

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
        if fits == 0 || self.connections[connection].state().is_lost() {
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
        let id = self.operations.add(Operation::new(connection, what, None));
        let it = &mut self.connections[connection];
        if it.takes_answers() {
            self.fetch_now(host, connection, id);
        } else {
            it.backlog.push_back(Later::Read(id));
        }
    }

    /// Posts the read of the payload of an RTS.
    pub(super) fn fetch_now(&mut self, host: &H, connection: usize, id: u64) {
        let Some(operation) = self.operations.get(id) else {
            return;
        };
        let OperationKind::Fetch { landing, key, .. } = &operation.what else {
            return;
        };
        let remote = Target {
            addr: 0,
            key: RKey::Device(Key(*key)),
        };
        let all = landing.sges.iter().copied();
        let sges: Sges = all.filter(|sge| sge.len > 0).collect();
        let request = SendRequest {
            // `RECEIVES` makes the device check the local region for the right to receive until the last byte has
            // arrived: the program may deregister it before then.
            flags: SendFlags::RECEIVES | SendFlags::SIGNALED,
            ..SendRequest::new(id, Work::Read { remote }, &sges)
        };
        if let Err(error) = self.post(host, connection, &request)
            && let Some(mut operation) = self.operations.forget(id)
        {
            // The sender gets the error.
            operation.fail(error);
            self.operation_over(host, operation);
        }
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

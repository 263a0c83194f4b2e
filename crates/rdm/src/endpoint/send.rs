//! Sending messages: with their payload if they are short and have credit, by rendezvous otherwise.

use super::Host;
use super::operation::{Operation, OperationKind, Retained};
use super::outbox::{Outbox, SEND, copied};
use crate::error::Result;
use crate::header::{Header, MAX_LEN};
use crate::limits::{EAGER_MAX, INLINE_MAX};
use crate::operation_id::Plain;
use rkey_engine::{SendRequest, Sge};

/// The maximum length of a message that fits, with any header, into the inline data of a request.
const INLINE_PAYLOAD_MAX: usize = INLINE_MAX - MAX_LEN;

/// A message of the program, without its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// The connection to the peer, which has room.
    pub connection: usize,
    /// The header, whose `len` is the length of the message.
    pub header: Header,
    /// The bytes are copied before the call returns.
    pub inject: bool,
    /// The equivalent plain operation of an eager message, if that is enough for the report to the program.
    pub plain: Option<Plain>,
}

/// The bytes of a message in the program's memory.
pub trait PayloadSource<H: Host> {
    /// The memory from which the bytes are sent. Not used if the bytes are copied.
    fn sges(&self) -> &[Sge];
    /// Copies the bytes.
    ///
    /// # Errors
    /// [`Error::Fault`](crate::error::Error::Fault).
    fn copy(&self, into: &mut [u8]) -> Result<()>;
    /// Lets a peer read the bytes; returns the key for them.
    ///
    /// # Errors
    /// Same as [`Host::expose`].
    fn expose(&self) -> Result<(H::Exposed, u32)>;
}

/// The endpoint's own bytes, which are copied.
pub(super) struct Own<'a>(pub(super) &'a [u8]);

impl<H: Host> PayloadSource<H> for Own<'_> {
    fn sges(&self) -> &[Sge] {
        &[]
    }

    fn copy(&self, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(self.0);
        Ok(())
    }

    fn expose(&self) -> Result<(H::Exposed, u32)> {
        Err(crate::error::Error::Unsupported)
    }
}

impl<H: Host> Outbox<H> {
    /// Sends a message of the program. `attached` is called unless the message is a plain operation.
    ///
    /// # Errors
    /// An error of posting or copying; the message was not sent.
    #[inline]
    pub(super) fn send(
        &mut self,
        host: &H,
        it: &Outgoing,
        body: &impl PayloadSource<H>,
        attached: impl FnOnce() -> H::Operation,
    ) -> Result<()> {
        let len = it.header.len as usize;
        let needs_credit = self.needs_credit();
        let credit = &mut self.connection(it.connection).credit;
        let eager = len <= EAGER_MAX && (!needs_credit || credit.spend(it.header.len));
        if !eager {
            let operation =
                Operation::new(it.connection, OperationKind::Transmit, Some(attached()));
            return self.send_rts(host, it, body, operation);
        }
        // Most messages are plain operations, which need no entry in the list of operations.
        let remembered =
            self.is_ordered() || it.header.confirm || it.inject && len > INLINE_PAYLOAD_MAX;
        let sent = match it.plain.and_then(Plain::number).filter(|_| !remembered) {
            Some(id) => self.post_message(host, it, body, id),
            None => {
                let operation =
                    Operation::new(it.connection, OperationKind::Transmit, Some(attached()));
                self.send_with_payload(host, it, body, operation)
            }
        };
        sent.inspect_err(|_| self.connection(it.connection).credit.add(1, it.header.len))
    }

    /// Begins an operation, and sends its message with the payload.
    pub(super) fn send_with_payload(
        &mut self,
        host: &H,
        it: &Outgoing,
        body: &impl PayloadSource<H>,
        mut operation: Operation<H>,
    ) -> Result<()> {
        let (len, mut it) = (it.header.len as usize, *it);
        let confirm = it.header.confirm;
        if confirm {
            operation = operation.awaiting_answer();
        }
        let long = it.inject && len > INLINE_PAYLOAD_MAX;
        if long {
            let mut bytes = vec![0; len].into_boxed_slice();
            body.copy(&mut bytes)?;
            operation.retained = Retained::Bytes(bytes);
        }
        let sge = match &operation.retained {
            Retained::Bytes(bytes) => Some(Sge {
                addr: bytes.as_ptr() as u64,
                len: len as u32,
                key: host.everything(),
            }),
            _ => None,
        };
        let id = self.begin(operation);
        it.header.id = if confirm { id } else { 0 };
        let posted = match sge {
            Some(sge) => self.post_after_header(host, &it, &[sge], id),
            None => self.post_message(host, &it, body, id),
        };
        posted.inspect_err(|_| drop(self.forget(id)))
    }

    /// Posts a message after its header. An injected message is short, and is copied now.
    #[inline]
    fn post_message(
        &mut self,
        host: &H,
        it: &Outgoing,
        body: &impl PayloadSource<H>,
        id: u64,
    ) -> Result<()> {
        match it.inject {
            true => self.post_copied(host, it, body, id),
            false => self.post_after_header(host, it, body.sges(), id),
        }
    }

    /// Posts a header and the memory after it.
    #[inline(always)]
    fn post_after_header(&mut self, host: &H, it: &Outgoing, sges: &[Sge], id: u64) -> Result<()> {
        let request = SendRequest::new(id, SEND, sges);
        if let Some(prefix) = &it.header.encode_message() {
            let request = SendRequest { prefix, ..request };
            return self.post(host, it.connection, &request);
        }
        let mut header_bytes = [0; MAX_LEN];
        let len = it.header.encode(&mut header_bytes);
        let prefix = &header_bytes[..len];
        self.post(host, it.connection, &SendRequest { prefix, ..request })
    }

    /// Posts a short message that is copied now.
    fn post_copied(
        &mut self,
        host: &H,
        it: &Outgoing,
        body: &impl PayloadSource<H>,
        id: u64,
    ) -> Result<()> {
        let mut header_bytes = [0; MAX_LEN];
        let header_len = it.header.encode(&mut header_bytes);
        let len = header_len + it.header.len as usize;
        let mut bytes = [0; INLINE_MAX];
        bytes[..header_len].copy_from_slice(&header_bytes[..header_len]);
        body.copy(&mut bytes[header_len..len])?;
        self.post(host, it.connection, &copied(id, &bytes[..len]))
    }

    /// Sends the peer the RTS, with a key to read the payload. The key is valid until the peer has answered.
    fn send_rts(
        &mut self,
        host: &H,
        it: &Outgoing,
        body: &impl PayloadSource<H>,
        operation: Operation<H>,
    ) -> Result<()> {
        let exposed = match (it.header.len, it.inject) {
            (0, _) => None,
            (_, false) => Some(body.expose()?),
            (len, true) => {
                let mut bytes = vec![0; len as usize].into_boxed_slice();
                body.copy(&mut bytes)?;
                Some(host.expose(bytes)?)
            }
        };
        self.rendezvous(host, it.header, exposed, operation)
    }

    /// Sends the RTS for a payload that is already exposed (`None`: an empty message).
    pub(super) fn rendezvous(
        &mut self,
        host: &H,
        mut header: Header,
        exposed: Option<(H::Exposed, u32)>,
        operation: Operation<H>,
    ) -> Result<()> {
        let connection = operation.connection;
        let mut operation = operation.awaiting_answer();
        let key = exposed.as_ref().map_or(0, |(_, key)| *key);
        header.kind = header.kind.rendezvous(key);
        if let Some((exposed, _)) = exposed {
            operation.retained = Retained::Exposed(Box::new(exposed));
        }
        let id = self.begin(operation);
        header.id = id;
        let mut header_bytes = [0; MAX_LEN];
        let len = header.encode(&mut header_bytes);
        if let Err(error) = self.post(host, connection, &copied(id, &header_bytes[..len])) {
            if let Some(operation) = self.forget(id)
                && let Retained::Exposed(exposed) = &operation.retained
            {
                host.withdraw(exposed);
            }
            return Err(error);
        }
        if let Some(operation) = self.operation(id)
            && let Retained::Exposed(exposed) = &operation.retained
        {
            host.rts_posted(exposed);
        }
        Ok(())
    }
}

//! Sending and receiving chunks of collective operations.

use super::super::flow::EXCEEDED;
use super::super::operation::{Operation, OperationKind, Retained};
use super::super::send::{Outgoing, Own};
use super::super::{Host, Note};
use super::carrier::Carrier;
use super::group::leave;
use super::run::{Finished, Run};
use super::{Groups, zeroed};
use crate::collective::early_chunks::{Body, Chunk, Key};
use crate::collective::names::Name;
use crate::collective::plan::{Receive, Send};
use crate::error::{Error, Result};
use crate::header::{Header, Kind};
use crate::limits::EAGER_MAX;
use crate::peers::Route;
use core::net::SocketAddr;
use rkey_core::{Key as DeviceKey, RKey};
use rkey_engine::{SendRequest, Sge, Target, Work};
use std::time::Instant;

/// The group that a message names, and the number in the lower half of its data.
pub(super) fn named(header: &Header) -> (Name, u32) {
    let name = Name {
        members: header.tag,
        instance: (header.data >> 32) as u32,
    };
    (name, header.data as u32)
}

impl<H: Host> Groups<H> {
    /// The address of a member that is still in the group.
    fn member(&self, host: &H, group: u64, rank: usize) -> Result<SocketAddr> {
        let group = self.group(group).ok_or(Error::Shutdown)?;
        let member = &group.members[rank];
        if member.left {
            host.note(Note::MemberGone(member.address));
            return Err(Error::ConnectionReset);
        }
        Ok(member.address)
    }

    /// Sends a chunk to a member.
    pub(super) fn send_chunk(
        &mut self,
        carrier: &mut Carrier<'_, H>,
        run: &Run<H::Operation>,
        send: &Send,
        now: Instant,
    ) -> Result<()> {
        let address = self.member(carrier.host, run.group, send.to)?;
        let connection = match carrier.connection_to(address, now) {
            // The member's process may merely be stopped: keep trying.
            Err(Error::TimedOut) => return Err(Error::Again),
            connection => connection?,
        };
        if !carrier.outbox.has_room(connection, 1) {
            return Err(Error::Again);
        }
        let name = self.group(run.group).ok_or(Error::Shutdown)?.name;
        let bytes = &run.work[run.bytes(&send.blocks)];
        let header = Header {
            confirm: true,
            tag: name.members,
            data: u64::from(name.instance) << 32 | u64::from(run.seq),
            len: bytes.len() as u32,
            ..Header::new(Kind::Chunk {
                signature: run.signature,
            })
        };
        let what = OperationKind::Chunk {
            run: run.number,
            taken: None,
        };
        let operation = Operation::new(connection, what, None);
        if bytes.len() <= EAGER_MAX {
            let it = Outgoing {
                connection,
                header,
                inject: true,
                plain: None,
            };
            let (host, body) = (carrier.host, Own(bytes));
            return carrier
                .outbox
                .send_with_payload(host, &it, &body, operation);
        }
        let mut copy = zeroed(bytes.len())?.into_boxed_slice();
        copy.copy_from_slice(bytes);
        let exposed = Some(carrier.host.expose(copy)?);
        carrier
            .outbox
            .rendezvous(carrier.host, header, exposed, operation)
    }

    /// Takes the chunk that a run waits for; returns its bytes if they have arrived.
    pub(super) fn take_chunk(
        &mut self,
        carrier: &mut Carrier<'_, H>,
        run: &mut Run<H::Operation>,
        receive: &Receive,
        now: Instant,
    ) -> Result<Option<Box<[u8]>>> {
        if let Some(bytes) = run.fetched.take() {
            return Ok(Some(bytes));
        }
        if run.fetching {
            return Ok(None);
        }
        let group = self.group(run.group).ok_or(Error::Shutdown)?;
        let key = Key {
            from: group.members[receive.from].address,
            group: group.name,
            seq: run.seq,
        };
        let Some(chunk) = self.early.look(&key) else {
            let address = self.member(carrier.host, run.group, receive.from)?;
            return match carrier.connection_to(address, now) {
                Ok(_) | Err(Error::Again | Error::TimedOut) => Ok(None),
                Err(error) => Err(error),
            };
        };
        let wanted = run.bytes(&receive.blocks).len();
        let (len, there) = match &chunk.body {
            Body::Here(bytes) => (bytes.len(), false),
            Body::There { len, .. } => (*len as usize, true),
            Body::Left(_) => (0, false),
        };
        if chunk.signature != run.signature || len != wanted {
            carrier.host.note(Note::OtherCall(receive.from));
            return Err(Error::Invalid);
        }
        let connection = chunk.connection;
        if there && !carrier.outbox.has_room(connection, 1) {
            return Ok(None);
        }
        let Some(chunk) = self.early.take(&key) else {
            return Ok(None);
        };
        match chunk.body {
            Body::Here(bytes) => {
                answer_chunk(carrier, connection, chunk.id);
                Ok(Some(bytes.into_boxed_slice()))
            }
            Body::There { key, .. } => {
                fetch_chunk(carrier, run, &chunk, key, wanted)?;
                run.fetching = true;
                Ok(None)
            }
            Body::Left(_) => Ok(None),
        }
    }

    /// Handles the end of a chunk: our chunk was answered, or the read of a peer's chunk has ended.
    #[cold]
    pub(super) fn chunk_over(&mut self, carrier: &mut Carrier<'_, H>, operation: Operation<H>) {
        let OperationKind::Chunk { run, taken } = operation.what else {
            return;
        };
        if let Some(id) = taken {
            answer_chunk(carrier, operation.connection, id);
        }
        let fetched = match operation.retained {
            Retained::Bytes(bytes) if taken.is_some() => Some(bytes),
            _ => None,
        };
        self.finished.push(Finished {
            run,
            fetched,
            error: operation.failure.map(|failure| failure.error),
        });
    }

    /// Stops waiting for answers to the chunks of a run.
    pub(super) fn give_up_chunks(&mut self, carrier: &mut Carrier<'_, H>, run: u64) {
        for id in carrier.outbox.chunks_of(run) {
            if let Some(operation) = carrier.give_up(id) {
                self.chunk_over(carrier, operation);
            }
        }
    }

    /// Handles a chunk, or the message that a member has left a group.
    #[cold]
    pub(super) fn chunk_arrived(
        &mut self,
        carrier: &mut Carrier<'_, H>,
        connection: usize,
        header: &Header,
        payload: &[u8],
    ) {
        let from = carrier.connections()[connection].peer;
        let (signature, body) = match header.kind {
            Kind::Chunk { signature } => (signature, Body::Here(payload.to_vec())),
            Kind::ChunkRts { signature, key } => {
                let len = header.len;
                (signature, Body::There { key, len })
            }
            _ => return self.heard_leave(carrier, connection, header),
        };
        let (name, seq) = named(header);
        let was = self.was(name);
        match self.named(name) {
            Some(group) => match (group.rank_of(from), group.broken) {
                (None, _) => {
                    let why = "the peer sent to a collective group of which it is not a member";
                    return carrier.violated(connection, why);
                }
                (Some(_), Some(error)) => {
                    return carrier.tell(connection, &leave(name, Some(error)));
                }
                (Some(_), None) => {}
            },
            None if was => {
                return carrier.tell(connection, &leave(name, Some(Error::Shutdown)));
            }
            None => {}
        }
        let key = Key {
            from,
            group: name,
            seq,
        };
        let chunk = Chunk {
            connection,
            id: header.id,
            signature,
            body,
        };
        self.keep_chunk(carrier, key, chunk);
    }

    /// Keeps a chunk until a run needs it.
    pub(super) fn keep_chunk(&mut self, carrier: &mut Carrier<'_, H>, key: Key, chunk: Chunk) {
        let connection = chunk.connection;
        if !self.early.keep(key, chunk) {
            carrier.violated(connection, EXCEEDED);
        }
    }

    /// Sends the queued messages to members that have a connection, keeps the messages to members whose connection is
    /// being made, and drops the rest. A member that waits for our chunk has a connection; the others find out that we have
    /// left from the answer to their own chunk.
    pub(super) fn tell_members(&mut self, carrier: &mut Carrier<'_, H>) {
        for (address, header) in std::mem::take(&mut self.telling) {
            match carrier.route_of(address) {
                Route::Open(connection) => carrier.tell(connection, &header),
                Route::Connecting => self.telling.push((address, header)),
                Route::None => {}
            }
        }
    }
}

/// Starts to read a chunk from its sender's memory.
fn fetch_chunk<H: Host>(
    carrier: &mut Carrier<'_, H>,
    run: &Run<H::Operation>,
    chunk: &Chunk,
    key: u32,
    len: usize,
) -> Result<()> {
    let (host, outbox) = (carrier.host, &mut *carrier.outbox);
    let bytes = zeroed(len)?.into_boxed_slice();
    let sges = [Sge {
        addr: bytes.as_ptr() as u64,
        len: len as u32,
        key: host.everything(),
    }];
    let what = OperationKind::Chunk {
        run: run.number,
        taken: Some(chunk.id),
    };
    let id = outbox.begin(Operation {
        retained: Retained::Bytes(bytes),
        ..Operation::new(chunk.connection, what, None)
    });
    let remote = Target {
        addr: 0,
        key: RKey::Device(DeviceKey(key)),
    };
    let request = SendRequest::new(id, Work::Read { remote }, &sges);
    outbox
        .post(host, chunk.connection, &request)
        .inspect_err(|_| drop(outbox.forget(id)))
}

/// Acknowledges a member's chunk.
fn answer_chunk<H: Host>(carrier: &mut Carrier<'_, H>, connection: usize, id: u64) {
    let fin = Header {
        id,
        ..Header::new(Kind::Fin)
    };
    carrier.tell(connection, &fin);
}

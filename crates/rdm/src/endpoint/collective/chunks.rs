//! Sending and receiving chunks of collective operations.

use super::super::operation::{Operation, OperationKind, Retained};
use super::super::send::{Outgoing, Own};
use super::super::{Endpoint, Host, Note};
use super::run::{Finished, Run};
use super::zeroed;
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

impl<H: Host> Endpoint<H> {
    /// The address of a member that is still in the group.
    fn member(&mut self, host: &H, group: u64, rank: usize) -> Result<SocketAddr> {
        let it = self.collective.as_mut();
        let group = it.and_then(|it| it.group(group)).ok_or(Error::Shutdown)?;
        let member = &group.members[rank];
        if member.left {
            host.note(Note::MemberGone(member.address));
            return Err(Error::ConnectionReset);
        }
        Ok(member.address)
    }

    /// The connection to a member; [`Error::Again`] until there is one.
    fn way_to_member(&mut self, host: &H, address: SocketAddr, now: Instant) -> Result<usize> {
        let peer = self.routes.peer_at(address);
        self.routes.route_to(peer, now, |to| host.connect(peer, to))
    }

    /// Sends a chunk to a member.
    pub(super) fn send_chunk(
        &mut self,
        host: &H,
        run: &Run<H::Operation>,
        send: &Send,
        now: Instant,
    ) -> Result<()> {
        let address = self.member(host, run.group, send.to)?;
        let connection = match self.way_to_member(host, address, now) {
            // The member's process may merely be stopped: keep trying.
            Err(Error::TimedOut) => return Err(Error::Again),
            way => way?,
        };
        if !self.outbox.has_room(connection, 1) {
            return Err(Error::Again);
        }
        let it = self.collective.as_mut();
        let group = it.and_then(|it| it.group(run.group));
        let name = group.ok_or(Error::Shutdown)?.name;
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
            return self
                .outbox
                .send_with_payload(host, &it, &Own(bytes), operation);
        }
        let mut copy = zeroed(bytes.len())?.into_boxed_slice();
        copy.copy_from_slice(bytes);
        let exposed = host.expose(copy)?;
        self.outbox
            .rendezvous(host, header, Some(exposed), operation)
    }

    /// Takes the chunk that a run waits for; returns its bytes if they have arrived.
    pub(super) fn take_chunk(
        &mut self,
        host: &H,
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
        let Some(it) = &mut self.collective else {
            return Err(Error::Shutdown);
        };
        let group = it.group(run.group).ok_or(Error::Shutdown)?;
        let key = Key {
            from: group.members[receive.from].address,
            group: group.name,
            seq: run.seq,
        };
        let Some(chunk) = it.early.look(&key) else {
            let address = self.member(host, run.group, receive.from)?;
            return match self.way_to_member(host, address, now) {
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
            host.note(Note::OtherCall(receive.from));
            return Err(Error::Invalid);
        }
        let connection = chunk.connection;
        if there && !self.outbox.has_room(connection, 1) {
            return Ok(None);
        }
        let it = self.collective.as_mut();
        let Some(chunk) = it.and_then(|it| it.early.take(&key)) else {
            return Ok(None);
        };
        match chunk.body {
            Body::Here(bytes) => {
                self.answer_chunk(host, connection, chunk.id);
                Ok(Some(bytes.into_boxed_slice()))
            }
            Body::There { key, .. } => {
                self.fetch_chunk(host, run, &chunk, key, wanted)?;
                run.fetching = true;
                Ok(None)
            }
            Body::Left(_) => Ok(None),
        }
    }

    /// Starts to read a chunk from its sender's memory.
    fn fetch_chunk(
        &mut self,
        host: &H,
        run: &Run<H::Operation>,
        chunk: &Chunk,
        key: u32,
        len: usize,
    ) -> Result<()> {
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
        let id = self.outbox.begin(Operation {
            retained: Retained::Bytes(bytes),
            ..Operation::new(chunk.connection, what, None)
        });
        let remote = Target {
            addr: 0,
            key: RKey::Device(DeviceKey(key)),
        };
        let request = SendRequest::new(id, Work::Read { remote }, &sges);
        self.outbox
            .post(host, chunk.connection, &request)
            .inspect_err(|_| drop(self.outbox.forget(id)))
    }

    /// Acknowledges a member's chunk.
    fn answer_chunk(&mut self, host: &H, connection: usize, id: u64) {
        if !self.connections()[connection].state().is_lost() {
            let fin = Header {
                id,
                ..Header::new(Kind::Fin)
            };
            self.answer(host, connection, &fin, &[]);
        }
    }

    /// Handles the end of a chunk: our chunk was answered, or the read of a peer's chunk has ended.
    #[cold]
    pub(in crate::endpoint) fn chunk_over(&mut self, host: &H, operation: Operation<H>) {
        let OperationKind::Chunk { run, taken } = operation.what else {
            return;
        };
        if let Some(id) = taken {
            self.answer_chunk(host, operation.connection, id);
        }
        let fetched = match operation.retained {
            Retained::Bytes(bytes) if taken.is_some() => Some(bytes),
            _ => None,
        };
        if let Some(it) = &mut self.collective {
            it.finished.push(Finished {
                run,
                fetched,
                error: operation.failure.map(|failure| failure.error),
            });
        }
    }

    /// Handles a chunk, or the message that a member has left a group.
    #[cold]
    pub(in crate::endpoint) fn chunk_arrived(
        &mut self,
        host: &H,
        connection: usize,
        header: &Header,
        payload: &[u8],
    ) {
        if !host.has_collectives() {
            let why = "the peer sent a collective message, which this endpoint does not support";
            return self.cut_off(host, connection, why);
        }
        if self.connections()[connection].state().is_lost() {
            return;
        }
        let from = self.connections()[connection].peer;
        let (signature, body) = match header.kind {
            Kind::Chunk { signature } => (signature, Body::Here(payload.to_vec())),
            Kind::ChunkRts { signature, key } => {
                let len = header.len;
                (signature, Body::There { key, len })
            }
            _ => return self.heard_leave(host, connection, header),
        };
        let (name, seq) = named(header);
        let it = self.collective.get_or_insert_default();
        let was = it.was(name);
        match it.named(name) {
            Some(group) => match (group.rank_of(from), group.broken) {
                (None, _) => {
                    let why = "the peer sent to a collective group of which it is not a member";
                    return self.cut_off(host, connection, why);
                }
                (Some(_), Some(error)) => {
                    return self.refuse_chunk(host, connection, name, error);
                }
                (Some(_), None) => {}
            },
            None if was => return self.refuse_chunk(host, connection, name, Error::Shutdown),
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
        self.keep_chunk(host, key, chunk);
    }

    /// Keeps a chunk until a run needs it.
    pub(super) fn keep_chunk(&mut self, host: &H, key: Key, chunk: Chunk) {
        let connection = chunk.connection;
        let it = self.collective.get_or_insert_default();
        if !it.early.keep(key, chunk) {
            self.exceeded(host, connection);
        }
    }

    /// Sends the queued messages to members that have a connection, keeps the messages to members whose connection is
    /// being made, and drops the rest. A member that waits for our chunk has a connection; the others find out that we have
    /// left from the answer to their own chunk.
    pub(super) fn tell_members(&mut self, host: &H) {
        let telling = match &mut self.collective {
            Some(it) if !it.telling.is_empty() => std::mem::take(&mut it.telling),
            _ => return,
        };
        for (address, header) in telling {
            match self.routes.route_of(address) {
                Route::Open(connection) => self.answer(host, connection, &header, &[]),
                Route::Connecting => {
                    if let Some(it) = &mut self.collective {
                        it.telling.push((address, header));
                    }
                }
                Route::None => {}
            }
        }
    }
}

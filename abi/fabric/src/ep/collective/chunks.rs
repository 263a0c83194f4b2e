//! Chunks of collective operations, out and in.

#![allow(unsafe_code)]
// UNSAFETY: names memory of our own to the device.

use super::run::{Finished, Run};
use super::*;
use crate::cq::Entry;
use crate::ep::operation::{Hold, What};
use libc::iovec;
use rkey_device::core::{Key as DeviceKey, WireKey};
use rkey_device::engine::{SendFlags, Target, Work};
use rkey_rdm::collective::inbox::{Body, Chunk, Key};
use rkey_rdm::collective::plan::{Receive, Send};
use rkey_rdm::header::Kind as HeaderKind;
use rkey_rdm::peers::Way;

/// The group that a message is about, and the number in the lower half of its data.
pub(super) fn named(header: &Header) -> (Name, u32) {
    let name = Name {
        members: header.tag,
        instance: (header.data >> 32) as u32,
    };
    (name, header.data as u32)
}

/// An operation of ours that carries a chunk.
fn carrying(run: u64, connection: usize, taken: Option<u64>, hold: Hold) -> Operation {
    Operation {
        left: 1,
        error: None,
        what: What::Chunk { run, taken },
        entry: Entry::default(),
        report: false,
        counts: None,
        connection,
        answered: false,
        turn: None,
        hold,
    }
}

impl Endpoint {
    /// The address of a member that chunks can be sent to and waited for.
    fn member(state: &mut State, group: u64, rank: usize) -> Result<SocketAddr> {
        let it = state.collective.as_mut();
        let group = it.and_then(|it| it.group(group)).ok_or(FiError::SHUTDOWN)?;
        let member = &group.members[rank];
        if member.left {
            let address = rkey_rdm::address::to_text(member.address);
            tracing::warn!("{address}, a member of a collective group, is gone");
            return Err(FiError::CONNRESET);
        }
        Ok(member.address)
    }

    /// The connection to a member; `FI_EAGAIN` while there is none yet.
    fn way_to(&self, live: &Live, state: &mut State, address: SocketAddr) -> Result<usize> {
        let peer = state.peers.at(address);
        match state.peers[peer].way {
            Way::Open(connection) => Ok(connection),
            _ => Err(self.reach(live, state, peer)),
        }
    }

    /// Sends a chunk to a member.
    pub(super) fn send_chunk(
        &self,
        live: &Live,
        state: &mut State,
        run: &Run,
        send: &Send,
    ) -> Result<()> {
        let address = Self::member(state, run.group, send.to)?;
        let connection = match self.way_to(live, state, address) {
            // It may be stopped, which is no reason to give up.
            Err(FiError::TIMEDOUT) => return Err(FiError::AGAIN),
            way => way?,
        };
        if state.operations.len() >= OPERATIONS_MAX {
            return Err(FiError::AGAIN);
        }
        Self::check_room(state, connection, 1)?;
        let it = state.collective.as_mut();
        let group = it.and_then(|it| it.group(run.group));
        let name = group.ok_or(FiError::SHUTDOWN)?.name;
        let bytes = &run.work[run.bytes(&send.blocks)];
        let header = Header {
            confirm: true,
            tag: name.members,
            data: u64::from(name.instance) << 32 | u64::from(run.seq),
            len: bytes.len() as u32,
            ..Header::new(HeaderKind::Chunk {
                signature: run.signature,
            })
        };
        let piece = |bytes: &[u8]| {
            [iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            }]
        };
        let operation = carrying(run.number, connection, None, Hold::Nothing);
        if bytes.len() <= EAGER_MAX {
            let iov = piece(bytes);
            return self.send_with_payload(state, &iov, Sges::new(), header, operation, true);
        }
        let mut copy = zeroed(bytes.len())?.into_boxed_slice();
        copy.copy_from_slice(bytes);
        let iov = piece(&copy);
        self.rendezvous(state, &iov, &[], copy, header, operation)
    }

    /// Looks for the chunk that a run waits for: its bytes, if they are here.
    pub(super) fn take_chunk(
        &self,
        live: &Live,
        state: &mut State,
        run: &mut Run,
        receive: &Receive,
    ) -> Result<Option<Box<[u8]>>> {
        if let Some(bytes) = run.fetched.take() {
            return Ok(Some(bytes));
        }
        if run.fetching {
            return Ok(None);
        }
        let Some(it) = &mut state.collective else {
            return Err(FiError::SHUTDOWN);
        };
        let group = it.group(run.group).ok_or(FiError::SHUTDOWN)?;
        let key = Key {
            from: group.members[receive.from].address,
            group: group.name,
            seq: run.seq,
        };
        let Some(chunk) = it.inbox.look(&key) else {
            let address = Self::member(state, run.group, receive.from)?;
            return match self.way_to(live, state, address) {
                Ok(_) | Err(FiError::AGAIN | FiError::TIMEDOUT) => Ok(None),
                Err(error) => Err(error),
            };
        };
        let wanted = run.bytes(&receive.blocks).len();
        let len = match &chunk.body {
            Body::Here(bytes) => bytes.len(),
            Body::There { len, .. } => *len as usize,
            Body::Left(_) => 0,
        };
        if chunk.signature != run.signature || len != wanted {
            tracing::warn!(
                "member {} of a collective group called another operation, or with other arguments",
                receive.from
            );
            return Err(FiError::INVAL);
        }
        let connection = chunk.connection;
        let there = matches!(chunk.body, Body::There { .. });
        if there
            && (state.operations.len() >= OPERATIONS_MAX
                || Self::check_room(state, connection, 1).is_err())
        {
            return Ok(None);
        }
        let it = state.collective.as_mut();
        let Some(chunk) = it.and_then(|it| it.inbox.take(&key)) else {
            return Ok(None);
        };
        match chunk.body {
            Body::Here(bytes) => {
                self.answer_chunk(state, connection, chunk.id);
                Ok(Some(bytes.into_boxed_slice()))
            }
            Body::There { key, .. } => {
                self.fetch_chunk(state, run, connection, chunk.id, key, wanted)?;
                run.fetching = true;
                Ok(None)
            }
            Body::Left(_) => Ok(None),
        }
    }

    /// Starts to read a chunk from its sender's memory.
    fn fetch_chunk(
        &self,
        state: &mut State,
        run: &Run,
        connection: usize,
        chunk: u64,
        key: u32,
        len: usize,
    ) -> Result<()> {
        let bytes = zeroed(len)?.into_boxed_slice();
        let sge = Sge {
            addr: bytes.as_ptr() as u64,
            len: len as u32,
            key: self.group.everything(),
        };
        let operation = carrying(run.number, connection, Some(chunk), Hold::Bytes(bytes));
        let id = self.begin(state, operation);
        let key = WireKey::Device(DeviceKey(key));
        let read = Work::Read {
            remote: Target { addr: 0, key },
        };
        self.post(
            state,
            connection,
            read,
            &[sge],
            None,
            SendFlags::empty(),
            id,
        )
        .inspect_err(|_| drop(state.forget(id)))
    }

    /// Tells a member that we have its chunk.
    fn answer_chunk(&self, state: &mut State, connection: usize, id: u64) {
        if !state.connections[connection].state().is_lost() {
            let done = Header {
                id,
                ..Header::new(HeaderKind::Fin)
            };
            self.say(state, connection, &done, &[]);
        }
    }

    /// A chunk of ours has been answered, or one of a peer is read.
    #[cold]
    pub(in crate::ep) fn chunk_over(&self, state: &mut State, operation: Operation) {
        let What::Chunk { run, taken } = operation.what else {
            return;
        };
        if let Some(id) = taken {
            self.answer_chunk(state, operation.connection, id);
        }
        let fetched = match operation.hold {
            Hold::Bytes(bytes) if taken.is_some() => Some(bytes),
            _ => None,
        };
        if let Some(it) = &mut state.collective {
            it.finished.push(Finished {
                run,
                fetched,
                error: operation.error.map(|trouble| trouble.0),
            });
        }
    }

    /// A chunk has come.
    #[cold]
    pub(in crate::ep) fn chunk_arrived(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        header: &Header,
        payload: &[u8],
    ) {
        if self.check_collective().is_err() {
            let why = "it speaks of collective operations to an endpoint without them";
            return self.cut_off(live, state, connection, why);
        }
        if state.connections[connection].state().is_lost() {
            return;
        }
        let from = state.connections[connection].peer;
        let (signature, body) = match header.kind {
            HeaderKind::Chunk { signature } => (signature, Body::Here(payload.to_vec())),
            HeaderKind::ChunkRts { signature, key } => {
                let len = header.len;
                (signature, Body::There { key, len })
            }
            _ => return self.heard_leave(live, state, connection, header),
        };
        let (name, seq) = named(header);
        let it = state.collective.get_or_insert_default();
        let was = it.was(name);
        match it.named(name) {
            Some(group) => match (group.rank_of(from), group.broken) {
                (None, _) => {
                    let why = "it speaks to a collective group that it is no member of";
                    return self.cut_off(live, state, connection, why);
                }
                (Some(_), Some(error)) => {
                    return self.refuse_chunk(state, connection, name, error);
                }
                (Some(_), None) => {}
            },
            None if was => return self.refuse_chunk(state, connection, name, FiError::SHUTDOWN),
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
        self.keep_chunk(live, state, key, chunk);
    }

    /// Keeps a chunk until somebody asks for it.
    pub(super) fn keep_chunk(
        &self,
        live: &Live,
        state: &mut State,
        key: Key,
        chunk: Chunk,
    ) {
        let connection = chunk.connection;
        let it = state.collective.get_or_insert_default();
        if !it.inbox.keep(key, chunk) {
            self.exceeded(live, state, connection);
        }
    }

    /// Tells members what they are to be told, as far as there is a way. Who waits for a chunk of ours has connected to
    /// us; the others get to know it as the answer to their chunks.
    pub(super) fn tell_members(&self, state: &mut State) {
        let telling = match &mut state.collective {
            Some(it) if !it.telling.is_empty() => std::mem::take(&mut it.telling),
            _ => return,
        };
        for (address, header) in telling {
            let Some(peer) = state.peers.find(address) else {
                continue;
            };
            match state.peers[peer].way {
                Way::Open(connection) => self.say(state, connection, &header, &[]),
                Way::Coming => {
                    if let Some(it) = &mut state.collective {
                        it.telling.push((address, header));
                    }
                }
                Way::None => {}
            }
        }
    }
}

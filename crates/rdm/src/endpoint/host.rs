//! What an endpoint runs on and reports to: the trait that a front end or a simulation implements.
//!
//! The endpoint is borrowed during all calls: the host must not use it in them, and must not wait.

use super::{Connection, Pool};
use crate::address::Destination;
use crate::error::{Error, Failure, Result};
use crate::header::{self, Atomic, Header};
use crate::operation_id::Plain;
use core::net::SocketAddr;
use rkey_core::{Denial, DomainId, LKey, LocalUse};
use rkey_engine::{Completion, SendRequest, Sge};

/// What an endpoint runs on and reports to.
pub trait Host: Sized {
    /// A queue pair. Clones are the same queue pair.
    type Qp: Clone;
    /// The host's identity of a peer.
    type Identity;
    /// Identifies a caller that must retry.
    type Caller: Copy + PartialEq;
    /// The host's data for an operation of the program: for example, its completion.
    type Operation;
    /// The host's data for a receive of the program.
    type Receive;
    /// The host's data for a message that has matched its receive.
    type Matched;
    /// A payload that a peer may read: the sender's side of a rendezvous.
    type Exposed;
    /// The host's data for a collective group of the program.
    type Group;

    // ---- Queue pairs.

    /// Posts a request to the send queue.
    ///
    /// # Errors
    /// The device's error.
    fn post(&self, qp: &Self::Qp, request: &SendRequest<'_>) -> Result<()>;
    /// Posts a message at once: its header, then the bytes of `sge`. Returns false, with nothing changed, if that is not
    /// possible now; then [`Host::post`] decides.
    fn post_short(&self, qp: &Self::Qp, id: u64, header: &[u8; header::LEN], sge: Sge) -> bool;
    /// The number of a queue pair.
    fn qpn(&self, qp: &Self::Qp) -> u32;
    /// Whether a queue pair can send.
    fn is_ready(&self, qp: &Self::Qp) -> bool;
    /// Whether a queue pair has failed.
    fn is_broken(&self, qp: &Self::Qp) -> bool;
    /// Puts a queue pair into the error state.
    fn end(&self, qp: &Self::Qp);
    /// Whether no peer accesses memory through a queue pair that has failed.
    fn is_quiet(&self, qp: &Self::Qp) -> bool;
    /// Cuts the link of a queue pair whose peer has kept memory for too long.
    fn cut_off(&self, qp: &Self::Qp);
    /// Starts to connect to a peer, identified by its index in [`Endpoint::peers`](super::Endpoint). The host reports the
    /// result to the endpoint.
    ///
    /// # Errors
    /// Why the host could not start to connect.
    fn connect(&self, peer: usize, to: Destination) -> Result<()>;

    // ---- Memory.

    /// The protection domain of the endpoint.
    fn domain(&self) -> DomainId;
    /// The local key of all memory, for buffers of the endpoint and for memory that the program names without a region.
    fn everything(&self) -> LKey;
    /// Copies bytes to the program's local memory.
    ///
    /// # Errors
    /// [`Error::Fault`], [`Error::Denied`].
    fn store(&self, sges: &[Sge], bytes: &[u8], usage: LocalUse) -> Result<()>;
    /// Lets peers read these bytes; returns the key for them.
    ///
    /// # Errors
    /// No region can be registered.
    fn expose(&self, bytes: Box<[u8]>) -> Result<(Self::Exposed, u32)>;
    /// Called when the RTS has been posted. The host checks the memory's rights again: if the region was deregistered
    /// since `expose`, the key is revoked.
    fn rts_posted(&self, exposed: &Self::Exposed);
    /// Revokes a key, without waiting, if no peer is using it; returns whether the key is revoked.
    fn try_withdraw(&self, exposed: &Self::Exposed) -> bool;
    /// Revokes a key that is no longer in use by any peer.
    fn withdraw(&self, exposed: &Self::Exposed);
    /// Executes a peer's atomic. Returns the old values, if it requests them.
    ///
    /// # Errors
    /// The error for the peer.
    fn execute(&self, from: &Connection<Self>, it: &Atomic, payload: &[u8]) -> Result<Vec<u8>>;
    /// Makes a peer's writes durable.
    ///
    /// # Errors
    /// The error for the peer.
    fn commit(&self, from: &Connection<Self>, payload: &[u8]) -> Result<()>;

    // ---- Operations of the program.

    /// The plain operation that is equivalent to an operation, if there is one.
    fn plain(operation: &Self::Operation) -> Option<Plain>;
    /// The host's data for an operation that is equivalent to a plain one.
    fn of_plain(plain: Plain) -> Self::Operation;
    /// Reports that a plain operation has succeeded.
    fn completed_plain(&self, plain: Plain);
    /// Reports that an operation is complete, and that the program owns its memory again.
    fn completed(&self, operation: Self::Operation, failure: Option<Box<Failure>>);
    /// Why a request failed.
    fn why(&self, completion: &Completion, to: &Connection<Self>) -> Failure;

    // ---- Receives of the program.

    /// Calls `with` with exclusive access to the receives that this endpoint shares with others; `None` if it shares
    /// none.
    fn shared<T>(&self, with: impl FnOnce(&mut Pool<Self>) -> T) -> Option<T>;
    /// How many shared receives were ever posted. `None` if the endpoint has its own receives. Called often, so it
    /// should be cheap.
    fn shared_posts(&self) -> Option<u64>;
    /// A receive for several messages takes another one only while it has at least this much room, in bytes.
    fn least_room(&self) -> usize;
    /// Called when a message with this header from this sender matched a receive, at this offset of its memory. `stays`
    /// says that the receive takes several messages.
    fn matched(
        &self,
        receive: &mut Self::Receive,
        offset: usize,
        stays: bool,
        source: &SocketAddr,
        header: &Header,
    ) -> Self::Matched;
    /// Reports that a receive, or one of its messages, is complete.
    fn received(&self, matched: Self::Matched, how: ReceiveOutcome);
    /// Reports that a receive for one message is complete, with a whole message in its memory: [`Host::matched`] and
    /// [`Host::received`] in one call.
    #[inline]
    fn received_whole(&self, receive: &mut Self::Receive, source: &SocketAddr, header: &Header) {
        let matched = self.matched(receive, 0, false, source, header);
        let how = ReceiveOutcome {
            len: header.len as usize,
            overflow: 0,
            error: None,
            last: false,
        };
        self.received(matched, how);
    }
    /// Reports that a receive was canceled. `stays` says that the receive takes several messages.
    fn canceled(&self, receive: Self::Receive, tagged: bool, stays: bool);
    /// Reports that a peer has written `len` bytes with this data.
    fn written(&self, len: u32, data: u64);
    /// Whether answers to peers must wait because the program does not read its completions.
    fn holds_answers_back(&self) -> bool;

    // ---- Collective groups.

    /// Whether the endpoint takes part in collective operations.
    fn has_collectives(&self) -> bool;
    /// Reports that all members have joined a group, or why it cannot be joined.
    fn joined(&self, group: &Self::Group, result: Result<()>);

    // ---- The rest.

    /// Called when requests wait for room on a connection: the host should drive the endpoint's progress until none
    /// waits, even while the program does not poll. Returns whether it will.
    fn watch_backlog(&self) -> bool;
    /// Reports that the connection of a connected endpoint has ended.
    fn shut(&self);
    /// Logs a denial of local memory.
    fn refused(&self, denial: &Denial);
    /// Logs an event.
    fn note(&self, note: Note<'_>);
}

/// The outcome of a receive for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveOutcome {
    /// How many bytes were received.
    pub len: usize,
    /// How many bytes did not fit.
    pub overflow: usize,
    /// Why the receive failed, if it did.
    pub error: Option<Error>,
    /// Whether the message is the last one of a receive for several messages.
    pub last: bool,
}

/// An event for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note<'a> {
    /// A peer violated the protocol and loses its connection.
    Violation {
        /// The peer.
        peer: SocketAddr,
        /// What the peer did.
        why: &'a str,
    },
    /// A connection is lost.
    Lost {
        /// The peer.
        peer: SocketAddr,
        /// How many operations the connection had in flight.
        open: usize,
    },
    /// A member of a collective group has left or ended, and an operation waits for it.
    MemberGone(SocketAddr),
    /// A member of a collective group, by rank, called another operation, or used other arguments.
    OtherCall(usize),
    /// A collective group has failed.
    GroupBroken {
        /// How many members the group has.
        members: usize,
        /// Why.
        error: Error,
    },
}

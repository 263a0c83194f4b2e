//! What an endpoint runs on, and whom it tells: the one trait that a front end, or a simulation, implements.
//!
//! All calls are made with the endpoint borrowed. The host must not use the endpoint in them, and must not wait.

use super::{Connection, Pool};
use crate::error::{Error, Failure, Result};
use crate::header::{Atomic, Header};
use crate::operation::Plain;
use core::net::SocketAddr;
use rkey_core::{Denial, DomainId, LocalKey, LocalUse};
use rkey_engine::{Completion, SendRequest, Sge};

/// What an endpoint runs on, and whom it tells.
pub trait Host: Sized {
    /// A queue pair. Clones are the same queue pair.
    type Qp: Clone;
    /// Who a peer is to the host.
    type Identity;
    /// Names a caller that was asked to call again.
    type Caller: Copy + PartialEq;
    /// What belongs to an operation of the program: its completion, for example.
    type Operation;
    /// What belongs to a receive of the program.
    type Receive;
    /// What belongs to a message that has found its receive.
    type Landing;
    /// A payload that a peer may read: the sender's side of a rendezvous.
    type Exposed;
    /// What belongs to a collective group of the program.
    type Group;

    // ---- Queue pairs.

    /// Posts a request to the send queue.
    ///
    /// # Errors
    /// What the device says.
    fn post(&self, qp: &Self::Qp, request: &SendRequest<'_>) -> Result<()>;
    /// The number of a queue pair.
    fn qpn(&self, qp: &Self::Qp) -> u32;
    /// Whether a queue pair can send.
    fn is_ready(&self, qp: &Self::Qp) -> bool;
    /// Whether a queue pair has failed.
    fn is_broken(&self, qp: &Self::Qp) -> bool;
    /// Puts a queue pair into the error state.
    fn end(&self, qp: &Self::Qp);
    /// Whether no peer touches memory through a queue pair that has failed.
    fn is_quiet(&self, qp: &Self::Qp) -> bool;
    /// Cuts the link of a queue pair whose peer has kept memory for too long.
    fn cut_off(&self, qp: &Self::Qp);
    /// Begins to connect to a peer, by its place among the peers. The host tells the endpoint how that went.
    ///
    /// # Errors
    /// Why it could not begin.
    fn connect(&self, peer: usize, address: SocketAddr) -> Result<()>;

    // ---- Memory.

    /// The protection domain of the endpoint.
    fn domain(&self) -> DomainId;
    /// The local key of all memory, for buffers of the endpoint and for what the program names without a region.
    fn everything(&self) -> LocalKey;
    /// Copies bytes to local memory of the program.
    ///
    /// # Errors
    /// [`Error::Fault`], [`Error::Denied`].
    fn store(&self, sges: &[Sge], bytes: &[u8], usage: LocalUse) -> Result<()>;
    /// Lets peers read bytes of our own. The key by which they do.
    ///
    /// # Errors
    /// There is no room for another region.
    fn expose(&self, bytes: Box<[u8]>) -> Result<(Self::Exposed, u32)>;
    /// The RTS is posted. The host checks the memory's rights once more: a region closed since `expose` ends the key.
    fn rts_posted(&self, exposed: &Self::Exposed);
    /// Ends a key if no peer uses it at this moment, without waiting; whether it has ended.
    fn try_withdraw(&self, exposed: &Self::Exposed) -> bool;
    /// Ends a key that no peer has, or has any more.
    fn withdraw(&self, exposed: &Self::Exposed);
    /// An atomic of a peer: carries it out. The old values, if it asks for them.
    ///
    /// # Errors
    /// What the peer is told.
    fn execute(&self, from: &Connection<Self>, it: &Atomic, payload: &[u8]) -> Result<Vec<u8>>;
    /// Makes durable what a peer wrote.
    ///
    /// # Errors
    /// What the peer is told.
    fn commit(&self, from: &Connection<Self>, payload: &[u8]) -> Result<()>;

    // ---- Operations of the program.

    /// The plain operation that an operation amounts to, if it does.
    fn plain(operation: &Self::Operation) -> Option<Plain>;
    /// A plain operation in the long form.
    fn of_plain(plain: Plain) -> Self::Operation;
    /// A plain operation has succeeded.
    fn completed_plain(&self, plain: Plain);
    /// An operation is complete, and its memory the program's.
    fn completed(&self, operation: Self::Operation, failure: Option<Box<Failure>>);
    /// Why a request failed.
    fn why(&self, completion: &Completion, to: &Connection<Self>) -> Failure;

    // ---- Receives of the program.

    /// The receives that this endpoint shares with others, if it does. Calls `with` while nobody else uses them.
    fn shared<T>(&self, with: impl FnOnce(&mut Pool<Self>) -> T) -> Option<T>;
    /// How many receives were ever posted to the shared ones: a look that costs little. `None` if the endpoint has
    /// receives of its own.
    fn shared_posts(&self) -> Option<u64>;
    /// A receive takes more messages while it has so much room.
    fn least_room(&self) -> usize;
    /// A message of this header from this sender goes to a receive, so many bytes after its beginning. `stays` says
    /// that the receive is one for several messages.
    fn landing(
        &self,
        receive: &mut Self::Receive,
        offset: usize,
        stays: bool,
        source: &SocketAddr,
        header: &Header,
    ) -> Self::Landing;
    /// A receive is complete, or one message of it.
    fn received(&self, landing: Self::Landing, how: Arrived);
    /// A receive was taken back. `stays` as above.
    fn canceled(&self, receive: Self::Receive, tagged: bool, stays: bool);
    /// A peer has written so many bytes, and these data came with them.
    fn written(&self, len: u32, data: u64);
    /// Whether peers have to wait for answers because the program does not read its completions.
    fn holds_answers_back(&self) -> bool;

    // ---- Collective groups.

    /// Whether the endpoint takes part in collective operations.
    fn has_collectives(&self) -> bool;
    /// All members have joined a group, or why they will not.
    fn joined(&self, group: &Self::Group, result: Result<()>);

    // ---- The rest.

    /// Something waits for room on a connection: the host lets the endpoint make progress until nothing does, also
    /// while the program does not look. Whether it will.
    fn watch_backlog(&self) -> bool;
    /// The connection of a connected endpoint has ended.
    fn shut(&self);
    /// A denial of local memory, for people.
    fn refused(&self, denial: &Denial);
    /// Something worth a line in a log.
    fn note(&self, note: Note<'_>);
}

/// How a message arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Bytes that were received.
    pub len: usize,
    /// Bytes that did not fit.
    pub overflow: usize,
    /// Why it failed, if it did.
    pub error: Option<Error>,
    /// It is the last message of a receive for several.
    pub last: bool,
}

/// Something worth a line in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note<'a> {
    /// A peer violated the protocol and loses its connection.
    Violation {
        /// The peer.
        peer: SocketAddr,
        /// What it did.
        why: &'a str,
    },
    /// A connection is lost.
    Lost {
        /// The peer.
        peer: SocketAddr,
        /// Operations that it had under way.
        open: usize,
    },
    /// A member of a collective group is gone, and something waits for it.
    MemberGone(SocketAddr),
    /// A member of a collective group, by rank, called another operation, or with other arguments.
    OtherCall(usize),
    /// A collective group cannot go on.
    GroupBroken {
        /// How many members it has.
        members: usize,
        /// Why.
        error: Error,
    },
}

//! Endpoints: reliable datagrams (`FI_EP_RDM`), connections (`FI_EP_MSG`), datagrams (`FI_EP_DGRAM`).
//!
//! Every endpoint stands on reliable queue pairs of the device, one or two for each peer. RMA goes to the
//! peer's memory straight, carried out by its device while its program does anything else. Messages land in
//! buffers of the endpoint and are matched with receives when the program (or a thread, with automatic
//! progress) looks at its completion queue; long ones are announced, and read from the sender's memory
//! when a receive matches.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`object`], [`options`] | the handle: bindings, enabling, names, options, closing |
//! | [`connection`] | peers, and connections to them on demand; what is posted to one |
//! | [`burial`] | connections that are over: what they leave, and when their place is free |
//! | [`credit`] | how much a peer may send that nobody has asked for |
//! | [`header`] | what endpoints say to each other |
//! | [`matching`] | which receive a message goes to |
//! | [`operation`] | operations that are under way |
//! | [`condemned`] | operations that are over, with memory that a peer may still touch |
//! | [`send`], [`receive`], [`payload`], [`look`] | messages out; messages in, where they go, looking for them |
//! | [`shared`] | receives that several endpoints share |
//! | [`progress`] | completions of the device, and what follows from them |
//! | [`msg`], [`tagged`], [`rma`], [`atomic`] | the calls; [`calls`] is what the first two have in common |
//! | [`collective`] | operations of groups of endpoints |
//! | [`deferred`] | operations that are started later |
//! | [`commit`] | writes that are to be durable |
//! | [`connect`] | connection management of `FI_EP_MSG` |

pub(crate) mod atomic;
mod burial;
mod calls;
pub(crate) mod collective;
mod commit;
mod condemned;
pub(crate) mod connect;
pub(crate) mod connection;
mod credit;
pub(crate) mod deferred;
pub(crate) mod foreign;
mod header;
mod look;
mod matching;
mod msg;
pub(crate) mod object;
mod operation;
mod options;
mod order;
mod payload;
mod progress;
mod receive;
mod rma;
mod send;
pub(crate) mod shared;
mod tagged;

use crate::av::{AuthKey, Av};
use crate::cm::Serving;
use crate::cntr::{Counter, Remote};
use crate::cq::Cq;
use crate::domain::{Domain, Group};
use crate::eq::Eq;
use crate::errno::{FiError, Result};
use crate::sys::*;
use burial::Burial;
use condemned::Condemned;
use connection::{Connection, Peer};
use header::Header;
use matching::Matching;
use operation::{Operation, Operations};
use order::{Arrival, InOrder};
use parking_lot::Mutex;
use receive::{Kept, Receive};
use rkey_device::engine::{Completion, Sge};
use rkey_device::{Channel, Srq};
use shared::Srx;
use std::collections::HashMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Payloads up to this length travel with their message.
pub(crate) const EAGER_MAX: usize = 8192;
/// Buffers for messages that arrive.
const BUFFERS: u32 = 256;
/// Bytes of one: the longest message with its header.
const BUFFER_LEN: usize = EAGER_MAX + header::MAX_LEN;
/// Requests that one connection can have under way.
const SENDS: u32 = 256;
/// So many of them are kept for answers.
const RESERVE: u32 = 32;
/// Payload and header up to this length are copied into the request.
const INLINE_MAX: usize = 512;
/// After so many looks in vain the peers are looked after.
const LOOK_AFTER: u32 = 1024;
/// The least room for another message in a buffer for several, until the program says another.
const MIN_MULTI_RECV: usize = 64;
/// Operations that an endpoint may have under way.
const OPERATIONS_MAX: usize = 4096;
/// Answers that may wait for room on one connection: no peer that keeps the rules needs so many.
const ANSWERS_MAX: usize = 4 * OPERATIONS_MAX;
/// Datagrams that are kept for a receive; more are dropped.
const DATAGRAMS_MAX: usize = 1024;

/// An endpoint.
pub(crate) struct Endpoint {
    pub(crate) domain: Arc<Domain>,
    pub(crate) group: EpGroup,
    /// By which regions that serve one endpoint know it.
    pub(crate) number: u32,
    pub(crate) ep_type: c_int,
    /// Its receives are in a shared context.
    shares: bool,
    pub(crate) caps: u64,
    /// Flags of transfers whose call has none.
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    /// The handle, for events.
    pub(crate) handle: AtomicUsize,
    setup: Mutex<Setup>,
    live: OnceLock<Live>,
    min_multi_recv: AtomicUsize,
    /// Somebody closes it: its thread ends.
    closing: AtomicBool,
}

/// The group of an endpoint: that of its own authorization key or of its domain's, or the one of the key that
/// it finds in its address vector when it is enabled.
pub(crate) struct EpGroup {
    own: Arc<Group>,
    found: OnceLock<Arc<Group>>,
}

impl std::ops::Deref for EpGroup {
    type Target = Group;

    #[inline]
    fn deref(&self) -> &Group {
        self.found.get().unwrap_or(&self.own)
    }
}

/// What is bound before the endpoint is enabled.
#[derive(Default)]
struct Setup {
    tx: Option<Side>,
    rx: Option<Side>,
    srx: Option<Arc<Srx>>,
    av: Option<Arc<Av>>,
    eq: Option<Arc<Eq>>,
    counters: [Option<Arc<Counter>>; COUNTERS],
    /// Of what peers do: reads, writes.
    remote: [Option<Arc<Counter>>; 2],
    source: Option<SocketAddr>,
    /// The key that it has from its address vector.
    auth_key: Option<Arc<AuthKey>>,
    /// The request of a peer that it was made for.
    request: Option<connect::Request>,
    enabled: bool,
}

/// The places of counters: FI_SEND, FI_RECV, FI_READ, FI_WRITE.
const COUNTERS: usize = 4;
const SENT: usize = 0;
const RECEIVED: usize = 1;
const READ: usize = 2;
const WRITTEN: usize = 3;

/// The places of counters of what peers do: FI_REMOTE_READ, FI_REMOTE_WRITE.
const REMOTE: [(u64, Remote); 2] = [
    (FI_REMOTE_READ, Remote::Reads),
    (FI_REMOTE_WRITE, Remote::Writes),
];

/// A completion queue in its role.
#[derive(Clone)]
struct Side {
    cq: Arc<Cq>,
    /// Only operations that ask for it are reported.
    selective: bool,
}

/// What an enabled endpoint has.
struct Live {
    /// For threads of its own.
    this: std::sync::Weak<Endpoint>,
    tx: Option<Side>,
    rx: Option<Side>,
    /// Where its receives are, if they are shared.
    srx: Option<Arc<Srx>>,
    av: Option<Arc<Av>>,
    eq: Option<Arc<Eq>>,
    counters: [Option<Arc<Counter>>; COUNTERS],
    remote: [Option<Arc<Counter>>; 2],
    cq: rkey_device::Cq,
    channel: Option<Channel>,
    srq: Srq,
    buffers: Buffers,
    /// Where peers find it.
    name: Mutex<SocketAddr>,
    serving: Mutex<Option<Serving>>,
    state: Mutex<State>,
}

/// What changes about an endpoint.
#[derive(Default)]
struct State {
    peers: Vec<Peer>,
    by_address: HashMap<SocketAddr, usize>,
    /// Peers by their number in the address vector, plus one.
    by_number: Vec<u32>,
    /// Removals from the address vector that `by_number` knows of.
    removals: u64,
    /// Places of peers that were forgotten.
    free_peers: Vec<usize>,
    connections: Vec<Connection>,
    burial: Burial,
    /// Peers are to get something back when the completion queue has room: credit, and answers.
    owing: bool,
    owed: Vec<(usize, Header)>,
    by_qpn: HashMap<u32, usize>,
    operations: Operations,
    /// What a connected endpoint still has to tell of its own transfers, and of what arrived.
    sends: InOrder<Operation>,
    arrivals: InOrder<Arrival>,
    condemned: Condemned,
    /// There are groups, or a peer has spoken of one.
    collective: Option<Box<collective::Collective>>,
    messages: Matching<SocketAddr, Receive, Kept>,
    tagged: Matching<SocketAddr, Receive, Kept>,
    /// How many receives the shared context had when the messages that wait were last offered to it.
    settled: u64,
    /// Messages that were claimed, by the context that claimed them.
    claimed: HashMap<usize, (SocketAddr, u64, Kept)>,
    completions: Vec<Completion>,
    /// The connection of a connected endpoint ended.
    shut: bool,
    /// Looks in vain since something happened.
    idle: u32,
}

impl State {
    /// Receives and messages with tags, or without.
    fn queue(&mut self, tagged: bool) -> &mut Matching<SocketAddr, Receive, Kept> {
        match tagged {
            true => &mut self.tagged,
            false => &mut self.messages,
        }
    }

    /// An operation that could not begin: nobody is told.
    fn forget(&mut self, id: u64) -> Option<Operation> {
        let operation = self.operations.take(id)?;
        if let Some(turn) = operation.turn {
            self.sends.abandon(turn);
        }
        Some(operation)
    }
}

/// Where a message goes.
pub(crate) struct Landing {
    sges: Vec<Sge>,
    /// Bytes that there is room for.
    room: usize,
    entry: crate::cq::Entry,
    report: bool,
    /// It is of deferred work.
    deferred: Option<deferred::Deferred>,
    /// Other messages go to the same buffer.
    shared: Option<Arc<receive::Shared>>,
    /// Its place in the order in which completions are told, if there is one.
    turn: Option<u64>,
}

#[allow(unsafe_code)]
// UNSAFETY: memory that the device writes to and that is read by address.
mod buffers {
    use super::*;

    /// The buffers for messages that arrive.
    pub(super) struct Buffers {
        start: *mut u8,
    }

    // SAFETY: the memory is only read through `read`, whose callers have a buffer to themselves.
    unsafe impl Send for Buffers {}
    // SAFETY: as above.
    unsafe impl Sync for Buffers {}

    impl Buffers {
        pub(super) fn new() -> Self {
            let bytes = vec![0u8; BUFFERS as usize * BUFFER_LEN].into_boxed_slice();
            Self {
                start: Box::into_raw(bytes).cast(),
            }
        }

        /// The address of a buffer.
        pub(super) fn address(&self, index: u32) -> u64 {
            (self.start as usize + (index % BUFFERS) as usize * BUFFER_LEN) as u64
        }

        /// The first bytes of a buffer.
        ///
        /// # Safety
        /// The device has completed the receive into it, and it is not posted again while the result is used.
        pub(super) unsafe fn read(&self, index: u32, len: usize) -> &[u8] {
            let len = len.min(BUFFER_LEN);
            // SAFETY: inside of the allocation; nobody writes to it meanwhile, as the caller promises.
            unsafe { std::slice::from_raw_parts(self.address(index) as *const u8, len) }
        }
    }

    impl Drop for Buffers {
        fn drop(&mut self) {
            let bytes =
                std::ptr::slice_from_raw_parts_mut(self.start, BUFFERS as usize * BUFFER_LEN);
            // SAFETY: the allocation of `new`, which nobody uses any more: the queue of receives went before.
            drop(unsafe { Box::from_raw(bytes) });
        }
    }
}
use buffers::Buffers;

/// Whether capabilities have every one that something needs.
fn check_caps(there: u64, needed: u64) -> Result<()> {
    if there & needed == needed {
        return Ok(());
    }
    tracing::info!(
        "the endpoint was made without the capabilities {:#x}",
        needed & !there
    );
    Err(FiError::OPNOTSUPP)
}

impl Endpoint {
    fn live(&self) -> Result<&Live> {
        self.live.get().ok_or(FiError::OPBADSTATE)
    }

    /// Whether it has every one of these capabilities; an endpoint whose information said none has all.
    fn check_caps(&self, caps: u64) -> Result<()> {
        check_caps(self.caps, caps)
    }

    /// Does what there is to do: completions of the device, messages that arrived.
    pub(crate) fn progress(&self) {
        let Some(live) = self.live.get() else { return };
        // Whoever holds the lock makes progress, or will in a moment.
        let Some(mut state) = live.state.try_lock() else {
            return;
        };
        self.advance(live, &mut state);
    }

    /// Asks for the descriptor to become readable when there is something to do.
    pub(crate) fn arm(&self) -> Result<()> {
        let Some(live) = self.live.get() else {
            return Ok(());
        };
        if let Some(channel) = &live.channel {
            while channel.try_next_event()?.is_some() {}
            live.cq.req_notify(false)?;
        }
        // No descriptor tells that a peer has let go of memory, or that a member of a group is gone.
        let state = live.state.lock();
        let together = state.collective.as_ref();
        if !state.condemned.is_empty() || together.is_some_and(|it| !it.is_idle()) {
            return Err(FiError::AGAIN);
        }
        Ok(())
    }

    /// The descriptor of [`Endpoint::arm`].
    fn fd(&self) -> Option<RawFd> {
        let live = self.live.get()?;
        live.channel
            .as_ref()
            .map(|channel| channel.fd().as_raw_fd())
    }

    /// The thread of automatic progress: waits for something to do, and does it.
    fn run(self: Arc<Self>) {
        let time = std::time::Duration::from_millis(50);
        while !self.closing.load(Ordering::Acquire) {
            let Some(live) = self.live.get() else { return };
            if live.cq.wait(Some(time)).is_err() {
                return;
            }
            {
                let mut state = live.state.lock();
                if self.closing.load(Ordering::Acquire) {
                    return;
                }
                self.advance(live, &mut state);
            }
            self.domain.work.run();
        }
    }
}

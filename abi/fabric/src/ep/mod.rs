//! Endpoints: reliable datagrams (`FI_EP_RDM`), connections (`FI_EP_MSG`), datagrams (`FI_EP_DGRAM`).
//!
//! Every endpoint uses reliable queue pairs of the device, one or two for each peer. The peer's device executes RMA,
//! regardless of what its program does. Messages are matched when the program (or a thread, with automatic progress)
//! reads its completion queue. A short message that this thread takes from the ring is copied from there to its receive.
//! Other messages pass through buffers of the endpoint: those that another thread takes, such as the engine thread, those
//! for a shared receive context, and those that need an answer. For a long message the sender sends only an RTS
//! (rendezvous), and the receiver reads the payload from the sender's memory when a receive matches.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`object`], [`binding`], [`name`], [`options`], [`flags`] | the handle, and the settings made through it |
//! | [`life`] | enabling and closing |
//! | [`host`] | the host of the state machine ([`rkey_rdm::endpoint`]): the device, and the program's objects |
//! | [`backlog`] | progress for peers while the program does not poll |
//! | [`peer_connection`] | the connection to a peer of the address vector |
//! | [`report`] | reports to the program about its operations |
//! | [`room`] | room for requests of the program |
//! | [`send`], [`receive`], [`peek`] | sending, receiving and peeking at messages |
//! | [`short`] | the express lane: short messages and receives with one buffer |
//! | [`payload`] | copies from and to the program's memory |
//! | [`shared`], [`stx`] | shared receive contexts and shared transmit contexts |
//! | [`scalable`], [`context`] | scalable endpoints and their contexts |
//! | [`driven`], [`wake`] | what queues call on an endpoint; what wakes a waiting program |
//! | [`rma`], [`atomic`], [`datatype`] | one-sided operations, and the types of atomics |
//! | [`collective`], [`group`] | collective operations and groups |
//! | [`caps`] | the capabilities that calls require |
//! | [`commit`] | durable writes |
//! | [`describe`] | what is in flight, for inspection |
//! | [`connect`] | connection management of `FI_EP_MSG` |
//! | [`peer_messages`] | messages of peers, for fuzz targets and tests |
//! | [`tables`] | on top of these: the function tables, and the calls of transfers |

mod atomic;
mod backlog;
mod binding;
mod caps;
mod collective;
mod commit;
mod connect;
mod context;
pub(crate) mod datatype;
mod describe;
mod driven;
mod flags;
mod group;
mod host;
mod life;
mod name;
pub(crate) mod object;
mod options;
mod payload;
mod peek;
mod peer_connection;
pub(crate) mod peer_messages;
mod receive;
mod report;
mod rma;
mod room;
pub(crate) mod scalable;
mod send;
pub(crate) mod shared;
mod short;
pub(crate) mod stx;
pub(crate) mod tables;
mod wake;

use crate::av::{AuthKey, Av};
use crate::cntr::{Counter, Remote};
use crate::connect_request::Request;
use crate::cq::Cq;
use crate::domain::{Domain, ProtectionDomain};
use crate::eq::Eq;
use crate::errno::{FiError, Result};
use crate::local_address::LocalAddress;
use crate::object::Users;
use crate::sys::*;
use caps::check_caps;
use context::Context;
use host::EpHost;
use parking_lot::Mutex;
use rkey_device::Channel;
use rkey_device::engine::Sge;
use rkey_endpoint::{Driver, Holder};
use rkey_rdm::sges::Sges;
use shared::Srx;
use std::collections::HashMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use stx::{SharedSlots, Stx};

/// The default for `FI_OPT_MIN_MULTI_RECV`: the minimum room for another message in a multi-receive buffer.
const MIN_MULTI_RECV: usize = 64;

/// An endpoint.
pub(crate) struct Endpoint {
    pub(crate) domain: Arc<Domain>,
    pub(crate) pd: CurrentPd,
    /// The endpoint's number, for counters and log messages.
    pub(crate) number: u32,
    pub(crate) ep_type: c_int,
    /// Whether the endpoint's receives are in a shared context.
    shares: bool,
    /// Whether the endpoint transmits through a shared context.
    shares_tx: bool,
    /// Set if the endpoint is a context of a scalable endpoint.
    context: Option<Context>,
    pub(crate) caps: u64,
    /// The handle, for events.
    pub(crate) handle: AtomicUsize,
    setup: Mutex<Setup>,
    live: OnceLock<Live>,
    min_multi_recv: Arc<AtomicUsize>,
    hmem_p2p: AtomicI32,
    limits: options::Limits,
    /// The number of its aliases.
    aliases: Users,
    /// Whether the endpoint is being closed, which ends its thread.
    closing: AtomicBool,
}

/// The protection domain of an endpoint: for its own authorization key or its domain's, or for the key that it finds in
/// its address vector when it is enabled.
pub(crate) struct CurrentPd {
    own: Arc<ProtectionDomain>,
    found: OnceLock<Arc<ProtectionDomain>>,
}

impl CurrentPd {
    /// The current protection domain.
    #[inline]
    fn current(&self) -> &Arc<ProtectionDomain> {
        self.found.get().unwrap_or(&self.own)
    }
}

impl std::ops::Deref for CurrentPd {
    type Target = ProtectionDomain;

    #[inline]
    fn deref(&self) -> &ProtectionDomain {
        self.current()
    }
}

/// The objects that are bound to the endpoint, and what else enabling it needs.
#[derive(Default)]
struct Setup {
    tx: Option<BoundCq>,
    rx: Option<BoundCq>,
    srx: Option<Arc<Srx>>,
    stx: Option<Arc<Stx>>,
    av: Option<Arc<Av>>,
    eq: Option<Arc<Eq>>,
    counters: [Option<Arc<Counter>>; COUNTERS],
    /// The counters of peers' accesses: reads, writes.
    remote: [Option<Arc<Counter>>; 2],
    local_address: LocalAddress,
    /// The completion counters of its deferred work: reading one makes the endpoint progress.
    completed_work: Vec<Arc<Counter>>,
    /// The key that it got from its address vector.
    auth_key: Option<Arc<AuthKey>>,
    /// The connection request that the endpoint was made to answer.
    request: Option<Request>,
    enabled: bool,
}

/// The number of counters of an endpoint's own operations. Their indexes follow: FI_SEND, FI_RECV, FI_READ, FI_WRITE.
const COUNTERS: usize = 4;
const SENT: usize = 0;
const RECEIVED: usize = 1;
const READ: usize = 2;
const WRITTEN: usize = 3;

/// The counters of peers' accesses, by index: the flag that binds each, and what it counts.
const REMOTE: [(u64, Remote); 2] = [
    (FI_REMOTE_READ, Remote::Reads),
    (FI_REMOTE_WRITE, Remote::Writes),
];

/// A completion queue, as bound to one side of an endpoint.
#[derive(Clone)]
struct BoundCq {
    cq: Arc<Cq>,
    /// Whether only operations that request a completion are reported.
    selective: bool,
}

/// The state machine of an endpoint.
type Rdm = rkey_rdm::endpoint::Endpoint<EpHost>;
/// A connection of the state machine.
type Connection = rkey_rdm::endpoint::Connection<EpHost>;

/// The state of an enabled endpoint: its driver, and the state that libfabric adds.
///
/// Dereferences to [`Driver`] of `rkey-endpoint`, which has `state`, `host`, `cq` and `advance`.
struct Live {
    driver: Driver<EpHost>,
    /// The slots in a shared transmit context, if the endpoint uses one.
    stx: Option<SharedSlots>,
    /// Wakes a program that waits for completions.
    channel: Option<Channel>,
    /// Wakes a program that waits for the end of the connection.
    ends: Option<Channel>,
    /// The description in inspections, until the endpoint is closed.
    description: Mutex<Option<rkey_device::Description>>,
}

impl std::ops::Deref for Live {
    type Target = Driver<EpHost>;

    #[inline]
    fn deref(&self) -> &Driver<EpHost> {
        &self.driver
    }
}

impl Holder for Endpoint {
    type Front = EpHost;

    fn driver(&self) -> Option<&Driver<EpHost>> {
        self.live.get().map(|live| &live.driver)
    }
}

/// The mutable state of an endpoint.
type State = rkey_endpoint::State<EpHost>;

impl Endpoint {
    /// An endpoint in this protection domain. It shares no context, and the kernel chooses its address.
    fn new(domain: &Arc<Domain>, pd: Arc<ProtectionDomain>, ep_type: c_int, caps: u64) -> Self {
        Self {
            domain: Arc::clone(domain),
            pd: CurrentPd {
                own: pd,
                found: OnceLock::new(),
            },
            number: crate::domain::number(),
            ep_type,
            shares: false,
            shares_tx: false,
            context: None,
            caps,
            handle: AtomicUsize::new(0),
            setup: Mutex::default(),
            live: OnceLock::new(),
            min_multi_recv: Arc::new(AtomicUsize::new(MIN_MULTI_RECV)),
            hmem_p2p: AtomicI32::new(FI_HMEM_P2P_ENABLED),
            limits: options::Limits::of(ep_type),
            aliases: Users::default(),
            closing: AtomicBool::new(false),
        }
    }

    /// The number that identifies it to regions that serve only one endpoint. Contexts have their scalable endpoint's
    /// number.
    pub(crate) fn region_number(&self) -> u32 {
        let context = self.context.as_ref();
        context.map_or(self.number, |context| context.sep.number)
    }

    fn live(&self) -> Result<&Live> {
        self.live.get().ok_or_else(|| {
            FiError::OPBADSTATE.because(format_args!("the endpoint is not enabled (fi_enable)"))
        })
    }

    /// Checks that it has all of these capabilities; an endpoint whose `fi_info` named none has all of them.
    fn check_caps(&self, caps: u64) -> Result<()> {
        check_caps(self.caps, caps)
    }

    /// Handles completions of the device and arrived messages.
    pub(crate) fn progress(&self) {
        let Some(live) = self.live.get() else { return };
        // The thread that holds the lock makes progress, or is about to.
        let Some(mut state) = live.state.try_lock() else {
            return;
        };
        live.advance(&mut state);
        Self::free_shared_slots(live, &state);
        drop(state);
        live.cq.rest();
    }

    /// Called when the program has read entries of a full queue: sends peers the responses that they wait for, even if the
    /// program does not poll again.
    #[cold]
    pub(crate) fn send_owed_answers(&self) {
        let Some(live) = self.live.get() else { return };
        live.state.lock().rdm.send_owed(&live.host);
    }

    /// The thread for automatic progress: waits for work and does it.
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
                live.advance(&mut state);
                Self::free_shared_slots(live, &state);
            }
            self.domain.work.run();
        }
    }
}

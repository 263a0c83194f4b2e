//! Endpoints: reliable datagrams (`FI_EP_RDM`), connections (`FI_EP_MSG`), datagrams (`FI_EP_DGRAM`).
//!
//! Every endpoint stands on reliable queue pairs of the device, one or two for each peer. RMA goes to the
//! peer's memory straight, carried out by its device while its program does anything else. Messages are matched when
//! the program (or a thread, with automatic progress) reads its completion queue: a short one goes from the ring to
//! its receive, others through buffers of the endpoint; of a long one only an RTS comes (rendezvous), and its
//! payload is read from the sender's memory when a receive matches.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`object`], [`binding`], [`name`], [`options`], [`flags`] | the handle, and aliases of it |
//! | [`life`] | enabling, and the end |
//! | [`host`] | what the state machine ([`rkey_rdm::endpoint`]) runs on: the device, and the program's objects |
//! | [`progress`], [`backlog`] | drives the state machine |
//! | [`connection`], [`reach`] | queue pairs for connections, made on demand |
//! | [`hello`] | what the two sides of a connection tell each other first |
//! | [`operation`] | what the program is told of its operations |
//! | [`post`] | room for requests of the program |
//! | [`send`], [`receive`], [`peek`] | messages out, messages in, and peeks at them |
//! | [`payload`] | memory of the program, copied from and to |
//! | [`shared`], [`stx`] | receives that several endpoints share, and room to transmit |
//! | [`wake`] | what wakes a program that waits |
//! | [`msg`], [`tagged`], [`rma`], [`atomic`] | the calls; [`calls`] is what the first two have in common, [`caps`] what they need |
//! | [`collective`] | operations of groups of endpoints |
//! | [`deferred`] | operations that are started later |
//! | [`commit`] | durable writes |
//! | [`describe`] | what there is under way, for people |
//! | [`connect`] | connection management of `FI_EP_MSG` |

pub(crate) mod atomic;
mod backlog;
mod binding;
mod calls;
mod caps;
pub(crate) mod collective;
mod commit;
pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod deferred;
mod describe;
mod flags;
pub(crate) mod foreign;
pub(crate) mod hello;
mod host;
mod life;
mod msg;
pub(crate) mod name;
pub(crate) mod object;
mod operation;
pub(crate) mod options;
mod payload;
mod peek;
mod post;
mod progress;
mod reach;
mod receive;
mod rma;
mod send;
pub(crate) mod shared;
pub(crate) mod stx;
mod tagged;
mod wake;

use crate::av::{AuthKey, Av};
use crate::cm::Serving;
use crate::cntr::{Counter, Remote};
use crate::cq::Cq;
use crate::domain::{Domain, ProtectionDomain};
use crate::eq::Eq;
use crate::errno::{FiError, Result};
use crate::local_address::LocalAddress;
use crate::object::Users;
use crate::sys::*;
use caps::check_caps;
use host::EpHost;
use parking_lot::Mutex;
use rkey_device::engine::{Completion, Sge};
use rkey_device::{Channel, Srq};
use rkey_rdm::hello::Admission;
use rkey_rdm::limits::{BUFFER_LEN, BUFFERS, INLINE_MAX, SENDS};
use rkey_rdm::sges::Sges;
use shared::Srx;
use std::collections::HashMap;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use stx::Stx;

/// What a device has to allow so that endpoints work.
pub(crate) const NEEDED_INLINE: u32 = INLINE_MAX as u32;
pub(crate) const NEEDED_SGE: u32 = crate::info::offer::IOV_LIMIT as u32 + 1;
pub(crate) const NEEDED_DEPTH: u32 = if BUFFERS > SENDS { BUFFERS } else { SENDS };

/// The least room for another message in a buffer for several, until the program says another.
const MIN_MULTI_RECV: usize = 64;

/// An endpoint.
pub(crate) struct Endpoint {
    pub(crate) domain: Arc<Domain>,
    pub(crate) pd: CurrentPd,
    /// By which regions that serve one endpoint know it.
    pub(crate) number: u32,
    pub(crate) ep_type: c_int,
    /// Its receives are in a shared context.
    shares: bool,
    /// It transmits through a shared context.
    shares_tx: bool,
    pub(crate) caps: u64,
    /// The handle, for events.
    pub(crate) handle: AtomicUsize,
    setup: Mutex<Setup>,
    live: OnceLock<Live>,
    min_multi_recv: Arc<AtomicUsize>,
    hmem_p2p: AtomicI32,
    limits: options::Limits,
    /// Handles beside the first.
    aliases: Users,
    /// It is being closed: its thread ends.
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

/// What is bound before the endpoint is enabled.
#[derive(Default)]
struct Setup {
    tx: Option<BoundCq>,
    rx: Option<BoundCq>,
    srx: Option<Arc<Srx>>,
    stx: Option<Arc<Stx>>,
    av: Option<Arc<Av>>,
    eq: Option<Arc<Eq>>,
    counters: [Option<Arc<Counter>>; COUNTERS],
    /// Of what peers do: reads, writes.
    remote: [Option<Arc<Counter>>; 2],
    local_address: LocalAddress,
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
struct BoundCq {
    cq: Arc<Cq>,
    /// Only operations that ask for it are reported.
    selective: bool,
}

/// The state machine of an endpoint.
type Rdm = rkey_rdm::endpoint::Endpoint<EpHost>;
/// A connection of it.
type Connection = rkey_rdm::endpoint::Connection<EpHost>;

/// What an enabled endpoint has.
struct Live {
    /// What the state machine runs on.
    host: EpHost,
    /// Where it has its room to transmit, if that is shared.
    stx: Option<Arc<Stx>>,
    cq: rkey_device::Cq,
    /// What wakes a program that waits for completions, and one that waits for nothing but the end of the connection.
    channel: Option<Channel>,
    ends: Option<Channel>,
    srq: Srq,
    buffers: Buffers,
    /// Whom it talks to.
    admission: Admission,
    /// Where peers find it.
    name: Mutex<SocketAddr>,
    serving: Mutex<Option<Serving>>,
    /// Shows it to people, until it is closed.
    description: Mutex<Option<rkey_device::Description>>,
    state: Mutex<State>,
}

/// What changes about an endpoint.
struct State {
    rdm: Rdm,
    /// Places that it has in its shared transmit context.
    places: usize,
    /// Room for completions of the device.
    completions: Vec<Completion>,
    /// How many peers the device had told to be gone when connections were last looked after.
    peers_gone: u32,
}

impl State {
    fn new(ep_type: c_int) -> Self {
        Self {
            rdm: Rdm::new(progress::service(ep_type)),
            places: 0,
            completions: Vec::new(),
            peers_gone: 0,
        }
    }
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
            // SAFETY: inside of the allocation; the device does not write to it meanwhile, as the caller promises.
            unsafe { std::slice::from_raw_parts(self.address(index) as *const u8, len) }
        }
    }

    impl Drop for Buffers {
        fn drop(&mut self) {
            let bytes =
                std::ptr::slice_from_raw_parts_mut(self.start, BUFFERS as usize * BUFFER_LEN);
            // SAFETY: the allocation of `new`, which is not in use any more: the queue of receives went before.
            drop(unsafe { Box::from_raw(bytes) });
        }
    }
}
use buffers::Buffers;

impl Endpoint {
    fn live(&self) -> Result<&Live> {
        self.live.get().ok_or_else(|| {
            FiError::OPBADSTATE.because(format_args!("the endpoint is not enabled (fi_enable)"))
        })
    }

    /// Whether it has every one of these capabilities; an endpoint whose information said none has all.
    fn check_caps(&self, caps: u64) -> Result<()> {
        check_caps(self.caps, caps)
    }

    /// Handles completions of the device and messages that arrived.
    pub(crate) fn progress(&self) {
        let Some(live) = self.live.get() else { return };
        // The thread that holds the lock makes progress, or will in a moment.
        let Some(mut state) = live.state.try_lock() else {
            return;
        };
        self.advance(live, &mut state);
        Self::free_shared_places(live, &mut state);
        drop(state);
        live.cq.rest();
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
                Self::free_shared_places(live, &mut state);
            }
            self.domain.work.run();
        }
    }
}

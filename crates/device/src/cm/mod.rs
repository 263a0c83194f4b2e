//! The connection manager of this process: `rkey-cm`'s state machine with a clock, a thread, and sockets to the connection
//! managers of this host's other processes.
//!
//! [`Service`] owns the [`Manager`] and the front end's [`Handler`] under one lock. A call ([`Service::with`]) sends its messages
//! before it returns; a thread receives the messages of other processes and runs the timers. `carrier` delivers them over the sockets. A forked
//! child closes its copies of them (`fork`).
//!
//! With a wire ([`Settings::wire`]), messages to and from other hosts travel between queue pairs 1 (`remote`). A process that exits ends
//! its connections to them (`exit`). A host that does not answer may have no program that could (`presence`).
//!
//! Processes on one host exchange the same 256-byte messages as hosts do. If a process ends without closing its connections, its
//! peers see its sockets close and end each connection as if the process had sent a DREQ or REJ (which the kernel would send on a
//! host with a kernel driver).

mod carrier;
mod exit;
pub(crate) mod fork;
mod inbox;
pub(crate) mod inspect;
mod limits;
mod notices;
pub(crate) mod packet;
mod ports;
mod presence;
mod receivers;
pub mod refusals;
pub(crate) mod remote;
mod report;
mod senders;
pub(crate) mod socket;
#[cfg(test)]
mod tests;
pub mod view;
mod waiting;
mod watches;

pub use fork::UnsharedFd;
pub use inspect::{CmListing, list};
pub use refusals::{Refusal, Side, Why};
pub use view::{CmView, IdView, OwnId, RefusalView};

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rkey_cm::address::{Guid, ServiceId};
use rkey_cm::ids::IdSpace;
use rkey_cm::manager::{Config, Event};
use rkey_cm::time::{Nanos, Timing};
use rkey_cm::{ConnectionId, Manager, State};
use rustix::event::{EventfdFlags, eventfd};

use crate::config::{Share, WireConfig};
use crate::peers::names::Scope;
use crate::progress::reactor::{Reactor, Token};
use crate::wire::Wire;
use carrier::{Carrier, Needs};
use limits::Limits;
use refusals::Refusals;

/// Configures a [`Service`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which processes may connect.
    pub share: Share,
    /// How long to wait for an answer, and how many times to retransmit a message.
    pub timing: Timing,
    /// How long a request waits for a process to listen at its port before it is refused.
    pub listener_wait: Duration,
    /// How many descriptors to leave to the program. When no others are left, links to other processes are closed after each
    /// message.
    pub reserved_files: u32,
    /// How messages from and to other hosts travel.
    pub wire: WireConfig,
}

impl Default for Settings {
    /// Only processes of the same user may connect, messages are retransmitted as in Linux, and a request waits half a second
    /// for a listener.
    fn default() -> Self {
        Self {
            share: Share::User,
            timing: Timing::default(),
            listener_wait: Duration::from_millis(500),
            reserved_files: 256,
            wire: WireConfig::OFF,
        }
    }
}

/// The part of a front end that handles the manager's events.
pub trait Handler: Send + 'static {
    /// Handles an event. Runs under the service's lock, in a call of the program or in the service's thread.
    fn event(&mut self, manager: &mut Manager, now: Nanos, event: Event);

    /// The name of the API, for inspections.
    fn api(&self) -> &'static str {
        ""
    }

    /// The front end's identifiers, for inspections. Runs under the service's lock.
    fn ids(&self) -> Vec<OwnId> {
        Vec::new()
    }

    /// Called after the service's thread has panicked, so that no more events will come. The front end wakes the calls that wait
    /// for events. Runs under the service's lock.
    fn failed(&mut self) {}
}

/// Why [`Service::wait_for`] found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfound {
    /// The timeout expired.
    TimedOut,
    /// The service has failed ([`Service::has_failed`]).
    Failed,
}

/// The state available to a call, which holds the service's lock.
pub struct Parts<'a, H> {
    /// The connection manager.
    pub manager: &'a mut Manager,
    /// The front end's handler.
    pub handler: &'a mut H,
    /// The time of the call.
    pub now: Nanos,
    carrier: &'a mut Carrier,
    refusals: &'a mut Refusals,
}

impl<H> Parts<'_, H> {
    /// Claims a port for this process. The process may claim the same port several times. A claim ends with [`Parts::release`] or
    /// with the process. Returns `false` if another process owns the port.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn claim(&mut self, service: ServiceId) -> io::Result<bool> {
        self.carrier.claim(service)
    }

    /// Lets other processes send requests to a port that this process has claimed. Until then, requests are refused as if the
    /// port had no owner.
    ///
    /// # Errors
    /// The system cannot watch another descriptor.
    pub fn open(&mut self, service: ServiceId) -> io::Result<()> {
        self.carrier.open(service)
    }

    /// Records a call that the front end refuses, for inspections. `to` is the address it would have connected to.
    pub fn refuse_call(&mut self, to: Option<SocketAddr>, why: Why) {
        self.refusals.add_call(to, why);
    }

    /// Why a connection was refused, if its refusal is among the most recent ones.
    #[must_use]
    pub fn refusal_of(&self, connection: ConnectionId) -> Option<Why> {
        self.refusals.of(connection)
    }

    /// Releases a claim.
    pub fn release(&mut self, service: ServiceId) {
        self.carrier.release(service);
    }

    /// The wire to other hosts, if the settings have one.
    #[must_use]
    pub fn wire(&self) -> Option<&Wire> {
        self.carrier.wire()
    }
}

/// The connection manager of this process.
pub struct Service<H: Handler> {
    shared: Arc<Shared<H>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<H> {
    inner: Arc<Mutex<Inner<H>>>,
    changed: Condvar,
    reactor: Arc<Reactor>,
    doorbell: Arc<OwnedFd>,
    _kept: fork::KeptFromChild,
    stops: AtomicBool,
    /// Whether the process exits, and the thread has not yet ended the connections to other hosts.
    leaves: AtomicBool,
    has_failed: AtomicBool,
    started: Instant,
    process: u32,
}

struct Inner<H> {
    manager: Manager,
    handler: H,
    carrier: Carrier,
    refusals: Refusals,
    /// The deadline for which the thread last set its timeout, if any.
    wakes: Option<Nanos>,
}

impl<H: Handler> Service<H> {
    /// Starts the connection manager: claims a block of communication ids and starts the thread.
    ///
    /// # Errors
    /// No descriptor, memory or random number is available.
    pub fn start(settings: Settings, handler: H) -> io::Result<Self> {
        let limits = move || Limits::now(settings.reserved_files);
        Self::start_within(settings, Box::new(limits), handler)
    }

    fn start_within(
        settings: Settings,
        limits: Box<dyn Fn() -> Limits + Send>,
        handler: H,
    ) -> io::Result<Self> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        let mut guid = getrandom::u64().map_err(io::Error::other)?.to_be_bytes();
        // This bit marks the GUID as locally administered, so it cannot be that of a real device.
        guid[0] |= 2;
        let reactor = Arc::new(Reactor::new().map_err(io::Error::other)?);
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let doorbell = Arc::new(doorbell);
        reactor
            .add(&doorbell, Token::DOORBELL)
            .map_err(io::Error::other)?;
        let wait = settings.listener_wait.as_nanos();
        let wait = Nanos::try_from(wait).unwrap_or(Nanos::MAX);
        let scope = Scope::of(settings.share);
        let mut carrier = Carrier::new(scope, Arc::clone(&reactor), wait, limits)?;
        carrier.use_wire(Wire::of_process(&settings.wire));
        let has_wire = carrier.wire().is_some();
        let mut config = Config::new(Guid(guid), u128::from_ne_bytes(secret));
        config.ids = IdSpace::block(carrier.block());
        config.timing = settings.timing;
        let shared = Arc::new(Shared {
            inner: Arc::new(Mutex::new(Inner {
                manager: Manager::new(config),
                handler,
                carrier,
                refusals: Refusals::default(),
                wakes: None,
            })),
            changed: Condvar::new(),
            _kept: fork::KeptFromChild::new(vec![reactor.descriptor(), Arc::clone(&doorbell)]),
            reactor,
            doorbell,
            stops: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            started: crate::time::now(),
            process: std::process::id(),
        });
        fork::watch(&shared.inner);
        if has_wire {
            exit::watch(&shared);
        }
        let of_thread = Arc::clone(&shared);
        let thread = crate::threads::spawn("rkey-cm", move || of_thread.main())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Whether this process was forked from the one that started the service. If so, it must not use the service.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.shared.is_forked()
    }

    /// Whether the service's thread has panicked, which is a bug. No more events will come.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.has_failed()
    }

    /// Runs a call and sends its messages.
    pub fn with<R>(&self, call: impl FnOnce(&mut Parts<'_, H>) -> R) -> R {
        let mut inner = self.shared.inner.lock();
        let now = self.shared.now();
        let result = call(&mut inner.parts(now));
        inner.pump(now);
        let (deadline, has_ended_peers) = (inner.next_deadline(), inner.carrier.has_ended_peers());
        let text = inner.take_log_text();
        let sooner = match (deadline, inner.wakes) {
            (Some(deadline), Some(wakes)) => deadline < wakes,
            (deadline, None) => deadline.is_some(),
            (None, Some(_)) => false,
        };
        drop(inner);
        self.shared.changed.notify_all();
        if sooner || has_ended_peers {
            self.shared.ring();
        }
        text.write();
        result
    }

    /// Waits up to `time` until `find` returns something. Calls `find` again after every call by another thread and after every
    /// round of the service's thread.
    ///
    /// # Errors
    /// The timeout expired, or the service has failed.
    pub fn wait_for<R>(
        &self,
        time: Option<Duration>,
        mut find: impl FnMut(&mut Parts<'_, H>) -> Option<R>,
    ) -> Result<R, Unfound> {
        let until = time.and_then(|time| crate::time::now().checked_add(time));
        let mut inner = self.shared.inner.lock();
        loop {
            let now = self.shared.now();
            if let Some(found) = find(&mut inner.parts(now)) {
                return Ok(found);
            }
            if self.has_failed() {
                return Err(Unfound::Failed);
            }
            match until {
                None => self.shared.changed.wait(&mut inner),
                Some(until)
                    if self
                        .shared
                        .changed
                        .wait_until(&mut inner, until)
                        .timed_out() =>
                {
                    let now = self.shared.now();
                    return find(&mut inner.parts(now)).ok_or(Unfound::TimedOut);
                }
                Some(_) => {}
            }
        }
    }

    /// Waits until a condition holds. Checks it after every call and after every round of the service's thread. Returns `false`
    /// if the condition does not hold and the service has failed ([`Service::has_failed`]).
    pub fn wait_until(&self, mut holds: impl FnMut(&mut H) -> bool) -> bool {
        let mut inner = self.shared.inner.lock();
        while !holds(&mut inner.handler) {
            if self.has_failed() {
                return false;
            }
            self.shared.changed.wait(&mut inner);
        }
        true
    }
}

impl<H: Handler> Drop for Service<H> {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.is_forked() {
            // The thread is the parent's: there is nothing to wake, join or detach in this process.
            std::mem::forget(thread);
            return;
        }
        self.shared.stops.store(true, Ordering::Release);
        self.shared.ring();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl<H: Handler> fmt::Debug for Service<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl<H: Handler> Shared<H> {
    fn now(&self) -> Nanos {
        let since = crate::time::since(self.started).as_nanos();
        Nanos::try_from(since).unwrap_or(Nanos::MAX)
    }

    /// Wakes the thread.
    fn ring(&self) {
        // The write fails only if the counter overflows: after 2^64 calls during which the thread did not wake.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// The thread's main loop.
    fn main(&self) {
        if catch_unwind(AssertUnwindSafe(|| self.serve())).is_err() {
            self.has_failed.store(true, Ordering::Release);
            self.inner.lock().handler.failed();
            self.changed.notify_all();
            // Last: the log may block.
            tracing::error!(
                "bug: the connection manager's thread panicked; all calls to the connection manager will now fail"
            );
        }
    }

    fn serve(&self) {
        let mut ready = Vec::new();
        while !self.stops.load(Ordering::Acquire) {
            self.leave_if_exiting();
            let mut inner = self.inner.lock();
            inner.round(self.now(), &ready);
            let timeout = inner.timeout(self.now());
            let text = inner.take_log_text();
            drop(inner);
            self.changed.notify_all();
            text.write();
            ready = self.reactor.wait(timeout);
            if ready.contains(&Token::DOORBELL) {
                let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
            }
        }
    }
}

impl<H: Handler> Inner<H> {
    fn parts(&mut self, now: Nanos) -> Parts<'_, H> {
        Parts {
            manager: &mut self.manager,
            handler: &mut self.handler,
            now,
            carrier: &mut self.carrier,
            refusals: &mut self.refusals,
        }
    }

    /// One round of the thread: reads packets, ends the connections to processes that have ended, and runs timers that are due.
    fn round(&mut self, now: Nanos, ready: &[Token]) {
        for token in ready {
            self.carrier.ready(now, *token);
        }
        let manager = &self.manager;
        let needs = Needs {
            waits: &|id| manager.state(id).is_some_and(is_unanswered),
            awaits: &|id| manager.state(id).is_some_and(awaits_answer),
            has_connections: &|block| manager.has_connections_to(IdSpace::block(block)),
        };
        self.carrier.run_timers(now, &needs);
        let ended_peers = self.carrier.take_ended(now);
        self.pump(now);
        if let Some(ended_peers) = ended_peers {
            let of_blocks = ended_peers.blocks.iter();
            let ended =
                of_blocks.flat_map(|block| self.manager.connections_to(IdSpace::block(*block)));
            let mut ended: Vec<ConnectionId> = ended.collect();
            // Other hosts may use the same block number.
            ended.retain(|id| {
                let peer = self.manager.peer(*id);
                peer.is_none_or(|peer| self.carrier.inbox.is_of_this_host(peer))
            });
            let unanswered = ended_peers.connections.into_iter();
            ended
                .extend(unanswered.filter(|id| self.manager.state(*id).is_some_and(is_unanswered)));
            for id in ended {
                // The connection may have ended in the meantime.
                let _ = self.manager.peer_ended(now, id);
            }
        }
        for id in self.carrier.presence.take_absent() {
            // As above.
            let _ = self.manager.device_absent(now, id);
        }
        let is_due = self.manager.next_deadline().is_some_and(|at| at <= now);
        if is_due {
            self.manager.advance(now);
        }
        self.pump(now);
        if is_due || !ready.is_empty() {
            self.carrier.tidy_soon(now);
        }
        self.answer_queries();
    }

    /// Moves messages and events until none are left.
    fn pump(&mut self, now: Nanos) {
        loop {
            self.note_refused();
            if let Some(message) = self.manager.next_transmit() {
                self.carrier.carry(now, message);
            } else if let Some((packet, party)) = self.carrier.inbox.pop() {
                let from = (packet.from, party);
                self.manager
                    .receive_from_party(now, from, packet.to, &packet.mad);
            } else if let Some(event) = self.manager.next_event() {
                self.note_agreement(&event);
                self.handler.event(&mut self.manager, now, event);
            } else {
                return;
            }
        }
    }

    /// Notes that the peer's queue pair uses selective retransmission, if the message that names it says so.
    fn note_agreement(&self, event: &Event) {
        let (guid, qpn) = match event {
            Event::ConnectRequest(request) => (request.req.guid, request.req.qpn),
            Event::ConnectResponse { rep, .. } => (rep.guid, rep.qpn),
            _ => return,
        };
        if let (Some(wire), Some(peer)) =
            (self.carrier.wire(), self.manager.peer(event.connection()))
        {
            match guid.is_selective() {
                true => wire.agree(peer, qpn),
                // The number may have belonged to another queue pair before.
                false => drop(wire.take_agreement(peer, qpn)),
            }
        }
    }

    /// When the thread has something to do; `None` if no timer runs.
    fn next_deadline(&self) -> Option<Nanos> {
        let deadlines = [self.manager.next_deadline(), self.carrier.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// How long the thread may sleep.
    fn timeout(&mut self, now: Nanos) -> Option<Duration> {
        self.wakes = self.next_deadline();
        if self.carrier.has_ended_peers() {
            return Some(Duration::ZERO);
        }
        self.wakes
            .map(|at| Duration::from_nanos(at.saturating_sub(now)))
    }
}

impl<H: Handler> fork::CloseInChild for Inner<H> {
    fn close_in_child(&mut self) {
        self.carrier.close_in_child();
    }
}

/// Whether a connection waits for the first answer to its request.
fn is_unanswered(state: State) -> bool {
    matches!(state, State::ReqSent | State::ReqDelayed | State::SidrSent)
}

/// Whether a connection waits for the answer to its last message, and its peer has not said that the answer takes longer.
fn awaits_answer(state: State) -> bool {
    matches!(state, State::ReqSent | State::SidrSent | State::DreqSent)
}

/// A random number, for initial PSNs and ports.
///
/// # Errors
/// The system cannot provide random numbers.
pub fn random() -> io::Result<u32> {
    getrandom::u32().map_err(io::Error::other)
}

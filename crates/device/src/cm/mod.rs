//! The connection manager of this process: `rkey-cm`'s state machine with a clock, a thread, and sockets to the connection
//! managers of this host's other processes.
//!
//! [`Service`] owns the [`Manager`] and the front end's [`Handler`], under one lock. A call ([`Service::with`]) sends its
//! messages before it returns; a thread receives the messages of other processes and runs the timers. `carrier` has the sockets.
//!
//! Processes of one host exchange the same 256-byte messages as hosts do. If a process ends without closing its connections, its
//! peers see its sockets close, and end each connection as if the process had sent a DREQ or REJ (which the kernel would do on a
//! host with a kernel driver).

mod carrier;
pub(crate) mod packet;
mod socket;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
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

use crate::config::Share;
use crate::peers::names::Scope;
use crate::progress::reactor::{Reactor, Token};
use carrier::Carrier;

/// How soon the thread tries again to send to a busy receiver.
const RETRY: Duration = Duration::from_millis(2);

/// How a [`Service`] works.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Which processes may connect.
    pub share: Share,
    /// How long to wait for an answer, and how many times to repeat a message.
    pub timing: Timing,
    /// How long a request waits if no process listens at its port, before it is refused.
    pub listener_wait: Duration,
}

impl Default for Settings {
    /// Only processes of the same user may connect, messages are repeated as Linux does, and a request waits half a second for a
    /// listener.
    fn default() -> Self {
        Self {
            share: Share::User,
            timing: Timing::default(),
            listener_wait: Duration::from_millis(500),
        }
    }
}

/// The part of a front end that takes the manager's events.
pub trait Handler: Send + 'static {
    /// Takes an event. Runs under the service's lock, in a call of the program or in the service's thread.
    fn event(&mut self, manager: &mut Manager, now: Nanos, event: Event);
}

/// What a call works on while it holds the service's lock.
pub struct Parts<'a, H> {
    /// The connection manager.
    pub manager: &'a mut Manager,
    /// The front end's part.
    pub handler: &'a mut H,
    /// The time of the call.
    pub now: Nanos,
    carrier: &'a mut Carrier,
}

impl<H> Parts<'_, H> {
    /// Claims a port for this process, which may claim it several times. Each claim ends with [`Parts::release`] or with the process.
    /// Returns `false` if another process has the port.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn claim(&mut self, service: ServiceId) -> io::Result<bool> {
        self.carrier.claim(service)
    }

    /// Lets other processes send requests to a port that this process has claimed. Until then, they are refused as if no process
    /// had the port.
    ///
    /// # Errors
    /// The system cannot watch another descriptor.
    pub fn open(&mut self, service: ServiceId) -> io::Result<()> {
        self.carrier.open(service)
    }

    /// Gives up a claim.
    pub fn release(&mut self, service: ServiceId) {
        self.carrier.release(service);
    }
}

/// The connection manager of this process.
pub struct Service<H: Handler> {
    shared: Arc<Shared<H>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<H> {
    inner: Mutex<Inner<H>>,
    changed: Condvar,
    reactor: Arc<Reactor>,
    doorbell: OwnedFd,
    stops: AtomicBool,
    started: Instant,
    process: u32,
}

struct Inner<H> {
    manager: Manager,
    handler: H,
    carrier: Carrier,
    /// The manager's deadline for which the thread last set its timeout, if there was one.
    wakes: Option<Nanos>,
}

impl<H: Handler> Service<H> {
    /// Starts the connection manager: claims communication ids, and starts its thread.
    ///
    /// # Errors
    /// No descriptor, memory or random number is available.
    pub fn start(settings: Settings, handler: H) -> io::Result<Self> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        let mut guid = getrandom::u64().map_err(io::Error::other)?.to_be_bytes();
        // This bit marks it as locally administered, so it is not the GUID of a real device.
        guid[0] |= 2;
        let reactor = Arc::new(Reactor::new().map_err(io::Error::other)?);
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        reactor
            .add(&doorbell, Token::DOORBELL)
            .map_err(io::Error::other)?;
        let wait = settings.listener_wait.as_nanos();
        let wait = Nanos::try_from(wait).unwrap_or(Nanos::MAX);
        let carrier = Carrier::new(Scope::of(settings.share), Arc::clone(&reactor), wait)?;
        let mut config = Config::new(Guid(guid), u128::from_ne_bytes(secret));
        config.ids = IdSpace::block(carrier.block());
        config.timing = settings.timing;
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner {
                manager: Manager::new(config),
                handler,
                carrier,
                wakes: None,
            }),
            changed: Condvar::new(),
            reactor,
            doorbell,
            stops: AtomicBool::new(false),
            started: crate::time::now(),
            process: std::process::id(),
        });
        let of_thread = Arc::clone(&shared);
        let thread = crate::threads::spawn("rkey-cm", move || of_thread.serve())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Whether this process was forked from the one that started the service, and so must not use it.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.shared.process != std::process::id()
    }

    /// Runs a call, and sends its messages.
    pub fn with<R>(&self, call: impl FnOnce(&mut Parts<'_, H>) -> R) -> R {
        let mut inner = self.shared.inner.lock();
        let now = self.shared.now();
        let result = call(&mut inner.parts(now));
        inner.pump(now);
        let (deadline, is_busy) = (inner.manager.next_deadline(), inner.carrier.needs_thread());
        let sooner = match (deadline, inner.wakes) {
            (Some(deadline), Some(wakes)) => deadline < wakes,
            (deadline, None) => deadline.is_some(),
            (None, Some(_)) => false,
        };
        drop(inner);
        self.shared.changed.notify_all();
        if sooner || is_busy {
            self.shared.ring();
        }
        result
    }

    /// Waits until a condition holds. Checks it after every call and every round of the service's thread.
    pub fn wait_until(&self, mut holds: impl FnMut(&mut H) -> bool) {
        let mut inner = self.shared.inner.lock();
        while !holds(&mut inner.handler) {
            self.shared.changed.wait(&mut inner);
        }
    }
}

impl<H: Handler> Drop for Service<H> {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Release);
        self.shared.ring();
        if let Some(thread) = self.thread.take() {
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
        // The write fails only if the counter overflows: after 2^64 calls for which the thread did not wake.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// The main loop of the thread.
    fn serve(&self) {
        let mut ready = Vec::new();
        while !self.stops.load(Ordering::Acquire) {
            let mut inner = self.inner.lock();
            inner.round(self.now(), &ready);
            let timeout = inner.timeout(self.now());
            drop(inner);
            self.changed.notify_all();
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
        }
    }

    /// One round of the thread: reads packets, ends the connections to processes that have ended, and runs timers that are due.
    fn round(&mut self, now: Nanos, ready: &[Token]) {
        for token in ready {
            self.carrier.ready(*token);
        }
        let gone = self.carrier.take_gone();
        self.pump(now);
        if let Some(gone) = gone {
            let of_blocks = gone.blocks.iter();
            let ended =
                of_blocks.flat_map(|block| self.manager.connections_to(IdSpace::block(*block)));
            let mut ended: Vec<ConnectionId> = ended.collect();
            let unanswered = gone.connections.into_iter();
            ended
                .extend(unanswered.filter(|id| self.manager.state(*id).is_some_and(is_unanswered)));
            for id in ended {
                // The connection may have ended meanwhile.
                let _ = self.manager.peer_is_gone(now, id);
            }
        }
        if self.manager.next_deadline().is_some_and(|at| at <= now) {
            self.manager.advance(now);
        }
        self.carrier.retry(now);
        self.pump(now);
        let manager = &self.manager;
        self.carrier.tidy(
            |id| manager.state(id).is_some_and(is_unanswered),
            |block| !manager.connections_to(IdSpace::block(block)).is_empty(),
        );
    }

    /// Moves messages and events until there are none.
    fn pump(&mut self, now: Nanos) {
        loop {
            if let Some(message) = self.manager.next_transmit() {
                self.carrier.carry(now, message);
            } else if let Some(packet) = self.carrier.next_arrived() {
                self.manager
                    .receive(now, packet.from, packet.to, &packet.mad);
            } else if let Some(event) = self.manager.next_event() {
                self.handler.event(&mut self.manager, now, event);
            } else {
                return;
            }
        }
    }

    /// How long the thread may sleep.
    fn timeout(&mut self, now: Nanos) -> Option<Duration> {
        self.wakes = self.manager.next_deadline();
        let left = self
            .wakes
            .map(|at| Duration::from_nanos(at.saturating_sub(now)));
        match self.carrier.has_waiting() {
            true => Some(left.map_or(RETRY, |left| left.min(RETRY))),
            false => left,
        }
    }
}

/// Whether a connection waits for the first answer to its request.
fn is_unanswered(state: State) -> bool {
    matches!(state, State::ReqSent | State::ReqDelayed | State::SidrSent)
}

/// A random number, for starting PSNs and ports.
///
/// # Errors
/// The system has no random numbers.
pub fn random() -> io::Result<u32> {
    getrandom::u32().map_err(io::Error::other)
}

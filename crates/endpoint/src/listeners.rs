//! Accepting connections: one thread for all listeners of a program's device, so that peers can connect while the program
//! is busy. The thread also completes the requests that the program accepts, so a peer's later request cannot
//! overtake an earlier one.

use super::complaint::complain;
use super::signal::Signal;
use parking_lot::{Condvar, Mutex};
use rkey_device::names::network_of;
use rkey_device::{Accepting, DeviceError, Incoming, Listener, Peer};
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How many clients to pass on before other listeners, and clients that are ready, have their turn.
const TURN: usize = 64;
/// The pause after a failure that may persist, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// The maximum number of clients that may be connecting at a time.
const COMING_MAX: usize = 1024;
/// The maximum number of connecting clients from one process, or from one other host, so that others can still connect.
const OF_PROCESS_MAX: usize = 256;
/// The maximum number of connecting clients from all other hosts, so that processes of this host can still connect.
const OF_HOSTS_MAX: usize = COMING_MAX / 2;

/// Handles a peer that requests a connection; the number says how many incomplete connections the peer's host has. Returns the client if it
/// was accepted; its confirmation may come later.
pub type Handler = dyn Fn(Incoming, usize) -> Option<Coming> + Send + Sync;

/// An accepted client, and what to do when it is ready or has failed.
pub struct Coming {
    /// The client.
    pub accepting: Accepting,
    /// Called once, with the result.
    pub then: Box<Then>,
}

/// Called every millisecond until it returns `false`.
pub type Look = dyn FnMut() -> bool + Send;

type Then = dyn FnOnce(Result<(), DeviceError>) + Send;

/// A request that the program has accepted.
pub struct Accepted {
    /// The client.
    pub client: Coming,
    /// Whether the client's endpoint still exists.
    pub is_wanted: Box<dyn Fn() -> bool + Send>,
}

/// Listeners that one thread serves. The thread runs from the first call that needs it until this value is dropped.
#[derive(Default)]
pub struct Listeners(Mutex<Option<Arc<Inner>>>);

struct Inner {
    signal: Signal,
    listeners: Mutex<Vec<Arc<Entry>>>,
    /// New entries that the thread has not taken yet.
    accepted: Mutex<Vec<Accepted>>,
    looks: Mutex<Vec<Box<Look>>>,
    /// How many times the thread has released the listeners that it polled; `None` once it has ended.
    rounds: Mutex<Option<u64>>,
    round: Condvar,
    /// The process that runs the thread; a forked child does not have this thread.
    process: u32,
    ended: AtomicBool,
}

struct Entry {
    listener: Listener,
    handler: Box<Handler>,
    /// Locked while the handler runs, so that closing waits for it.
    open: Mutex<bool>,
}

/// A listener that is served until this value is dropped.
pub struct Serving {
    inner: Arc<Inner>,
    entry: Arc<Entry>,
}

impl Listeners {
    /// The state of the thread. The first call starts the thread.
    fn inner(&self) -> io::Result<Arc<Inner>> {
        let mut place = self.0.lock();
        if let Some(inner) = &*place {
            return Ok(Arc::clone(inner));
        }
        let inner = Arc::new(Inner {
            signal: Signal::new()?,
            listeners: Mutex::default(),
            accepted: Mutex::default(),
            looks: Mutex::default(),
            rounds: Mutex::new(Some(0)),
            round: Condvar::new(),
            process: std::process::id(),
            ended: AtomicBool::new(false),
        });
        let threads = Arc::clone(&inner);
        rkey_device::threads::spawn("rkey-listen", move || {
            let _end = End(&threads);
            run(&threads);
        })?;
        Ok(Arc::clone(place.insert(inner)))
    }

    /// Serves a listener. The thread runs the handler and completes each connection, one at a time, until the result is
    /// dropped. The address is free when the drop returns.
    pub fn serve(&self, listener: Listener, handler: Box<Handler>) -> io::Result<Serving> {
        let inner = self.inner()?;
        let entry = Arc::new(Entry {
            listener,
            handler,
            open: Mutex::new(true),
        });
        inner.listeners.lock().push(Arc::clone(&entry));
        inner.signal.raise();
        Ok(Serving { inner, entry })
    }

    /// Calls `look` every millisecond, in the thread, until it returns `false`.
    pub fn look_until(&self, look: Box<Look>) -> io::Result<()> {
        let inner = self.inner()?;
        inner.looks.lock().push(look);
        inner.signal.raise();
        Ok(())
    }

    /// Accepts a request: `answer` responds to the peer. When the peer is ready, the thread completes the
    /// connection before it passes on any later request of that peer.
    pub fn accept<E: From<io::Error>>(
        &self,
        answer: impl FnOnce() -> Result<Accepted, E>,
    ) -> Result<(), E> {
        let inner = self.inner()?;
        // Keep the list locked, because the peer may be ready, and send another request, as soon as it gets the answer.
        let mut accepted = inner.accepted.lock();
        accepted.push(answer()?);
        drop(accepted);
        inner.signal.raise();
        Ok(())
    }
}

impl Inner {
    /// Waits until the thread has released the listeners that are no longer in the list: a polled socket keeps
    /// its address even after it is closed.
    fn wait_for_round(&self) {
        // A forked child has no thread.
        let has_thread = || self.process == std::process::id();
        let mut rounds = self.rounds.lock();
        let before = *rounds;
        self.signal.raise();
        while before.is_some() && *rounds == before && has_thread() {
            self.round.wait(&mut rounds);
        }
    }

    /// Announces that the thread has released all listeners.
    fn next_round(&self) {
        let mut rounds = self.rounds.lock();
        *rounds = rounds.map(|round| round + 1);
        self.round.notify_all();
    }
}

/// Marks the end of the thread when dropped, even after a panic.
struct End<'a>(&'a Inner);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.rounds.lock() = None;
        self.0.round.notify_all();
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        if let Some(inner) = self.0.lock().take() {
            inner.ended.store(true, Ordering::Release);
            inner.signal.raise();
        }
    }
}

impl Serving {
    /// Waits until the handler is not running. Later runs see what the caller changed before this call.
    pub fn wait_for_handler(&self) {
        drop(self.entry.open.lock());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        *self.entry.open.lock() = false;
        self.inner
            .listeners
            .lock()
            .retain(|other| !Arc::ptr_eq(other, &self.entry));
        self.inner.wait_for_round();
    }
}

/// The clients that the thread waits for.
#[derive(Default)]
struct Clients {
    coming: Vec<(Arc<Entry>, Coming)>,
    accepted: Vec<Accepted>,
}

impl Clients {
    /// Drops clients whose listener is closed.
    fn let_go(&mut self) {
        self.coming.retain(|(entry, _)| *entry.open.lock());
    }

    /// Completes the connections of clients that are ready.
    fn go_on(&mut self, inner: &Inner) {
        for (entry, client) in std::mem::take(&mut self.coming) {
            let open = entry.open.lock();
            if *open && let Some(client) = go_on(client) {
                drop(open);
                self.coming.push((entry, client));
            }
        }
        self.go_on_accepted(inner);
    }

    /// Completes the connections that the program has accepted and whose clients are ready.
    fn go_on_accepted(&mut self, inner: &Inner) {
        self.accepted.append(&mut inner.accepted.lock());
        let wanted = std::mem::take(&mut self.accepted).into_iter();
        for it in wanted.filter(|it| (it.is_wanted)()) {
            let is_wanted = it.is_wanted;
            let waits = go_on(it.client).map(|client| Accepted { client, is_wanted });
            self.accepted.extend(waits);
        }
    }

    /// The sockets of all clients.
    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let coming = self.coming.iter().map(|(_, client)| client);
        let accepted = self.accepted.iter().map(|it| &it.client);
        coming
            .chain(accepted)
            .map(|client| client.accepting.socket())
    }
}

/// The thread: waits for clients and passes them on.
fn run(inner: &Inner) {
    let (mut clients, mut looks) = (Clients::default(), Vec::new());
    while !inner.ended.load(Ordering::Acquire) {
        clients.let_go();
        inner.next_round();
        let entries = inner.listeners.lock().clone();
        let mut calm = true;
        for entry in &entries {
            calm &= serve(entry, inner, &mut clients).is_ok();
        }
        clients.go_on(inner);
        looks.append(&mut inner.looks.lock());
        looks.retain_mut(|look| caught(look).unwrap_or(false));
        let mut fds = vec![inner.signal.as_fd()];
        fds.extend(entries.iter().map(|entry| entry.listener.socket()));
        let listeners = fds.len();
        fds.extend(clients.fds());
        // A client that sends nothing is checked again soon, and dropped after a second.
        let half_open = entries.iter().any(|entry| entry.listener.has_half_open());
        let time = if half_open || !looks.is_empty() {
            Some(Duration::from_millis(1))
        } else if fds.len() == listeners {
            None
        } else {
            // Wake up regularly to check the clients' time limits.
            Some(Duration::from_millis(100))
        };
        // A failed listener stays readable.
        if wait(&fds, time).is_err() || !calm {
            let _ = wait(&[inner.signal.as_fd()], Some(PAUSE));
        }
        inner.signal.clear();
    }
}

/// Waits until one of the descriptors is readable, a signal arrives, or the time has passed (`None`: never).
fn wait(fds: &[BorrowedFd<'_>], time: Option<Duration>) -> io::Result<()> {
    let set = fds.iter().copied();
    let mut set: Vec<PollFd<'_>> = set
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let time = time.and_then(|time| time.try_into().ok());
    match poll(&mut set, time.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Runs code that may have a bug. `None`: it panicked.
fn caught<T>(body: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(body)).ok()
}

/// Completes the connection of an accepted client; returns the client if it is not ready yet.
fn go_on(client: Coming) -> Option<Coming> {
    let ready = match client.accepting.is_ready() {
        Ok(false) => return Some(client),
        Ok(true) => Ok(()),
        Err(error) => Err(error),
    };
    if caught(|| (client.then)(ready)).is_none() {
        tracing::error!("bug: completing a connection panicked");
    }
    None
}

/// The reason for refusing a process with too many incomplete connections. It may ask again.
pub(crate) const TOO_MANY: &str = "the requesting process has too many incomplete connections";

/// Why a client that asks for a connection must wait for those whose connections are incomplete, if it must. Peers whose process is
/// unknown count as one process; a host, or its network (IPv6), counts as one process, too.
fn too_many(coming: &[(Arc<Entry>, Coming)], peer: &Peer) -> Option<String> {
    let source = |peer: &Peer| (peer.host.map(network_of), peer.uid, peer.pid);
    let peers = || coming.iter().map(|(_, client)| client.accepting.peer());
    let of_hosts = peers().filter(|it| it.host.is_some()).count();
    if peer.host.is_some() && of_hosts >= OF_HOSTS_MAX {
        return Some(format!(
            "programs on other hosts together already have {OF_HOSTS_MAX}"
        ));
    }
    let of_source = peers().filter(|it| source(it) == source(peer)).count();
    let whose = match peer.host {
        Some(_) => "that host (or its /64 network) already has".to_owned(),
        None => format!("that process of user {} already has", peer.uid),
    };
    (of_source >= OF_PROCESS_MAX).then(|| format!("{whose} {OF_PROCESS_MAX}"))
}

/// How many incomplete connections the host of `peer` has.
fn coming_from_host_of(coming: &[(Arc<Entry>, Coming)], peer: &Peer) -> usize {
    let host = peer.host.map(network_of);
    let peers = coming.iter().map(|(_, client)| client.accepting.peer());
    peers.filter(|it| it.host.map(network_of) == host).count()
}

/// The result of serving a listener that can accept no more clients now, although it stays readable.
struct Stopped;

/// Passes on the clients that have arrived, up to [`TURN`] of them.
fn serve(entry: &Arc<Entry>, inner: &Inner, clients: &mut Clients) -> Result<(), Stopped> {
    for _ in 0..TURN {
        if clients.coming.len() >= COMING_MAX {
            // There is no room for the others: pause, as after a failure.
            return Err(Stopped);
        }
        let open = entry.open.lock();
        if !*open {
            return Ok(());
        }
        match entry.listener.try_accept() {
            Ok(Some(incoming)) => {
                if let Some(why) = too_many(&clients.coming, incoming.peer()) {
                    complain(format_args!(
                        "refused a connection from {}: {why} incomplete connections",
                        incoming.peer().described()
                    ));
                    incoming.reject(TOO_MANY);
                    continue;
                }
                // The peer may have completed an earlier connection before it asked for this one.
                clients.go_on_accepted(inner);
                // A panic, which is a bug in rkey, costs only this client its connection.
                let of_host = coming_from_host_of(&clients.coming, incoming.peer());
                match caught(|| (entry.handler)(incoming, of_host)) {
                    Some(client) => {
                        let client = client.map(|client| (Arc::clone(entry), client));
                        clients.coming.extend(client);
                    }
                    None => {
                        tracing::error!("bug: accepting a connection panicked");
                    }
                }
            }
            Ok(None) => return Ok(()),
            Err(error) => {
                let address = entry.listener.local_address();
                tracing::debug!(%error, "cannot accept a connection at {address}");
                return Err(Stopped);
            }
        }
    }
    // The socket stays readable, so the thread returns here once it has completed connections.
    Ok(())
}

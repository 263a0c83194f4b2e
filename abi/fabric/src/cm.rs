//! Taking connections: one thread for all listeners of a fabric, so that a peer can connect while the
//! program does something else.

use crate::complaint::complain;
use crate::errno::Result;
use crate::wait::{Deadline, Signal, readable};
use parking_lot::Mutex;
use rkey_device::{Accepting, DeviceError, Incoming, Listener, Peer};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The pause after a failure that may last, such as no more descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// Clients that may be in the middle of connecting at one time.
const COMING_MAX: usize = 1024;
/// So many of them may be of one process: the others keep out nobody.
const OF_PROCESS_MAX: usize = 256;

/// What is done with a peer that asks for a connection. One that was accepted may take its time to answer.
pub(crate) type Handler = dyn Fn(Incoming) -> Option<Coming> + Send + Sync;

/// A client that was accepted, and what is done when it is ready, or did not get so far.
pub(crate) struct Coming {
    pub(crate) accepting: Accepting,
    pub(crate) then: Box<Then>,
}

type Then = dyn FnOnce(std::result::Result<(), DeviceError>) + Send;

/// The listeners of a fabric. The thread runs from the first of them to the end of the fabric.
#[derive(Default)]
pub(crate) struct Cm(Mutex<Option<Arc<Inner>>>);

struct Inner {
    signal: Signal,
    listeners: Mutex<Vec<Arc<Entry>>>,
    ended: AtomicBool,
}

struct Entry {
    listener: Listener,
    handler: Box<Handler>,
    /// Held while the handler runs, so that closing waits for it.
    open: Mutex<bool>,
}

/// A listener that is served until this is dropped.
pub(crate) struct Serving {
    inner: Arc<Inner>,
    entry: Arc<Entry>,
}

impl Cm {
    /// Serves a listener. The handler, and what it leaves to be done, runs in the thread, one call after the
    /// other, and never again once the result is dropped.
    pub(crate) fn serve(&self, listener: Listener, handler: Box<Handler>) -> Result<Serving> {
        let mut place = self.0.lock();
        let inner = match &*place {
            Some(inner) => Arc::clone(inner),
            None => {
                let inner = Arc::new(Inner {
                    signal: Signal::new()?,
                    listeners: Mutex::default(),
                    ended: AtomicBool::new(false),
                });
                let threads = Arc::clone(&inner);
                std::thread::Builder::new()
                    .name("rkey-fi-cm".to_owned())
                    .spawn(move || run(&threads))
                    .map_err(|_| crate::errno::FiError::NOMEM)?;
                Arc::clone(place.insert(inner))
            }
        };
        drop(place);
        let entry = Arc::new(Entry {
            listener,
            handler,
            open: Mutex::new(true),
        });
        inner.listeners.lock().push(Arc::clone(&entry));
        inner.signal.raise();
        Ok(Serving { inner, entry })
    }
}

impl Drop for Cm {
    fn drop(&mut self) {
        if let Some(inner) = self.0.lock().take() {
            inner.ended.store(true, Ordering::Release);
            inner.signal.raise();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        *self.entry.open.lock() = false;
        self.inner
            .listeners
            .lock()
            .retain(|other| !Arc::ptr_eq(other, &self.entry));
        self.inner.signal.raise();
    }
}

/// The thread: waits for clients and hands them on.
fn run(inner: &Inner) {
    let mut coming: Vec<(Arc<Entry>, Coming)> = Vec::new();
    while !inner.ended.load(Ordering::Acquire) {
        let entries = inner.listeners.lock().clone();
        let mut calm = true;
        for entry in &entries {
            calm &= serve(entry, &mut coming).is_ok();
        }
        let mut next = Vec::new();
        for (entry, client) in coming {
            next.extend(go_on(&entry, client).map(|client| (Arc::clone(&entry), client)));
        }
        coming = next;
        let mut fds = vec![inner.signal.raw()];
        fds.extend(
            entries
                .iter()
                .map(|entry| entry.listener.socket().as_raw_fd()),
        );
        let answers = coming.iter();
        fds.extend(answers.map(|(_, client)| client.accepting.socket().as_raw_fd()));
        // Somebody who has come and says nothing is asked again soon, and dropped after a second.
        let half_open = entries.iter().any(|entry| entry.listener.has_half_open());
        let deadline = if half_open {
            Deadline::after(Duration::from_millis(1))
        } else if coming.is_empty() {
            Deadline::never()
        } else {
            // Their time is looked after now and then.
            Deadline::after(Duration::from_millis(100))
        };
        // A listener that fails stays readable.
        if readable(&fds, &deadline).is_err() || !calm {
            std::thread::sleep(PAUSE);
        }
        inner.signal.clear();
    }
}

/// Goes on with a client that was accepted; gives it back if it is not ready yet.
fn go_on(entry: &Entry, client: Coming) -> Option<Coming> {
    let open = entry.open.lock();
    if !*open {
        return None;
    }
    let ready = match client.accepting.is_ready() {
        Ok(false) => return Some(client),
        Ok(true) => Ok(()),
        Err(error) => Err(error),
    };
    if catch_unwind(AssertUnwindSafe(|| (client.then)(ready))).is_err() {
        tracing::error!("making a connection panicked");
    }
    None
}

/// Why a process is refused that has begun too many connections.
const TOO_MANY: &str = "too many connections of this process are not complete";

/// Whether a process is in the middle of as many connections as it may be. Those that we do not see count as one.
fn has_too_many(coming: &[(Arc<Entry>, Coming)], peer: &Peer) -> bool {
    let of_process = |(_, client): &&(Arc<Entry>, Coming)| {
        let other = client.accepting.peer();
        (other.uid, other.pid) == (peer.uid, peer.pid)
    };
    coming.iter().filter(of_process).count() >= OF_PROCESS_MAX
}

/// Hands on all clients that have come.
fn serve(entry: &Arc<Entry>, coming: &mut Vec<(Arc<Entry>, Coming)>) -> Result<()> {
    while coming.len() < COMING_MAX {
        let open = entry.open.lock();
        if !*open {
            return Ok(());
        }
        match entry.listener.try_accept() {
            Ok(Some(incoming)) if has_too_many(coming, incoming.peer()) => {
                let (pid, uid) = (incoming.peer().pid, incoming.peer().uid);
                complain(format_args!(
                    "a connection of process {pid} of user {uid} was refused: {OF_PROCESS_MAX} of that process are not complete"
                ));
                incoming.reject(TOO_MANY);
            }
            Ok(Some(incoming)) => {
                // A panic, which would be a bug of ours, costs this client its connection and nobody else's.
                let handled = catch_unwind(AssertUnwindSafe(|| (entry.handler)(incoming)));
                match handled {
                    Ok(client) => coming.extend(client.map(|client| (Arc::clone(entry), client))),
                    Err(_) => tracing::error!("taking a connection panicked"),
                }
            }
            Ok(None) => return Ok(()),
            Err(error) => {
                tracing::debug!(%error, "taking a connection");
                return Err(error.into());
            }
        }
    }
    // Others wait, as after a failure.
    Err(crate::errno::FiError::AGAIN)
}

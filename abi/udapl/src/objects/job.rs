//! The jobs of an IA's worker: each advances as far as possible at every step, until it is finished.

use crate::handles::argument::deadline;
use crate::objects::cno::Cno;
use crate::objects::ep::Ep;
use crate::sys::Timeout;
use crate::sys::consts::*;
use crate::values::hello::{Hello, Purpose};
use rkey_device::{Accepting, Connecting, DeviceError, time};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a connection request waits for a listener to appear at the address.
const FIND_TIME: Duration = Duration::from_secs(3);
/// How long a message is kept for a peer that does not read it.
const FAREWELL_TIME: Duration = Duration::from_secs(5);

/// A job of the worker.
pub enum Job {
    /// A connection request of an EP.
    Connect {
        /// The EP.
        ep: Arc<Ep>,
        /// The number of the EP's attempt.
        attempt: u64,
        /// The device's part.
        connecting: Connecting,
        /// When to give up if there is no listener.
        find: Instant,
        /// When to give up.
        until: Option<Instant>,
        /// The program's timeout.
        timeout: Duration,
    },
    /// An accepted connection that the peer has not confirmed.
    Accept {
        /// The EP.
        ep: Arc<Ep>,
        /// The number of the EP's attempt.
        attempt: u64,
        /// The device's part.
        accepting: Accepting,
        /// The hello of the peer's request.
        hello: Hello,
    },
    /// A graceful disconnect that waits for requests.
    Drain {
        /// The EP.
        ep: Arc<Ep>,
        /// The number of the EP's attempt.
        attempt: u64,
    },
    /// A message to a peer that its connection has ended.
    Farewell {
        /// The connection request that carries the message.
        connecting: Connecting,
        /// When to give up.
        until: Instant,
    },
    /// Calls the agent of a CNO.
    Notify {
        /// The CNO.
        cno: Arc<Cno>,
        /// The EVD that triggered it.
        evd: usize,
    },
}

/// The error for a connection request that was not answered within the program's timeout.
fn timed_out(after: Duration) -> DeviceError {
    DeviceError::TimedOut {
        what: "the answer to a connection request",
        after,
    }
}

impl Job {
    /// A connection request.
    #[must_use]
    pub fn connect(ep: Arc<Ep>, attempt: u64, connecting: Connecting, timeout: Timeout) -> Self {
        let until = deadline(timeout);
        let find = time::now() + FIND_TIME;
        Self::Connect {
            ep,
            attempt,
            connecting,
            find: until.map_or(find, |until| until.min(find)),
            until,
            timeout: Duration::from_micros(timeout.into()),
        }
    }

    /// A message to a peer that its connection has ended.
    #[must_use]
    pub fn farewell(connecting: Connecting) -> Self {
        let until = time::now() + FAREWELL_TIME;
        Self::Farewell { connecting, until }
    }

    /// The descriptor that the job waits for; `None` if it needs a check at every tick.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Connect { connecting, .. } | Self::Farewell { connecting, .. } => {
                connecting.socket()
            }
            Self::Accept { accepting, .. } => Some(accepting.socket()),
            Self::Drain { .. } | Self::Notify { .. } => None,
        }
    }

    /// The time by which the job needs another step, even if its descriptor is not ready.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Connect { until, .. } => *until,
            Self::Farewell { until, .. } => Some(*until),
            // `is_ready` has its own deadline.
            Self::Accept { .. } => Some(time::now() + Duration::from_secs(1)),
            Self::Drain { .. } | Self::Notify { .. } => None,
        }
    }

    /// Whether a step may end the job even though its descriptor is not ready, because its EP may have moved on.
    pub(crate) fn may_be_stale(&self) -> bool {
        match self {
            Self::Connect { ep, attempt, .. } => !ep.is_attempt(*attempt),
            Self::Accept { .. } => true,
            _ => false,
        }
    }

    /// Advances the job as far as possible now; returns whether it is finished.
    pub(crate) fn step(&mut self, now: Instant) -> bool {
        match self {
            Self::Connect {
                ep,
                attempt,
                connecting,
                find,
                until,
                timeout,
                ..
            } => match step_connect(ep, *attempt, connecting, now, *find) {
                Some(done) => done,
                None if until.is_none_or(|until| now < until) => false,
                None => {
                    ep.refused(*attempt, &timed_out(*timeout));
                    true
                }
            },
            Self::Accept {
                ep,
                attempt,
                accepting,
                hello,
            } => step_accept(ep, *attempt, accepting, hello),
            Self::Drain { ep, attempt } => ep.drained(*attempt),
            Self::Farewell { connecting, until } => {
                !matches!(connecting.try_finish(), Ok(None)) || now >= *until
            }
            Self::Notify { cno, evd } => {
                cno.call_agent(*evd);
                true
            }
        }
    }
}

/// `Some(true)`: the job is finished. `Some(false)`: there is no listener yet. `None`: the peer has not answered yet.
fn step_connect(
    ep: &Arc<Ep>,
    attempt: u64,
    connecting: &mut Connecting,
    now: Instant,
    find: Instant,
) -> Option<bool> {
    if !ep.is_attempt(attempt) {
        return Some(true);
    }
    match connecting.try_finish() {
        Ok(Some(peer)) => ep.connected(attempt, &peer),
        Err(DeviceError::NotListening { .. }) if now < find => return Some(false),
        Ok(None) => return None,
        Err(error) => ep.refused(attempt, &error),
    }
    Some(true)
}

fn step_accept(ep: &Arc<Ep>, attempt: u64, accepting: &Accepting, hello: &Hello) -> bool {
    // The program has disconnected. A peer on another host still considers the connection established.
    if !ep.is_attempt(attempt) && !ep.is_datagram() {
        accepting.disconnect(Purpose::Disconnect as u8);
    }
    match accepting.is_ready() {
        Ok(false) => return !ep.is_attempt(attempt),
        Ok(true) => ep.accepted(attempt, hello),
        Err(error) if ep.is_datagram() => ep.not_resolved(attempt, &error),
        Err(error) => {
            tracing::info!(
                "the peer of EP {:#x} did not confirm the connection: {error}",
                ep.handle
            );
            ep.failed(attempt, CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR, &[]);
        }
    }
    true
}

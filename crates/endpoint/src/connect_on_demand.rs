//! Connections on demand: made when either side first needs one.
//!
//! An endpoint sends to a peer over one connection only, which keeps messages in order: the connection that the
//! endpoint requested, or the peer's if that came first. If both request one at the same time, there are two, and each
//! side sends on the one that it requested.
//!
//! A scalable endpoint has several receive contexts behind one listener ([`serve`]). Each is an endpoint of this crate, and
//! so is each of its transmit contexts, which only connect ([`Admission::one_way`](rkey_rdm::hello::Admission)).

use super::complaint::complain;
use super::hello::{refused, why_not};
use super::listeners::{Coming, Listeners, Serving, TOO_MANY};
use super::{Driver, Front, Holder};
use rkey_device::time;
use rkey_device::wire::Wire;
use rkey_device::{ConnectOptions, Device, DeviceError, Incoming, Listener, Qp, names};
use rkey_rdm::address::Destination;
use rkey_rdm::error::Error;
use rkey_rdm::hello::{Hello, NOT_UNDERSTOOD};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// How long an endpoint searches for a peer whose address the program has.
const SEARCH: Duration = Duration::from_secs(3);
/// How long it searches on another host: TCP repeats a lost request after 1, 3 and 7 seconds.
const SEARCH_ON_HOST: Duration = Duration::from_secs(10);
/// How long an existing peer may take to answer: it may be stopped, or be competing with many spinning threads for few
/// processors.
const ANSWER: Duration = Duration::from_secs(20);

/// The pause before a peer is asked again whether it is ready.
const PAUSE: Duration = Duration::from_millis(2);
/// The pause before a peer is asked again that has too many incomplete connections.
const LONG_PAUSE: Duration = Duration::from_millis(100);

/// Why a peer cannot connect to the receive context that it requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The context is not enabled yet; the peer may ask again.
    NotReady,
    /// There is no such receive context, and there never will be.
    NoContext,
    /// The endpoint is closed.
    Closed,
}

impl Absent {
    /// The reason sent to the peer.
    const fn reason(self) -> &'static str {
        match self {
            Self::NotReady => "the endpoint is not ready",
            Self::NoContext => "the endpoint has no such receive context",
            Self::Closed => "the endpoint is closed",
        }
    }
}

/// The address at which peers reach a listener. For a listener at all addresses, this is one that other hosts reach, if the device has
/// a wire.
#[must_use]
pub fn reachable(device: &Device, original: SocketAddr) -> SocketAddr {
    let address = SocketAddr::new(original.ip().to_canonical(), original.port());
    if !address.ip().is_unspecified() {
        return original;
    }
    let mut wire = device.wire().into_iter().flat_map(Wire::addresses);
    let ip = wire.find(|ip| ip.is_ipv4() == address.is_ipv4());
    let loopback = || match address {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip.unwrap_or_else(loopback), address.port())
}

impl<F: Front> Driver<F> {
    /// Accepts connections of peers at a listener, in the thread of `listeners`, until the endpoint is closed.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn serve<T: Holder<Front = F>>(
        &self,
        holder: &Arc<T>,
        listeners: &Listeners,
        listener: Listener,
    ) -> io::Result<()> {
        *self.name.lock() = reachable(&self.device, listener.local_address());
        let weak = Arc::downgrade(holder);
        let find = move |context| match context {
            0 => weak.upgrade().ok_or(Absent::Closed),
            _ => Err(Absent::NoContext),
        };
        *self.serving.lock() = Some(serve(listeners, listener, find)?);
        Ok(())
    }

    /// Connects a queue pair to the listener of a destination if the two endpoints may communicate. Returns the listener's hello.
    ///
    /// # Errors
    /// The same as [`Device::connect_as`], and if the two endpoints may not communicate.
    pub fn ask_at(
        &self,
        to: Destination,
        qp: &Qp,
        data: &[u8],
        how: &ConnectOptions,
    ) -> Result<Hello, DeviceError> {
        let ours = self.admission.ask(self.name(), to, data);
        let mut there = None;
        let admit = |peer: &rkey_device::Peer| {
            let answer = &peer.private_data;
            let hello = self.admission.admits_answer(&ours, peer.node, answer);
            there = Some(hello.map_err(refused)?);
            Ok(())
        };
        self.device
            .connect_as(how, to.address, &[qp], &ours.encode(), admit)?;
        there.ok_or(DeviceError::Handshake("the peer did not answer"))
    }

    /// Like [`Driver::ask_at`], but asks again while the receive context there is not ready.
    fn ask_until_ready(&self, to: Destination, qp: &Qp) -> Result<Hello, DeviceError> {
        let local = self.seen_by(to.address)?;
        let search = local.map_or(SEARCH, |_| SEARCH_ON_HOST);
        let until = time::now() + search;
        loop {
            let how = ConnectOptions {
                local,
                find: until.saturating_duration_since(time::now()),
                answer: ANSWER,
            };
            match self.ask_at(to, qp, &[], &how) {
                Err(DeviceError::Refused { reason })
                    if reason == Absent::NotReady.reason() && time::now() < until =>
                {
                    time::sleep(PAUSE);
                }
                Err(DeviceError::Refused { reason })
                    if reason == TOO_MANY && time::now() < until =>
                {
                    time::sleep(LONG_PAUSE);
                }
                decided => return decided,
            }
        }
    }

    /// The address from which a peer on another host sees our connection come: the one that we claim, which the peer checks.
    /// `None` for peers on this host.
    fn seen_by(&self, peer: SocketAddr) -> Result<Option<IpAddr>, DeviceError> {
        if names::is_of_this_host(peer.ip()) {
            return Ok(None);
        }
        let name = self.name();
        match self.device.wire() {
            Some(wire) if !wire.serves(name.ip().to_canonical()) => Err(DeviceError::NoRoute {
                address: peer,
                hint: "other hosts do not reach the endpoint's own address; `rkey info` lists the addresses of the wire",
            }),
            // Without a wire, connecting fails and says what to do.
            _ => Ok(Some(name.ip())),
        }
    }

    /// Connects to a peer: the body of the thread of [`spawn_connect`].
    fn connect_to(&self, peer: usize, to: Destination) {
        // Add the connection first: messages may arrive over it as soon as the peer is notified that our queue pair
        // is ready.
        let made = self.prepare_connection(to).and_then(|(qp, index)| {
            let there = self.ask_until_ready(to, &qp);
            there.map(|hello| (index, hello)).map_err(|error| {
                tracing::warn!("cannot reach {to}: {error}");
                self.given_up(index);
                F::error_of(&error)
            })
        });
        self.connect_finished(peer, made);
    }

    /// Reports the result of connecting to a peer: our connection, or the error. A connection that the peer made in the
    /// meantime also counts.
    fn connect_finished(&self, peer: usize, made: Result<(usize, Hello), Error>) {
        let mut state = self.state.lock();
        let rdm = &mut state.rdm;
        let made = made.map(|(index, hello)| {
            rdm.outbox_mut().set_device_keys(index, hello.device_keys);
            index
        });
        rdm.connect_finished(&self.host, peer, made, time::now());
        drop(state);
        self.host.wake_retrying();
    }

    /// Checks whether a peer with this hello, whose host has `of_host` incomplete connections, may connect to this (unconnected) endpoint;
    /// if not, sends it the reason.
    fn admit(&self, incoming: Incoming, of_host: usize, hello: &Hello) -> Option<Incoming> {
        let refuse = |incoming: Incoming, why: &str| {
            incoming.reject(why);
            None
        };
        let port = incoming.local_address().port();
        let admitted = self.admission.admits(hello, incoming.peer().node, port);
        if let Err(why) = admitted {
            complain(format_args!(
                "refused a connection from {}: {why}",
                hello.name
            ));
            return refuse(incoming, &why.to_string());
        }
        // Our messages to that address use this connection, so a peer must not claim another's address.
        if !incoming.listens_at(hello.name) {
            complain(format_args!(
                "refused a connection from {}: process {} of user {}, which sent the request, does not listen there",
                hello.name,
                incoming.peer().pid,
                incoming.peer().uid
            ));
            return refuse(
                incoming,
                "the requester does not listen at the address that it claims",
            );
        }
        if let Some(why) = incoming.has_no_room(of_host) {
            complain(format_args!(
                "refused a connection from {}: {why}; `ulimit -n` limits them",
                hello.name
            ));
            return refuse(incoming, why);
        }
        // Without the lock: asking whether an address is of this host takes system calls.
        let left = self.state.lock().rdm.connections().left();
        let host = |ip: IpAddr| {
            let is_here = names::is_of_this_host(ip);
            (!is_here).then(|| names::network_of(ip.to_canonical()))
        };
        if left.keeps_out(hello.name.ip(), host) {
            complain(format_args!(
                "refused a connection from {}: the program must first receive the messages of peers that have exited",
                hello.name
            ));
            return refuse(
                incoming,
                "the peer has too many unread messages of processes that have exited",
            );
        }
        Some(incoming)
    }
}

/// Connects to a peer, in a separate thread.
///
/// # Errors
/// [`Error::NoMemory`]: the thread cannot be started.
#[cold]
pub fn spawn_connect<T: Holder>(holder: Arc<T>, peer: usize, to: Destination) -> Result<(), Error> {
    let spawned = rkey_device::threads::spawn("rkey-connect", move || {
        let Some(driver) = holder.driver() else {
            return;
        };
        if catch_unwind(AssertUnwindSafe(|| driver.connect_to(peer, to))).is_err() {
            driver.connect_finished(peer, Err(Error::NotConnected));
        }
    });
    spawned.map(drop).map_err(|_| Error::NoMemory)
}

/// Accepts connections of peers at a listener for the endpoints behind it, until the result is dropped. `find` returns
/// the endpoint for a receive context. It runs in the listeners' thread.
///
/// # Errors
/// The thread cannot be started.
pub fn serve<T: Holder>(
    listeners: &Listeners,
    listener: Listener,
    find: impl Fn(u8) -> Result<Arc<T>, Absent> + Send + Sync + 'static,
) -> io::Result<Serving> {
    let handler = move |incoming: Incoming, of_host| {
        let Some(hello) = Hello::decode(&incoming.peer().private_data) else {
            let why = why_not(&incoming.peer().private_data);
            complain(format_args!(
                "refused a connection from {}: {why}",
                incoming.peer().described()
            ));
            incoming.reject(NOT_UNDERSTOOD);
            return None;
        };
        match find(hello.context) {
            Ok(holder) => take(&holder, incoming, of_host, &hello),
            Err(absent) => {
                incoming.reject(absent.reason());
                None
            }
        }
    };
    listeners.serve(listener, Box::new(handler))
}

/// Handles a peer's request for a connection to this (unconnected) endpoint.
fn take<T: Holder>(
    holder: &Arc<T>,
    incoming: Incoming,
    of_host: usize,
    hello: &Hello,
) -> Option<Coming> {
    let Some(driver) = holder.driver() else {
        incoming.reject(Absent::NotReady.reason());
        return None;
    };
    let incoming = driver.admit(incoming, of_host, hello)?;
    // The connection is added before it is ready: messages may arrive as soon as the peer has our answer.
    let prepared = driver.prepare_connection(hello.name.into());
    let answered = prepared
        .map_err(|error| format!("{error:?}"))
        .and_then(|(qp, connection)| {
            let mut state = driver.state.lock();
            state
                .rdm
                .outbox_mut()
                .set_device_keys(connection, hello.device_keys);
            if hello.one_way {
                state.rdm.outbox_mut().set_one_way(connection);
            }
            drop(state);
            let ours = driver.answer(hello, &[]).encode();
            let answered = incoming.answer(&[&qp], &ours);
            answered
                .map(|accepting| (accepting, connection))
                .map_err(|error| {
                    driver.given_up(connection);
                    error.to_string()
                })
        });
    let (accepting, connection) = match answered {
        Ok(answered) => answered,
        Err(error) => {
            tracing::info!("cannot accept a connection from {}: {error}", hello.name);
            return None;
        }
    };
    let (holder, name) = (Arc::clone(holder), hello.name);
    let then = move |ready: Result<(), DeviceError>| {
        let Some(driver) = holder.driver() else {
            return;
        };
        match ready {
            Ok(()) => driver.state.lock().rdm.accepted(&driver.host, connection),
            Err(error) => {
                tracing::info!(%error, "cannot accept a connection from {name}");
                driver.given_up(connection);
            }
        }
    };
    Some(Coming {
        accepting,
        then: Box::new(then),
    })
}

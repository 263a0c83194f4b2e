//! Reaching peers: the connection to one is made when it is needed, by whichever side needs it first.
//!
//! An endpoint sends to a peer over one connection only, so that order is kept. It is the one that the
//! endpoint asked for, or the peer's if that came first; when both ask at the same time there are two, and
//! each side sends on its own.

use super::hello::{refused, why_not};
use super::*;
use crate::cm::Coming;
use crate::complaint::complain;
use parking_lot::MutexGuard;
use rkey_device::time;
use rkey_device::{DeviceError, Incoming, Qp};
use rkey_rdm::hello::{Hello, NOT_UNDERSTOOD};
use rkey_rdm::peers::Route;
use std::time::Duration;

/// How long an endpoint looks for a peer whose address the program has.
const REACH: Duration = Duration::from_secs(3);
/// How long one that is there may take to answer: it may be stopped, or share few processors with many that spin.
const ANSWER: Duration = Duration::from_secs(20);
/// The endpoint knows no peer by this number.
#[cold]
pub(super) fn no_peer(number: u64) -> FiError {
    FiError::INVAL.because(format_args!(
        "fi_addr {number:#x} is not in the address vector of the endpoint, or of another authorization key"
    ))
}

impl Endpoint {
    /// The connection to a peer, by the number that the program passed, and the state of the endpoint.
    #[inline]
    pub(super) fn connection_to<'a>(
        &self,
        live: &'a Live,
        number: u64,
    ) -> Result<(MutexGuard<'a, State>, usize)> {
        let mut state = live.state.lock();
        if self.ep_type == FI_EP_MSG {
            return match state.rdm.connections.first() {
                Some(connection) if connection.state().is_open() => Ok((state, 0)),
                _ if state.rdm.is_shut() => Err(FiError::SHUTDOWN),
                _ => Err(FiError::NOTCONN),
            };
        }
        if let Some(av) = &live.host.av {
            state.rdm.peers.see_removals(av.removals());
        }
        let peer = match state.rdm.peers.numbered(number) {
            Some(peer) => peer,
            None => self.look_up(live, &mut state, number)?,
        };
        if !state.rdm.callers.is_empty() {
            state.rdm.callers.retried(peer, std::thread::current().id());
        }
        if let Route::Open(connection) = state.rdm.peers[peer].route {
            return Ok((state, connection));
        }
        Err(self.come_later(live, &mut state, peer))
    }

    /// There is no connection to a peer yet: the program is asked to call again, or told why there will be none.
    #[cold]
    fn come_later(&self, live: &Live, state: &mut State, peer: usize) -> FiError {
        let error = match state.rdm.route_to(&live.host, peer, time::now()) {
            Ok(_) => FiError::AGAIN,
            Err(error) => error.into(),
        };
        let retrying = &mut state.rdm.peers[peer].retrying;
        let this = std::thread::current().id();
        retrying.retain(|&it| it != this);
        if error == FiError::AGAIN {
            retrying.push(this);
        }
        error
    }

    #[cold]
    fn look_up(&self, live: &Live, state: &mut State, number: u64) -> Result<usize> {
        let address = live
            .host
            .av
            .as_ref()
            .filter(|av| av.allows(number, &self.pd.key))
            .and_then(|av| av.get(number))
            .ok_or_else(|| no_peer(number))?;
        let peer = state.rdm.peers.at(address);
        let number = usize::try_from(number).map_err(|_| FiError::INVAL)?;
        state.rdm.peers.set_number(number, peer);
        Ok(peer)
    }

    /// Connects to a peer, in a thread of its own.
    #[cold]
    pub(super) fn reach(self: Arc<Self>, peer: usize, address: SocketAddr) -> Result<()> {
        let spawned = rkey_device::threads::spawn("rkey-fi-connect", move || {
            let call = std::panic::AssertUnwindSafe(|| self.call(peer, address));
            if std::panic::catch_unwind(call).is_err() {
                self.decided(peer, Err(FiError::NOTCONN));
            }
        });
        spawned.map(drop).map_err(|_| FiError::NOMEM)
    }

    /// The thread that connects to a peer.
    fn call(&self, peer: usize, address: SocketAddr) {
        let Some(live) = self.live.get() else { return };
        // Nothing can come over it before the peer has heard from us, but then at once.
        let made = self
            .prepare_connection(live, address)
            .and_then(|(qp, index)| {
                let there = self.ask_at(live, address, &qp, &[], REACH, ANSWER);
                there.map(|hello| (index, hello)).map_err(|error| {
                    tracing::warn!(
                        "{} cannot be reached: {error}",
                        rkey_rdm::address::to_text(address)
                    );
                    self.given_up(live, index);
                    crate::errno::of_device(&error)
                })
            });
        self.decided(peer, made);
    }

    /// Whether there is a way to a peer: over our connection, or why not. If the peer has connected to us meanwhile, that is
    /// as good.
    fn decided(&self, peer: usize, made: Result<(usize, Hello)>) {
        let Some(live) = self.live.get() else { return };
        let mut state = live.state.lock();
        let rdm = &mut state.rdm;
        let made = made.map(|(index, hello)| {
            rdm.connections[index].device_keys = hello.device_keys;
            index
        });
        rdm.decided(&live.host, peer, made.map_err(Into::into), time::now());
        drop(state);
        Self::come_again(live);
    }

    /// Wakes a program that waits until it can come again.
    fn come_again(live: &Live) {
        // A program may wait for its queue before it comes again.
        for side in [&live.host.tx, &live.host.rx].into_iter().flatten() {
            side.cq.nudge();
        }
    }

    /// Connects a queue pair to the listener at an address, if it may talk to us; what it told.
    pub(super) fn ask_at(
        &self,
        live: &Live,
        address: SocketAddr,
        qp: &Qp,
        data: &[u8],
        find: Duration,
        answer: Duration,
    ) -> std::result::Result<Hello, DeviceError> {
        let ours = live.ask(address, data);
        let mut there = None;
        let admit = |peer: &rkey_device::Peer| {
            let answer = &peer.private_data;
            let hello = live.admission.admits_answer(&ours, peer.node, answer);
            there = Some(hello.map_err(refused)?);
            Ok(())
        };
        let device = &self.domain.device;
        device.connect_patiently(address, &[qp], &ours.encode(), find, answer, admit)?;
        there.ok_or(DeviceError::Handshake("no answer"))
    }

    /// A peer asks for a connection to this (unconnected) endpoint. Runs in the thread of the listeners.
    pub(super) fn take(self: &Arc<Self>, incoming: Incoming) -> Option<Coming> {
        let refuse = |incoming: Incoming, why: &str| {
            incoming.reject(why);
            None
        };
        let Some(live) = self.live.get() else {
            return refuse(incoming, "not ready");
        };
        let Some(hello) = Hello::decode(&incoming.peer().private_data) else {
            let why = why_not(&incoming.peer().private_data);
            complain(format_args!(
                "a connection from process {} was refused: {why}",
                incoming.peer().pid
            ));
            return refuse(incoming, NOT_UNDERSTOOD);
        };
        let port = incoming.local_address().port();
        if let Err(why) = live.admission.admits(&hello, incoming.peer().node, port) {
            complain(format_args!(
                "a connection from {} was refused: {why}",
                hello.name
            ));
            return refuse(incoming, &why.to_string());
        }
        // What we send to that address goes over this connection: a peer may not claim the address of another.
        if !incoming.listens_at(hello.name) {
            complain(format_args!(
                "a connection from {} was refused: the peer, process {} of user {}, does not listen there",
                hello.name,
                incoming.peer().pid,
                incoming.peer().uid
            ));
            return refuse(incoming, "the address is not yours");
        }
        if live.state.lock().rdm.connections.is_littered() {
            complain(format_args!(
                "refused a connection from {}: the program must first receive what departed peers have left",
                hello.name
            ));
            return refuse(incoming, "too many messages of others are unread there");
        }
        // Known before it is ready: messages may come as soon as the peer has our answer.
        let answered = self
            .prepare_connection(live, hello.name)
            .and_then(|(qp, connection)| {
                live.state.lock().rdm.connections[connection].device_keys = hello.device_keys;
                let ours = live.answer(&hello, &[]).encode();
                let answered = incoming.answer(&[&qp], &ours).map_err(FiError::from);
                answered
                    .map(|accepting| (accepting, connection))
                    .inspect_err(|_| self.given_up(live, connection))
            });
        let (accepting, connection) = match answered {
            Ok(answered) => answered,
            Err(error) => {
                tracing::info!(
                    "could not accept a connection from {}: {error:?}",
                    hello.name
                );
                return None;
            }
        };
        let ep = Arc::clone(self);
        let then = move |ready: std::result::Result<(), DeviceError>| {
            let Some(live) = ep.live.get() else { return };
            match ready {
                Ok(()) => live.state.lock().rdm.accepted(&live.host, connection),
                Err(error) => {
                    tracing::info!(%error, "could not accept a connection from {}", hello.name);
                    ep.given_up(live, connection);
                }
            }
        };
        Some(Coming {
            accepting,
            then: Box::new(then),
        })
    }
}

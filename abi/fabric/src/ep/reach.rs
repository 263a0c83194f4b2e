//! Reaching peers: the connection to one is made when it is needed, by whichever side needs it first.
//!
//! An endpoint sends to a peer over one connection only, so that order is kept. It is the one that the
//! endpoint asked for, or the peer's if that came first; when both ask at the same time there are two, and
//! each side sends on its own.

use super::hello::why_not;
use super::*;
use crate::cm::Coming;
use crate::complaint::complain;
use parking_lot::MutexGuard;
use rkey_device::{DeviceError, Incoming, Qp};
use rkey_rdm::connection::Event;
use rkey_rdm::hello::{Hello, NOT_UNDERSTOOD};
use rkey_rdm::peers::Way;
use std::time::{Duration, Instant};

/// How long an endpoint looks for a peer whose address the program has.
const REACH: Duration = Duration::from_secs(3);
/// How long one that is there may take to answer: it may be stopped, or share few processors with many that spin.
const ANSWER: Duration = Duration::from_secs(20);
impl State {
    /// Whether there is a way to a peer: calls that were asked to come again for it may do so.
    #[cold]
    fn decided(&mut self, peer: usize) {
        self.callers.decided(&mut self.peers, peer, Instant::now());
    }
}

/// The endpoint knows nobody by this number.
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
            return match state.connections.first() {
                Some(connection) if connection.state().is_open() => Ok((state, 0)),
                _ if state.shut => Err(FiError::SHUTDOWN),
                _ => Err(FiError::NOTCONN),
            };
        }
        if let Some(av) = &live.av {
            state.peers.see_removals(av.removals());
        }
        let peer = match state.peers.numbered(number) {
            Some(peer) => peer,
            None => self.look_up(live, &mut state, number)?,
        };
        if !state.callers.is_empty() {
            state.callers.came(peer, std::thread::current().id());
        }
        if let Way::Open(connection) = state.peers[peer].way {
            return Ok((state, connection));
        }
        let error = self.reach(live, &mut state, peer);
        let (this, asked) = (std::thread::current().id(), &mut state.peers[peer].asked);
        asked.retain(|&it| it != this);
        if error == FiError::AGAIN {
            asked.push(this);
        }
        Err(error)
    }

    #[cold]
    fn look_up(&self, live: &Live, state: &mut State, number: u64) -> Result<usize> {
        let address = live
            .av
            .as_ref()
            .filter(|av| av.allows(number, &self.group.key))
            .and_then(|av| av.get(number))
            .ok_or_else(|| no_peer(number))?;
        let peer = state.peers.at(address);
        let number = usize::try_from(number).map_err(|_| FiError::INVAL)?;
        state.peers.set_number(number, peer);
        Ok(peer)
    }

    /// Connects to a peer, in a thread of its own: the program is asked to come again, or told why there is no way.
    #[cold]
    pub(super) fn reach(&self, live: &Live, state: &mut State, peer: usize) -> FiError {
        let it = &mut state.peers[peer];
        if it.way == Way::Coming {
            return FiError::AGAIN;
        }
        if let Some(error) = it.take_failure(Instant::now()) {
            return error;
        }
        let Some(ep) = live.this.upgrade() else {
            return FiError::SHUTDOWN;
        };
        let address = it.address;
        it.way = Way::Coming;
        let spawned = std::thread::Builder::new()
            .name("rkey-fi-connect".to_owned())
            .spawn(move || {
                let call = std::panic::AssertUnwindSafe(|| ep.call(peer, address));
                if std::panic::catch_unwind(call).is_err() {
                    ep.not_reached(peer, FiError::NOTCONN);
                }
            });
        if spawned.is_err() {
            it.way = Way::None;
            return FiError::NOMEM;
        }
        FiError::AGAIN
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
        let mut state = live.state.lock();
        let made = made.and_then(|(index, hello)| {
            // The peer may have gone since.
            self.check(live, &mut state, index);
            state.connections.apply(index, Event::Made);
            let connection = &mut state.connections[index];
            if connection.state().is_lost() {
                return Err(FiError::CONNRESET);
            }
            connection.device_keys = hello.device_keys;
            Ok(index)
        });
        match made {
            Ok(index) => {
                state.peers[peer].way = Way::Open(index);
                state.decided(peer);
            }
            Err(error) => {
                drop(state);
                return self.not_reached(peer, error);
            }
        }
        drop(state);
        Self::come_again(live);
    }

    /// We could not connect to a peer. If it has connected to us meanwhile, that is as good.
    #[cold]
    fn not_reached(&self, peer: usize, error: FiError) {
        let Some(live) = self.live.get() else { return };
        let mut state = live.state.lock();
        let way = state.way_left(state.peers[peer].address);
        let it = &mut state.peers[peer];
        it.way = way;
        it.failed = (way == Way::None).then(|| (error, Instant::now()));
        state.decided(peer);
        drop(state);
        Self::come_again(live);
    }

    /// Wakes a program that waits until it can come again.
    fn come_again(live: &Live) {
        // A program may wait for its queue before it comes again.
        for side in [&live.tx, &live.rx].into_iter().flatten() {
            side.cq.nudge();
        }
    }

    /// Connects a queue pair with whoever listens at an address and may talk to us; what that peer told.
    pub(super) fn ask_at(
        &self,
        live: &Live,
        address: SocketAddr,
        qp: &Qp,
        data: &[u8],
        find: Duration,
        answer: Duration,
    ) -> std::result::Result<Hello, DeviceError> {
        let ours = self.ask(live, address, data);
        let mut there = None;
        let admit = |peer: &rkey_device::Peer| {
            there = Some(self.admits_answer(&ours, peer.node, &peer.private_data)?);
            Ok(())
        };
        let device = &self.domain.device;
        device.connect_patiently(address, &[qp], &ours.encode(), find, answer, admit)?;
        there.ok_or(DeviceError::Handshake("nobody answered"))
    }

    /// A peer asks for a connection to this (unconnected) endpoint. Runs in the thread of the listeners.
    pub(super) fn take(self: &Arc<Self>, incoming: Incoming) -> Option<Coming> {
        let refuse = |incoming: Incoming, why| {
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
        if let Err(why) = self.admits(&hello, incoming.peer().node, port) {
            complain(format_args!(
                "a connection from {} was refused: {why}",
                hello.name
            ));
            return refuse(incoming, why);
        }
        // What we send to that address goes over this connection: nobody else's may be claimed.
        if !incoming.listens_at(hello.name) {
            complain(format_args!(
                "a connection from {} was refused: the peer, process {} of user {}, does not listen there",
                hello.name,
                incoming.peer().pid,
                incoming.peer().uid
            ));
            return refuse(incoming, "the address is not yours");
        }
        if live.state.lock().connections.is_littered() {
            complain(format_args!(
                "a connection from {} was refused: the program has to receive what peers have left that are gone",
                hello.name
            ));
            return refuse(incoming, "too many messages of others are unread there");
        }
        // Known before it is ready: messages may come as soon as the peer has our answer.
        let answered = self
            .prepare_connection(live, hello.name)
            .and_then(|(qp, connection)| {
                live.state.lock().connections[connection].device_keys = hello.device_keys;
                let ours = self.answer(live, &hello, &[]).encode();
                let answered = incoming.answer(&[&qp], &ours).map_err(FiError::from);
                answered
                    .map(|accepting| (accepting, connection))
                    .inspect_err(|_| self.given_up(live, connection))
            });
        let (accepting, connection) = match answered {
            Ok(answered) => answered,
            Err(error) => {
                tracing::info!("a connection from {} was not made: {error:?}", hello.name);
                return None;
            }
        };
        let ep = Arc::clone(self);
        let then = move |ready: std::result::Result<(), DeviceError>| {
            let Some(live) = ep.live.get() else { return };
            match ready {
                Ok(()) => ep.taken_up(live, connection, hello.name),
                Err(error) => {
                    tracing::info!(%error, "a connection from {} was not made", hello.name);
                    ep.given_up(live, connection);
                }
            }
        };
        Some(Coming {
            accepting,
            then: Box::new(then),
        })
    }

    /// A peer that was accepted is ready.
    fn taken_up(&self, live: &Live, connection: usize, name: SocketAddr) {
        let mut state = live.state.lock();
        // The peer may have gone since.
        self.check(live, &mut state, connection);
        state.connections.apply(connection, Event::Made);
        if state.connections[connection].state().is_lost() {
            return;
        }
        let peer = state.peers.at(name);
        if state.peers[peer].way == Way::None {
            state.peers[peer].way = Way::Open(connection);
            state.peers[peer].failed = None;
        }
    }
}

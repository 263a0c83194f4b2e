//! Peers, and connections from the queue pair that is to be one to the loss of it.

use super::*;
use crate::complaint::complain;
use crate::identity::Identity;
use rkey_device::core::Denial;
use rkey_device::engine::{QpAttributes, QpState, Status};
use rkey_device::{Qp, QpOptions};
use rkey_rdm::backlog::Backlog;
use rkey_rdm::credit::{Credit, Window};
use std::thread::ThreadId;
use std::time::Instant;

/// Somebody to talk to.
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) way: Way,
    /// Why it could not be reached, until the program has heard of it.
    pub(super) failed: Option<(FiError, Instant)>,
    /// Threads whose calls were asked to come again. It has not been decided since whether there is a way.
    pub(super) asked: Vec<ThreadId>,
}

/// How messages to a peer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    None,
    /// A thread is connecting.
    Coming,
    Open(usize),
}

/// A connection.
pub(super) struct Connection {
    pub(super) qp: Option<Qp>,
    pub(super) peer: SocketAddr,
    /// By which regions for one peer know it.
    pub(super) identity: Option<Arc<Identity>>,
    /// Both sides are ready, and it did not fail: operations of ours may begin on it. Answers go before that: the
    /// peer may be ready a moment before we know.
    pub(super) up: bool,
    /// It failed, or the peer went.
    pub(super) lost: bool,
    /// The peer did not keep the rules.
    pub(super) cut: bool,
    /// The queue pair of a lost one has ended, too.
    pub(super) ended: bool,
    /// Its place is free.
    pub(super) buried: bool,
    /// A thread is still connecting it.
    pub(super) pinned: bool,
    /// Messages of it that no receive has taken yet.
    pub(super) kept: u32,
    /// Those of them of which only an RTS has come.
    pub(super) rendezvous: u32,
    /// What we may send, and what the peer has sent.
    pub(super) credit: Credit,
    pub(super) window: Window,
    /// Requests that were posted and not completed.
    pub(super) outstanding: u32,
    /// Answers that found no room.
    pub(super) backlog: Backlog,
    /// Keys of regions there are chosen by the device.
    pub(super) device_keys: bool,
}

impl State {
    /// The way to a peer to whom our own connection was not made, or has ended: over one that it has made, if there is
    /// one (both sides may ask at the same time).
    #[cold]
    pub(super) fn way_left(&self, address: SocketAddr) -> Way {
        let works = |it: &Connection| {
            let qp = it.qp.as_ref().filter(|_| it.up && !it.lost);
            it.peer == address
                && qp
                    .and_then(|qp| qp.query().ok())
                    .is_some_and(|info| info.state == QpState::Rts)
        };
        let index = self.connections.iter().position(works);
        index.map_or(Way::None, Way::Open)
    }
}

impl Connection {
    /// By which number regions for one peer know it.
    pub(super) fn identity(&self) -> Option<u32> {
        self.identity.as_ref().map(|identity| identity.number)
    }

    /// The peer asked in a message for what it may not: noted here, and the error that it gets. Who is not to be told
    /// why gets the same one for every reason.
    #[cold]
    pub(super) fn refuse(&self, denial: Box<Denial>) -> FiError {
        let error = crate::errno::of_status(Status::RemoteAccess, Some(&denial));
        let told = self.qp.as_ref().is_some_and(|qp| qp.note_refusal(*denial));
        if told {
            error
        } else {
            crate::errno::of_status(Status::RemoteAccess, None)
        }
    }
}

impl Endpoint {
    /// Who a peer is, where regions can be limited to one (FI-212).
    fn identity(&self, peer: SocketAddr) -> Option<Arc<Identity>> {
        let limited = self.domain.av_keys && self.domain.directed;
        limited.then(|| self.domain.identities.of(peer))
    }

    pub(super) fn new_qp(&self, live: &Live, peer: Option<&Identity>) -> Result<Qp> {
        let options = QpOptions {
            srq: Some(live.srq.clone()),
            max_send: SENDS,
            max_recv: 1,
            max_send_sge: NEEDED_SGE,
            max_recv_sge: 1,
            max_inline: NEEDED_INLINE,
            survive_remote_error: true,
            endpoint: Some(self.number),
            peer: peer.map(|peer| peer.number),
            ..QpOptions::new(self.group.id, &live.cq)
        };
        Ok(self.domain.device.create_qp(&options)?)
    }

    /// A queue pair, and the connection that it is to be.
    pub(super) fn prepare_connection(&self, live: &Live, peer: SocketAddr) -> Result<(Qp, usize)> {
        let prepare = || {
            let identity = self.identity(peer);
            let qp = self.new_qp(live, identity.as_deref())?;
            let index = self.add_connection(live, &mut live.state.lock(), qp.clone(), peer)?;
            Ok((qp, index))
        };
        prepare().or_else(|_: FiError| {
            // Connections that are over may take the room. They go in two steps.
            for _ in 0..2 {
                self.look_for_lost(live);
            }
            prepare()
        })
    }

    /// Adds a connection; it is not used for sending before it is `up`.
    pub(super) fn add_connection(
        &self,
        live: &Live,
        state: &mut State,
        qp: Qp,
        peer: SocketAddr,
    ) -> Result<usize> {
        // Whoever closes the endpoint looks once for connections that have to end.
        if self.closing.load(Ordering::Acquire) {
            return Err(FiError::SHUTDOWN);
        }
        let depth = BUFFERS + (state.connection_count() as u32 + 2) * SENDS;
        if depth as usize > live.cq.depth() {
            live.cq.resize(depth * 2)?;
        }
        let qpn = qp.qpn();
        let index = state.place_connection(Connection {
            qp: Some(qp),
            peer,
            identity: self.identity(peer),
            up: false,
            lost: false,
            cut: false,
            ended: false,
            buried: false,
            pinned: true,
            kept: 0,
            rendezvous: 0,
            credit: Credit::default(),
            window: Window::default(),
            outstanding: 0,
            backlog: Backlog::default(),
            device_keys: false,
        });
        state.by_qpn.insert(qpn, index);
        Ok(index)
    }

    pub(super) fn peer(state: &mut State, address: SocketAddr) -> usize {
        if let Some(&peer) = state.by_address.get(&address) {
            return peer;
        }
        let new = Peer {
            address,
            way: Way::None,
            failed: None,
            asked: Vec::new(),
        };
        let peer = match state.free_peers.pop() {
            Some(peer) => {
                state.peers[peer] = new;
                peer
            }
            None => {
                state.peers.push(new);
                state.peers.len() - 1
            }
        };
        state.by_address.insert(address, peer);
        peer
    }

    /// A connection was not made.
    pub(super) fn given_up(&self, live: &Live, connection: usize) {
        let mut state = live.state.lock();
        state.connections[connection].pinned = false;
        self.lose(live, &mut state, connection);
    }

    /// A peer does not keep the rules: nothing that it says is heard any more.
    #[cold]
    pub(super) fn cut_off(&self, live: &Live, state: &mut State, connection: usize, why: &str) {
        let it = &mut state.connections[connection];
        if !std::mem::replace(&mut it.cut, true) {
            complain(format_args!("the connection to {} ends: {why}", it.peer));
            // It need not take what we have sent: then that would never end.
            if let Some(qp) = &it.qp {
                let _ = qp.modify(&QpAttributes::to(QpState::Error));
            }
        }
        self.lose(live, state, connection);
    }

    /// A connection failed: what waits for the peer's answer gets none.
    pub(super) fn lose(&self, live: &Live, state: &mut State, connection: usize) {
        if std::mem::replace(&mut state.connections[connection].lost, true) {
            return;
        }
        let up = std::mem::replace(&mut state.connections[connection].up, false);
        state.burial.waiting += 1;
        if let Some(collective) = &mut state.collective {
            collective.forget_connection(connection, state.connections[connection].peer, up);
        }
        let waiting = std::mem::take(&mut state.connections[connection].backlog);
        let address = state.connections[connection].peer;
        let open = state.operations_of(connection).len();
        tracing::info!(peer = %address, open, "a connection is over; operations that are open on it fail");
        if let Some(&peer) = state.by_address.get(&address)
            && state.peers[peer].way == Way::Open(connection)
        {
            state.peers[peer].way = state.way_left(address);
        }
        for later in waiting.iter() {
            self.fail_with(live, state, later.operation(), FiError::CONNRESET);
        }
        for id in state.operations_of(connection) {
            let Some(operation) = state.operations.get(id) else {
                continue;
            };
            if operation.answered {
                operation.answered = false;
                operation.fail(FiError::CONNRESET);
                self.step(live, state, id);
            }
        }
        // The program hears of the end after it has heard of the beginning.
        if self.ep_type == FI_EP_MSG && !state.connections[connection].pinned {
            self.tell_shutdown(live, state);
        }
    }
}

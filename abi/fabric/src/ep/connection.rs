//! Peers, and connections from the queue pair that is to be one to the loss of it.

use super::*;
use crate::complaint::complain;
use crate::identity::Identity;
use rkey_device::core::Denial;
use rkey_device::engine::{QpAttributes, QpState, Status};
use rkey_device::{Qp, QpOptions};
use rkey_rdm::connection::Event;
use rkey_rdm::peers::Way;

/// Whom an endpoint talks to; threads are asked to come again.
pub(super) type Peers = rkey_rdm::peers::Peers<FiError, ThreadId>;
/// A connection, and by which identity regions for one peer know that peer.
pub(super) type Connection = rkey_rdm::connection::Connection<Qp, Option<Arc<Identity>>>;
/// The connections of an endpoint.
pub(super) type Connections = rkey_rdm::connection::Connections<Qp, Option<Arc<Identity>>>;

impl State {
    /// The way to a peer to whom our own connection was not made, or has ended: over one that it has made, if there is
    /// one (both sides may ask at the same time).
    #[cold]
    pub(super) fn way_left(&self, address: SocketAddr) -> Way {
        let works = |it: &Connection| {
            let qp = it.qp.as_ref().filter(|_| it.state().is_open());
            it.peer == address
                && qp
                    .and_then(|qp| qp.query().ok())
                    .is_some_and(|info| info.state == QpState::Rts)
        };
        let index = self.connections.iter().position(works);
        index.map_or(Way::None, Way::Open)
    }
}

/// By which number regions for one peer know the peer of a connection.
pub(super) fn identity_of(from: &Connection) -> Option<u32> {
    from.identity.as_ref().map(|identity| identity.number)
}

/// The peer asked in a message for what it may not: noted here, and the error that it gets. Who is not to be told
/// why gets the same one for every reason.
#[cold]
pub(super) fn refuse(from: &Connection, denial: Box<Denial>) -> FiError {
    let error = crate::errno::of_status(Status::RemoteAccess, Some(&denial));
    let told = from.qp.as_ref().is_some_and(|qp| qp.note_refusal(*denial));
    if told {
        error
    } else {
        crate::errno::of_status(Status::RemoteAccess, None)
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
        let depth = BUFFERS + (state.connections.count() as u32 + 2) * SENDS;
        if depth as usize > live.cq.depth() {
            live.cq.resize(depth * 2)?;
        }
        let (qpn, identity) = (qp.qpn(), self.identity(peer));
        let connection = Connection::new(qp, peer, identity);
        Ok(state.connections.add(qpn, connection))
    }

    /// A connection was not made.
    pub(super) fn given_up(&self, live: &Live, connection: usize) {
        self.happened(live, &mut live.state.lock(), connection, Event::GivenUp);
    }

    /// A peer violates the protocol: nothing that it says is heard any more.
    #[cold]
    pub(super) fn cut_off(&self, live: &Live, state: &mut State, connection: usize, why: &str) {
        let change = state.connections.apply(connection, Event::Violated);
        if change.cut() {
            let it = &state.connections[connection];
            complain(format_args!("the connection to {} ends: {why}", it.peer));
            // It need not take what we have sent: then that would never end.
            if let Some(qp) = &it.qp {
                let _ = qp.modify(&QpAttributes::to(QpState::Error));
            }
        }
        if change.lost() {
            self.after_loss(live, state, connection, change.was_open());
        }
    }

    /// A connection failed: what waits for the peer's answer gets none.
    pub(super) fn lose(&self, live: &Live, state: &mut State, connection: usize) {
        self.happened(live, state, connection, Event::Lost);
    }

    /// Something happened to a connection; if it is lost by that, everybody is told.
    fn happened(&self, live: &Live, state: &mut State, connection: usize, event: Event) {
        let change = state.connections.apply(connection, event);
        if change.lost() {
            self.after_loss(live, state, connection, change.was_open());
        }
    }

    /// A connection was just lost, which had been open or not.
    #[cold]
    fn after_loss(&self, live: &Live, state: &mut State, connection: usize, was_open: bool) {
        if let Some(collective) = &mut state.collective {
            let peer = state.connections[connection].peer;
            collective.forget_connection(connection, peer, was_open);
        }
        let waiting = std::mem::take(&mut state.connections[connection].backlog);
        let address = state.connections[connection].peer;
        let open = state.operations_of(connection).len();
        tracing::info!(peer = %address, open, "a connection is over; operations that are open on it fail");
        if let Some(peer) = state.peers.find(address)
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
        if self.ep_type == FI_EP_MSG && !state.connections[connection].state().is_connecting() {
            self.tell_shutdown(live, state);
        }
    }
}

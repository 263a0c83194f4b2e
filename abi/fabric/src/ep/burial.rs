//! Connections that are over. A connection that failed, or whose peer has gone, is taken apart when nothing
//! refers to it any more: no request, no operation, no message that waits for a receive. Its place serves
//! the next peer.

use super::connection::Way;
use super::*;
use rkey_device::Qp;
use rkey_device::engine::{QpAttributes, QpState};
use std::time::{Duration, Instant};

/// Pause between two looks at connections that are over.
const PAUSE: Duration = Duration::from_millis(1);

/// What is to be taken apart.
#[derive(Default)]
pub(super) struct Burial {
    /// Connections that are over and still have their place.
    pub(super) waiting: usize,
    /// Places that nobody has.
    pub(super) free: Vec<usize>,
    look: Option<Instant>,
}

impl State {
    /// A place for a connection.
    pub(super) fn place_connection(&mut self, connection: Connection) -> usize {
        match self.burial.free.pop() {
            Some(index) => {
                self.connections[index] = connection;
                index
            }
            None => {
                self.connections.push(connection);
                self.connections.len() - 1
            }
        }
    }

    /// Connections that have a place.
    pub(super) fn connection_count(&self) -> usize {
        self.connections.len() - self.burial.free.len()
    }

    /// Forgets a peer to whom there is no way.
    fn forget_peer(&mut self, address: SocketAddr) {
        let Some(&peer) = self.by_address.get(&address) else {
            return;
        };
        if self.peers[peer].way == Way::None && self.peers[peer].failed.is_none() {
            self.by_address.remove(&address);
            let number = peer as u32 + 1;
            for known in self.by_number.iter_mut().filter(|known| **known == number) {
                *known = 0;
            }
            self.free_peers.push(peer);
        }
    }
}

impl Endpoint {
    /// Looks at all connections now, whether their peers have gone.
    #[cold]
    pub(super) fn look_for_lost(&self, live: &Live) {
        let mut state = live.state.lock();
        self.look_after(live, &mut state);
        state.burial.look = None;
        self.advance(live, &mut state);
    }

    /// Takes connections apart that are over. The completion queue has just been found empty.
    #[cold]
    pub(super) fn bury(&self, state: &mut State) {
        let now = Instant::now();
        if state.burial.look.is_some_and(|at| now < at) {
            return;
        }
        state.burial.look = Some(now + PAUSE);
        for index in 0..state.connections.len() {
            let it = &state.connections[index];
            if !it.lost || it.buried || it.pinned || it.outstanding > 0 || !it.backlog.is_empty() {
                continue;
            }
            if !state.operations_of(index).is_empty() || state.condemned.has(index) {
                continue;
            }
            let it = &mut state.connections[index];
            if let Some(qp) = &it.qp {
                if !it.ended {
                    // Nothing comes from the next look on: then the queue pair can go, and loses nothing.
                    let _ = qp.modify(&QpAttributes::to(QpState::Error));
                    it.ended = true;
                    continue;
                }
                if !qp.is_quiet() {
                    continue;
                }
            }
            if let Some(qpn) = it.qp.take().map(|qp| Qp::qpn(&qp)) {
                state.by_qpn.remove(&qpn);
            }
            if it.kept == 0 {
                it.buried = true;
                let address = it.peer;
                state.burial.waiting -= 1;
                state.burial.free.push(index);
                state.forget_peer(address);
            }
        }
    }
}

//! Queue pairs for connections.

use super::*;
use crate::identity::Identity;
use rkey_device::{Qp, QpOptions};
use rkey_rdm::connection::Event;

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
            ..QpOptions::new(self.pd.id, &live.cq)
        };
        Ok(self.domain.device.create_qp(&options)?)
    }

    /// A queue pair, and a connection that is being made with it.
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
        // Closing looks for connections only once.
        if self.closing.load(Ordering::Acquire) {
            return Err(FiError::SHUTDOWN);
        }
        let depth = BUFFERS + (state.rdm.connections.count() as u32 + 2) * SENDS;
        if depth as usize > live.cq.depth() {
            live.cq.resize(depth * 2)?;
        }
        let (qpn, identity) = (qp.qpn(), self.identity(peer));
        let connection = rkey_rdm::connection::Connection::new(qp, peer, identity);
        Ok(state.rdm.connections.add(qpn, connection))
    }

    /// A connection was not made.
    pub(super) fn given_up(&self, live: &Live, connection: usize) {
        let rdm = &mut live.state.lock().rdm;
        rdm.happened(&live.host, connection, Event::GivenUp);
    }
}

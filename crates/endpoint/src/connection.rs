//! Queue pairs of connections.

use super::{Driver, Front, State};
use rkey_device::{DeviceError, Qp, QpOptions};
use rkey_rdm::address::Destination;
use rkey_rdm::connection::Event;
use rkey_rdm::error::Error;
use rkey_rdm::limits::{BUFFERS, INLINE_MAX, SENDS};

impl<F: Front> Driver<F> {
    /// Creates a queue pair for a connection; it is not connected to a peer yet.
    ///
    /// # Errors
    /// A limit of the device is reached.
    pub fn new_qp(&self, peer: Option<u32>) -> Result<Qp, DeviceError> {
        let options = QpOptions {
            srq: Some(self.srq.clone()),
            max_send: SENDS,
            max_recv: 1,
            max_send_sge: self.max_sge,
            max_recv_sge: 1,
            max_inline: INLINE_MAX as u32,
            survive_remote_error: true,
            endpoint: self.number,
            counted_as: self.counted_as,
            peer,
            ..QpOptions::new(self.host.domain(), &self.cq)
        };
        self.device.create_qp(&options)
    }

    /// A queue pair, and the connection that is being made with it.
    pub(super) fn prepare_connection(&self, to: Destination) -> Result<(Qp, usize), Error> {
        let prepare = || {
            // Hold the identity until the connection does: a peer whose identity nothing holds gets a new
            // number.
            let identity = self.host.identity(to.address);
            let qp = self.new_qp(F::peer_number(&identity));
            let qp = qp.map_err(|it| F::error_of(&it))?;
            let index = self.add_connection(&mut self.state.lock(), qp.clone(), to)?;
            Ok((qp, index))
        };
        prepare().or_else(|_: Error| {
            // Connections that have ended may still occupy the space. Freeing them takes two steps.
            for _ in 0..2 {
                self.look_for_lost();
            }
            prepare()
        })
    }

    /// Adds a connection to a destination. Nothing is sent over it until it is made.
    ///
    /// # Errors
    /// [`Error::Shutdown`]: the endpoint is being closed. The completion queue cannot be enlarged.
    pub fn add_connection(
        &self,
        state: &mut State<F>,
        qp: Qp,
        to: Destination,
    ) -> Result<usize, Error> {
        // Closing checks for connections only once.
        if state.closing {
            return Err(Error::Shutdown);
        }
        let depth = BUFFERS + (state.rdm.connections().count() as u32 + 2) * SENDS;
        if depth as usize > self.cq.depth() {
            let resized = self.cq.resize(depth * 2);
            resized.map_err(|error| F::error_of(&error))?;
        }
        let identity = self.host.identity(to.address);
        Ok(state
            .rdm
            .outbox_mut()
            .add_connection(&self.host, qp, to, identity))
    }

    /// Drops a connection that was not made.
    pub(super) fn given_up(&self, connection: usize) {
        let rdm = &mut self.state.lock().rdm;
        rdm.happened(&self.host, connection, Event::GivenUp);
    }
}

//! The connection to a peer, by the number that the program passed.

use super::*;
use parking_lot::MutexGuard;
use rkey_device::time;
use rkey_rdm::peers::Route;

/// The error for a number without a peer.
#[cold]
pub(super) fn no_peer(number: u64) -> FiError {
    FiError::INVAL.because(format_args!(
        "fi_addr {number:#x} is not in the address vector of the endpoint, or has another authorization key"
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

    /// Tells the program to retry because there is no connection to a peer yet, or why there will be none.
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
}

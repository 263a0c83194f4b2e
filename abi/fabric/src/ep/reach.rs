//! The connection to a peer, by the number that the program passed.

use super::send::QUEUED;
use super::*;
use parking_lot::MutexGuard;
use rkey_device::time;

/// The error for a number without a peer.
#[cold]
pub(super) fn no_peer(number: u64) -> FiError {
    FiError::INVAL.because(format_args!(
        "fi_addr {number:#x} is not in the address vector of the endpoint, or has another authorization key"
    ))
}

impl Endpoint {
    /// The connection to a peer, by the number that the program passed, and the state of the endpoint; `flags` are the
    /// operation's.
    #[inline]
    pub(super) fn connection_to<'a>(
        &self,
        live: &'a Live,
        number: u64,
        flags: u64,
    ) -> Result<(MutexGuard<'a, State>, usize)> {
        let mut state = live.state.lock();
        if self.ep_type == FI_EP_MSG {
            return match state.rdm.connections().first() {
                Some(connection) if connection.state().is_open() => Ok((state, 0)),
                _ if state.rdm.is_shut() => Err(FiError::SHUTDOWN),
                _ => Err(FiError::NOTCONN),
            };
        }
        let removals = live.host.av.as_ref().map_or(0, |av| av.removals());
        let peer = match state.rdm.numbered_peer(number, removals) {
            Some(peer) => peer,
            None => self.look_up(live, &mut state, number)?,
        };
        let caller = || (flags & QUEUED == 0).then(|| std::thread::current().id());
        let (rdm, host) = (&mut state.rdm, &live.host);
        let connection = rdm.connection_to(host, peer, caller, time::now)?;
        Ok((state, connection))
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
        let peer = state.rdm.peer_at(address);
        let number = usize::try_from(number).map_err(|_| FiError::INVAL)?;
        state.rdm.set_number(number, peer);
        Ok(peer)
    }
}

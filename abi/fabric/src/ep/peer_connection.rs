//! The connection to a peer, by the number that the program passed.

use super::send::QUEUED;
use super::*;
use crate::lenient;
use parking_lot::MutexGuard;
use rkey_device::time;
use rkey_rdm::address::Destination;

/// The error for a number without a peer.
#[cold]
pub(super) fn no_peer(number: u64) -> FiError {
    FiError::INVAL.because(format_args!(
        "fi_addr {number:#x} is not in the endpoint's address vector, has another authorization key, or selects a receive context that no endpoint can have"
    ))
}

impl Endpoint {
    /// Locks the endpoint's state, and finds the connection to a peer by the number that the program passed. `flags` are
    /// the operation's.
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
                _ if state.rdm.receives().is_shut() => Err(FiError::SHUTDOWN),
                _ => Err(FiError::NOTCONN),
            };
        }
        let removals = live.host.av.as_ref().map_or(0, |av| av.removals());
        let peer = match state.rdm.routes_mut().numbered_peer(number, removals) {
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
        let av = live.host.av.as_ref();
        let av = av.filter(|av| av.allows(number, &self.pd.key));
        let destination = av.and_then(|av| {
            Some(Destination {
                address: av.get(number)?,
                context: u8::try_from(av.split(number).1).ok()?,
            })
        });
        let destination = destination.ok_or_else(|| no_peer(number))?;
        if destination.context != 0 && self.caps & FI_NAMED_RX_CTX == 0 {
            lenient::unless_strict(&lenient::UNASKED_NAME, FiError::OPNOTSUPP)?;
        }
        let peer = state.rdm.routes_mut().peer_at(destination);
        state.rdm.routes_mut().set_number(number, peer);
        Ok(peer)
    }
}

//! How the connection of an EP ends: by the program, by the peer, or because it breaks.

use crate::handles::fail::{Fail, Result};
use crate::objects::connection::Remote;
use crate::objects::ep::Ep;
use crate::objects::job::Job;
use crate::sys::consts::*;
use crate::values::ep_state::{State, Step};
use crate::values::hello::{Hello, Purpose};
use rkey_device::Peer;
use rkey_device::engine::{QpAttributes, QpState};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Ep {
    /// Disconnects, for the program.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE`, `DAT_INVALID_PARAMETER`.
    pub fn disconnect(self: &Arc<Self>, flags: dat_close_flags) -> Result {
        let step = match flags {
            CLOSE_ABRUPT_FLAG => Step::DisconnectAbruptly,
            CLOSE_GRACEFUL_FLAG => Step::DisconnectGracefully,
            _ => return Err(Fail::argument(2)),
        };
        let control = self.control.lock();
        let before = self.state();
        match before {
            State::Disconnected => return Ok(()),
            State::DisconnectPending if step == Step::DisconnectGracefully => return Ok(()),
            _ => {}
        }
        let after = before.after(step).ok_or(self.not_now())?;
        if after != State::DisconnectPending {
            drop(control);
            self.end(step, Some(CONNECTION_EVENT_DISCONNECTED));
            return Ok(());
        }
        self.set_state(after);
        let attempt = control.attempt;
        drop(control);
        if !self.drained(attempt) {
            let ep = Arc::clone(self);
            self.ia().worker().add(Job::Drain { ep, attempt });
        }
        Ok(())
    }

    /// Ends a graceful disconnect if all requests are complete. Returns whether the wait is over.
    pub fn drained(self: &Arc<Self>, attempt: u64) -> bool {
        if !self.is_attempt(attempt) || self.state() != State::DisconnectPending {
            return true;
        }
        let busy = self.has_sends();
        if !busy {
            self.end(Step::Drain, Some(CONNECTION_EVENT_DISCONNECTED));
        }
        !busy
    }

    /// Makes the worker check whether the queue pair is out of service: if it is, the connection is broken, unless the peer has
    /// disconnected. The worker decides, because it receives the peer's message.
    pub fn suspect(self: &Arc<Self>) {
        self.ia().worker().suspect(self);
    }

    /// Handles the report that the peer's queue pair has gone: a peer on another host may have said why. Our queue pair may still be in
    /// service.
    pub fn peer_gone(self: &Arc<Self>, why: Option<u8>) {
        if self.is_in_service() {
            self.end_for_peer(why == Some(Purpose::Disconnect as u8));
        }
    }

    /// Whether the EP is connected, but its queue pair is out of service.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        let info = self.qp().and_then(|qp| qp.query().ok());
        self.is_in_service() && info.is_none_or(|info| info.state != QpState::Rts)
    }

    /// Breaks the connection if its queue pair is out of service.
    pub fn check_service(self: &Arc<Self>) {
        if self.is_broken() {
            self.end(Step::Break, Some(CONNECTION_EVENT_BROKEN));
        }
    }

    /// Ends the connection as the peer has ended it.
    fn end_for_peer(self: &Arc<Self>, has_disconnected: bool) {
        // The program may free what the EP uses as soon as it knows the end.
        let request = self.parts().request;
        self.ia().collect(request.as_deref());
        drop(request);
        match has_disconnected {
            true => self.end(Step::PeerDisconnect, Some(CONNECTION_EVENT_DISCONNECTED)),
            false => self.end(Step::Break, Some(CONNECTION_EVENT_BROKEN)),
        }
    }

    /// Handles the peer's message that it has ended the connection.
    pub fn peer_left(self: &Arc<Self>, from: &Peer, hello: &Hello) {
        let same_peer = {
            let control = self.control.lock();
            let is_from = |peer: &Remote| (peer.node, peer.host) == (from.node, from.host);
            control.peer.as_ref().is_some_and(is_from)
        };
        if same_peer && self.qp().is_some_and(|qp| qp.address().msn == hello.msn) {
            self.end_for_peer(hello.purpose != Purpose::Break);
        }
    }

    /// Whether the queue pair is in service and has incomplete requests.
    fn has_sends(&self) -> bool {
        let info = self.qp().and_then(|qp| qp.query().ok());
        info.is_some_and(|info| info.sends > 0 && info.state == QpState::Rts)
    }

    /// Ends the connection if `step` can be taken: flushes the posted requests, notifies the peer unless the peer has
    /// disconnected, and reports `event`, if there is one, to the program.
    pub fn end(self: &Arc<Self>, step: Step, event: Option<dat_event_number>) {
        let mut control = self.control.lock();
        if self.step(&control, step).is_err() {
            return;
        }
        control.attempt += 1;
        let peer = control.peer.take();
        drop(control);
        // The worker withdraws a pending connection request.
        self.ia().worker().ring();
        if let Err(error) = self.ia().device.drive_until_idle() {
            tracing::debug!(%error, "cannot acknowledge the messages of EP {:#x}", self.handle);
        }
        let ends_receives = event.is_some() && self.will_tell_broken();
        self.flush();
        let purpose = match step {
            Step::PeerDisconnect => None,
            Step::Break => Some(Purpose::Break),
            _ => Some(Purpose::Disconnect),
        };
        if let (Some(peer), Some(purpose)) = (peer, purpose) {
            self.say_farewell(&peer, purpose);
        }
        if let Some(number) = event {
            // Programs expect both events of several EPs in the same order.
            let _order = self.ia().ends.lock();
            self.tell(number, &[]);
            if ends_receives {
                self.tell_broken();
            }
        }
    }

    /// Whether the caller is the one to report that the EP takes no more receives from its SRQ: once for each queue pair.
    pub(crate) fn will_tell_broken(&self) -> bool {
        let parts = self.parts();
        parts.srq.is_some() && !self.told_broken.swap(true, Ordering::AcqRel)
    }

    /// Reports that the EP takes no more receives from its SRQ (dtestsrq waits for this event).
    pub(crate) fn tell_broken(&self) {
        self.ia()
            .tell(ASYNC_ERROR_EP_BROKEN, self.handle, EP_TRANSFER_TO_ERROR);
    }

    /// Notifies a peer that its connection has ended. Between hosts, the connection itself carries the message.
    pub(crate) fn say_farewell(&self, peer: &Remote, purpose: Purpose) {
        if peer.host.is_some() && self.qp().is_some_and(|qp| qp.disconnect(purpose as u8)) {
            return;
        }
        let hello = self.ia().hello(purpose, peer.qp, &[]).encode();
        match self.ia().begin_connect(peer.control, &[], &hello) {
            Ok(connecting) => self.ia().worker().add(Job::farewell(connecting)),
            Err(error) => {
                tracing::debug!(
                    %error,
                    "cannot notify the peer of EP {:#x} that the connection has ended",
                    self.handle
                );
            }
        }
    }

    /// Flushes the posted requests, so that their events come before that of the disconnect.
    pub(crate) fn flush(&self) {
        let parts = self.parts();
        if let Some(qp) = &parts.qp
            && let Err(error) = qp.modify(&QpAttributes::to(QpState::Error))
        {
            tracing::debug!("cannot flush EP {:#x}: {error}", self.handle);
        }
        for evd in [&parts.recv, &parts.request] {
            self.ia().collect(evd.as_deref());
        }
    }

    /// Resets the connection to its initial state.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE`, `DAT_INSUFFICIENT_RESOURCES`.
    pub fn reset(self: &Arc<Self>) -> Result {
        let mut control = self.control.lock();
        let before = self.state();
        let after = before.after(Step::Reset).ok_or(self.not_now())?;
        if before != after {
            self.rebuild(self.parts())?;
            control.attempt += 1;
            control.peer = None;
            control.remote = None;
        }
        self.set_state(after);
        Ok(())
    }

    /// Ends the EP and its connection.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE`: it belongs to an RSP or to a connection request.
    pub fn free(self: &Arc<Self>) -> Result {
        let held = [
            State::Reserved,
            State::PassivePending,
            State::UnconfiguredPassive,
        ];
        if held.contains(&self.state()) {
            return Err(self.not_now());
        }
        if let Some(qp) = self.qp() {
            qp.send_waiting_datagrams();
        }
        self.end(Step::DisconnectAbruptly, None);
        self.control.lock().attempt += 1;
        self.ia().worker().ring();
        self.close();
        Ok(())
    }
}

//! Datagram EPs (`DAT_IB_SERVICE_TYPE_UD`), of the extension for InfiniBand.
//!
//! Such an EP has no connection. `dat_ep_connect` asks for the address of another one, and `dat_cr_accept` gives that of its own:
//! both sides get an address handle, to which any number of EPs can send. One EP may ask for several addresses at a time.

use crate::completion::extension;
use crate::cr::Cr;
use crate::ep::Ep;
use crate::ep_state::State;
use crate::evd::deadline;
use crate::event::{Queued, connection, notifying, set_extension};
use crate::fail::{Fail, Result};
use crate::hello::{Hello, Purpose, from_text};
use crate::sys::consts::*;
use crate::sys::{Event, Timeout};
use crate::worker::Job;
use rkey_device::engine::{QpAttributes, QpState};
use rkey_device::{DeviceError, Peer, Qp};
use std::net::SocketAddr;
use std::sync::Arc;

/// The queue key of all datagram EPs.
pub const QKEY: u32 = 0x0da7_0da7;

/// Makes a new queue pair ready for datagrams.
///
/// # Errors
/// The device failed.
pub fn prepare(qp: &Qp) -> Result {
    let init = QpAttributes {
        state: Some(QpState::Init),
        qkey: Some(QKEY),
        ..QpAttributes::default()
    };
    let rts = QpAttributes {
        state: Some(QpState::Rts),
        send_msn: Some(0),
        ..QpAttributes::default()
    };
    for step in [init, QpAttributes::to(QpState::Rtr), rts] {
        qp.modify(&step)?;
    }
    Ok(())
}

/// The event of a connection request, for the address of a datagram EP.
#[must_use]
pub fn request_event(mut event: Event) -> Queued {
    event.event_number = IB_UD_CONNECTION_REQUEST_EVENT;
    set_extension(
        &mut event,
        &extension(IB_UD_CONNECT_REQUEST, DTO_SUCCESS, 0),
    );
    notifying(event)
}

impl Ep {
    /// Asks for the address of the EP that accepts at a PSP.
    ///
    /// # Errors
    /// `DAT_INVALID_ADDRESS`, `DAT_INVALID_STATE`.
    pub fn resolve(self: &Arc<Self>, target: SocketAddr, timeout: Timeout, data: &[u8]) -> Result {
        let qp = self
            .qp()
            .ok_or(Fail::state(INVALID_STATE_EP_UNCONFIGURED))?;
        let ia = self.ia();
        let hello = ia.hello(Purpose::DatagramRequest, qp.address(), data);
        let connecting = ia.device.begin_connect(target, &[], &hello.encode())?;
        let attempt = self.control.lock().attempt();
        let ep = Arc::clone(self);
        ia.worker()
            .add(Job::connect(ep, attempt, connecting, deadline(timeout)));
        Ok(())
    }

    /// Another EP has given its address.
    pub fn resolved(self: &Arc<Self>, peer: &Peer) {
        match Hello::decode(&peer.private_data) {
            Some(hello) => self.reached(IB_UD_REMOTE_AH, &hello),
            None => self.not_resolved(&DeviceError::Handshake("it is no uDAPL program")),
        }
    }

    fn reached(self: &Arc<Self>, kind: dat_ib_ext_type, hello: &Hello) {
        let mut details = extension(kind, DTO_SUCCESS, 0);
        details.subject.remote_ah = self.ia().address_handle(hello.qpn);
        let event = {
            let mut control = self.control.lock();
            self.set_state(State::Connected);
            let data = control.keep(hello.data.clone());
            let mut event = connection(CONNECTION_EVENT_ESTABLISHED, self.handle, data);
            event.event_number = IB_UD_CONNECTION_EVENT_ESTABLISHED;
            set_extension(&mut event, &details);
            event
        };
        if let Some(evd) = &self.parts().connect {
            evd.push(notifying(event));
        }
    }

    /// The address of another EP cannot be had.
    pub fn not_resolved(self: &Arc<Self>, error: &DeviceError) {
        tracing::info!(%error, "asking for the address of a datagram EP");
        let (number, kind, data) = match error {
            DeviceError::Refused { reason } => (
                IB_UD_CONNECTION_REJECT_EVENT,
                IB_UD_CONNECT_REJECT,
                from_text(reason),
            ),
            _ => (
                IB_UD_CONNECTION_ERROR_EVENT,
                IB_UD_CONNECT_ERROR,
                Vec::new(),
            ),
        };
        let event = {
            let mut control = self.control.lock();
            let mut event = connection(number, self.handle, control.keep(data));
            set_extension(&mut event, &extension(kind, DTO_ERR_TRANSPORT, 0));
            event
        };
        if let Some(evd) = &self.parts().connect {
            evd.push(notifying(event));
        }
    }

    /// Gives its address to the EP that asked for it.
    ///
    /// # Errors
    /// `DAT_INVALID_HANDLE`, `DAT_INVALID_STATE`.
    pub fn give_address(self: &Arc<Self>, cr: &Cr, data: &[u8]) -> Result {
        let qp = self
            .qp()
            .ok_or(Fail::state(INVALID_STATE_EP_UNCONFIGURED))?;
        let incoming = cr.take().ok_or(Fail::handle(INVALID_HANDLE_CR))?;
        let answer = self.ia().hello(Purpose::Answer, qp.address(), data);
        match incoming.answer(&[], &answer.encode()) {
            Ok(accepting) => {
                let attempt = self.control.lock().attempt();
                self.ia().worker().add(Job::Accept {
                    ep: Arc::clone(self),
                    attempt,
                    accepting,
                    hello: cr.hello.clone(),
                });
            }
            Err(error) => self.not_resolved(&error),
        }
        Ok(())
    }

    /// The EP that asked has this EP's address.
    pub fn address_given(self: &Arc<Self>, hello: &Hello) {
        self.reached(IB_UD_PASSIVE_REMOTE_AH, hello);
    }
}

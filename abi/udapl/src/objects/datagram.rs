//! Datagram EPs (`DAT_IB_SERVICE_TYPE_UD`), from the InfiniBand extension.
//!
//! A datagram EP has no connection. `dat_ep_connect` requests the address of another EP, and `dat_cr_accept` returns that of
//! the accepting EP: both sides get an address handle, to which any number of EPs can send. An EP may have several such
//! requests in flight.

use crate::handles::fail::{Fail, Result};
use crate::objects::completion::extension;
use crate::objects::cr::Cr;
use crate::objects::ep::Ep;
use crate::objects::job::Job;
use crate::sys::consts::*;
use crate::sys::{Event, Timeout};
use crate::values::ep_state::{State, Step};
use crate::values::event::{Queued, connection, notifying, set_extension};
use crate::values::hello::{Hello, Purpose, from_text, why};
use rkey_device::engine::{QpAttributes, QpState};
use rkey_device::{DeviceError, Peer, Qp, names};
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

/// Turns the event of a connection request into that of a request for a datagram EP's address.
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
    /// Requests the address of the EP that accepts at a PSP.
    ///
    /// # Errors
    /// `DAT_INVALID_ADDRESS`, `DAT_INVALID_STATE`.
    pub fn resolve(self: &Arc<Self>, target: SocketAddr, timeout: Timeout, data: &[u8]) -> Result {
        let qp = self
            .qp()
            .ok_or(Fail::state(INVALID_STATE_EP_UNCONFIGURED))?;
        let ia = self.ia();
        let attempt = {
            let control = self.control.lock();
            if !matches!(self.state(), State::Unconnected | State::Connected) {
                return Err(self.not_now());
            }
            control.attempt()
        };
        let hello = ia.hello(Purpose::DatagramRequest, qp.address(), data);
        if !names::is_of_this_host(target.ip()) {
            let address = target;
            return Err(DeviceError::NotThisHost { address }.into());
        }
        let connecting = ia.device.begin_connect(target, &[], &hello.encode())?;
        let job = Job::connect(Arc::clone(self), attempt, connecting, timeout);
        ia.worker().add(job);
        Ok(())
    }

    /// Handles the address that another EP has sent.
    pub fn resolved(self: &Arc<Self>, attempt: u64, peer: &Peer) {
        match Hello::decode(&peer.private_data) {
            Some(hello) => self.reached(attempt, IB_UD_REMOTE_AH, hello.qpn, hello.data),
            None => {
                let error = DeviceError::Handshake("it is not a uDAPL program");
                self.not_resolved(attempt, &error);
            }
        }
    }

    fn reached(self: &Arc<Self>, attempt: u64, kind: dat_ib_ext_type, qpn: u32, data: Vec<u8>) {
        let mut details = extension(kind, DTO_SUCCESS, 0);
        details.subject.remote_ah = self.ia().address_handle(qpn);
        let event = {
            let mut control = self.control.lock();
            if control.attempt() != attempt || self.step(&control, Step::Resolve).is_err() {
                return;
            }
            let data = control.keep(data);
            let mut event = connection(CONNECTION_EVENT_ESTABLISHED, self.handle, data);
            event.event_number = IB_UD_CONNECTION_EVENT_ESTABLISHED;
            set_extension(&mut event, &details);
            event
        };
        self.report(event);
    }

    /// Reports that the address of another EP could not be obtained.
    pub fn not_resolved(self: &Arc<Self>, attempt: u64, error: &DeviceError) {
        tracing::info!(
            "EP {:#x} did not get the address of a datagram EP: {}",
            self.handle,
            why(error)
        );
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
            if control.attempt() != attempt {
                return;
            }
            // If the EP belongs to an RSP, the request to that RSP has failed.
            let _ = self.step(&control, Step::Reject);
            let mut event = connection(number, self.handle, control.keep(data));
            set_extension(&mut event, &extension(kind, DTO_ERR_TRANSPORT, 0));
            event
        };
        self.report(event);
    }

    /// Sends the EP's address to the EP that requested it.
    ///
    /// # Errors
    /// `DAT_INVALID_HANDLE`, `DAT_INVALID_STATE`.
    pub fn give_address(self: &Arc<Self>, cr: &Cr, data: &[u8]) -> Result {
        let qp = self
            .qp()
            .ok_or(Fail::state(INVALID_STATE_EP_UNCONFIGURED))?;
        let attempt = {
            let control = self.control.lock();
            if self.state().after(Step::Resolve).is_none() {
                return Err(self.not_now());
            }
            control.attempt()
        };
        let incoming = cr.take().ok_or(Fail::handle(INVALID_HANDLE_CR))?;
        let answer = self.ia().hello(Purpose::Answer, qp.address(), data);
        let ep = Arc::clone(self);
        let answered = self.ia().worker().answer(|| {
            let accepting = incoming.answer(&[], &answer.encode())?;
            Ok(Job::Accept {
                ep,
                attempt,
                accepting,
                hello: cr.hello.clone(),
            })
        });
        if let Err(error) = answered {
            self.not_resolved(attempt, &error);
        }
        Ok(())
    }

    /// Handles the peer's confirmation that it has this EP's address.
    pub fn address_given(self: &Arc<Self>, attempt: u64, hello: &Hello) {
        // The program got the private data with the CR.
        self.reached(attempt, IB_UD_PASSIVE_REMOTE_AH, hello.qpn, Vec::new());
    }
}

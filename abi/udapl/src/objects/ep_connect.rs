//! How an EP gets its connection: the request of the active side, and the acceptance of the passive side.

use crate::handles::fail::{Fail, Result};
use crate::objects::connection::Remote;
use crate::objects::cr::Cr;
use crate::objects::ep::Ep;
use crate::objects::job::Job;
use crate::sys::Timeout;
use crate::sys::consts::*;
use crate::values::address::of_qualifier;
use crate::values::ep_state::{State, Step};
use crate::values::event::connection;
use crate::values::hello::{Hello, Purpose, from_text, why};
use rkey_device::{DeviceError, Peer};
use std::net::IpAddr;
use std::sync::Arc;

impl Ep {
    /// Requests a connection with the PSP or RSP at an address.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE`, `DAT_INVALID_PARAMETER`, `DAT_INVALID_ADDRESS`.
    pub fn connect(
        self: &Arc<Self>,
        address: IpAddr,
        port: u64,
        timeout: Timeout,
        data: &[u8],
    ) -> Result {
        let target = of_qualifier(address, port).ok_or(Fail::argument(3))?;
        if self.is_datagram() {
            return self.resolve(target, timeout, data);
        }
        let ia = self.ia();
        let mut control = self.control.lock();
        if self.state().after(Step::Connect).is_none() {
            return Err(self.not_now());
        }
        let qp = self
            .qp()
            .ok_or(Fail::state(INVALID_STATE_EP_UNCONFIGURED))?;
        let hello = ia.hello(Purpose::Request, qp.address(), data).encode();
        let connecting = ia.begin_connect(target, &[&qp], &hello)?;
        self.step(&control, Step::Connect)?;
        let attempt = control.begin((address, port), 0);
        drop(control);
        let ep = Arc::clone(self);
        let job = Job::connect(ep, attempt, connecting, timeout);
        ia.worker().add(job);
        Ok(())
    }

    /// Requests a connection with the same PSP or RSP that another EP has connected to.
    ///
    /// # Errors
    /// Same as [`Ep::connect`].
    pub fn connect_like(self: &Arc<Self>, other: &Ep, timeout: Timeout, data: &[u8]) -> Result {
        if other.state() != State::Connected {
            return Err(other.not_now());
        }
        let remote = other.control.lock().remote;
        match remote {
            Some((address, port)) if port > 0 => self.connect(address, port, timeout, data),
            _ => Err(other.not_now()),
        }
    }

    /// Handles the peer's acceptance. Unless the EP sends datagrams, both queue pairs are connected.
    pub fn connected(self: &Arc<Self>, attempt: u64, peer: &Peer) {
        if self.is_datagram() {
            return self.resolved(attempt, peer);
        }
        let Some(hello) = Hello::decode(&peer.private_data) else {
            tracing::warn!(
                "EP {:#x} refused a connection: {}, which answered its request, does not use uDAPL",
                self.handle,
                peer.described()
            );
            return self.failed(attempt, CONNECTION_EVENT_NON_PEER_REJECTED, &[]);
        };
        if !self.ia().device.is_listener(peer, hello.control) {
            tracing::warn!(
                "EP {:#x} refused a connection: {} claims to listen at {}, but does not",
                self.handle,
                peer.described(),
                hello.control
            );
            return self.failed(attempt, CONNECTION_EVENT_NON_PEER_REJECTED, &[]);
        }
        let remote = peer.qps.first().map(|qp| Remote {
            node: peer.node,
            host: peer.host,
            qp: *qp,
            control: hello.control,
        });
        let mut control = self.control.lock();
        if control.attempt != attempt || self.step(&control, Step::Establish).is_err() {
            drop(control);
            // The program has disconnected in the meantime, but the peer considers the connection established.
            if let Some(remote) = remote {
                self.say_farewell(&remote, Purpose::Disconnect);
            }
            return;
        }
        control.peer = remote;
        control.data = hello.data;
        let event = connection(CONNECTION_EVENT_ESTABLISHED, self.handle, &control.data);
        drop(control);
        self.report(event);
        // The queue pair may have failed in the meantime.
        self.suspect();
    }

    /// Handles the failure of a connection request.
    pub fn refused(self: &Arc<Self>, attempt: u64, error: &DeviceError) {
        if self.is_datagram() {
            return self.not_resolved(attempt, error);
        }
        tracing::info!("EP {:#x} cannot connect: {}", self.handle, why(error));
        let (number, data) = match error {
            DeviceError::Refused { reason } => (CONNECTION_EVENT_PEER_REJECTED, from_text(reason)),
            DeviceError::NotListening { .. } | DeviceError::Handshake(_) => {
                (CONNECTION_EVENT_NON_PEER_REJECTED, Vec::new())
            }
            DeviceError::TimedOut { .. } => (CONNECTION_EVENT_TIMED_OUT, Vec::new()),
            _ => (CONNECTION_EVENT_UNREACHABLE, Vec::new()),
        };
        self.failed(attempt, number, &data);
    }

    /// Accepts a connection request.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE`, `DAT_INVALID_HANDLE`. Later failures are events.
    pub fn accept(self: &Arc<Self>, cr: &Cr, data: &[u8]) -> Result {
        if self.is_datagram() != (cr.hello.purpose == Purpose::DatagramRequest) {
            return Err(Fail::handle(INVALID_HANDLE_EP));
        }
        if self.is_datagram() {
            return self.give_address(cr, data);
        }
        let ia = self.ia();
        let mut control = self.control.lock();
        if self.state().after(Step::Accept).is_none() {
            return Err(self.not_now());
        }
        let qp = self
            .qp()
            .ok_or(Fail::state(INVALID_STATE_EP_UNCONFIGURED))?;
        let incoming = cr.take().ok_or(Fail::handle(INVALID_HANDLE_CR))?;
        self.step(&control, Step::Accept)?;
        let attempt = control.begin((cr.hello.address, cr.hello.port), cr.conn_qual);
        control.peer = incoming.peer().qps.first().map(|peer| Remote {
            node: incoming.peer().node,
            host: incoming.peer().host,
            qp: *peer,
            control: cr.hello.control,
        });
        let answer = ia.hello(Purpose::Answer, qp.address(), data).encode();
        let ep = Arc::clone(self);
        let answered = ia.worker().answer(|| {
            let accepting = incoming.answer(&[&qp], &answer)?;
            Ok(Job::Accept {
                ep,
                attempt,
                accepting,
                hello: cr.hello.clone(),
            })
        });
        drop(control);
        if let Err(error) = answered {
            tracing::info!("EP {:#x} cannot accept a connection: {error}", self.handle);
            self.failed(attempt, CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR, &[]);
        }
        Ok(())
    }

    /// Handles the peer's confirmation of a connection that this side accepted.
    pub fn accepted(self: &Arc<Self>, attempt: u64, hello: &Hello) {
        if self.is_datagram() {
            return self.address_given(attempt, hello);
        }
        let control = self.control.lock();
        if control.attempt == attempt && self.step(&control, Step::Establish).is_ok() {
            drop(control);
            self.tell(CONNECTION_EVENT_ESTABLISHED, &[]);
            self.suspect();
        }
    }
}

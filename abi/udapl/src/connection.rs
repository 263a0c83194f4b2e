//! The connection of an EP, from the request to the disconnect.
//!
//! The device connects queue pairs by address. A disconnect is a message to the control listener of the peer's IA, which names
//! the peer's queue pair; the receiver checks that it comes from the device that the EP is connected with. If a process ends
//! without a message, the device reports that.
//!
//! Every attempt to connect has a number, so that the worker recognises jobs left over from earlier attempts.

use crate::address::{Visible, of_qualifier};
use crate::cr::Cr;
use crate::ep::Ep;
use crate::ep_state::{State, Step};
use crate::event::{connection, notifying};
use crate::fail::{Fail, Result};
use crate::hello::{Hello, MAX_PRIVATE_DATA, Purpose, from_text, why};
use crate::ia::Ia;
use crate::job::Job;
use crate::sys::consts::*;
use crate::sys::{IaAddressPtr, Timeout};
use parking_lot::MutexGuard;
use rkey_device::engine::{QpAttributes, QpState};
use rkey_device::link::NodeId;
use rkey_device::{DeviceError, Peer, QpAddress, time};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long freeing an EP waits for the worker to withdraw its connection request.
const WITHDRAW_TIME: Duration = Duration::from_secs(10);

/// The connection of an EP.
pub struct Control {
    /// Counts the starts and ends of attempts to connect.
    attempt: u64,
    peer: Option<Remote>,
    /// The address and qualifier to which the EP is (or was) connected, or is trying to connect.
    remote: Option<(IpAddr, u64)>,
    /// The qualifier on this side: that of the PSP or RSP if this side accepted the connection.
    local_port: u64,
    /// The peer's private data, which an event points to.
    data: Vec<u8>,
    /// Like `data`, for a datagram EP, which has several peers.
    kept: Vec<Box<[u8]>>,
    visible: Visible,
    /// The worker's job for a connection request of this side, and its attempt.
    requested: (u64, Weak<()>),
}

/// The EP at the other end.
struct Remote {
    node: NodeId,
    /// The host of the peer; `None` if it is this one.
    host: Option<IpAddr>,
    qp: QpAddress,
    control: SocketAddr,
}

/// The addresses and qualifiers of a connection, for `dat_ep_query`.
pub struct Ends {
    /// The peer's address; null before the first connection.
    pub remote_address: IaAddressPtr,
    /// The peer's qualifier.
    pub remote_port: u64,
    /// The qualifier on this side.
    pub local_port: u64,
}

impl Control {
    /// No connection.
    #[must_use]
    pub fn new(ia: &Ia) -> Self {
        Self {
            attempt: 0,
            peer: None,
            remote: None,
            local_port: 0,
            data: Vec::new(),
            kept: Vec::new(),
            visible: Visible::new(ia.address, 0),
            requested: (0, Weak::new()),
        }
    }

    /// The number of the current attempt.
    #[must_use]
    pub fn attempt(&self) -> u64 {
        self.attempt
    }

    /// Keeps private data for an event until the EP is freed.
    pub fn keep(&mut self, data: Vec<u8>) -> &[u8] {
        if data.is_empty() {
            return &[];
        }
        self.kept.push(data.into_boxed_slice());
        self.kept.last().map_or(&[], |data| &**data)
    }

    fn begin(&mut self, remote: (IpAddr, u64), local_port: u64) -> u64 {
        self.attempt += 1;
        self.remote = Some(remote);
        self.local_port = local_port;
        self.visible.set(remote.0, 0);
        self.data.clear();
        self.attempt
    }
}

/// Checks the length of private data that the program passes.
///
/// # Errors
/// `DAT_INVALID_PARAMETER`.
pub fn check_data(number: u32, data: &[u8]) -> Result {
    if data.len() > MAX_PRIVATE_DATA {
        tracing::info!(
            "{} B of private data are too long: the maximum is {MAX_PRIVATE_DATA} B",
            data.len()
        );
        return Err(Fail::argument(number));
    }
    Ok(())
}

impl Ep {
    /// Takes a step; fails if the state does not allow it.
    pub(crate) fn step(&self, _control: &MutexGuard<'_, Control>, step: Step) -> Result {
        let next = self.state().after(step).ok_or(self.not_now())?;
        self.set_state(next);
        Ok(())
    }

    /// Takes a step that has no other effect.
    ///
    /// # Errors
    /// `DAT_INVALID_STATE`.
    pub fn take_step(&self, step: Step) -> Result {
        self.step(&self.control.lock(), step)
    }

    /// Whether this is still the current attempt.
    #[must_use]
    pub fn is_attempt(&self, attempt: u64) -> bool {
        self.control.lock().attempt == attempt
    }

    /// The two ends of the connection.
    #[must_use]
    pub fn ends(&self) -> Ends {
        let control = self.control.lock();
        Ends {
            remote_address: match control.remote {
                Some(_) => control.visible.pointer(),
                None => std::ptr::null_mut(),
            },
            remote_port: control.remote.map_or(0, |(_, port)| port),
            local_port: control.local_port,
        }
    }

    fn tell(&self, number: dat_event_number, data: &[u8]) {
        if let Some(evd) = &self.parts().connect {
            evd.push(notifying(connection(number, self.handle, data)));
        }
    }

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
        let exists = Arc::new(());
        control.requested = (attempt, Arc::downgrade(&exists));
        drop(control);
        let ep = Arc::clone(self);
        let job = Job::connect(ep, attempt, connecting, exists, timeout);
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
        if let Some(evd) = &self.parts().connect {
            evd.push(notifying(event));
        }
        // The queue pair may have failed in the meantime.
        self.check_service();
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
            self.check_service();
        }
    }

    /// Ends an attempt whose connection cannot be established.
    pub fn failed(self: &Arc<Self>, attempt: u64, number: dat_event_number, data: &[u8]) {
        let mut control = self.control.lock();
        if control.attempt != attempt || self.step(&control, Step::Fail).is_err() {
            return;
        }
        control.attempt += 1;
        control.peer = None;
        control.data = data.to_vec();
        let event = connection(number, self.handle, &control.data);
        drop(control);
        self.flush();
        if let Some(evd) = &self.parts().connect {
            evd.push(notifying(event));
        }
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
        let info = self.qp().and_then(|qp| qp.query().ok());
        let busy = info.is_some_and(|info| info.sends > 0 && info.state == QpState::Rts);
        if !busy {
            self.end(Step::Drain, Some(CONNECTION_EVENT_DISCONNECTED));
        }
        !busy
    }

    /// Handles a failed request. If its queue pair is out of service, the connection is broken, unless the peer has
    /// disconnected. The worker decides, because it receives the peer's message.
    pub fn request_failed(self: &Arc<Self>) {
        self.ia().worker().add(Job::Suspect(Arc::clone(self)));
    }

    /// Breaks the connection if its queue pair is out of service.
    pub fn check_service(self: &Arc<Self>) {
        let info = self.qp().and_then(|qp| qp.query().ok());
        if self.is_in_service() && info.is_none_or(|info| info.state != QpState::Rts) {
            self.end(Step::Break, Some(CONNECTION_EVENT_BROKEN));
        }
    }

    /// Handles the peer's message that it has ended the connection.
    pub fn peer_left(self: &Arc<Self>, from: &Peer, hello: &Hello) {
        {
            let control = self.control.lock();
            let is_from = |peer: &Remote| (peer.node, peer.host) == (from.node, from.host);
            let same_peer = control.peer.as_ref().is_some_and(is_from);
            let same_qp = self.qp().is_some_and(|qp| qp.address().msn == hello.msn);
            if !same_peer || !same_qp {
                return;
            }
        }
        // The peer acknowledged what it received before it sent the message, so those requests complete instead of being
        // flushed.
        let parts = self.parts();
        self.ia().collect(parts.request.as_deref());
        match hello.purpose {
            Purpose::Break => self.end(Step::Break, Some(CONNECTION_EVENT_BROKEN)),
            _ => self.end(Step::PeerDisconnect, Some(CONNECTION_EVENT_DISCONNECTED)),
        }
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
            self.tell(number, &[]);
        }
    }

    /// Notifies a peer that its connection has ended.
    fn say_farewell(&self, peer: &Remote, purpose: Purpose) {
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

    /// Waits until the worker has withdrawn the connection request of an earlier attempt, which still uses the queue pair
    /// and with it the PZ. Gives up after [`WITHDRAW_TIME`], and at once in the worker's own thread.
    pub(crate) fn withdraw(&self) {
        let job = {
            let control = self.control.lock();
            let (attempt, job) = &control.requested;
            match *attempt == control.attempt {
                true => return,
                false => job.clone(),
            }
        };
        let worker = self.ia().worker();
        let until = time::now() + WITHDRAW_TIME;
        while job.strong_count() > 0 && !worker.is_here() && time::now() < until {
            worker.ring();
            time::sleep(Duration::from_micros(50));
        }
    }

    /// Flushes the posted requests, so that their events come before that of the disconnect.
    fn flush(&self) {
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
        self.withdraw();
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

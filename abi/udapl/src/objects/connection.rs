//! The connection of an EP, from the request to the disconnect.
//!
//! The device connects queue pairs by address. A disconnect is a message to the control listener of the peer's IA, which names
//! the peer's queue pair; the receiver checks that it comes from the device that the EP is connected with. Between hosts, the
//! message is the last one of the queue pairs' own TCP connection, so that neither losses nor the end of the process overtake it.
//! If a process ends without a message, the device reports that.
//!
//! Every attempt to connect has a number, so that the worker recognises jobs left over from earlier attempts.

use crate::handles::fail::{Fail, Result};
use crate::objects::ep::Ep;
use crate::objects::ia::Ia;
use crate::sys::consts::*;
use crate::sys::{Event, IaAddressPtr};
use crate::values::address::Visible;
use crate::values::ep_state::Step;
use crate::values::event::{connection, notifying};
use crate::values::hello::MAX_PRIVATE_DATA;
use parking_lot::MutexGuard;
use rkey_device::QpAddress;
use rkey_device::link::NodeId;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The connection of an EP.
pub struct Control {
    /// Counts the starts and ends of attempts to connect.
    pub(crate) attempt: u64,
    pub(crate) peer: Option<Remote>,
    /// The address and qualifier to which the EP is (or was) connected, or is trying to connect.
    pub(crate) remote: Option<(IpAddr, u64)>,
    /// The qualifier on this side: that of the PSP or RSP if this side accepted the connection.
    pub(crate) local_port: u64,
    /// The peer's private data, which an event points to.
    pub(crate) data: Vec<u8>,
    /// Like `data`, for a datagram EP, which has several peers.
    pub(crate) kept: Vec<Box<[u8]>>,
    pub(crate) visible: Visible,
}

/// The EP at the other end.
pub(crate) struct Remote {
    pub(crate) node: NodeId,
    /// The host of the peer; `None` if it is this one.
    pub(crate) host: Option<IpAddr>,
    pub(crate) qp: QpAddress,
    pub(crate) control: SocketAddr,
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

    pub(crate) fn begin(&mut self, remote: (IpAddr, u64), local_port: u64) -> u64 {
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

    pub(crate) fn tell(&self, number: dat_event_number, data: &[u8]) {
        self.report(connection(number, self.handle, data));
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
        self.report(event);
    }

    /// Delivers an event to the EVD for connections, if the EP has one. The program may free the EP and its PZ while this
    /// thread is still here, so this holds nothing else of the EP.
    pub(crate) fn report(&self, event: Event) {
        if let Some(evd) = self.connect_evd() {
            evd.push(notifying(event));
        }
    }
}

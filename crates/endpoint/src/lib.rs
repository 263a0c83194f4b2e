//! The driver of an endpoint over a device: what every front end with endpoints needs between the state machine
//! ([`rkey_rdm::endpoint`]) and the device. It is the same for every API.
//!
//! A front end implements [`Host`](rkey_rdm::endpoint::Host) for what the state machine runs on and [`Front`] for what
//! the driver adds, and keeps a [`Driver`] in its own endpoint ([`Holder`]). The driver makes progress when the front
//! end calls [`Driver::advance`]. Only connections are made without such a call, by other threads.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`front`] | what the driver needs from the front end |
//! | [`advance`] | hands completions of the device to the state machine |
//! | [`connect_on_demand`], [`connection`] | connections on demand, in either direction, and their queue pairs |
//! | [`hello`] | why two endpoints cannot communicate |
//! | [`listeners`] | the thread that accepts connections |
//! | [`buffers`] | where messages arrive |
//! | [`queue_pair`] | the states of queue pairs, for hosts |
//! | [`life`] | the end of an endpoint |
//! | [`complaint`], [`signal`] | logs peers' errors; wakes a thread by a descriptor |

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

mod advance;
mod buffers;
mod connect_on_demand;
mod connection;
mod front;
mod hello;
mod life;

pub mod complaint;
pub mod listeners;
pub mod queue_pair;
pub mod signal;

pub use connect_on_demand::{Absent, reachable, serve, spawn_connect};
pub use front::{Front, Holder};
pub use hello::why_not;

use buffers::Buffers;
use listeners::Serving;
use parking_lot::Mutex;
use rkey_device::engine::Completion;
use rkey_device::{Channel, Cq, Device, DeviceError, Srq};
use rkey_rdm::endpoint::{Endpoint, Service};
use rkey_rdm::hello::{Admission, Hello};
use rkey_rdm::limits::{BUFFERS, SENDS};
use std::net::SocketAddr;

/// The properties of an endpoint.
pub struct Options<'a> {
    /// The type and features that the endpoint offers.
    pub service: Service,
    /// The peers that the endpoint accepts.
    pub admission: Admission,
    /// The address that peers use for the endpoint, until [`Driver::serve`] sets another.
    pub name: SocketAddr,
    /// The endpoint's number, for regions that serve one endpoint only.
    pub number: Option<u32>,
    /// The number under which peers' accesses through the endpoint are counted, if that is not the endpoint's own number.
    pub counted_as: Option<u32>,
    /// The maximum number of scatter/gather entries of a work request.
    pub max_sge: u32,
    /// The channel that reports completions.
    pub channel: Option<&'a Channel>,
}

/// An endpoint's state machine, and the device's objects that it runs on.
pub struct Driver<F: Front> {
    /// The host of the state machine.
    pub host: F,
    /// The mutable state of the endpoint. Connections are dropped before the queue and the buffers that they use.
    pub state: Mutex<State<F>>,
    serving: Mutex<Option<Serving>>,
    srq: Srq,
    buffers: Buffers,
    /// Completions of all connections.
    pub cq: Cq,
    /// The peers that the endpoint accepts.
    pub admission: Admission,
    /// Where peers find the endpoint.
    pub name: Mutex<SocketAddr>,
    number: Option<u32>,
    counted_as: Option<u32>,
    max_sge: u32,
    device: Device,
}

/// The mutable state of an endpoint.
pub struct State<F: Front> {
    /// The state machine.
    pub rdm: Endpoint<F>,
    /// Room for completions of the device.
    completions: Vec<Completion>,
    /// How many ended peers the device had reported when connections were last checked.
    ended_peers: u32,
    /// Whether no new connection may be added.
    closing: bool,
}

impl<F: Front> Driver<F> {
    /// Creates a driver whose endpoint has no connection yet, and posts the driver's buffers.
    ///
    /// # Errors
    /// A limit of the device is reached.
    pub fn new(device: &Device, host: F, it: Options<'_>) -> Result<Self, DeviceError> {
        let cq = device.create_cq(BUFFERS + 4 * SENDS, it.channel)?;
        let srq = device.create_srq(host.domain(), BUFFERS, 1)?;
        let state = State {
            rdm: Endpoint::new(it.service),
            completions: Vec::new(),
            ended_peers: 0,
            closing: false,
        };
        let driver = Self {
            host,
            state: Mutex::new(state),
            serving: Mutex::new(None),
            srq,
            buffers: Buffers::new(),
            cq,
            admission: it.admission,
            name: Mutex::new(it.name),
            number: it.number,
            counted_as: it.counted_as,
            max_sge: it.max_sge,
            device: device.clone(),
        };
        for index in 0..BUFFERS {
            driver.post_buffer(index);
        }
        Ok(driver)
    }

    /// The address that peers use for the endpoint.
    pub fn name(&self) -> SocketAddr {
        *self.name.lock()
    }

    /// The endpoint's answer to a peer that requests a connection.
    pub fn answer(&self, asked: &Hello, data: &[u8]) -> Hello {
        self.admission.answer(self.name(), asked, data)
    }
}

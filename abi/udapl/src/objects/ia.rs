//! IAs (interface adapters): open devices.

#![allow(unsafe_code)]
// UNSAFETY: returns addresses inside the object to programs.

use crate::handles::fail::{Fail, Result};
use crate::handles::object::Table;
use crate::handles::registry;
use crate::objects::ep::Ep;
use crate::objects::evd::{Demand, Evd};
use crate::objects::srq::Srq;
use crate::objects::worker::Worker;
use crate::sys::consts::*;
use crate::sys::{Handle, IbAddrHandle};
use crate::values::address::{Visible, of_parameters};
use crate::values::event::{asynchronous, notifying};
use crate::values::hello::{Hello, Purpose};
use parking_lot::{Mutex, RwLock};
use rkey_device::core::Api;
use rkey_device::describe::Objects;
use rkey_device::engine::{Completion, CqId, QpId, SrqId};
use rkey_device::{
    AsyncEvent, Channel, Config, Connecting, Cq, Description, Device, DeviceError, Listener, Qp,
    QpAddress,
};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

/// How many completions without an EVD can wait to be dropped.
const SINK_DEPTH: u32 = 65_536;

/// Adds the objects of an IA to an inspection, until a time.
pub type Describe = fn(&Weak<Ia>, Instant, &mut Objects);

/// An open IA.
pub struct Ia {
    /// The table of its provider.
    pub table: Table,
    /// The handle of the IA.
    pub handle: usize,
    /// The device.
    pub device: Device,
    /// The address of the IA.
    pub address: IpAddr,
    /// The address of the IA, as programs read it.
    pub visible: Visible,
    /// Where completion queues report to the worker.
    pub channel: Channel,
    /// An empty completion queue: threads that wait for an EVD without one wait here.
    pub idle_cq: Cq,
    /// The completion queue for requests whose events the program does not want.
    pub sink_cq: Cq,
    /// The requests that may complete in `sink_cq`.
    pub sink_demand: Demand,
    /// Where peers report that they have disconnected.
    pub control: Listener,
    worker: OnceLock<Worker>,
    eps: RwLock<HashMap<u32, Weak<Ep>>>,
    evds: RwLock<HashMap<CqId, Weak<Evd>>>,
    srqs: RwLock<HashMap<SrqId, Weak<Srq>>>,
    async_evd: Mutex<Option<Arc<Evd>>>,
    /// Held while the end of a connection is reported: taken without `control`, and before the locks of EVDs.
    pub(crate) ends: Mutex<()>,
    description: Mutex<Option<Description>>,
}

crate::kind!(
    Ia,
    HANDLE_TYPE_IA,
    INVALID_HANDLE_IA,
    RESOURCE_DEVICE,
    1 << 12
);

impl Ia {
    /// Opens a device with the address that a line of dat.conf names, and starts its worker. Inspections of the device call
    /// `describe`.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`, `DAT_INTERNAL_ERROR`.
    pub fn open(
        table: Table,
        handle: usize,
        parameters: &str,
        describe: Describe,
    ) -> Result<Arc<Self>> {
        let mut config = Config::from_env().map_err(|error| {
            tracing::error!("{error}");
            Fail::INTERNAL
        })?;
        config.api = Api::Udapl;
        let device = Device::open_shared(config)?;
        let address = of_parameters(parameters);
        let channel = device.create_channel()?;
        let ia = Arc::new(Self {
            table,
            handle,
            address,
            visible: Visible::new(address, 0),
            idle_cq: device.create_cq(1, None)?,
            sink_demand: Demand::default(),
            sink_cq: device.create_cq(SINK_DEPTH, Some(&channel))?,
            control: device.listen_for_hosts(SocketAddr::new(address, 0))?,
            channel,
            device,
            worker: OnceLock::new(),
            eps: RwLock::default(),
            evds: RwLock::default(),
            srqs: RwLock::default(),
            async_evd: Mutex::default(),
            ends: Mutex::default(),
            description: Mutex::default(),
        });
        let worker = Worker::start(&ia)?;
        let _ = ia.worker.set(worker);
        let own = Arc::downgrade(&ia);
        let description = ia
            .device
            .describe_objects(move |until, all| describe(&own, until, all));
        *ia.description.lock() = Some(description);
        Ok(ia)
    }

    /// The worker of the IA.
    #[must_use]
    pub fn worker(&self) -> &Worker {
        // `open` sets the worker before the IA is visible to anything else.
        self.worker.get_or_init(Worker::absent)
    }

    /// The handle that the program has for it.
    #[must_use]
    pub fn number(&self) -> Handle {
        registry::number_of(self.handle)
    }

    /// The hello of this IA for a message to a peer.
    #[must_use]
    pub fn hello(&self, purpose: Purpose, qp: QpAddress, data: &[u8]) -> Hello {
        let control = self.control.local_address();
        Hello {
            purpose,
            control,
            address: self.address,
            port: control.port().into(),
            qpn: qp.qpn,
            msn: qp.msn,
            data: data.to_vec(),
        }
    }

    /// Begins to connect to a peer, for an EP or for a message. Other hosts see the connection come from the IA's address.
    ///
    /// # Errors
    /// Those of [`Device::begin_connect_from`].
    pub fn begin_connect(
        &self,
        to: SocketAddr,
        qps: &[&Qp],
        data: &[u8],
    ) -> std::result::Result<Connecting, DeviceError> {
        let local = Some(self.address);
        self.device.begin_connect_from(local, to, qps, data)
    }

    /// The EP with this queue pair.
    #[must_use]
    pub fn ep(&self, qpn: u32) -> Option<Arc<Ep>> {
        self.eps.read().get(&qpn)?.upgrade()
    }

    /// The EP with exactly this queue pair, not with a later one that reuses its number.
    fn ep_with(&self, qp: QpId, qpn: u32) -> Option<Arc<Ep>> {
        let ep = self.ep(qpn)?;
        ep.qp().is_some_and(|own| own.id() == qp).then_some(ep)
    }

    /// Adds an EP.
    pub fn add_ep(&self, qpn: u32, ep: &Arc<Ep>) {
        self.eps.write().insert(qpn, Arc::downgrade(ep));
    }

    /// Removes an EP.
    pub fn remove_ep(&self, qpn: u32) {
        self.eps.write().remove(&qpn);
    }

    /// Adds an EVD, if it has a completion queue.
    pub fn add_evd(&self, evd: &Arc<Evd>) {
        if let Some(cq) = evd.cq() {
            self.evds.write().insert(cq.id(), Arc::downgrade(evd));
        }
    }

    /// Removes an EVD.
    pub fn forget_cq(&self, cq: CqId) {
        self.evds.write().remove(&cq);
    }

    /// Adds an SRQ.
    pub fn add_srq(&self, srq: &Arc<Srq>) {
        let id = srq.queue.id();
        self.srqs.write().insert(id, Arc::downgrade(srq));
    }

    /// Removes an SRQ.
    pub fn remove_srq(&self, id: SrqId) {
        self.srqs.write().remove(&id);
    }

    /// Makes room for this many more completions of an EVD, or of EPs without one.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn expect(&self, evd: Option<&Evd>, more: u32) -> Result {
        match evd {
            Some(evd) => evd.expect(more),
            None => self.sink_demand.add(self, &self.sink_cq, more),
        }
    }

    /// Releases room that [`Ia::expect`] made.
    pub fn expect_less(&self, evd: Option<&Evd>, fewer: u32) {
        match evd {
            Some(evd) => evd.expect_less(fewer),
            None => self.sink_demand.remove(fewer),
        }
    }

    /// Whether so many completions are waiting that [`Ia::collect`] should take them.
    #[inline]
    #[must_use]
    pub fn is_crowded(&self, evd: Option<&Evd>) -> bool {
        match evd.filter(|evd| evd.cq().is_some()) {
            Some(evd) => evd.is_crowded(),
            None => self.sink_cq.len() >= self.sink_cq.depth() / 2,
        }
    }

    /// Turns the completions of an EVD into events, or drops completions that have no EVD.
    pub fn collect(&self, evd: Option<&Evd>) {
        match evd.filter(|evd| evd.cq().is_some()) {
            Some(evd) => evd.collect(),
            None => self.empty_sink(),
        }
    }

    fn empty_sink(&self) {
        let mut batch = [Completion::default(); 16];
        while let Ok(taken @ 1..) = self.sink_cq.poll(&mut batch) {
            for completion in batch.iter().take(taken) {
                let Some(ep) = self.ep(completion.qpn) else {
                    continue;
                };
                let _ = crate::objects::completion::translate(&ep, completion);
                if !completion.status.is_success() && ep.is_in_service() {
                    ep.suspect();
                }
            }
        }
    }

    /// Handles a report of a completion queue.
    pub fn cq_event(&self, id: CqId) {
        let evd = self.evds.read().get(&id).and_then(Weak::upgrade);
        if let Some(evd) = evd {
            return evd.look();
        }
        if id == self.sink_cq.id() {
            self.empty_sink();
            let _ = self.sink_cq.watch(&self.channel);
        }
    }

    /// Handles a report of the device.
    pub fn device_event(&self, event: AsyncEvent) {
        match event {
            AsyncEvent::QpFatal { qp, qpn }
            | AsyncEvent::AccessError { qp, qpn }
            | AsyncEvent::RequestError { qp, qpn } => {
                if let Some(ep) = self.ep_with(qp, qpn) {
                    ep.suspect();
                }
            }
            AsyncEvent::PeerGone { qp, qpn, why } => {
                if let Some(ep) = self.ep_with(qp, qpn) {
                    ep.peer_gone(why);
                }
            }
            // The EP is out of service. While it has a connection, its end is reported first.
            AsyncEvent::LastWqeReached { qp, qpn } => match self.ep_with(qp, qpn) {
                Some(ep) if ep.is_in_service() => ep.suspect(),
                Some(ep) if ep.will_tell_broken() => ep.tell_broken(),
                _ => {}
            },
            AsyncEvent::SrqLimit(id) => {
                let srq = self.srqs.read().get(&id).and_then(Weak::upgrade);
                if let Some(srq) = srq {
                    self.tell(
                        ASYNC_ERROR_PROVIDER_INTERNAL_ERROR,
                        srq.handle,
                        SRQ_LOW_WATERMARK_EVENT,
                    );
                }
            }
            AsyncEvent::CqOverrun(id) => {
                let evd = self.evds.read().get(&id).and_then(Weak::upgrade);
                if let Some(evd) = evd {
                    self.tell(ASYNC_ERROR_EVD_OVERFLOW, evd.handle, EVD_OVERFLOW_ERROR);
                }
            }
            other => tracing::debug!(?other, "ignored a device event"),
        }
    }

    /// Hides the IA's objects from inspections of the device.
    pub fn hide(&self) {
        self.description.lock().take();
    }

    /// Reports an asynchronous error.
    pub fn tell(&self, number: dat_event_number, about: usize, reason: i32) {
        let evd = self.async_evd.lock().clone();
        if let Some(evd) = evd {
            evd.push(notifying(asynchronous(number, about, reason)));
        }
    }

    /// The EVD for asynchronous errors.
    #[must_use]
    pub fn async_evd(&self) -> Option<Arc<Evd>> {
        self.async_evd.lock().clone()
    }

    /// Sets the EVD for asynchronous errors. An EVD of another IA counts this IA as a user.
    pub fn set_async_evd(&self, evd: Option<Arc<Evd>>) {
        let is_foreign = |evd: &&Arc<Evd>| evd.ia().handle != self.handle;
        if let Some(new) = evd.as_ref().filter(is_foreign) {
            new.users.add();
        }
        let old = std::mem::replace(&mut *self.async_evd.lock(), evd);
        if let Some(old) = old.as_ref().filter(is_foreign) {
            old.users.remove();
        }
    }

    /// Whether the IA reports asynchronous errors to `evd`.
    #[must_use]
    pub fn is_async_evd(&self, evd: &Arc<Evd>) -> bool {
        let own = self.async_evd.lock();
        own.as_ref().is_some_and(|own| Arc::ptr_eq(own, evd))
    }

    /// The address of a datagram EP.
    #[must_use]
    pub fn address_handle(&self, qpn: u32) -> IbAddrHandle {
        // SAFETY: all zeros is a valid value.
        let mut handle: IbAddrHandle = unsafe { std::mem::zeroed() };
        handle.qpn = qpn;
        // SAFETY: the room has the size of the field, and is not written during the read.
        handle.ia_addr = unsafe { *self.visible.pointer().cast::<libc::sockaddr_in6>() };
        // Any value but null will do: a send needs only the number.
        handle.ah = self.handle as Handle;
        handle
    }
}

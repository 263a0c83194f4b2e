//! PSPs and RSPs (public and reserved service points): peers request connections from them.

use crate::handles::fail::{Fail, Result};
use crate::handles::object::{any, insert};
use crate::objects::cr::{Cr, discard};
use crate::objects::datagram::request_event;
use crate::objects::ep::{Ep, Parts};
use crate::objects::evd::Evd;
use crate::objects::ia::Ia;
use crate::sys::consts::*;
use crate::values::address::of_qualifier;
use crate::values::ep_state::{State, Step};
use crate::values::event::{notifying, request};
use crate::values::hello::{Hello, Purpose};
use parking_lot::Mutex;
use rkey_device::{DeviceError, Incoming, Listener, time};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long freeing a service point waits for the worker.
const CLOSE_TIME: Duration = Duration::from_secs(10);

/// How many requests of a service point may be unanswered; more wait in its listener. Each needs a descriptor, so the limit
/// is half of the descriptors that the process may have.
fn most_unanswered() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = limit.current.unwrap_or(u64::MAX) / 2;
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// The listener of a PSP or RSP.
pub struct Service {
    ia: Arc<Ia>,
    /// The handle of the PSP or RSP.
    pub handle: usize,
    listener: Mutex<Option<Arc<Listener>>>,
    conn_qual: u64,
    evd: Arc<Evd>,
    /// The EP that gets a connection.
    pub target: Target,
    /// Whether it is an RSP that has already received its request.
    used: AtomicBool,
    /// Requests that other service points have handed off to it.
    handed: Mutex<VecDeque<(Incoming, Hello)>>,
    /// Each unanswered CR holds a clone, so the reference count counts them.
    unanswered: Arc<()>,
    most_unanswered: usize,
}

/// A connection request, and its hello if the peer is a uDAPL program.
pub type Received = (Incoming, Option<Hello>);

/// The EP that gets the connections of a service point.
pub enum Target {
    /// The program chooses the EP when it accepts.
    Consumer,
    /// The provider makes an EP for each request.
    Provider,
    /// The EP of the RSP.
    Reserved(Arc<Ep>),
}

impl Service {
    /// Listens at a connection qualifier, or at any free one (`None`).
    ///
    /// # Errors
    /// `DAT_CONN_QUAL_IN_USE`, `DAT_CONN_QUAL_UNAVAILABLE`.
    pub fn listen(
        ia: &Arc<Ia>,
        handle: usize,
        conn_qual: Option<u64>,
        evd: &Arc<Evd>,
        target: Target,
    ) -> Result<Arc<Self>> {
        let target_address = match conn_qual {
            None => Some(SocketAddr::new(ia.address, 0)),
            Some(number) => of_qualifier(ia.address, number),
        };
        let target_address = target_address.ok_or_else(|| {
            tracing::info!(
                "{:#x} is not a connection qualifier: it must have at most 48 bits, and its low 16 bits must not all be 0",
                conn_qual.unwrap_or_default()
            );
            Fail::new(CONN_QUAL_UNAVAILABLE, NO_SUBTYPE)
        })?;
        let listener = match target_address.ip() == ia.address {
            true => ia.device.listen_for_hosts(target_address)?,
            // The qualifier has more than 16 bits, so no TCP port has its number.
            false => ia.device.listen(target_address)?,
        };
        let free_port = || listener.local_address().port().into();
        let conn_qual = conn_qual.unwrap_or_else(free_port);
        evd.users.add();
        Ok(Arc::new(Self {
            ia: Arc::clone(ia),
            handle,
            conn_qual,
            listener: Mutex::new(Some(Arc::new(listener))),
            evd: Arc::clone(evd),
            target,
            used: AtomicBool::new(false),
            handed: Mutex::default(),
            unanswered: Arc::default(),
            most_unanswered: most_unanswered(),
        }))
    }

    /// The IA that the object belongs to.
    #[must_use]
    pub fn ia(&self) -> &Arc<Ia> {
        &self.ia
    }

    /// The EVD to which it reports requests.
    #[must_use]
    pub fn evd(&self) -> &Arc<Evd> {
        &self.evd
    }

    /// The connection qualifier.
    #[must_use]
    pub fn conn_qual(&self) -> u64 {
        self.conn_qual
    }

    /// The qualifier, EVD and unanswered requests, for inspection.
    #[must_use]
    pub fn in_words(&self) -> String {
        let unanswered = Arc::strong_count(&self.unanswered) - 1;
        let (qualifier, evd) = (self.conn_qual, self.evd.handle);
        let requests = format!("unanswered requests: {unanswered}");
        let requests = match self.used.load(Ordering::Acquire) {
            true => "its only request has arrived",
            false => requests.as_str(),
        };
        format!("qualifier {qualifier:#x}; EVD {evd:#x}; {requests}")
    }

    /// The token that a CR holds until it is answered.
    #[must_use]
    pub fn unanswered(&self) -> Arc<()> {
        Arc::clone(&self.unanswered)
    }

    /// Whether the program can take another request.
    fn has_room(&self) -> bool {
        self.evd.has_room() && Arc::strong_count(&self.unanswered) <= self.most_unanswered
    }

    /// The listener, if the service point accepts requests.
    fn open_listener(&self) -> Option<Arc<Listener>> {
        let listener = self.listener.lock().clone();
        listener.filter(|_| !self.used.load(Ordering::Acquire))
    }

    /// The listener that the worker waits for; `None` unless the program has room for a request.
    #[must_use]
    pub fn awaited(&self) -> Option<Arc<Listener>> {
        self.open_listener().filter(|_| self.has_room())
    }

    /// Whether the worker must check again soon: a peer has not sent its whole request, or the program has no room for
    /// more.
    #[must_use]
    pub fn is_impatient(&self) -> bool {
        let listener = self.open_listener();
        listener.is_some_and(|listener| listener.has_half_open() || !self.has_room())
    }

    /// Takes the next connection request, to be delivered; `None` also if the program has no room for it.
    ///
    /// # Errors
    /// The listener failed, for example because no descriptor is available.
    pub fn next_request(&self) -> std::result::Result<Option<Received>, DeviceError> {
        let Some(listener) = self.awaited() else {
            return Ok(None);
        };
        if let Some((incoming, hello)) = self.handed.lock().pop_front() {
            return Ok(Some((incoming, Some(hello))));
        }
        let received = listener.try_accept()?;
        Ok(received.map(|incoming| {
            let hello = Hello::decode(&incoming.peer().private_data);
            (incoming, hello)
        }))
    }

    /// Makes a CR for a request and reports it to the program.
    pub fn deliver(self: &Arc<Self>, (incoming, hello): Received) {
        let Some(hello) = hello else {
            tracing::info!(
                "refused a request for connection qualifier {} from {}, which does not use uDAPL",
                self.conn_qual,
                incoming.peer().described()
            );
            incoming.reject("");
            return;
        };
        let datagram = hello.purpose == Purpose::DatagramRequest;
        let queue_pairs = incoming.peer().qps.len();
        let fits = match hello.purpose {
            Purpose::Request => queue_pairs == 1,
            Purpose::DatagramRequest => queue_pairs == 0,
            _ => false,
        };
        // Datagram EPs are identified by their numbers, which are unique on one host only.
        let is_far_datagram = datagram && incoming.peer().host.is_some();
        if !fits || is_far_datagram || !self.has_ep_for(datagram) {
            incoming.reject("");
            return;
        }
        if !incoming.listens_at(hello.control) {
            tracing::warn!(
                "refused a request for connection qualifier {}: {} claims to listen at {}, but does not",
                self.conn_qual,
                incoming.peer().described(),
                hello.control
            );
            incoming.reject("");
            return;
        }
        let ep = match self.ep_for_request() {
            Ok(ep) => ep,
            Err(fail) => {
                tracing::info!(
                    "refused a request for connection qualifier {}: cannot create an EP: {fail}",
                    self.conn_qual
                );
                incoming.reject("");
                return;
            }
        };
        let made = insert::<Cr>(self.ia.table, |handle| {
            Ok(Arc::new(Cr::new(handle, self, ep.clone(), incoming, hello)))
        });
        match made {
            Ok(cr) => {
                let address = self.ia.visible.pointer();
                let event = request(self.handle, address, self.conn_qual(), cr as usize);
                self.evd.push(match datagram {
                    true => request_event(event),
                    false => notifying(event),
                });
            }
            Err(fail) => {
                tracing::warn!(
                    "dropped a request for connection qualifier {}: cannot create a CR: {fail}",
                    self.conn_qual
                );
                match ep {
                    Some(ep) if matches!(self.target, Target::Provider) => discard(&ep),
                    Some(ep) => drop(ep.take_step(Step::Reject)),
                    None => {}
                }
            }
        }
    }

    /// Whether an EP of this kind can answer a request.
    fn has_ep_for(&self, datagram: bool) -> bool {
        let here = |ep: &Ep| Arc::ptr_eq(ep.ia(), &self.ia) && ep.is_datagram();
        match &self.target {
            Target::Reserved(ep) => ep.is_datagram() == datagram,
            // The provider makes only connected EPs.
            Target::Provider => !datagram,
            // Programs that use no datagrams do not recognise such requests, and would never answer them.
            Target::Consumer => !datagram || any::<Ep>(here),
        }
    }

    fn ep_for_request(&self) -> Result<Option<Arc<Ep>>> {
        match &self.target {
            Target::Consumer => Ok(None),
            Target::Provider => {
                let mut made = None;
                insert::<Ep>(self.ia.table, |handle| {
                    let parts = Parts::default();
                    let ep = Ep::new(&self.ia, handle, parts, State::UnconfiguredPassive)?;
                    made = Some(Arc::clone(&ep));
                    Ok(ep)
                })?;
                Ok(made)
            }
            Target::Reserved(ep) => {
                ep.take_step(Step::Request)?;
                self.used.store(true, Ordering::Release);
                Ok(Some(Arc::clone(ep)))
            }
        }
    }

    /// Takes over a request from another service point: what `take` returns.
    ///
    /// # Errors
    /// `DAT_CONN_QUAL_UNAVAILABLE` if it no longer accepts requests; `take` is then not called. `DAT_INVALID_HANDLE` if `take`
    /// returns nothing.
    pub fn hand(&self, take: impl FnOnce() -> Option<(Incoming, Hello)>) -> Result {
        // `close` ends the listener first, and then takes this lock.
        let mut handed = self.handed.lock();
        if self.open_listener().is_none() {
            return Err(Fail::new(CONN_QUAL_UNAVAILABLE, NO_SUBTYPE));
        }
        let request = take().ok_or(Fail::handle(INVALID_HANDLE_CR))?;
        handed.push_back(request);
        drop(handed);
        self.ia.worker().ring();
        Ok(())
    }

    /// Stops accepting requests. Requests that the program has not answered remain. When this returns, the connection
    /// qualifier is free.
    pub fn close(&self) {
        let Some(listener) = self.listener.lock().take() else {
            return;
        };
        for (incoming, _) in std::mem::take(&mut *self.handed.lock()) {
            incoming.reject("");
        }
        self.evd.users.remove();
        if let Target::Reserved(ep) = &self.target {
            let _ = ep.take_step(Step::Release);
        }
        // The worker may still hold the listener, and with it the qualifier.
        let until = time::now() + CLOSE_TIME;
        while Arc::strong_count(&listener) > 1 && time::now() < until {
            self.ia.worker().ring();
            time::sleep(Duration::from_micros(50));
        }
    }
}

/// A public service point.
pub struct Psp(pub Arc<Service>);

crate::kind!(
    Psp,
    HANDLE_TYPE_PSP,
    INVALID_HANDLE_PSP,
    RESOURCE_MEMORY,
    1 << 16
);

/// A reserved service point.
pub struct Rsp {
    pub(crate) service: Arc<Service>,
    pub(crate) ep: Arc<Ep>,
}

crate::kind!(
    Rsp,
    HANDLE_TYPE_RSP,
    INVALID_HANDLE_RSP,
    RESOURCE_MEMORY,
    1 << 16
);

impl Rsp {
    /// The IA that the object belongs to.
    #[must_use]
    pub fn ia(&self) -> &Arc<Ia> {
        self.service.ia()
    }

    /// The service point that listens for the RSP.
    #[must_use]
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Closes the RSP.
    pub fn close(&self) {
        self.service.close();
    }
}

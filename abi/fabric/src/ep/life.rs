//! Enabling and closing an endpoint.

use super::wake::Fds;
use super::*;
use rkey_endpoint::Options;
use rkey_rdm::endpoint::Service;
use rkey_rdm::hello::Admission;
use std::sync::mpsc::{Sender, channel};

/// The error for an endpoint that is enabled before it is bound to everything that it needs.
#[cold]
fn unbound(error: FiError, to: &str) -> FiError {
    error.because(format_args!(
        "the endpoint is not bound to {to} (fi_ep_bind)"
    ))
}

/// The slot of a counter, which may be empty.
fn filled_slot(counter: Option<Arc<Counter>>) -> OnceLock<Arc<Counter>> {
    counter.map_or_else(OnceLock::new, OnceLock::from)
}

/// The service that an endpoint type offers.
fn service(ep_type: c_int) -> Service {
    match ep_type {
        FI_EP_MSG => Service::Connected,
        FI_EP_DGRAM => Service::Datagram,
        _ => Service::ReliableDatagram,
    }
}

impl Endpoint {
    /// Decides whether a peer may connect to this endpoint.
    fn admission(&self) -> Admission {
        Admission {
            ep_type: self.ep_type as u8,
            device_keys: self.domain.has(FI_MR_PROV_KEY),
            one_way: self.context.as_ref().is_some_and(Context::transmits),
            key: self.pd.key.clone(),
            device: self.domain.device.node(),
        }
    }

    /// Checks that everything that the endpoint needs is bound.
    fn check_bindings(&self, setup: &Setup) -> Result<()> {
        let transmits = self.caps & (FI_SEND | FI_READ | FI_WRITE | FI_COLLECTIVE) != 0;
        let counted =
            |places: &[usize]| places.iter().any(|&place| setup.counters[place].is_some());
        if transmits && setup.tx.is_none() && !counted(&[SENT, READ, WRITTEN]) {
            return Err(unbound(FiError::NOCQ, "a completion queue (FI_TRANSMIT)"));
        }
        if self.caps & FI_RECV != 0 && setup.rx.is_none() && !counted(&[RECEIVED]) {
            return Err(unbound(FiError::NOCQ, "a completion queue (FI_RECV)"));
        }
        if self.ep_type != FI_EP_MSG && setup.av.is_none() {
            return Err(unbound(FiError::NOAV, "an address vector"));
        }
        if self.ep_type == FI_EP_MSG && setup.eq.is_none() {
            return Err(unbound(FiError::NOEQ, "an event queue"));
        }
        if self.shares_tx && setup.stx.is_none() {
            tracing::warn!(
                "fi_enable: the endpoint needs a shared transmit context, because its tx_ctx_cnt is FI_SHARED_CONTEXT: bind one (fi_ep_bind)"
            );
            return Err(FiError::OPBADSTATE);
        }
        if self.shares && setup.srx.is_none() {
            tracing::warn!(
                "fi_enable: the endpoint needs a shared receive context, because its rx_ctx_cnt is FI_SHARED_CONTEXT: bind one (fi_ep_bind)"
            );
            return Err(FiError::NORX);
        }
        Ok(())
    }

    /// Creates the host that the endpoint's state machine calls.
    fn host(self: &Arc<Self>, setup: &Setup) -> EpHost {
        EpHost {
            this: Arc::downgrade(self),
            domain: Arc::clone(&self.domain),
            pd: Arc::clone(self.pd.current()),
            number: self.number,
            regions: self.region_number(),
            ep_type: self.ep_type,
            caps: self.caps,
            tx: setup.tx.clone(),
            rx: setup.rx.clone(),
            srx: setup.srx.clone(),
            av: setup.av.clone(),
            eq: setup.eq.clone(),
            counters: setup.counters.clone().map(filled_slot),
            remote: setup.remote.clone().map(filled_slot),
            min_multi_recv: Arc::clone(&self.min_multi_recv),
        }
    }

    /// Enables the endpoint. A second call has no effect.
    pub(super) fn enable(self: &Arc<Self>) -> Result<()> {
        let mut setup = self.setup.lock();
        if setup.enabled {
            return Ok(());
        }
        if let Some(context) = &self.context {
            context.inherit(&mut setup)?;
        }
        self.check_bindings(&setup)?;
        let auth_key = self.take_auth_key(&setup)?;
        let device = &self.domain.device;
        let waits = [&setup.tx, &setup.rx]
            .into_iter()
            .flatten()
            .any(|side| side.cq.wait.is_some());
        // A thread that reads or waits for events also detects the end of a connection, unless our own thread does.
        let looks = self.ep_type == FI_EP_MSG && !self.domain.auto_progress;
        let hears = setup.eq.clone().filter(|_| looks);
        let hears_asleep = hears.as_ref().is_some_and(|eq| eq.is_waitable());
        let channel_if = |wanted: bool| wanted.then(|| device.create_channel()).transpose();
        let (channel, ends) = (channel_if(waits)?, channel_if(hears_asleep)?);
        let name = match (&self.context, self.ep_type) {
            (Some(context), _) => context.sep.enable()?,
            (None, FI_EP_MSG) => self.name_before(&mut setup)?,
            (None, _) => setup.local_address.name(device),
        };
        let options = Options {
            service: service(self.ep_type),
            admission: self.admission(),
            name,
            number: Some(self.region_number()),
            counted_as: Some(self.number),
            max_sge: crate::fabric::NEEDED_SGE,
            channel: channel.as_ref(),
        };
        let live = Live {
            driver: Driver::new(device, self.host(&setup), options)?,
            stx: setup.stx.clone().map(SharedSlots::new),
            channel,
            ends,
            description: Mutex::new(None),
        };
        if self.ep_type != FI_EP_MSG && self.context.is_none() {
            let listener = setup.local_address.listen(device)?;
            live.serve(self, &self.domain.fabric.listeners, listener)?;
        }
        let fds = live.fds();
        let begun = self
            .register(&setup, hears.as_ref(), fds)
            .and_then(|()| self.progress_by_itself());
        let begins = begun.inspect_err(|_| self.deregister(&setup, hears.as_ref(), fds))?;
        if self.live.set(live).is_err() {
            return Ok(());
        }
        setup.enabled = true;
        if let Some(live) = self.live.get() {
            self.show(live);
        }
        if let Some(key) = &auth_key {
            key.users.add();
        }
        setup.auth_key = auth_key;
        for counter in setup.counters.iter().chain(&setup.remote).flatten() {
            counter.attach(self);
        }
        if let Some(begins) = begins {
            // Fails only if the thread has exited.
            let _ = begins.send(());
        }
        Ok(())
    }

    /// Registers the endpoint with its shared receive context, its completion queues and the event queue `hears`; each is
    /// optional.
    fn register(self: &Arc<Self>, setup: &Setup, hears: Option<&Arc<Eq>>, fds: Fds) -> Result<()> {
        if let Some(srx) = &setup.srx {
            srx.attach(self, setup.av.as_ref())?;
        }
        for side in [&setup.tx, &setup.rx].into_iter().flatten() {
            side.cq.attach(self, fds.completions)?;
        }
        hears.map_or(Ok(()), |eq| eq.attach(self, fds.ends))
    }

    /// Undoes the registrations that were made.
    fn deregister(self: &Arc<Self>, setup: &Setup, hears: Option<&Arc<Eq>>, fds: Fds) {
        if let Some(eq) = hears {
            eq.detach(self, fds.ends);
        }
        for side in [&setup.tx, &setup.rx].into_iter().flatten() {
            side.cq.detach(self, fds.completions);
        }
        if let Some(srx) = &setup.srx {
            srx.detach(self);
        }
    }

    /// Starts a thread, if the domain has automatic progress. The thread begins to work when the caller sends it a
    /// signal.
    fn progress_by_itself(self: &Arc<Self>) -> Result<Option<Sender<()>>> {
        if !self.domain.auto_progress {
            return Ok(None);
        }
        let (begins, begun) = channel();
        let ep = Arc::clone(self);
        rkey_device::threads::spawn("rkey-fi-progress", move || {
            if begun.recv().is_ok() {
                ep.run();
            }
        })
        .map_err(|_| FiError::NOMEM)?;
        Ok(Some(begins))
    }

    /// The authorization key of the endpoint's address vector, which must have exactly one (`max_ep_auth_key`). `None` if
    /// address vectors of the domain have no keys.
    fn take_auth_key(&self, setup: &Setup) -> Result<Option<Arc<AuthKey>>> {
        if !self.domain.av_keys {
            return Ok(None);
        }
        let keys = setup.av.as_ref().ok_or(FiError::NOAV)?.auth_keys();
        let [key] = keys.as_slice() else {
            tracing::warn!(
                "the endpoint's address vector has {} authorization keys, but must have exactly one (max_ep_auth_key)",
                keys.len()
            );
            return Err(FiError::INVAL);
        };
        let pd = self.domain.pd(&key.bytes)?;
        if self.pd.found.get_or_init(|| Arc::clone(&pd)).id != pd.id {
            // An earlier attempt to enable the endpoint took another key.
            return Err(FiError::OPBADSTATE);
        }
        Ok(Some(Arc::clone(key)))
    }

    /// The address vector that it is bound to.
    pub(crate) fn bound_av(&self) -> Option<Arc<Av>> {
        self.setup.lock().av.clone()
    }

    /// Closes the endpoint: notifies the peers, and tears everything down.
    pub(super) fn shut(self: &Arc<Self>) {
        self.closing.store(true, Ordering::Release);
        if let Some(context) = &self.context {
            context.leave();
        }
        self.domain.work.forget(self.number);
        let completed_work = std::mem::take(&mut self.setup.lock().completed_work);
        for counter in completed_work {
            counter.detach(self);
        }
        let watched = &self.domain.watched;
        watched.for_each(|region| region.endpoint_closes(self.number));
        if let Some(live) = self.live.get() {
            // Inspection no longer describes the endpoint.
            drop(live.description.lock().take());
            live.begin_close();
            live.say_goodbye();
            // Detach without the state locked: a post to a shared receive context locks the state of an endpoint while it
            // holds the context's list of endpoints, which `detach` locks too.
            if let Some(srx) = &live.host.srx {
                srx.detach(self);
            }
            live.close();
        }
        let fds = self.live.get().map_or(Fds::default(), Live::fds);
        let setup = std::mem::take(&mut *self.setup.lock());
        for side in [&setup.tx, &setup.rx].into_iter().flatten() {
            side.cq.detach(self, fds.completions);
            side.cq.users.remove();
        }
        for counter in setup.counters.iter().flatten() {
            counter.detach(self);
            counter.users.remove();
        }
        for (counter, (_, kind)) in setup.remote.iter().zip(REMOTE) {
            if let Some(counter) = counter {
                counter.detach(self);
                counter.unwatch(self.number, kind);
                counter.users.remove();
            }
        }
        self.domain.device.forget_endpoint_counter(self.number);
        if let Some(srx) = &setup.srx {
            srx.part();
        }
        if let Some(stx) = &setup.stx {
            let room = self.live.get().and_then(|live| live.stx.as_ref());
            stx.part(room.map_or(0, SharedSlots::leave));
        }
        if let Some(key) = &setup.auth_key {
            key.users.remove();
        }
        if let Some(av) = &setup.av {
            av.users.remove();
        }
        if let Some(eq) = &setup.eq {
            eq.detach(self, fds.ends);
            eq.forget(self.handle.load(Ordering::Relaxed));
            eq.users.remove();
        }
        self.setup.lock().enabled = true;
        if let Some(context) = &self.context {
            context.sep.users.remove();
        }
    }
}

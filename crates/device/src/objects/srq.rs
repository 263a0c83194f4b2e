//! Shared receive queues, those of extended reliable connections, and receive work queues.

use std::sync::Arc;

use rkey_core::DomainId;
use rkey_engine::{RecvRequest, SrqId, WqState, XrcdId};

use crate::device::Device;
use crate::error::DeviceError;
use crate::objects::async_queues::Source;
use crate::objects::cq::Cq;

/// A shared receive queue. Clones are the same queue; the last one destroys it.
#[derive(Clone, Debug)]
pub struct Srq(Arc<SrqInner>);

#[derive(Debug)]
struct SrqInner {
    device: Device,
    id: SrqId,
    /// The completion queue of the receives, if this queue has its own; held so that it outlives this queue.
    _cq: Option<Cq>,
}

impl Device {
    /// Creates a queue of `depth` receives, each of up to `max_sge` scatter/gather entries, that queue
    /// pairs of `domain` can share.
    ///
    /// # Errors
    /// [`DeviceError::TooLarge`], [`DeviceError::Limit`].
    pub fn create_srq(
        &self,
        domain: DomainId,
        depth: u32,
        max_sge: u32,
    ) -> Result<Srq, DeviceError> {
        self.check()?;
        self.check_queue("receives in one shared receive queue", depth, max_sge)?;
        let id = self
            .shared()
            .driver
            .command(|engine| engine.create_srq(domain, depth, max_sge))
            .map_err(|e| self.limit_of(e, "shared receive queues", "RKEY_MAX_SRQS"))?;
        Ok(self.new_srq(id, None))
    }

    /// Creates a shared receive queue that the extended reliable connections of an XRC domain reach by its
    /// [number](Srq::number). Its receives complete in `cq`.
    ///
    /// # Errors
    /// Same as [`Device::create_srq`].
    pub fn create_xrc_srq(
        &self,
        domain: DomainId,
        depth: u32,
        max_sge: u32,
        xrcd: XrcdId,
        cq: &Cq,
    ) -> Result<Srq, DeviceError> {
        self.create_serving(domain, depth, max_sge, Some(xrcd), cq)
    }

    /// Creates a receive queue for the RSS of raw queue pairs ([`Qp::set_rss`](crate::Qp::set_rss)). Its
    /// receives complete in `cq`. It begins in [`WqState::Reset`].
    ///
    /// # Errors
    /// Same as [`Device::create_srq`].
    pub fn create_wq(
        &self,
        domain: DomainId,
        depth: u32,
        max_sge: u32,
        cq: &Cq,
    ) -> Result<Srq, DeviceError> {
        self.create_serving(domain, depth, max_sge, None, cq)
    }

    fn create_serving(
        &self,
        domain: DomainId,
        depth: u32,
        max_sge: u32,
        xrcd: Option<XrcdId>,
        cq: &Cq,
    ) -> Result<Srq, DeviceError> {
        self.check()?;
        self.check_queue("receives in one shared receive queue", depth, max_sge)?;
        if !self.is(cq.device()) {
            return Err(DeviceError::Unknown {
                what: "completion queue",
            });
        }
        let id = self
            .shared()
            .driver
            .command(|engine| match xrcd {
                Some(xrcd) => engine.create_xrc_srq(domain, depth, max_sge, xrcd, cq.id()),
                None => engine.create_wq(domain, depth, max_sge, cq.id()),
            })
            .map_err(|e| self.limit_of(e, "shared receive queues", "RKEY_MAX_SRQS"))?;
        Ok(self.new_srq(id, Some(cq.clone())))
    }

    fn new_srq(&self, id: SrqId, cq: Option<Cq>) -> Srq {
        self.shared().events.add(Source::Srq(id), self.events());
        Srq(Arc::new(SrqInner {
            device: self.clone(),
            id,
            _cq: cq,
        }))
    }
}

impl Srq {
    /// The device that the queue belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The queue's id in the engine.
    #[must_use]
    pub fn id(&self) -> SrqId {
        self.0.id
    }

    /// The number that requests of extended reliable connections use for the queue.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.id.number()
    }

    /// Changes the state of a receive queue of [`Device::create_wq`].
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn set_state(&self, state: WqState) -> Result<(), DeviceError> {
        let shared = self.0.device.shared();
        shared.lifecycle().check()?;
        shared
            .driver
            .command(|engine| engine.set_wq_state(self.0.id, state))?;
        Ok(())
    }

    /// Adds a receive.
    ///
    /// # Errors
    /// [`DeviceError::Post`], [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), DeviceError> {
        let shared = self.0.device.shared();
        shared.lifecycle().check()?;
        shared
            .driver
            .post(|engine| engine.post_srq_recv(self.0.id, request))?;
        Ok(())
    }

    /// The depth of the queue, the limit below which an event is raised (0: none), and the number of
    /// posted receives.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn query(&self) -> Result<(u32, u32, u32), DeviceError> {
        let device = &self.0.device;
        device.check()?;
        device
            .shared()
            .driver
            .command(|engine| engine.query_srq(self.0.id))
            .ok_or(DeviceError::Unknown {
                what: "shared receive queue",
            })
    }

    /// Sets the number of receives below which one event is raised (0: none), or the depth.
    ///
    /// # Errors
    /// Same as [`Device::create_srq`].
    pub fn modify(&self, limit: Option<u32>, depth: Option<u32>) -> Result<(), DeviceError> {
        let device = &self.0.device;
        device.check()?;
        if let Some(depth) = depth {
            device.check_queue("receives in one shared receive queue", depth, 0)?;
        }
        device
            .shared()
            .driver
            .command(|engine| engine.modify_srq(self.0.id, limit, depth))?;
        Ok(())
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let shared = self.device.shared();
        if !shared.lifecycle().is_usable() {
            return;
        }
        shared.events.remove(Source::Srq(self.id));
        if let Err(error) = shared.driver.command(|engine| engine.destroy_srq(self.id)) {
            tracing::debug!(srq = ?self.id, %error, "cannot destroy the shared receive queue");
        }
    }
}

//! Which handle an event names: the objects of an open device that can have events. An object leaves the registry before
//! it is destroyed.

use crate::sys::{Cq, Qp, Srq};
use parking_lot::Mutex;
use rkey_device::engine::{CqId, QpId, SrqId};
use std::collections::HashMap;

/// Maps each object that can have events to its handle.
#[derive(Debug, Default)]
pub struct Events {
    cqs: Mutex<HashMap<CqId, usize>>,
    qps: Mutex<HashMap<QpId, usize>>,
    srqs: Mutex<HashMap<SrqId, usize>>,
}

impl Events {
    /// From now on, events of this completion queue name `handle`.
    pub fn add_cq(&self, id: CqId, handle: *mut Cq) {
        self.cqs.lock().insert(id, handle as usize);
    }

    /// Undoes [`Events::add_cq`].
    pub fn remove_cq(&self, id: CqId) {
        self.cqs.lock().remove(&id);
    }

    /// What `f` returns for the handle of this completion queue. The registry stays locked meanwhile, so the object
    /// stays alive.
    pub(crate) fn with_cq<T>(&self, id: CqId, f: impl FnOnce(*mut Cq) -> Option<T>) -> Option<T> {
        let cqs = self.cqs.lock();
        f(*cqs.get(&id)? as *mut Cq)
    }

    /// From now on, events of this queue pair name `handle`.
    pub fn add_qp(&self, id: QpId, handle: *mut Qp) {
        self.qps.lock().insert(id, handle as usize);
    }

    /// Undoes [`Events::add_qp`].
    pub fn remove_qp(&self, id: QpId) {
        self.qps.lock().remove(&id);
    }

    /// Like [`Events::with_cq`], for a queue pair.
    pub(crate) fn with_qp<T>(&self, id: QpId, f: impl FnOnce(*mut Qp) -> Option<T>) -> Option<T> {
        let qps = self.qps.lock();
        f(*qps.get(&id)? as *mut Qp)
    }

    /// From now on, events of this shared receive queue name `handle`.
    pub fn add_srq(&self, id: SrqId, handle: *mut Srq) {
        self.srqs.lock().insert(id, handle as usize);
    }

    /// Undoes [`Events::add_srq`].
    pub fn remove_srq(&self, id: SrqId) {
        self.srqs.lock().remove(&id);
    }

    /// Like [`Events::with_cq`], for a shared receive queue.
    pub(crate) fn with_srq<T>(
        &self,
        id: SrqId,
        f: impl FnOnce(*mut Srq) -> Option<T>,
    ) -> Option<T> {
        let srqs = self.srqs.lock();
        f(*srqs.get(&id)? as *mut Srq)
    }
}

//! The endpoints that a queue or a counter drives when the program reads it or waits for it.

use crate::ep::Endpoint;
use crate::errno::Result;
use crate::wait::Set;
use parking_lot::{RwLock, RwLockReadGuard};
use std::os::fd::RawFd;
use std::sync::Arc;

/// Endpoints without duplicates.
#[derive(Default)]
pub(crate) struct Attached(RwLock<Vec<Arc<Endpoint>>>);

impl Attached {
    /// All of them; the guard keeps the list unchanged.
    pub(crate) fn all(&self) -> RwLockReadGuard<'_, Vec<Arc<Endpoint>>> {
        self.0.read()
    }

    /// Whether an endpoint is among them.
    pub(crate) fn has(&self, endpoint: &Arc<Endpoint>) -> bool {
        let all = self.0.read();
        all.iter().any(|known| Arc::ptr_eq(known, endpoint))
    }

    pub(crate) fn add(&self, endpoint: &Arc<Endpoint>) {
        let mut all = self.0.write();
        if !all.iter().any(|known| Arc::ptr_eq(known, endpoint)) {
            all.push(Arc::clone(endpoint));
        }
    }

    pub(crate) fn remove(&self, endpoint: &Arc<Endpoint>) {
        self.0.write().retain(|known| !Arc::ptr_eq(known, endpoint));
    }

    /// Adds an endpoint, and its descriptor to the set that a program waits on.
    pub(crate) fn join(
        &self,
        endpoint: &Arc<Endpoint>,
        set: Option<&Set>,
        fd: Option<RawFd>,
    ) -> Result<()> {
        if let (Some(set), Some(fd)) = (set, fd) {
            set.add(fd)?;
        }
        self.add(endpoint);
        Ok(())
    }

    /// Removes both.
    pub(crate) fn leave(&self, endpoint: &Arc<Endpoint>, set: Option<&Set>, fd: Option<RawFd>) {
        if let (Some(set), Some(fd)) = (set, fd) {
            set.remove(fd);
        }
        self.remove(endpoint);
    }
}

//! Connection requests that the program has not answered yet. Each holds an open descriptor, so a passive
//! endpoint limits their number.

use crate::connect_request::{Pending, Request};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// The maximum number of pending requests of a passive endpoint.
const REQUESTS_MAX: usize = 128;

/// The pending requests of a passive endpoint.
#[derive(Default)]
pub(crate) struct Backlog(Mutex<Vec<Weak<Pending>>>);

impl Backlog {
    /// Adds a request. If the backlog is full, first drops requests whose clients have exited. If it is still
    /// full, returns the request.
    pub(crate) fn add(&self, request: Request) -> Result<Arc<Pending>, Box<Request>> {
        let mut all = self.0.lock();
        if all.len() >= REQUESTS_MAX {
            all.retain(|it| it.upgrade().is_some_and(|it| it.is_waiting()));
        }
        if all.len() >= REQUESTS_MAX {
            return Err(Box::new(request));
        }
        let pending = Arc::new(Pending::new(request));
        all.push(Arc::downgrade(&pending));
        Ok(pending)
    }
}

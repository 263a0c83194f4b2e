//! Requests for connections that the program has not answered yet: each keeps a descriptor, so one passive endpoint
//! has a limited number of them.

use crate::ep::connect::{Pending, Request};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// So many requests are kept for the program.
const REQUESTS_MAX: usize = 128;

/// The requests of a passive endpoint.
#[derive(Default)]
pub(crate) struct Backlog(Mutex<Vec<Weak<Pending>>>);

impl Backlog {
    /// Adds a request. When there is no room, those of clients that have gone are dropped; is there still none, the
    /// request comes back.
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

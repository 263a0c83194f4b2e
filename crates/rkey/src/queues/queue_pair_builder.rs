//! The options of a queue pair.

use crate::device::domain::Domain;
use crate::error::Result;
use crate::queues::completion::CompletionQueue;
use crate::queues::queue_pair::{INLINE, QueuePair};
use rkey_core::Access;
use rkey_engine::QpAttributes;

/// Configures a queue pair. Made by [`Domain::queue_pair`].
#[derive(Debug)]
pub struct QueuePairBuilder {
    domain: Domain,
    options: rkey_device::QpOptions,
    grant: Access,
}

impl QueuePairBuilder {
    pub(crate) fn new(domain: &Domain, queue: &CompletionQueue) -> Self {
        let mut options = rkey_device::QpOptions::new(domain.id(), queue.raw());
        options.max_inline = INLINE;
        Self {
            domain: domain.clone(),
            options,
            grant: Access::REMOTE,
        }
    }

    /// Reports receives in a different queue from sends.
    #[must_use]
    pub fn receive_queue(mut self, queue: &CompletionQueue) -> Self {
        self.options.recv_cq = queue.raw().clone();
        self
    }

    /// How many sends and receives may be posted and unfinished (default 128 each).
    #[must_use]
    pub fn depth(mut self, sends: u32, receives: u32) -> Self {
        self.options.max_send = sends;
        self.options.max_recv = receives;
        self
    }

    /// The maximum number of buffers of one operation (default 4).
    #[must_use]
    pub fn max_buffers(mut self, buffers: u32) -> Self {
        self.options.max_send_sge = buffers;
        self.options.max_recv_sge = buffers;
        self
    }

    /// The maximum inline data of a request in bytes (default 208).
    #[must_use]
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.options.max_inline = bytes;
        self
    }

    /// The maximum rights of the peer through this queue pair, whatever its keys grant (default: all remote rights).
    #[must_use]
    pub fn grant(mut self, access: Access) -> Self {
        self.grant = access & Access::REMOTE;
        self
    }

    /// Makes a refused request fail alone, so that both queue pairs keep working. The queue pair at the other end must also be
    /// built with this option.
    #[must_use]
    pub fn survive_refusals(mut self) -> Self {
        self.options.survive_remote_error = true;
        self
    }

    /// Creates the queue pair: a reliable connection, not connected yet, that takes receives.
    ///
    /// # Errors
    /// A limit of the device.
    pub fn build(self) -> Result<QueuePair> {
        let raw = self.domain.device().raw().create_qp(&self.options)?;
        raw.modify(&QpAttributes::init(self.grant))?;
        Ok(QueuePair::new(raw, self.domain))
    }
}

impl Domain {
    /// Returns a builder for a queue pair whose completions go to `queue`, for programs that post and poll themselves.
    #[must_use]
    pub fn queue_pair(&self, queue: &CompletionQueue) -> QueuePairBuilder {
        QueuePairBuilder::new(self, queue)
    }
}

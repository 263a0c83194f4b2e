//! Work requests that a program builds on a queue pair through the extended interface.

#![allow(unsafe_code)]
// UNSAFETY: a cell that a lock guards.

use crate::queues::modify::Service;
use crate::raw_lock::RawLock;
use crate::sys::consts::*;
use crate::translate::errno;
use rkey_device::engine::{SendFlags, SendRequest, Sge, UdAddress, Work};
use rkey_kit::Errno;
use std::cell::UnsafeCell;
use std::ops::Range;

/// Groups of operations. A service supports either all operations of a group or none.
const SENDS: u64 = QP_EX_WITH_SEND | QP_EX_WITH_SEND_WITH_IMM;
const WRITES: u64 = QP_EX_WITH_RDMA_WRITE | QP_EX_WITH_RDMA_WRITE_WITH_IMM;
const WINDOWS: u64 = QP_EX_WITH_LOCAL_INV | QP_EX_WITH_BIND_MW | QP_EX_WITH_SEND_WITH_INV;
const READS: u64 = QP_EX_WITH_RDMA_READ
    | QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | QP_EX_WITH_ATOMIC_WRITE;

/// The requests under construction on one queue pair.
pub struct Builder {
    /// Locked from `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`.
    pub(crate) lock: RawLock,
    pub(crate) batch: UnsafeCell<Batch>,
}

// SAFETY: only the thread that holds the lock uses the batch.
unsafe impl Sync for Builder {}

/// A batch of requests. One list has the scatter lists of all requests, and another their inline payloads.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) requests: Vec<Pending>,
    pub(crate) sges: Vec<Sge>,
    pub(crate) inline: Vec<u8>,
    /// The first error, for `ibv_wr_complete` to return.
    pub(crate) failed: Option<Errno>,
}

/// One request, with its scatter list and payload as ranges of the batch.
pub(crate) struct Pending {
    pub(crate) id: u64,
    pub(crate) work: Work,
    pub(crate) flags: SendFlags,
    pub(crate) wants_inline: bool,
    pub(crate) ud: Option<UdAddress>,
    pub(crate) sges: Range<usize>,
    pub(crate) inline: Option<Range<usize>>,
}

impl Builder {
    /// A builder for a queue pair of this service whose program requested these operations.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the service lacks one of them.
    pub fn new(service: Service, operations: u64) -> Result<Self, Errno> {
        let known = match service {
            Service::Rc | Service::XrcSend => SENDS | WRITES | WINDOWS | READS,
            Service::Uc => SENDS | WRITES | WINDOWS,
            Service::Ud => SENDS,
            Service::Raw => QP_EX_WITH_SEND,
            Service::XrcRecv => 0,
        };
        if operations & !known != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(Self {
            lock: RawLock::new(),
            batch: UnsafeCell::default(),
        })
    }
}

impl Batch {
    /// Removes all requests and the error.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        self.failed = None;
    }

    /// Posts all requests, or none if one of them is wrong.
    pub(crate) fn post(&mut self, qp: &rkey_device::Qp) -> Result<(), Errno> {
        if let Some(errno) = self.failed {
            return Err(errno);
        }
        let requests = self.requests.iter().map(|pending| {
            let inline = pending.inline.clone().map(|range| &self.inline[range]);
            SendRequest {
                id: pending.id,
                work: pending.work,
                sges: if inline.is_some() {
                    &[]
                } else {
                    &self.sges[pending.sges.clone()]
                },
                // The payload of an inline request is empty if its data was never set.
                inline: if inline.is_none() && pending.wants_inline && pending.sges.is_empty() {
                    Some(&[])
                } else {
                    inline
                },
                prefix: &[],
                flags: pending.flags,
                ud: pending.ud,
            }
        });
        qp.post_all_sends(requests).map_err(|(index, error)| {
            tracing::info!("ibv_wr_complete: request {index}: {error}");
            errno::of(&error)
        })
    }
}

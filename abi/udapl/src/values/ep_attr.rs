//! The attributes of an EP, and their limits.

use crate::handles::fail::{Fail, Result};
use crate::sys::consts::*;
use crate::sys::{EpAttr, SegLength};
use crate::values::limits::{MAX_DTOS, MAX_IOV, MAX_MESSAGE, MAX_READS};
use std::ptr::null_mut;

/// The flags that the completions of an EP may have.
const FLAGS: dat_completion_flags = COMPLETION_SUPPRESS_FLAG
    | COMPLETION_SOLICITED_WAIT_FLAG
    | COMPLETION_UNSIGNALLED_FLAG
    | COMPLETION_BARRIER_FENCE_FLAG
    | COMPLETION_EVD_THRESHOLD_FLAG;

/// The attributes of an EP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// `DAT_SERVICE_TYPE_RC`, or `DAT_IB_SERVICE_TYPE_UD`.
    pub service_type: dat_service_type,
    /// The longest message.
    pub max_message_size: SegLength,
    /// The longest RDMA read or write.
    pub max_rdma_size: SegLength,
    /// The quality of service that the program requested.
    pub qos: dat_qos,
    /// How receives notify.
    pub recv_completion_flags: dat_completion_flags,
    /// The flags that requests may have.
    pub request_completion_flags: dat_completion_flags,
    /// How many receives may be posted.
    pub max_recv_dtos: u32,
    /// How many requests may be posted.
    pub max_request_dtos: u32,
    /// The maximum number of segments of a receive.
    pub max_recv_iov: u32,
    /// The maximum number of segments of a send.
    pub max_request_iov: u32,
    /// How many RDMA reads of the peer may be outstanding.
    pub max_rdma_read_in: u32,
    /// How many RDMA reads of this EP may be outstanding.
    pub max_rdma_read_out: u32,
    /// The soft high watermark of receives from an SRQ.
    pub srq_soft_hw: Count,
    /// The maximum number of segments of an RDMA read.
    pub max_rdma_read_iov: u32,
    /// The maximum number of segments of an RDMA write.
    pub max_rdma_write_iov: u32,
}

impl Default for Attr {
    fn default() -> Self {
        Self {
            service_type: SERVICE_TYPE_RC,
            max_message_size: MAX_MESSAGE,
            max_rdma_size: MAX_MESSAGE,
            qos: QOS_BEST_EFFORT,
            recv_completion_flags: COMPLETION_DEFAULT_FLAG,
            request_completion_flags: COMPLETION_DEFAULT_FLAG,
            max_recv_dtos: 16,
            max_request_dtos: 16,
            max_recv_iov: 4,
            max_request_iov: 4,
            max_rdma_read_in: MAX_READS,
            max_rdma_read_out: MAX_READS,
            srq_soft_hw: -1,
            max_rdma_read_iov: 4,
            max_rdma_write_iov: 4,
        }
    }
}

impl Attr {
    /// Checks the attributes that a program requests; `number` is the argument's number.
    ///
    /// # Errors
    /// `DAT_INVALID_PARAMETER`.
    pub fn read(number: u32, asked: &EpAttr) -> Result<Self> {
        let bad = |what: &str, given: i64, most: u32| {
            tracing::info!("EP attribute {what} is {given}, but must be from 0 to {most}");
            Fail::argument(number)
        };
        let limited = |what: &'static str, given: Count, most: u32| match u32::try_from(given) {
            Ok(given) if given <= most => Ok(given),
            _ => Err(bad(what, given.into(), most)),
        };
        let size = |what: &'static str, given: SegLength| match given {
            0 => Ok(MAX_MESSAGE),
            given if given <= MAX_MESSAGE => Ok(given),
            _ => Err(bad(what, given.into(), MAX_MESSAGE)),
        };
        let flags = asked.recv_completion_flags | asked.request_completion_flags;
        if flags & !FLAGS != 0 {
            return Err(Fail::argument(number));
        }
        if ![SERVICE_TYPE_RC, IB_SERVICE_TYPE_UD].contains(&asked.service_type) {
            return Err(Fail::argument(number));
        }
        Ok(Self {
            service_type: asked.service_type,
            max_message_size: size("max_message_size", asked.max_message_size)?,
            max_rdma_size: size("max_rdma_size", asked.max_rdma_size)?,
            qos: asked.qos,
            recv_completion_flags: asked.recv_completion_flags,
            request_completion_flags: asked.request_completion_flags,
            max_recv_dtos: limited("max_recv_dtos", asked.max_recv_dtos, MAX_DTOS)?,
            max_request_dtos: limited("max_request_dtos", asked.max_request_dtos, MAX_DTOS)?,
            max_recv_iov: limited("max_recv_iov", asked.max_recv_iov, MAX_IOV)?,
            max_request_iov: limited("max_request_iov", asked.max_request_iov, MAX_IOV)?,
            max_rdma_read_in: limited("max_rdma_read_in", asked.max_rdma_read_in, MAX_READS)?,
            max_rdma_read_out: limited("max_rdma_read_out", asked.max_rdma_read_out, MAX_READS)?,
            srq_soft_hw: asked.srq_soft_hw,
            max_rdma_read_iov: limited("max_rdma_read_iov", asked.max_rdma_read_iov, MAX_IOV)?,
            max_rdma_write_iov: limited("max_rdma_write_iov", asked.max_rdma_write_iov, MAX_IOV)?,
        })
    }

    /// The attributes as the C structure.
    #[must_use]
    pub fn c(&self) -> EpAttr {
        EpAttr {
            service_type: self.service_type,
            max_message_size: self.max_message_size,
            max_rdma_size: self.max_rdma_size,
            qos: self.qos,
            recv_completion_flags: self.recv_completion_flags,
            request_completion_flags: self.request_completion_flags,
            max_recv_dtos: self.max_recv_dtos as Count,
            max_request_dtos: self.max_request_dtos as Count,
            max_recv_iov: self.max_recv_iov as Count,
            max_request_iov: self.max_request_iov as Count,
            max_rdma_read_in: self.max_rdma_read_in as Count,
            max_rdma_read_out: self.max_rdma_read_out as Count,
            srq_soft_hw: self.srq_soft_hw,
            max_rdma_read_iov: self.max_rdma_read_iov as Count,
            max_rdma_write_iov: self.max_rdma_write_iov as Count,
            ep_transport_specific_count: 0,
            ep_transport_specific: null_mut(),
            ep_provider_specific_count: 0,
            ep_provider_specific: null_mut(),
        }
    }

    /// The maximum number of segments of any request.
    #[must_use]
    pub fn request_segments(&self) -> u32 {
        let rdma = self.max_rdma_read_iov.max(self.max_rdma_write_iov);
        self.max_request_iov.max(rdma).max(1)
    }
}

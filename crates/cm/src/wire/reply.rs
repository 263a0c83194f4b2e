//! REP: accepts a connection, with all that the active side needs for its queue pair.

use super::bytes::{Reader, Writer};
use super::{PrivateData, Transport};
use crate::address::Guid;

/// A REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The communication id of the passive side.
    pub local: u32,
    /// The communication id of the active side.
    pub remote: u32,
    /// The queue pair number, 24 bits; 0 for an extended reliable connection.
    pub qpn: u32,
    /// The EE context number, 24 bits; the queue pair number of an extended reliable connection.
    pub eecn: u32,
    /// The vendor of the ECE options, 24 bits.
    pub ece_vendor: u32,
    /// The first PSN that the passive side expects to receive, 24 bits.
    pub starting_psn: u32,
    /// The maximum number of outstanding reads and atomics that the passive side accepts.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics that the passive side initiates.
    pub initiator_depth: u8,
    /// How long the passive side may delay an acknowledgement, as a time code of 5 bits.
    pub target_ack_delay: u8,
    /// The result for the alternate path, 2 bits: 0 if it was accepted, or if there was none.
    pub failover: u8,
    /// Whether the passive side uses end-to-end flow control.
    pub flow_control: bool,
    /// The RNR retry count, 3 bits.
    pub rnr_retry: u8,
    /// Whether the passive side's queue pair has a shared receive queue.
    pub srq: bool,
    /// The device instance of the passive side.
    pub guid: Guid,
    /// The private data.
    pub data: PrivateData<{ Self::DATA }>,
}

impl Rep {
    /// The maximum length of a REP's private data, in bytes.
    pub const DATA: usize = 196;

    /// The number of the passive side's queue pair.
    #[must_use]
    pub fn queue_pair(&self, transport: Transport) -> u32 {
        match transport {
            Transport::Rc | Transport::Uc => self.qpn,
            Transport::Xrc => self.eecn,
        }
    }

    pub(super) fn read(body: Reader<'_>) -> Self {
        let vendor = [0, body.u8(15), body.u8(19), body.u8(23)];
        Self {
            local: body.u32(0),
            remote: body.u32(4),
            qpn: body.u24(12),
            eecn: body.u24(16),
            ece_vendor: u32::from_be_bytes(vendor),
            starting_psn: body.u24(20),
            responder_resources: body.u8(24),
            initiator_depth: body.u8(25),
            target_ack_delay: body.u8(26) >> 3,
            failover: body.u8(26) >> 1 & 3,
            flow_control: body.u8(26) & 1 != 0,
            rnr_retry: body.u8(27) >> 5,
            srq: body.u8(27) & 0x10 != 0,
            guid: Guid(body.array(28)),
            data: PrivateData(body.array(36)),
        }
    }

    pub(super) fn write(&self, body: &mut Writer<'_>) {
        body.u32(0, self.local);
        body.u32(4, self.remote);
        body.u24(12, self.qpn);
        body.u24(16, self.eecn);
        body.u24(20, self.starting_psn);
        let [_, high, middle, low] = self.ece_vendor.to_be_bytes();
        body.u8(15, high);
        body.u8(19, middle);
        body.u8(23, low);
        body.u8(24, self.responder_resources);
        body.u8(25, self.initiator_depth);
        let failover = (self.failover & 3) << 1;
        body.u8(
            26,
            self.target_ack_delay << 3 | failover | u8::from(self.flow_control),
        );
        body.u8(27, self.rnr_retry << 5 | u8::from(self.srq) << 4);
        body.array(28, self.guid.0);
        body.array(36, self.data.0);
    }
}

//! REQ: requests a connection. It contains all that the passive side needs for its queue pair.

use super::bytes::{Reader, Writer};
use super::{IpHeader, PrivateData, RejectReason};
use crate::address::{Gid, Guid, ServiceId, is_queue_pair};
use core::net::IpAddr;

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection.
    Xrc,
}

/// The largest payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    /// The MTU with this code (`enum ibv_mtu`).
    #[must_use]
    pub const fn of(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::B256,
            2 => Self::B512,
            3 => Self::B1024,
            4 => Self::B2048,
            5 => Self::B4096,
            _ => return None,
        })
    }

    /// The MTU in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }
}

/// A path between two ports. On RoCE, LIDs mean nothing: they are written as 0xffff and ignored when read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The address of the active side.
    pub local: Gid,
    /// The address of the passive side.
    pub remote: Gid,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The rate code, 6 bits; 0 means none.
    pub rate: u8,
    /// The service level, 4 bits.
    pub service_level: u8,
    /// The local ACK timeout as a time code, 5 bits.
    pub ack_timeout: u8,
}

/// Enhanced connection establishment (ECE): the vendor options (`rdma_set_local_ece(3)`). All 0 if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor, 24 bits.
    pub vendor: u32,
    /// The options, which travel in the attribute modifier of the MAD.
    pub options: u32,
}

/// A REQ. Fields that may contain impossible values are plain numbers; [`Req::check`] validates them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// The communication id of the active side.
    pub local: u32,
    /// The vendor of the ECE options, 24 bits.
    pub ece_vendor: u32,
    /// The service.
    pub service: ServiceId,
    /// The device instance of the active side.
    pub guid: Guid,
    /// The number of the active side's queue pair, 24 bits.
    pub qpn: u32,
    /// The maximum number of outstanding reads and atomics that it accepts.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics that the active side initiates.
    pub initiator_depth: u8,
    /// How long the passive side may take to answer, as a time code of 5 bits.
    pub remote_response: u8,
    /// The service type, 2 bits, and the extended transport type, 3 bits.
    pub transport: (u8, u8),
    /// Whether the active side uses end-to-end flow control.
    pub flow_control: bool,
    /// The first PSN that the active side expects to receive, which is the first that the passive side sends. 24 bits.
    pub starting_psn: u32,
    /// How long the active side may take to answer a REP, as a time code of 5 bits.
    pub local_response: u8,
    /// The retry count, 3 bits.
    pub retry_count: u8,
    /// The partition key.
    pub pkey: u16,
    /// The code of the path MTU, 4 bits.
    pub mtu: u8,
    /// The RNR retry count, 3 bits.
    pub rnr_retry: u8,
    /// How many times messages are retransmitted, 4 bits.
    pub max_retries: u8,
    /// Whether the active side's queue pair has a shared receive queue.
    pub srq: bool,
    /// The path.
    pub path: Path,
    /// Whether the REQ has an alternate path, which RoCE does not support.
    pub has_alternate_path: bool,
    /// The header of the IP service, then the program's private data.
    pub data: PrivateData<92>,
}

/// The LID in paths on RoCE, where LIDs mean nothing.
const NO_LID: u16 = 0xffff;

impl Req {
    /// The maximum length of a program's private data in a REQ, in bytes.
    pub const DATA: usize = 92 - IpHeader::LEN;

    pub(super) fn read(body: Reader<'_>) -> Self {
        let path = Path {
            local: Gid(body.array(56)),
            remote: Gid(body.array(72)),
            flow_label: body.u24(88) >> 4,
            traffic_class: body.u8(92),
            hop_limit: body.u8(93),
            rate: body.u8(91) & 0x3f,
            service_level: body.u8(94) >> 4,
            ack_timeout: body.u8(95) >> 3,
        };
        Self {
            local: body.u32(0),
            ece_vendor: body.u24(5),
            service: ServiceId(body.u64(8)),
            guid: Guid(body.array(16)),
            qpn: body.u24(32),
            responder_resources: body.u8(35),
            initiator_depth: body.u8(39),
            remote_response: body.u8(43) >> 3,
            transport: (body.u8(43) >> 1 & 3, body.u8(51) & 7),
            flow_control: body.u8(43) & 1 != 0,
            starting_psn: body.u24(44),
            local_response: body.u8(47) >> 3,
            retry_count: body.u8(47) & 7,
            pkey: body.u16(48),
            mtu: body.u8(50) >> 4,
            rnr_retry: body.u8(50) & 7,
            max_retries: body.u8(51) >> 4,
            srq: body.u8(51) & 8 != 0,
            path,
            has_alternate_path: body.u16(96) != 0 || body.array(100) != [0; 16],
            data: PrivateData(body.array(140)),
        }
    }

    pub(super) fn write(&self, body: &mut Writer<'_>) {
        body.u32(0, self.local);
        body.u24(5, self.ece_vendor);
        body.u64(8, self.service.0);
        body.array(16, self.guid.0);
        body.u24(32, self.qpn);
        body.u8(35, self.responder_resources);
        body.u8(39, self.initiator_depth);
        let (service_type, extended) = self.transport;
        let flow_control = u8::from(self.flow_control);
        body.u8(
            43,
            self.remote_response << 3 | (service_type & 3) << 1 | flow_control,
        );
        body.u24(44, self.starting_psn);
        body.u8(47, self.local_response << 3 | self.retry_count & 7);
        body.u16(48, self.pkey);
        body.u8(50, self.mtu << 4 | self.rnr_retry & 7);
        body.u8(
            51,
            self.max_retries << 4 | u8::from(self.srq) << 3 | extended & 7,
        );
        body.u16(52, NO_LID);
        body.u16(54, NO_LID);
        body.array(56, self.path.local.0);
        body.array(72, self.path.remote.0);
        body.u24(88, self.path.flow_label << 4);
        body.u8(91, self.path.rate & 0x3f);
        body.u8(92, self.path.traffic_class);
        body.u8(93, self.path.hop_limit);
        body.u8(94, self.path.service_level << 4);
        body.u8(95, self.path.ack_timeout << 3);
        if self.has_alternate_path {
            body.u16(96, NO_LID);
        }
        body.array(140, self.data.0);
    }

    /// The requested transport; `None` for reliable datagrams and reserved types.
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        match self.transport {
            (0, _) => Some(Transport::Rc),
            (1, _) => Some(Transport::Uc),
            (3, 1) => Some(Transport::Xrc),
            _ => None,
        }
    }

    /// The path MTU; `None` for reserved codes.
    #[must_use]
    pub fn path_mtu(&self) -> Option<Mtu> {
        Mtu::of(self.mtu)
    }

    /// Checks everything that does not depend on the receiver.
    ///
    /// # Errors
    ///
    /// The reason for the REJ.
    pub fn check(&self) -> Result<(), RejectReason> {
        if self.has_alternate_path {
            return Err(RejectReason::ALTERNATE_GID);
        }
        if self.transport().is_none() {
            return Err(RejectReason::TRANSPORT);
        }
        if self.path_mtu().is_none() {
            return Err(RejectReason::MTU);
        }
        if !is_queue_pair(self.qpn) || !is_default_partition(self.pkey) {
            return Err(RejectReason::UNSUPPORTED);
        }
        Ok(())
    }

    /// Splits the private data into the header of the IP service and the program's data; `None` if the header is missing or
    /// invalid.
    #[must_use]
    pub fn ip_data(&self) -> Option<(IpHeader, PrivateData<{ Self::DATA }>)> {
        let (header, data) = self.data.split();
        Some((IpHeader::decode(&header)?, data))
    }

    /// The port that the sender claims to have; 0 without a header of the IP service.
    #[must_use]
    pub fn source_port(&self) -> u16 {
        self.ip_data().map_or(0, |(header, _)| header.source_port)
    }

    /// Builds the private data field: the header, then the program's data.
    #[must_use]
    pub fn with_header(header: &IpHeader, data: &PrivateData<{ Self::DATA }>) -> PrivateData<92> {
        let mut field = [0; 92];
        field[..IpHeader::LEN].copy_from_slice(&header.encode());
        field[IpHeader::LEN..].copy_from_slice(data.as_bytes());
        PrivateData(field)
    }

    /// The codes of a transport.
    #[must_use]
    pub const fn transport_code(transport: Transport) -> (u8, u8) {
        match transport {
            Transport::Rc => (0, 0),
            Transport::Uc => (1, 0),
            Transport::Xrc => (3, 1),
        }
    }

    /// The sender's address according to the REQ.
    #[must_use]
    pub fn sender(&self) -> IpAddr {
        self.path.local.address()
    }
}

/// RoCE has only the default partition, with full or limited membership.
pub(super) const fn is_default_partition(pkey: u16) -> bool {
    pkey & 0x7fff == 0x7fff
}

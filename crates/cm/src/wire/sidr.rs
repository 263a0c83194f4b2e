//! SIDR (service id resolution): finds the datagram queue pair of a service id.

use super::bytes::{Reader, Writer};
use super::request::is_default_partition;
use super::{IpHeader, PrivateData};
use crate::address::{ServiceId, is_queue_pair};
use core::fmt;

/// SIDR_REQ: requests the queue pair of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// The id of the request, chosen by the active side.
    pub request: u32,
    /// The partition key.
    pub pkey: u16,
    /// The service.
    pub service: ServiceId,
    /// The header of the IP service, then the program's private data.
    pub data: PrivateData<216>,
}

impl SidrReq {
    /// The maximum length of a program's private data in a SIDR_REQ, in bytes.
    pub const DATA: usize = 216 - IpHeader::LEN;

    /// Splits the private data into the header of the IP service and the program's data; `None` if the header is missing or
    /// invalid.
    #[must_use]
    pub fn ip_data(&self) -> Option<(IpHeader, PrivateData<{ Self::DATA }>)> {
        let (header, data) = self.data.split();
        Some((IpHeader::decode(&header)?, data))
    }

    /// Builds the private data field: the header, then the program's data.
    #[must_use]
    pub fn with_header(header: &IpHeader, data: &PrivateData<{ Self::DATA }>) -> PrivateData<216> {
        let mut field = [0; 216];
        field[..IpHeader::LEN].copy_from_slice(&header.encode());
        field[IpHeader::LEN..].copy_from_slice(data.as_bytes());
        PrivateData(field)
    }

    /// Whether the request is for the default partition, the only one on RoCE.
    #[must_use]
    pub const fn is_in_default_partition(&self) -> bool {
        is_default_partition(self.pkey)
    }

    pub(super) fn read(body: Reader<'_>) -> Self {
        Self {
            request: body.u32(0),
            pkey: body.u16(4),
            service: ServiceId(body.u64(8)),
            data: PrivateData(body.array(16)),
        }
    }

    pub(super) fn write(&self, body: &mut Writer<'_>) {
        body.u32(0, self.request);
        body.u16(4, self.pkey);
        body.u64(8, self.service.0);
        body.array(16, self.data.0);
    }
}

/// The result of a service id resolution. Any number may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The answer contains a queue pair.
    pub const VALID: Self = Self(0);
    /// Nothing listens on this service id.
    pub const UNSUPPORTED: Self = Self(1);
    /// The program refused.
    pub const REJECT: Self = Self(2);
    /// No queue pair is available.
    pub const NO_QUEUE_PAIR: Self = Self(3);
}

impl fmt::Display for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::VALID => f.write_str("valid"),
            Self::UNSUPPORTED => f.write_str("nothing listens on this port"),
            Self::REJECT => f.write_str("the program rejected the request"),
            Self::NO_QUEUE_PAIR => f.write_str("no queue pair is available"),
            Self(other) => write!(f, "status {other}"),
        }
    }
}

/// SIDR_REP: the queue pair of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// The id of the request that this answers.
    pub request: u32,
    /// The result.
    pub status: SidrStatus,
    /// The length of the valid part of the info, in bytes: at most 72.
    pub info_len: u8,
    /// The queue pair number, 24 bits.
    pub qpn: u32,
    /// The service.
    pub service: ServiceId,
    /// The Q_Key for datagrams to this queue pair.
    pub qkey: u32,
    /// Additional information on the result.
    pub info: PrivateData<72>,
    /// The private data.
    pub data: PrivateData<{ Self::DATA }>,
}

impl SidrRep {
    /// The maximum length of a SIDR_REP's private data, in bytes.
    pub const DATA: usize = 136;

    /// An answer without a queue pair.
    #[must_use]
    pub fn refusal(request: &SidrReq, status: SidrStatus) -> Self {
        Self::without_queue_pair(request.request, request.service, status)
    }

    /// An answer without a queue pair to the request with this id for a service.
    pub(crate) fn without_queue_pair(request: u32, service: ServiceId, status: SidrStatus) -> Self {
        Self {
            request,
            status,
            info_len: 0,
            qpn: 0,
            service,
            qkey: 0,
            info: PrivateData::default(),
            data: PrivateData::default(),
        }
    }

    /// The status, except that a success with an impossible queue pair number becomes [`SidrStatus::NO_QUEUE_PAIR`].
    #[must_use]
    pub fn checked_status(&self) -> SidrStatus {
        match self.status {
            SidrStatus::VALID if !is_queue_pair(self.qpn) => SidrStatus::NO_QUEUE_PAIR,
            status => status,
        }
    }

    pub(super) fn read(body: Reader<'_>) -> Self {
        Self {
            request: body.u32(0),
            status: SidrStatus(body.u8(4)),
            info_len: body.u8(5).min(72),
            qpn: body.u24(8),
            service: ServiceId(body.u64(12)),
            qkey: body.u32(20),
            info: PrivateData(body.array(24)),
            data: PrivateData(body.array(96)),
        }
    }

    pub(super) fn write(&self, body: &mut Writer<'_>) {
        body.u32(0, self.request);
        body.u8(4, self.status.0);
        body.u8(5, self.info_len);
        body.u24(8, self.qpn);
        body.u64(12, self.service.0);
        body.u32(20, self.qkey);
        body.array(24, self.info.0);
        body.array(96, self.data.0);
    }
}

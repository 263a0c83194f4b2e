//! REJ: refuses or gives up a connection, with a reason.

use super::PrivateData;
use super::bytes::{Reader, Writer};
use crate::address::Guid;
use core::fmt;

/// Which message a REJ or MRA is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// The REQ.
    Req,
    /// The REP.
    Rep,
    /// No message, a LAP (MRA), or a reserved value.
    Other,
}

impl About {
    /// Decodes the top 2 bits of a byte.
    pub(super) const fn of(byte: u8) -> Self {
        match byte >> 6 {
            0 => Self::Req,
            1 => Self::Rep,
            _ => Self::Other,
        }
    }

    /// Encodes into the top 2 bits of a byte.
    pub(super) const fn bits(self) -> u8 {
        match self {
            Self::Req => 0,
            Self::Rep => 1 << 6,
            Self::Other => 2 << 6,
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl RejectReason {
            $($(#[$doc])* pub const $name: Self = Self($number);)*
        }

        impl fmt::Display for RejectReason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($number => f.write_str($text),)*
                    other => write!(f, "reason {other}"),
                }
            }
        }
    };
}

/// Why a connection was refused: the `status` of `RDMA_CM_EVENT_REJECTED`. Any number may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

reasons! {
    /// No queue pair is available.
    NO_QUEUE_PAIR = 1, "no queue pair is available";
    /// The other side lacks resources for another connection.
    NO_RESOURCES = 3, "the other side has no resources for another connection";
    /// The sender of the REJ gave up waiting.
    TIMEOUT = 4, "the other side gave up waiting";
    /// The request uses an unsupported feature.
    UNSUPPORTED = 5, "the request uses an unsupported feature";
    /// The communication id is unknown.
    COMMUNICATION_ID = 6, "the communication id is unknown";
    /// Nothing listens on this service id.
    SERVICE_ID = 8, "nothing listens on this port";
    /// The transport is not supported.
    TRANSPORT = 9, "the transport is not supported";
    /// An earlier connection still uses this communication id or queue pair.
    STALE = 10, "an earlier connection still uses this communication id or queue pair";
    /// The address is not one of the receiver's. The info contains one that is.
    GID = 12, "the address does not belong to the receiver";
    /// The request has an alternate address, but RoCE has no alternate paths.
    ALTERNATE_GID = 18, "RoCE has no alternate paths";
    /// The path MTU is not valid.
    MTU = 26, "the path MTU is not valid";
    /// The program rejected the connection.
    CONSUMER = 28, "the program rejected the connection, or its listener has another address or queue pair type";
    /// The vendor options are not acceptable.
    VENDOR = 35, "the vendor options (ECE) are not acceptable";
}

/// A REJ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The communication id of the side that refuses; 0 if it has none.
    pub local: u32,
    /// The communication id of the other side; 0 if unknown.
    pub remote: u32,
    /// The message that is refused.
    pub about: About,
    /// The reason.
    pub reason: RejectReason,
    /// The length of the valid part of the info, in bytes: at most 72.
    pub info_len: u8,
    /// Additional information on the reason ("ARI").
    pub info: PrivateData<{ Self::INFO }>,
    /// The program's private data.
    pub data: PrivateData<{ Self::DATA }>,
}

impl Rej {
    /// The maximum length of the additional information, in bytes.
    pub const INFO: usize = 72;
    /// The maximum length of a REJ's private data, in bytes.
    pub const DATA: usize = 148;

    /// A refusal without info or private data.
    #[must_use]
    pub fn bare(local: u32, remote: u32, about: About, reason: RejectReason) -> Self {
        Self {
            local,
            remote,
            about,
            reason,
            info_len: 0,
            info: PrivateData::default(),
            data: PrivateData::default(),
        }
    }

    /// Adds information. Bytes past [`Self::INFO`] are discarded.
    #[must_use]
    pub fn with_info(mut self, info: &[u8]) -> Self {
        let len = info.len().min(Self::INFO);
        self.info.0[..len].copy_from_slice(&info[..len]);
        self.info_len = len as u8;
        self
    }

    /// The device instance in the info of a REJ with the reason [`RejectReason::TIMEOUT`]. The sender does not know our
    /// communication id, so the connection is identified by this GUID and the sender's own id.
    #[must_use]
    pub fn guid(&self) -> Option<Guid> {
        let timeout = self.reason == RejectReason::TIMEOUT && self.info_len >= 8;
        timeout.then(|| Guid(self.info.split::<8, 64>().0))
    }

    pub(super) fn read(body: Reader<'_>) -> Self {
        Self {
            local: body.u32(0),
            remote: body.u32(4),
            about: About::of(body.u8(8)),
            reason: RejectReason(body.u16(10)),
            info_len: (body.u8(9) >> 1).min(Self::INFO as u8),
            info: PrivateData(body.array(12)),
            data: PrivateData(body.array(84)),
        }
    }

    pub(super) fn write(&self, body: &mut Writer<'_>) {
        body.u32(0, self.local);
        body.u32(4, self.remote);
        body.u8(8, self.about.bits());
        body.u8(9, self.info_len << 1);
        body.u16(10, self.reason.0);
        body.array(12, self.info.0);
        body.array(84, self.data.0);
    }
}

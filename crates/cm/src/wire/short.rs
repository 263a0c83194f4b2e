//! The messages with few fields: MRA, RTU, DREQ, DREP.

use super::bytes::{Reader, Writer};
use super::{About, PrivateData};

/// MRA: the answer takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The communication id of the side that needs more time.
    pub local: u32,
    /// The communication id of the other side.
    pub remote: u32,
    /// The message that this side has not answered yet.
    pub about: About,
    /// How much time this side needs, as a time code of 5 bits.
    pub service_timeout: u8,
    /// The private data.
    pub data: PrivateData<222>,
}

impl Mra {
    pub(super) fn read(body: Reader<'_>) -> Self {
        Self {
            local: body.u32(0),
            remote: body.u32(4),
            about: About::of(body.u8(8)),
            service_timeout: body.u8(9) >> 3,
            data: PrivateData(body.array(10)),
        }
    }

    pub(super) fn write(&self, body: &mut Writer<'_>) {
        body.u32(0, self.local);
        body.u32(4, self.remote);
        body.u8(8, self.about.bits());
        body.u8(9, self.service_timeout << 3);
        body.array(10, self.data.0);
    }
}

/// RTU: both sides are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtu {
    /// The communication id of the active side.
    pub local: u32,
    /// The communication id of the passive side.
    pub remote: u32,
    /// The private data.
    pub data: PrivateData<224>,
}

impl Rtu {
    pub(super) fn read(body: Reader<'_>) -> Self {
        Self {
            local: body.u32(0),
            remote: body.u32(4),
            data: PrivateData(body.array(8)),
        }
    }

    pub(super) fn write(&self, body: &mut Writer<'_>) {
        body.u32(0, self.local);
        body.u32(4, self.remote);
        body.array(8, self.data.0);
    }
}

/// DREQ: requests the end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// The communication id of the side that ends the connection.
    pub local: u32,
    /// The communication id of the other side.
    pub remote: u32,
    /// The number of the other side's queue pair, 24 bits.
    pub remote_qpn: u32,
    /// The private data.
    pub data: PrivateData<220>,
}

impl Dreq {
    pub(super) fn read(body: Reader<'_>) -> Self {
        Self {
            local: body.u32(0),
            remote: body.u32(4),
            remote_qpn: body.u24(8),
            data: PrivateData(body.array(12)),
        }
    }

    pub(super) fn write(&self, body: &mut Writer<'_>) {
        body.u32(0, self.local);
        body.u32(4, self.remote);
        body.u24(8, self.remote_qpn);
        body.array(12, self.data.0);
    }
}

/// DREP: the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drep {
    /// The communication id of the side that received the DREQ.
    pub local: u32,
    /// The communication id of the side that sent the DREQ.
    pub remote: u32,
    /// The private data.
    pub data: PrivateData<224>,
}

impl Drep {
    pub(super) fn read(body: Reader<'_>) -> Self {
        Self {
            local: body.u32(0),
            remote: body.u32(4),
            data: PrivateData(body.array(8)),
        }
    }

    pub(super) fn write(&self, body: &mut Writer<'_>) {
        body.u32(0, self.local);
        body.u32(4, self.remote);
        body.array(8, self.data.0);
    }
}

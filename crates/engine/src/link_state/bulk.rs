//! A request at the front of a ring that the responder executes in several steps.

use crate::qp::pair::Qp;
use rkey_link::{Header, Op, Payload, RemoteIovec};

/// A request in progress. The header and the list have been copied, so the peer cannot change them.
#[derive(Debug)]
pub(crate) struct Bulk {
    pub(crate) qp: u32,
    pub(crate) life: u32,
    pub(crate) header: Header,
    pub(crate) list: Option<Box<RemoteIovec>>,
    /// How many bytes of this fragment have been moved.
    pub(crate) done: u64,
    /// How many bytes of a read have been reported to the requester as complete.
    pub(crate) told: u64,
}

impl Bulk {
    /// A send or write with a remote iovec.
    pub(crate) fn of_pull(qp: &Qp, header: &Header, list: &RemoteIovec) -> Self {
        let list = Some(Box::new(*list));
        Self {
            qp: qp.id.index,
            life: qp.life,
            header: *header,
            list,
            done: 0,
            told: 0,
        }
    }

    /// Whether it is a read of at most `len` bytes, which are sent through the ring.
    pub(crate) fn is_read_of_at_most(&self, len: u32) -> bool {
        self.header.op == Op::Read && self.list.is_none() && self.header.total <= len
    }

    /// A read.
    pub(crate) fn of_read(qp: &Qp, header: &Header, payload: &Payload<'_>) -> Self {
        let list = match payload {
            Payload::RemoteIovec(list) => Some(list.clone()),
            Payload::Bytes(_) => None,
        };
        Self {
            qp: qp.id.index,
            life: qp.life,
            header: *header,
            list,
            done: 0,
            told: 0,
        }
    }
}

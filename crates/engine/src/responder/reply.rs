//! Replies: the outcomes of a request, and the responses to it.

use crate::link_state::{Bulk, Response};
use crate::nak::Nak;
use rkey_core::DENIAL_LEN;
use rkey_link::{Header, Op};

/// The outcome of a request.
pub(crate) enum Reply {
    /// The request is done.
    Done,
    /// The request is done after this response.
    Response(Response),
    /// The request is done after these steps.
    Bulk(Bulk),
    /// The outcome is not decided yet: the request stays on the link, with everything after it.
    Hold,
}

impl Reply {
    /// A refusal of the message that `header` belongs to.
    pub(crate) fn nak(header: &Header, code: Nak) -> Self {
        Self::nak_with(header, code as u32)
    }

    /// A NAK because memory that the requester named could not be accessed, from `address` on.
    pub(crate) fn fault_of_requester(header: &Header, address: u64) -> Self {
        let mut answer = Response {
            header: response_header(header, Op::Nak),
            denial: [0; DENIAL_LEN],
        };
        answer.header.imm = Nak::RequesterFault as u32;
        answer.header.addr = address;
        Self::Response(answer)
    }

    /// Like [`Self::nak`], but `imm` may contain more than the code.
    pub(crate) fn nak_with(header: &Header, imm: u32) -> Self {
        let mut answer = Response {
            header: response_header(header, Op::Nak),
            denial: [0; DENIAL_LEN],
        };
        answer.header.imm = imm;
        Self::Response(answer)
    }

    /// A NAK with the reason, and the id of the local report.
    pub(crate) fn denial(header: &Header, code: Nak, bytes: &[u8; DENIAL_LEN], id: u32) -> Self {
        let mut answer = Response {
            header: response_header(header, Op::Nak),
            denial: *bytes,
        };
        answer.header.imm = code as u32;
        answer.header.key = id.into();
        answer.header.len = DENIAL_LEN as u32;
        answer.header.total = DENIAL_LEN as u32;
        Self::Response(answer)
    }
}

/// The header of a response to `header`.
pub(crate) fn response_header(header: &Header, op: Op) -> Header {
    Header {
        dst_qp: header.src_qp,
        src_qp: header.dst_qp,
        msn: header.msn,
        ..Header::new(op)
    }
}

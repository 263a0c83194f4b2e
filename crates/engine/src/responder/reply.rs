//! Replies: what becomes of a request, and the responses that go back for it.

use crate::bulk::Bulk;
use crate::nak::Nak;
use rkey_core::WIRE_LEN;
use rkey_link::{Head, Op};

/// A response to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) wire: [u8; WIRE_LEN],
}

/// What is to be done about a request.
pub(crate) enum Reply {
    /// Nothing more.
    Done,
    /// Send this, then it is done.
    Answer(Answer),
    /// Work through this, then it is done.
    Bulk(Bulk),
    /// It cannot be decided yet: leave it, and what is behind it, on the link.
    Hold,
}

impl Reply {
    /// A refusal of the message that `head` belongs to.
    pub(crate) fn nak(head: &Head, code: Nak) -> Self {
        Self::nak_with(head, code as u32)
    }

    /// Memory that the requester named could not be touched, from `address` on.
    pub(crate) fn fault_of_requester(head: &Head, address: u64) -> Self {
        let mut answer = Answer {
            head: back(head, Op::Nak),
            wire: [0; WIRE_LEN],
        };
        answer.head.imm = Nak::RequesterFault as u32;
        answer.head.addr = address;
        Self::Answer(answer)
    }

    /// As [`Self::nak`], with what else belongs into the code.
    pub(crate) fn nak_with(head: &Head, imm: u32) -> Self {
        let mut answer = Answer {
            head: back(head, Op::Nak),
            wire: [0; WIRE_LEN],
        };
        answer.head.imm = imm;
        Self::Answer(answer)
    }

    /// A refusal that says why, and under which id it has been noted here.
    pub(crate) fn denial(head: &Head, code: Nak, wire: &[u8; WIRE_LEN], id: u32) -> Self {
        let mut answer = Answer {
            head: back(head, Op::Nak),
            wire: *wire,
        };
        answer.head.imm = code as u32;
        answer.head.key = id.into();
        answer.head.len = WIRE_LEN as u32;
        answer.head.total = WIRE_LEN as u32;
        Self::Answer(answer)
    }
}

/// The head of a response to `head`.
pub(crate) fn back(head: &Head, op: Op) -> Head {
    Head {
        dst_qp: head.src_qp,
        src_qp: head.dst_qp,
        msn: head.msn,
        ..Head::new(op)
    }
}

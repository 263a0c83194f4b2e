//! A transmit or receive context of a scalable endpoint: an endpoint with one direction, and with the address and the address
//! vector of the scalable endpoint.

use super::scalable::Sep;
use super::*;
use crate::info::filter::{RX_ONLY, TX_ONLY, with_sides};
use crate::info::offer::{
    COMM, INJECT_SIZE, IOV_LIMIT, MAX_DGRAM_SIZE, MSG_ORDER, RMA_IOV_LIMIT, RX_OP_FLAGS, RX_SIZE,
    TX_OP_FLAGS, TX_SIZE,
};
use std::fmt;

/// The direction of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Transmit,
    Receive,
}

impl Direction {
    /// The binding flags that concern this direction.
    const fn bindings(self) -> u64 {
        match self {
            Self::Transmit => FI_SEND | FI_READ | FI_WRITE,
            Self::Receive => FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE,
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Transmit => Self::Receive,
            Self::Receive => Self::Transmit,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transmit => "transmit context",
            Self::Receive => "receive context",
        })
    }
}

/// Identifies the scalable endpoint of a context, and the context's index.
pub(super) struct Context {
    pub(super) sep: Arc<Sep>,
    pub(super) direction: Direction,
    pub(super) index: usize,
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sep = self.sep.number - crate::domain::FIRST_NUMBER;
        write!(
            f,
            "{} {} of scalable endpoint {sep}",
            self.direction, self.index
        )
    }
}

impl Context {
    /// Whether it is a transmit context.
    pub(super) fn transmits(&self) -> bool {
        self.direction == Direction::Transmit
    }

    /// The class of the context's handle.
    pub(super) fn class(&self) -> usize {
        match self.direction {
            Direction::Transmit => FI_CLASS_TX_CTX,
            Direction::Receive => FI_CLASS_RX_CTX,
        }
    }

    /// Returns `FI_EINVAL` for objects that a context cannot be bound to, or cannot be bound to with these flags.
    pub(super) fn check_binding(&self, class: usize, flags: u64) -> Result<()> {
        if !matches!(class, FI_CLASS_CQ | FI_CLASS_CNTR) {
            return Err(FiError::INVAL.because(format_args!(
                "only completion queues and counters can be bound to a context: bind other objects to its scalable endpoint (fi_scalable_ep_bind)"
            )));
        }
        if flags & self.direction.other().bindings() != 0 {
            return Err(FiError::INVAL.because(format_args!(
                "a {} cannot be bound with flags of the other direction",
                self.direction
            )));
        }
        Ok(())
    }

    /// Adopts the address vector of the scalable endpoint, once.
    pub(super) fn inherit(&self, setup: &mut Setup) -> Result<()> {
        if setup.av.is_none() {
            let av = self.sep.av()?;
            av.users.add();
            setup.av = Some(av);
        }
        Ok(())
    }

    /// Releases the context's slot: peers no longer find the context, and its index is free.
    pub(super) fn leave(&self) {
        self.sep.leave(self.direction, self.index);
    }
}

/// The capabilities of a context, and its default flags.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub(super) caps: u64,
    pub(super) op_flags: u64,
}

/// The program's choice among the capabilities of one direction; 0 chooses all. `others` are those of the other direction and
/// of domains: they have no effect here.
fn capabilities(has: u64, others: u64, asked: u64) -> Result<u64> {
    if asked & !others & !has != 0 {
        return Err(too_much("capabilities"));
    }
    Ok(match asked {
        0 => has,
        _ => has & with_sides(asked),
    })
}

/// The error for attributes that request more than the scalable endpoint has.
#[cold]
fn too_much(what: &str) -> FiError {
    FiError::INVAL.because(format_args!(
        "a context cannot exceed its scalable endpoint: reduce {what} in the attributes of the context"
    ))
}

/// Checks a limit that a program requests.
fn at_most(what: &str, asked: usize, most: usize) -> Result<()> {
    if asked > most {
        return Err(too_much(what));
    }
    Ok(())
}

/// The settings of a transmit context, from the program's attributes if it passed any. The attributes are set to the
/// actual values.
pub(super) fn transmit(ep_type: c_int, has: Choice, attr: Option<&mut TxAttr>) -> Result<Choice> {
    let Some(attr) = attr else { return Ok(has) };
    let inject_size = match ep_type {
        FI_EP_DGRAM => INJECT_SIZE.min(MAX_DGRAM_SIZE),
        _ => INJECT_SIZE,
    };
    at_most("inject_size", attr.inject_size, inject_size)?;
    at_most("size", attr.size, TX_SIZE)?;
    at_most("iov_limit", attr.iov_limit, IOV_LIMIT)?;
    at_most("rma_iov_limit", attr.rma_iov_limit, RMA_IOV_LIMIT)?;
    if attr.msg_order & !MSG_ORDER != 0 || attr.comp_order != 0 {
        return Err(too_much("order"));
    }
    if attr.op_flags & !TX_OP_FLAGS != 0 {
        return Err(FiError::BADFLAGS);
    }
    attr.caps = capabilities(has.caps, RX_ONLY | COMM, attr.caps)?;
    attr.mode = 0;
    (attr.msg_order, attr.comp_order) = (MSG_ORDER, 0);
    (attr.inject_size, attr.size) = (inject_size, TX_SIZE);
    (attr.iov_limit, attr.rma_iov_limit) = (IOV_LIMIT, RMA_IOV_LIMIT);
    Ok(Choice {
        caps: attr.caps,
        op_flags: attr.op_flags,
    })
}

/// Like [`transmit`], for a receive context.
pub(super) fn receive(has: Choice, attr: Option<&mut RxAttr>) -> Result<Choice> {
    let Some(attr) = attr else { return Ok(has) };
    at_most("size", attr.size, RX_SIZE)?;
    at_most("iov_limit", attr.iov_limit, IOV_LIMIT)?;
    if attr.msg_order & !MSG_ORDER != 0 || attr.comp_order != 0 {
        return Err(too_much("order"));
    }
    if attr.op_flags & !RX_OP_FLAGS != 0 {
        return Err(FiError::BADFLAGS);
    }
    attr.caps = capabilities(has.caps, TX_ONLY | COMM, attr.caps)?;
    attr.mode = 0;
    (attr.msg_order, attr.comp_order) = (MSG_ORDER, 0);
    (attr.total_buffered_recv, attr.size, attr.iov_limit) = (0, RX_SIZE, IOV_LIMIT);
    Ok(Choice {
        caps: attr.caps,
        op_flags: attr.op_flags,
    })
}

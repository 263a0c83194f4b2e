//! The capabilities that calls need, by name.

use crate::errno::{FiError, Result};
use crate::sys::*;

macro_rules! named {
    ($($name:ident)*) => { &[$((stringify!($name), $name)),*] };
}

/// The capabilities that an endpoint can have.
const NAMES: &[(&str, u64)] = named! {
    FI_MSG FI_TAGGED FI_RMA FI_ATOMIC FI_COLLECTIVE
    FI_SEND FI_RECV FI_READ FI_WRITE FI_REMOTE_READ FI_REMOTE_WRITE
    FI_MULTI_RECV FI_TRIGGER FI_RMA_EVENT FI_RMA_PMEM
    FI_SOURCE FI_NAMED_RX_CTX FI_DIRECTED_RECV FI_LOCAL_COMM FI_REMOTE_COMM
};

/// The names of some capabilities.
fn names(caps: u64) -> String {
    let there = NAMES.iter().filter(|(_, bit)| caps & bit != 0);
    let names: Vec<_> = there.map(|(name, _)| *name).collect();
    names.join(", ")
}

/// Returns `FI_EOPNOTSUPP` if a needed capability is absent.
#[inline]
pub(super) fn check_caps(there: u64, needed: u64) -> Result<()> {
    if there & needed == needed {
        return Ok(());
    }
    Err(lacking(needed & !there))
}

#[cold]
fn lacking(missing: u64) -> FiError {
    FiError::OPNOTSUPP.because(format_args!(
        "the call needs capabilities that the endpoint was opened without: {}",
        names(missing)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::offer::{primary, secondary};

    #[test]
    fn every_capability_that_is_offered_has_a_name() {
        assert_eq!(names(FI_RMA | FI_WRITE), "FI_RMA, FI_WRITE");
        assert_eq!(names(FI_SEND | FI_TAGGED), "FI_TAGGED, FI_SEND");
        for kind in [FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM] {
            for bit in (0..64).map(|bit| 1 << bit) {
                let offered = (primary(kind) | secondary(kind)) & bit != 0;
                assert!(!offered || names(bit).starts_with("FI_"), "{bit:#x}");
            }
        }
    }
}

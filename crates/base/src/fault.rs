//! A memory fault, as a value.

use thiserror::Error;

/// An access to memory that is not mapped, or not accessible in this way.
///
/// The copies of [`crate::copy`] and [`crate::memory`] return it where a plain load or store would have raised
/// `SIGSEGV` or `SIGBUS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("memory at {address:#x} cannot be accessed")]
pub struct Fault {
    /// The first address known not to be accessible. It is inside the range of the copy; it is exact if the processor
    /// or the kernel reported it; otherwise it is the start of the invalid range.
    pub address: u64,
}

impl Fault {
    /// A fault at `address`.
    #[must_use]
    pub const fn at(address: u64) -> Self {
        Self { address }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_message_has_the_address() {
        assert_eq!(
            Fault::at(0x1000).to_string(),
            "memory at 0x1000 cannot be accessed"
        );
    }
}

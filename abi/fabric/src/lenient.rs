//! Calls that a manual page forbids and other providers accept: accepted with a warning, or refused as the page
//! says with `FI_RKEY_STRICT=1`.

use crate::errno::{FiError, Result};
use rkey_kit::settings::STRICT;
use rkey_kit::strict::{Leniency, Strictness};

/// A counter bound to an enabled endpoint.
pub(crate) static LATE_COUNTER: Leniency = Leniency::new(
    "a counter was bound to an enabled endpoint",
    "fi_endpoint(3) says that counters must be bound before an endpoint is enabled",
    "a provider that follows the page returns -FI_EOPBADSTATE, or does not count",
);

/// Bits of `access` that are not rights.
pub(crate) static OTHER_RIGHTS: Leniency = Leniency::new(
    "a memory region was registered with bits in access that are not access rights; they are ignored",
    "fi_mr(3) says that access is an OR of FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE and FI_COLLECTIVE",
    "a provider that follows the page returns -FI_EINVAL",
);

/// The reserved offset.
pub(crate) static OFFSET: Leniency = Leniency::new(
    "a memory region was registered with a nonzero offset; the offset is ignored",
    "fi_mr(3) says that the offset is reserved and must be 0",
    "a provider that follows the page returns -FI_EINVAL",
);

/// A registration that names a device other than its memory's.
pub(crate) static OTHER_DEVICE: Leniency = Leniency::new(
    "a memory region was registered with the number of another device in fi_mr_attr.device; that number is ignored",
    "fi_mr(3) says that device names the device of the memory",
    "a provider that follows the page returns -FI_EINVAL, or copies with the wrong device",
);

/// A page size that the system does not have.
pub(crate) static PAGE_SIZE: Leniency = Leniency::new(
    "a memory region was registered with a page_size that the system does not have; the page_size is ignored",
    "fi_mr(3) says that page_size must be a size that the system supports",
    "a provider that follows the page returns -FI_EINVAL",
);

/// A region closed before its counter.
pub(crate) static BOUND_COUNTER: Leniency = Leniency::new(
    "a memory region was closed while a counter was bound to it",
    "fi_mr(3) says that fi_close returns -FI_EBUSY until the counter is closed",
    "a provider that follows the page keeps the region open",
);

/// A region closed before its endpoint, by a program that requested a version before 2.0.
pub(crate) static BOUND_ENDPOINT: Leniency = Leniency::new(
    "a memory region was closed while an endpoint was bound to it",
    "fi_mr(3) before version 2.0 says that fi_close returns -FI_EBUSY until the endpoint is closed",
    "a provider that follows the page keeps the region open",
);

/// A receive context named without the capability.
pub(crate) static UNASKED_NAME: Leniency = Leniency::new(
    "a transfer named a receive context by fi_rx_addr, but the endpoint that posted it was opened without FI_NAMED_RX_CTX",
    "fi_endpoint(3) says that FI_NAMED_RX_CTX must be set in the capabilities of the endpoint",
    "a provider that follows the page returns -FI_EOPNOTSUPP, or sends to another receive context",
);

/// A wait for a counter without a wait object.
pub(crate) static UNWAITABLE: Leniency = Leniency::new(
    "fi_cntr_wait was called for a counter with FI_WAIT_NONE; the call polls the counter",
    "fi_cntr(3) says that FI_WAIT_NONE is for programs that do not wait for the counter",
    "a provider that follows the page returns -FI_EINVAL or -FI_ENOSYS",
);

/// A domain closed with mapped keys.
pub(crate) static MAPPED_KEYS: Leniency = Leniency::new(
    "a domain was closed before its mapped keys were released with fi_mr_unmap_key; closing the domain releases them",
    "fi_mr(3) says that mapped keys must be released before the domain is closed",
    "a provider that follows the page returns -FI_EBUSY",
);

/// A domain without the mode bit that is required, for which the provider registers buffers itself.
pub(crate) static HIDDEN_LOCAL: Leniency = Leniency::new(
    "the program opened a domain without FI_MR_LOCAL, which FI_RKEY_MR_MODE or FI_RKEY_PROFILE requires; the provider registers the program's buffers itself, with a registration cache",
    "fi_mr(3) says that a program gets the modes that it supports",
    "a provider without a cache offers such a program nothing",
);

static STRICTNESS: Strictness = Strictness::new(STRICT);

/// Whether the process is in strict mode.
pub(crate) fn is_strict() -> bool {
    STRICTNESS.is_on()
}

/// Returns the error in strict mode; otherwise the call continues.
#[cold]
pub(crate) fn unless_strict(rule: &Leniency, error: FiError) -> Result<()> {
    match rule.allows(is_strict()) {
        true => Ok(()),
        false => Err(error),
    }
}

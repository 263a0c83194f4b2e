//! Everything in this crate that reads what another process wrote, for fuzz targets. Each function
//! says whether the bytes made sense, and must answer for any.

/// A packet at a listener, or the answer to one.
#[must_use]
pub fn connect(bytes: &[u8]) -> bool {
    crate::connect::decodes(bytes)
}

/// What another device says that it looks like.
#[must_use]
pub fn inspection(bytes: &[u8]) -> bool {
    crate::inspect::decode(bytes).is_some()
}

/// A message about leases from the device at the other end of a link.
#[must_use]
pub fn lease(bytes: &[u8]) -> bool {
    crate::reclaim::lease_messages::decodes(bytes)
}

//! The limits that the device reports and that the objects check.

use std::ffi::c_int;

/// The maximum number of reads and atomics that a queue pair may have outstanding.
pub const MAX_READS: i32 = 128;
/// The limit that the device reports for multicast groups and for queue pairs in each group. The device does not enforce this
/// limit, but programs expect a number.
pub(crate) const MAX_GROUPS: c_int = 8192;
/// The maximum size of an allocation of device memory, in bytes.
pub const MAX_DM: u64 = 1 << 24;
/// The maximum number of address handles that exist at once.
pub const MAX_AH: u32 = 1 << 18;
/// The only hash function for RSS.
pub const TOEPLITZ: u8 = 1;
/// The maximum number of queues in an RSS indirection table.
pub const MAX_TABLE: u32 = 1 << 10;

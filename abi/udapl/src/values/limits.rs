//! The limits of IAs and EPs, which attributes report and calls check.

/// The maximum length of an EVD that a program may request.
pub const MAX_EVD_QLEN: u32 = 1 << 20;
/// The maximum number of requests, or receives, of an EP or SRQ.
pub const MAX_DTOS: u32 = 16_384;
/// The maximum number of segments of a DTO.
pub const MAX_IOV: u32 = 32;
/// How many RDMA reads an EP can have outstanding in each direction.
pub const MAX_READS: u32 = 16;
/// The longest message, and the longest RDMA read or write.
pub const MAX_MESSAGE: u32 = 1 << 31;

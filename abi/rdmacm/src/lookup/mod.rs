//! Addresses and names, without any identifier.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`address`] | socket addresses from and to C, and which of them belong to this host |
//! | [`addrinfo`] | name lookups: `rdma_getaddrinfo` |

pub mod address;
pub mod addrinfo;

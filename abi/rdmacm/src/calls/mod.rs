//! The calls on identifiers, in the order in which programs make them.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`devices`] | the list of devices |
//! | [`bind`], [`resolve`], [`options`] | addresses, ports, paths and options |
//! | [`connect`], [`accept`] | the active and the passive side |
//! | [`multicast`] | multicast groups |
//! | [`endpoint`] | calls that combine others |
//! | [`later`] | calls added after rdma-core 44 |

pub mod accept;
pub mod bind;
pub mod connect;
pub mod devices;
pub mod endpoint;
pub mod later;
pub mod multicast;
pub mod options;
pub mod resolve;

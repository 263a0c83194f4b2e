//! The device as programs see it: one entry in the list of devices, the contexts that open it, and what it reports about
//! itself and its port.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`devices`] | the list of devices, which has one entry |
//! | [`context`] | contexts: the open device |
//! | [`registry`] | which handle an event of the device names |
//! | [`query`] | queries about the device |
//! | [`limits`], [`clock`] | the limits that it reports; the clocks of timestamps |
//! | [`port`], [`gid`] | its port, and the port's addresses |

pub mod clock;
pub mod context;
pub mod devices;
pub mod gid;
pub mod limits;
pub mod port;
pub mod query;
pub mod registry;

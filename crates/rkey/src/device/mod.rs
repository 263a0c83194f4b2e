//! The device, its protection domains, and its connection manager.
//!
//! What a device or a domain creates is in the file of what is created: each has an `impl Device` or `impl Domain`. So this
//! folder depends on no other.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`handle`] | the device, and its builder |
//! | [`domain`] | protection domains |
//! | [`manager`], [`hub`] | the connection manager; its state, which its thread shares with the program's |

pub(crate) mod domain;
pub(crate) mod handle;
pub(crate) mod hub;
pub(crate) mod manager;

pub use domain::Domain;
pub use handle::{DEFAULT_MAX_MESSAGE, DEFAULT_TIMEOUT, Device, DeviceBuilder};

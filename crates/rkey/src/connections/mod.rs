//! Connections between two programs that both use this API.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`connection`] | a connection to one peer |
//! | [`greeting`], [`listener`] | how a connection is made; waiting for peers |
//! | [`message`], [`shape`] | messages with small values; the shape of a value's type |

pub(crate) mod connection;
pub(crate) mod greeting;
pub(crate) mod listener;
pub(crate) mod message;
pub(crate) mod shape;

pub use connection::{Connection, PeerInfo};
pub use listener::Listener;

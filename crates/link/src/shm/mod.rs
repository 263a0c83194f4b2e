//! Shared memory between two processes of one host.

mod accept;
mod cma;
mod connect;
mod hello;
mod line;
mod link;
mod local;
mod socket;

pub use crate::ring::Peek;
pub(crate) use cma::PeerProcess;
pub(crate) use hello::accepts;

pub use accept::{Acceptor, Greeting, LinkRequest, Listener, Stranger};
pub use connect::{Connector, HandshakeError, Step};
pub use hello::{CONTROL_MAX, PROTOCOL_VERSION, PURPOSE_MAX};
pub use line::{Control, Event, Line};
pub use link::ShmLink;
pub use local::{LinkConfig, LocalNode};
pub use socket::{Credentials, FDS_MAX, PACKET_MAX, Policy};

//! Datagram rsockets.
//!
//! A datagram socket consists of an ordinary UDP socket, which is bound to the address, and a datagram queue pair. As long as the
//! peer's queue pair is unknown, datagrams to it travel over UDP, with a [`header`] that announces our queue pair. The peer answers
//! with its own, and from then on datagrams travel between the queue pairs.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`header`] | the headers that precede the data |
//! | [`link`] | the queue pair |
//! | [`socket`] | the socket: its peers, and received datagrams |

pub mod header;
pub mod link;
pub mod socket;

pub use socket::Datagram;

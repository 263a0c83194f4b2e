//! Datagram rsockets.
//!
//! A socket has an ordinary UDP socket, which has its address, and a datagram queue pair. A datagram to a peer whose queue pair is
//! not known goes over UDP, behind a [`header`] that tells ours. The peer answers with its own, and from then on datagrams
//! go from queue pair to queue pair.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`header`] | what precedes the data |
//! | [`link`] | the queue pair |
//! | [`socket`] | the socket: peers, and datagrams that wait |

pub mod header;
pub mod link;
pub mod socket;

pub use socket::Datagram;

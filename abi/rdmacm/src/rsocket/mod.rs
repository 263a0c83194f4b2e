//! rsockets: the socket calls over RDMA (`rdma/rsocket.h`).
//!
//! A stream is a reliable connection whose two ends write to each other's rings ([`stream`]); [`wire`] defines the protocol. One
//! thread handles the connection manager's events for all sockets ([`service`]), so connections are established and end without
//! calls of the program. Data moves only in the program's calls. A socket's number is a real descriptor, which becomes readable
//! when something may have happened; `rpoll` finds out what.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`wire`], [`stream`] | the protocol; one end of a stream as a state machine |
//! | [`memory`], [`completions`], [`link`], [`connection`] | memory that peers write; the completion queue; the queue pair; the queue pair with the state machine |
//! | [`cm`], [`service`] | identifiers of the connection manager; the thread that handles their events |
//! | [`socket`], [`datagram`] | stream sockets, datagram sockets |
//! | [`waiting`], [`edges`], [`table`], [`options`], [`complaint`] | how threads wait for sockets; how often sockets became ready; the numbers and the options of sockets; log lines about peers |
//! | [`open`], [`connecting`], [`closing`] | the calls that create, connect and close sockets |
//! | [`transfer`], [`iomap`], [`iomap_calls`] | the calls that move data; memory that the peer addresses by an offset |
//! | [`names`], [`setting`] | addresses; options |
//! | [`polling`], [`repolling`] | waiting for many sockets, as `poll` and as epoll do |

pub mod closing;
pub mod cm;
pub mod complaint;
pub mod completions;
pub mod connecting;
pub mod connection;
pub mod datagram;
pub mod edges;
pub mod iomap;
pub mod iomap_calls;
pub mod link;
pub mod memory;
pub mod names;
pub mod open;
pub mod options;
pub mod polling;
pub mod repolling;
pub mod service;
pub mod setting;
pub mod socket;
pub mod stream;
pub mod table;
pub mod transfer;
pub mod waiting;
pub mod wire;

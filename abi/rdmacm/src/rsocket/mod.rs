//! rsockets: the calls of sockets over RDMA (`rdma/rsocket.h`).
//!
//! A stream is a queue pair whose two ends write to each other's rings ([`stream`]); what they tell each other is in [`wire`]. A thread
//! takes the connection manager's events for all sockets ([`service`]), so connections come about and end without the program's help.
//! Data moves in the calls of the program. A socket's number is a descriptor of its own, which is readable when something may
//! have happened; only `rpoll` knows what.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`wire`], [`stream`] | the protocol, and one end of a stream as a state machine |
//! | [`memory`], [`completions`], [`link`], [`connection`] | memory that peers write; completion queues; the queue pair; all with a state machine |
//! | [`cm`], [`service`] | identifiers of the connection manager; the thread that serves them |
//! | [`socket`], [`datagram`] | stream sockets, datagram sockets |
//! | [`waiting`], [`table`], [`options`], [`complaint`] | how threads wait for sockets; their numbers and their settings; what peers did wrong, in the log |
//! | [`open`], [`connecting`], [`closing`] | the calls that make, connect and end sockets |
//! | [`transfer`], [`iomap`] | the calls that move data |
//! | [`names`], [`setting`], [`polling`] | addresses; options; waiting for many sockets |

pub mod closing;
pub mod cm;
pub mod complaint;
pub mod completions;
pub mod connecting;
pub mod connection;
pub mod datagram;
pub mod iomap;
pub mod link;
pub mod memory;
pub mod names;
pub mod open;
pub mod options;
pub mod polling;
pub mod service;
pub mod setting;
pub mod socket;
pub mod stream;
pub mod table;
pub mod transfer;
pub mod waiting;
pub mod wire;

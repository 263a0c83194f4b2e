//! The objects behind the handles, and the thread that drives them.
//!
//! An IA finds its EPs, EVDs and SRQs by the device's numbers; an EP delivers events to EVDs, and an EVD turns completions
//! of EPs into events. So most of these files need each other. They contain no function of the C interface: those are in
//! [`crate::calls`].
//!
//! | file | what it is |
//! | --- | --- |
//! | [`ia`] | open devices |
//! | [`worker`], [`job`] | the thread of an IA, and its jobs |
//! | [`pz`], [`lmr`], [`rmr`] | memory: zones and regions |
//! | [`evd`], [`evd_take`], [`evd_wait`], [`evd_notify`], [`completion`], [`cno`] | events, those of completions, and who is notified of them |
//! | [`ep`], [`connection`], [`ep_connect`], [`ep_disconnect`], [`datagram`] | endpoints: their parts, their connections, datagram EPs |
//! | [`requests`], [`srq`] | posted requests, shared receive queues |
//! | [`service`], [`cr`] | service points, and the connection requests of peers |
//! | [`describe`] | what inspections show of all these objects |

pub mod cno;
pub mod completion;
pub mod connection;
pub mod cr;
pub mod datagram;
pub mod describe;
pub mod ep;
pub mod ep_connect;
pub mod ep_disconnect;
pub mod evd;
pub mod evd_notify;
pub mod evd_take;
pub mod evd_wait;
pub mod ia;
pub mod job;
pub mod lmr;
pub mod pz;
pub mod requests;
pub mod rmr;
pub mod service;
pub mod srq;
pub mod worker;

//! Queue pairs: how they are created, connected and used, and what belongs to them.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`qp`], [`creation`] | queue pairs; creating and destroying them |
//! | [`modify`], [`ece`] | the checks of `ibv_modify_qp`; options that peers agree on before they connect |
//! | [`post`], [`bind`], [`builder`] | work requests: lists, binds of windows, the extended interface |
//! | [`srq`], [`xrc`], [`wq`] | shared receive queues, extended reliable connections, receive work queues |
//! | [`ah`], [`mcast`], [`flow`] | where datagrams go, multicast groups, which raw frames arrive |

pub mod ah;
pub mod bind;
pub mod builder;
pub mod creation;
pub mod ece;
pub mod flow;
pub mod mcast;
pub mod modify;
pub mod post;
pub mod qp;
pub mod srq;
pub mod wq;
pub mod xrc;

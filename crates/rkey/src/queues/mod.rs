//! Queue pairs, and operations in flight on them.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`completion`] | completion queues |
//! | [`queue_pair`], [`queue_pair_builder`], [`posts`] | queue pairs, and their options; the requests that a program posts |
//! | [`flight`] | the operations in flight on one queue |
//! | [`pending`], [`results`] | operations whose result no caller has taken yet; the results of atomics |
//! | [`one_sided`] | operations on the peer's memory, for every kind of connection |
//! | [`direct`] | mapped memory of a peer |

pub(crate) mod completion;
pub(crate) mod direct;
pub(crate) mod flight;
pub(crate) mod one_sided;
pub(crate) mod pending;
mod posts;
pub(crate) mod queue_pair;
pub(crate) mod queue_pair_builder;
pub(crate) mod results;

pub use completion::CompletionQueue;
pub use direct::DirectMemory;
pub use pending::Pending;
pub use queue_pair::{QueuePair, QueuePairAddress};
pub use queue_pair_builder::QueuePairBuilder;

//! Completion queues, and the channels that report to a waiting program that a queue has completions.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`cq`] | completion queues |
//! | [`cq_cursor`] | the state of an extended queue while a program polls it |
//! | [`status`] | completions in the form of verbs |
//! | [`channel`] | completion channels |
//! | [`acks`] | what completion events and asynchronous events have in common |

pub mod acks;
pub mod channel;
pub mod cq;
pub mod cq_cursor;
pub mod status;

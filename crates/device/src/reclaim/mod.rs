//! Memory that peers reach by themselves, and how the program gets it back.
//!
//! Peers reach memory of this process without its engine in two ways: by a direct lease, which maps it
//! (`lease`, `segment`; taken back in `revoke`), and by a system call that copies what a request named by reference
//! (`remote_copies`; `quiesce` gives back what the requests of one queue pair named).

pub(crate) mod lease;
pub(crate) mod lease_messages;
mod quiesce;
pub(crate) mod remote_copies;
mod revoke;
mod segment;

//! Fetching events. This is when identifiers, queue pairs and memberships change: a program that does not fetch its
//! events does not connect.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`next_event`] | the next event of a channel, and waiting for the event of a synchronous call |
//! | [`fetch`] | what each event changes |
//! | [`path`] | the path of an identifier, which events announce |

pub mod fetch;
pub mod next_event;
pub mod path;

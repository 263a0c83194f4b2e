//! What program threads share with the connection manager's thread, under the connection manager's lock. Nothing here
//! is visible to a C program.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`hub`] | identifiers, event channels and pending events |
//! | [`member`] | memberships in multicast groups |
//! | `handler`, [`view`] | what the connection manager's thread does with them, and shows of them to `rkey ls` |
//! | [`front`] | access to the connection manager of this process |
//! | [`ports`] | the ports of identifiers |
//! | [`event_fd`] | the descriptor of an event channel |

pub mod event_fd;
pub mod front;
mod handler;
pub mod hub;
pub mod member;
pub mod ports;
pub mod view;

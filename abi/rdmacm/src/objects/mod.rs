//! Identifiers, event channels and events, as C programs see them.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`id`], [`ids`] | identifiers; creating, destroying and migrating them |
//! | [`channel`] | event channels |
//! | [`event`] | fetched events, until they are acknowledged |
//! | [`unpolled`] | completions that precede a disconnection |

pub mod channel;
pub mod event;
pub mod id;
pub mod ids;
pub mod unpolled;

//! The function tables of endpoints and shared contexts, with the calls behind them. Tables refer to objects; no object
//! refers to a table.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`object`], [`scalable`] | endpoints, scalable endpoints |
//! | [`shared`], [`stx`] | shared receive contexts, shared transmit contexts |
//! | [`msg`], [`tagged`], [`rma`], [`atomic`], [`collective`] | the transfers; [`calls`] is what the first two have in common |
//! | [`work`], [`deferred`] | triggered operations and the deferred work queue |

mod atomic;
mod calls;
pub(crate) mod collective;
mod deferred;
mod msg;
pub(crate) mod object;
mod rma;
pub(crate) mod scalable;
pub(crate) mod shared;
pub(crate) mod stx;
mod tagged;
pub(crate) mod work;

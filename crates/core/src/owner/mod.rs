//! The owner's operations: what changes the table, and what shows it.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`registration`], [`geometry`], [`requesting`] | register and deregister; where the memory is; requested keys |
//! | [`configure`] | enable, bind to an endpoint or a counter |
//! | [`magazine`] | registering and deregistering without the table's lock |
//! | [`change`] | re-registration |
//! | [`null`], [`foreign`] | regions without memory, and of memory that only its runtime may copy |
//! | [`binding`], [`invalidate`] | windows: bind, unbind, invalidate |
//! | [`snapshot`] | the table as a value, for inspection |

pub(crate) mod binding;
pub(crate) mod change;
mod configure;
pub(crate) mod foreign;
pub(crate) mod geometry;
mod invalidate;
pub(crate) mod magazine;
pub(crate) mod null;
pub(crate) mod registration;
mod requesting;
pub(crate) mod snapshot;

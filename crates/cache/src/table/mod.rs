//! The entries, and how they begin and end: the part of the cache that monitors access.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`word`] | the life of one entry, in one atomic word |
//! | [`entries`] | all entries: their ranges, and what ends them |
//! | [`values`] | the registrations of entries |
//! | [`index`] | finds an entry by address |

pub(crate) mod entries;
pub(crate) mod index;
#[cfg(all(test, loom))]
mod loom_models;
pub(crate) mod values;
pub(crate) mod word;

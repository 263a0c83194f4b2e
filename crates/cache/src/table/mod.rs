//! The entries, and how they begin and end: the part of the cache that monitors access.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`word`] | the life of one entry, in one atomic word |
//! | [`slots`] | room for entries, with their ranges and classes |
//! | [`buckets`] | finds entries by address |
//! | [`entries`] | all entries, and what ends them |
//! | [`values`] | the registrations of entries |

mod buckets;
pub(crate) mod entries;
#[cfg(all(test, loom))]
mod loom_models;
pub(crate) mod slots;
pub(crate) mod values;
pub(crate) mod word;

//! The objects of a table as values: their ids, attributes, states and limits.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`id`] | ids of objects, keys, and the identity of a requester |
//! | [`domain`], [`region`], [`window`] | the attributes of domains, regions and windows |
//! | [`state`] | the states of regions and windows, as tables |
//! | [`limits`] | limits of a device |
//! | [`error`] | errors of the owner's operations |

pub(crate) mod domain;
pub(crate) mod error;
pub(crate) mod id;
pub(crate) mod limits;
pub(crate) mod region;
pub(crate) mod state;
pub(crate) mod window;

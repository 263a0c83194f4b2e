//! Keys: how they are chosen, and how a check finds the slot that a key names.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`key`] | the keys of a device, in the order in which they are issued |
//! | [`secrets`], [`cipher`] | the device's secrets; the permutation that hides that order |
//! | [`key_table`], [`requested`] | lock-free maps from keys to slots: the device's keys, and those that programs request |
//! | [`raw`] | keys as bytes, with everything that a peer needs |

pub(crate) mod cipher;
pub(crate) mod key;
pub(crate) mod key_table;
pub(crate) mod raw;
pub(crate) mod requested;
pub(crate) mod secrets;

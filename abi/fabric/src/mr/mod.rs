//! Memory registration: `fi_mr`.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`attr`] | the three calls, brought to one request, and what is checked about it |
//! | [`region`] | the object: made, enabled, closed; its key and descriptor |
//! | [`bind`] | counters and endpoints |
//! | [`refresh`] | pages that changed |
//! | [`keyed`] | authorization keys from address vectors |
//! | [`mappings`] | what is mapped in the process |
//! | [`persistent`] | memory that outlives the process |
//! | [`announced`] | messages that peers may read out of regions |
//! | [`raw`] | raw keys: of our regions, and of peers |
//! | [`local`] | descriptors in data transfers |
//!
//! What a region allows, and to whom, is decided by the protection table of the device. What is decided here
//! is what belongs to libfabric alone: which request the mode in force allows, and what error a call answers.

pub(crate) mod announced;
pub(crate) mod attr;
pub(crate) mod bind;
mod keyed;
pub(crate) mod local;
mod mappings;
pub(crate) mod persistent;
pub(crate) mod raw;
pub(crate) mod refresh;
pub(crate) mod region;

use crate::sys::OpsMr;

/// The registration calls of a domain.
pub(crate) static OPS: OpsMr = OpsMr {
    size: size_of::<OpsMr>(),
    reg: attr::reg,
    regv: attr::regv,
    regattr: attr::regattr,
};

//! Memory registration: `fi_mr`.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`attr`] | a registration as one request, and its checks |
//! | [`region`] | the object: creating, enabling and closing it; its key and descriptor |
//! | [`bind`] | counters and endpoints |
//! | [`refresh`] | `fi_mr_refresh`: pages that have changed |
//! | [`keyed`] | authorization keys from address vectors |
//! | [`hmem`] | accelerator memory, and DMA-bufs |
//! | [`runtimes`] | what the runtimes of accelerators report about memory |
//! | [`mappings`] | the mappings of the process |
//! | [`persistent`] | memory that outlives the process |
//! | [`exposed`] | rendezvous messages that peers read from regions |
//! | [`raw`] | raw keys: of our regions, and of peers |
//! | [`local`] | descriptors in data transfers |
//! | [`cached`] | the registration caches |
//! | [`buffers`] | buffers that the provider registers itself |
//! | [`imported`] | the memory monitor that a program imports into the caches |
//! | [`monitor`] | the variables of the caches, and the monitor that they choose |
//!
//! The device's protection table decides what a region allows, and to whom. This module decides only what is specific to
//! libfabric: which requests the mode in force allows, and which error a call returns.

pub(crate) mod attr;
pub(crate) mod bind;
pub(crate) mod buffers;
pub(crate) mod cached;
pub(crate) mod exposed;
pub(crate) mod hmem;
pub(crate) mod imported;
mod keyed;
pub(crate) mod local;
mod mappings;
mod monitor;
pub(crate) mod persistent;
pub(crate) mod raw;
pub(crate) mod refresh;
pub(crate) mod region;
mod runtimes;

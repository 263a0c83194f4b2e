//! Memory that queue pairs may access, and the protection domains that tie the two together.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`pd`] | protection domains, parent domains and thread domains |
//! | [`mr`], [`mr_ex`] | memory regions; one call for every kind of memory |
//! | [`rereg`], [`advise`] | changing a region, and prefetching its pages |
//! | [`dm`], [`dm_mr`] | device memory and its regions |
//! | [`buf`] | buffers that the library allocates |
//! | [`mw`] | memory windows |

pub mod advise;
pub mod buf;
pub mod dm;
pub mod dm_mr;
pub mod mr;
pub mod mr_ex;
pub mod mw;
pub mod pd;
pub mod rereg;

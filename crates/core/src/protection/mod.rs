//! The protection table: slots that checks read without a lock, a registry under one lock, and the grants that keep a
//! region from ending.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`table`] | the table |
//! | [`slots`], [`entry`] | its slots: claimed and freed; the contents of one |
//! | [`domains`], [`windows`] | its domains and windows: opened and closed, created and deallocated |
//! | [`scatter`] | regions of several memory segments |
//! | [`stock`] | what magazines contain |
//! | [`grant`], [`granted`] | grants and their memory; the end of a region, which waits for its grants |
//! | [`drained`] | what the end of a region needs to know about the grants of a section |
//! | [`hold`] | regions that cannot end while they are being changed |

pub(crate) mod domains;
pub(crate) mod drained;
pub(crate) mod entry;
pub(crate) mod grant;
pub(crate) mod granted;
pub(crate) mod hold;
pub(crate) mod scatter;
pub(crate) mod slots;
pub(crate) mod stock;
pub(crate) mod table;
pub(crate) mod windows;

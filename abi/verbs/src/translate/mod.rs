//! Translation between the terms of verbs and those of the device or the kernel. These files have no state.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`flags`] | access flags |
//! | [`errno`] | error numbers |
//! | [`strings`] | the texts for constants, and conversions of rates |
//! | [`convert`] | the kernel's structures |

pub mod convert;
pub mod errno;
pub mod flags;
pub mod strings;

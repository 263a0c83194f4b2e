//! What programs expect of a NIC and its library, and this device does not have or does not need.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`absent`] | objects of later versions that this device lacks |
//! | [`fork`] | fork support, which this device does not need |
//! | [`interpose`], [`emulated`] | the device files that programs look for |
//! | [`private`] | functions that only provider libraries of vendors call |

pub mod absent;
pub mod emulated;
pub mod fork;
pub mod interpose;
pub mod private;

//! `libdat.so.1`: the ABI of uDAPL 1.1 and 1.2, which the manual page of `dat_rmr_bind` describes.
//!
//! Distributions no longer ship this library. It has no objects of its own: every call goes to the function table of our
//! provider for DAT 2.0, whose address is the first word of each handle. The library translates what differs between the
//! versions: triplets of 24 bytes instead of 16, lengths of 64 bits, `dat_rmr_bind` with 7 arguments instead of 9, some
//! structures, masks and error subtypes.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`layouts`] | the structures of DAT 1.2 that DAT 2.0 changed |
//! | [`code`] | return codes, and their texts |
//! | [`table`] | how calls reach the provider; calls that are the same in both versions |
//! | [`provider`] | the provider, in the shared object of the front ends |
//! | [`ia`] | opening, closing and querying adapters |
//! | [`memory`] | LMRs and RMRs |
//! | [`endpoint`], [`post`] | EPs and what they post |
//! | [`event`] | EVDs, CNOs and SRQs |

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

pub mod code;
pub mod endpoint;
pub mod event;
pub mod ia;
pub mod layouts;
pub mod memory;
pub mod post;
pub mod provider;
pub mod table;

//! `libfabric.so.1` with one provider: our own. Programs that are linked with libfabric run on it where no libfabric is
//! installed, or where no other provider should be chosen.
//!
//! The library has no objects of its own. It loads the shared object of the front ends, which has the provider, and
//! exports the functions of libfabric that are not in operation tables: those that list, copy and print what a provider offers.
//! Programs linked with older versions of libfabric pass shorter structures, which it copies.
//!
//! | module | what it is |
//! | --- | --- |
//! | `export` | the exported symbols and their versions |
//! | [`provider`] | the provider, and whether a program wants it |
//! | [`layout`] | the lengths of structures in each version |
//! | [`info`] | `fi_getinfo`, `fi_dupinfo`, `fi_freeinfo` |
//! | [`fabric`] | `fi_fabric`, `fi_open`, `fi_version`, `fi_strerror` |
//! | [`text`] | `fi_tostr` |
//! | [`params`] | environment variables |
//! | [`log`] | `fi_log` |
//! | `variadic` | arguments of C functions with `...` |
//! | [`status`] | error numbers |

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

#[allow(unsafe_code)]
// UNSAFETY: assembly that makes the exported symbols.
mod export;
pub mod fabric;
pub mod info;
pub mod layout;
pub mod log;
pub mod params;
pub mod provider;
pub mod status;
pub mod text;
mod variadic;

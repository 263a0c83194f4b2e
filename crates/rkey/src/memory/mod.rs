//! Registered memory, and the keys that peers need for it.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`owned`] | ownership and lifetime of registered bytes; the only module with `unsafe` |
//! | [`options`] | the options of a region |
//! | [`memory_region`] | what all registered memory has in common: copies, updates, keys |
//! | [`region`] | regions that own their buffer |
//! | [`scope`], [`cached`] | borrowed memory, registered during a closure; registrations that are kept for the next use |
//! | [`window`] | narrower keys for parts of a region |
//! | [`key`] | remote keys |
//! | [`shared`] | memory that peers can map |

pub(crate) mod cached;
pub(crate) mod key;
pub(crate) mod memory_region;
pub(crate) mod options;
pub(crate) mod owned;
pub(crate) mod region;
pub(crate) mod scope;
pub(crate) mod shared;
pub(crate) mod window;

pub use cached::CachedRegion;
pub use key::{REMOTE_KEY_BYTES, RemoteKey};
pub use memory_region::MemoryRegion;
pub use options::RegionOptions;
pub use owned::{Buffer, PrivateBuffer};
pub use region::{Published, Region};
pub use scope::{Scope, ScopedRegion};
pub use shared::SharedMemory;
pub use window::Window;

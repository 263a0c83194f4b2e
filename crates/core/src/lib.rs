//! The protection core: who may access which memory, and if not, why not.
//!
//! A [`Protection`] table records domains, memory regions and memory windows and the keys that name them. One function
//! decides every access: [`Protection::check_remote`] (or its local counterpart) returns a [`Grant`], permission to
//! access exactly these bytes until it is dropped, or a [`Denial`], a value with everything needed to understand
//! the refusal.
//!
//! The crate does no input or output, starts no thread, reads no clock and contains no unsafe code: inputs are
//! arguments, outputs are values. Checks take no lock, except to look up a scatter list. Every change of the table
//! briefly takes one spin lock, except that a thread with a [`Magazine`] usually registers and deregisters
//! without it.
//!
//! | folder or file | what it is |
//! | --- | --- |
//! | `sync` | the atomics of the lock-free checks |
//! | `rights` | access rights, and rules that only some APIs have |
//! | `objects` | ids, attributes, states and limits of domains, regions and windows |
//! | `keys` | the choice of keys, and the maps from keys to slots |
//! | `denials` | denials, and their text |
//! | `protection` | the table, its slots, and grants |
//! | `owner` | the owner's operations |
//! | `checks` | the decision (an engine's checks start in `section`, without a pin) |
//!
//! A folder depends only on those above it in this table.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(
    not(test),
    warn(
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::too_many_lines,
        clippy::unwrap_used
    )
)]

mod checks;
mod denials;
mod keys;
#[cfg(all(test, loom))]
mod loom_models;
mod objects;
mod owner;
mod protection;
mod rights;
mod sync;

pub use checks::section::{Draining, FastGrant, PlainRegion, Section, SectionLock};
pub use denials::denial::{Attempt, DENIAL_LEN, Denial, NamedKey, Reason, SlotNow};
pub use keys::raw::{RawKey, RawKeyMap};
pub use keys::secrets::Secrets;
pub use objects::domain::DomainChildren;
pub use objects::error::{BindError, CoreError};
pub use objects::id::{Accessor, DomainId, Key, LKey, RKey, RegionId, WindowId};
pub use objects::limits::{Limit, Limits};
pub use objects::region::{Addressing, Change, MemoryKind, Region, RegionSpec};
pub use objects::window::{BindRegion, BindRequest, Window, WindowKind};
pub use owner::change::Changing;
pub use owner::magazine::Magazine;
pub use owner::snapshot::{Binding, DomainInfo, RegionInfo, Snapshot, WindowInfo};
pub use protection::grant::{Deregistering, Grant, Spans};
pub use protection::table::Protection;
pub use rights::access::{Access, LocalUse, Operation};
pub use rights::api::{Api, Words};
pub use rights::rules::Rules;

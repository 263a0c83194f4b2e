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
//! Rights are in `access`, rules that only some APIs have in `rules`, the choice of keys in `key`, the decision in
//! `check` (an engine's checks start in `section`, without a pin), the text of a denial in `explain`, and the states of
//! regions and windows in `state`. The owner's operations are in `domain`, `registration`, `configure` and `change` for
//! regions, `windows`, `binding` and `invalidate` for windows; `table` has the table itself, and `slots` its slots.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(
    not(test),
    warn(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)
)]

mod access;
mod api;
mod binding;
mod change;
mod check;
mod cipher;
mod configure;
mod denial;
mod domain;
mod domains;
mod drained;
mod entry;
mod error;
mod explain;
mod foreign;
mod geometry;
mod grant;
mod granted;
mod hold;
mod id;
mod invalidate;
mod key;
mod key_table;
mod limits;
#[cfg(all(test, loom))]
mod loom_models;
mod magazine;
mod null;
mod range_check;
mod raw;
mod refusal;
mod region;
mod registration;
mod requested;
mod requesting;
mod rules;
mod scatter;
mod secrets;
mod section;
mod slots;
mod snapshot;
mod state;
mod stock;
mod sync;
mod table;
mod window;
mod windows;
mod wording;

pub use access::{Access, LocalUse, Operation};
pub use api::{Api, Words};
pub use change::Changing;
pub use denial::{Attempt, DENIAL_LEN, Denial, NamedKey, Reason, SlotNow};
pub use domain::DomainChildren;
pub use error::{BindError, CoreError};
pub use grant::{Deregistering, Grant, Spans};
pub use id::{Accessor, DomainId, Key, LKey, RKey, RegionId, WindowId};
pub use limits::{Limit, Limits};
pub use magazine::Magazine;
pub use raw::{RawKey, RawKeyMap};
pub use region::{Addressing, Change, MemoryKind, Region, RegionSpec};
pub use rules::Rules;
pub use secrets::Secrets;
pub use section::{Draining, Section, SectionLock};
pub use snapshot::{Binding, DomainInfo, RegionInfo, Snapshot, WindowInfo};
pub use table::Protection;
pub use window::{BindRegion, BindRequest, Window, WindowKind};

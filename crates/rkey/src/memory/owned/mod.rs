//! The one module with `unsafe`: ownership and lifetime of registered bytes.
//!
//! The device may read and write registered memory at any moment, from its own thread and for
//! peers. That is sound under three conditions, which this module enforces:
//!
//! 1. **The bytes stay where they are.** A buffer is moved to the heap *before* its address is
//!    taken and is not moved again until it is deregistered.
//! 2. **There is no reference to them.** While registered, a buffer is accessed only through
//!    raw addresses: copies and atomics made by the device's own copy routine. `&[u8]` exists only
//!    where the registration has no right that could change a byte.
//! 3. **They are not freed before the device has released them.** Deregistering first makes the region's keys stale,
//!    then waits until no operation touches the memory. Only then is the buffer returned or dropped. If deregistering
//!    fails for a reason that leaves the region registered, the buffer is leaked (owned) or the process is
//!    aborted (borrowed); it is never freed.
//!
//! In-flight operations need no lifetime: the engine holds a grant for the region during each step, and requests a new
//! one for the next step. After the region is deregistered, that request is denied.
//!
//! Cached registrations (`lender`) stay after the program has dropped them. Their bytes are borrowed until the end of the
//! scope that owns the cache, and the scope deregisters them before it ends.
//!
//! The buffers of an endpoint's messages (`lent`) are not registered, except while a peer reads one. Their operation owns
//! them under the same conditions, until the state machine of the endpoint reports that the operation has ended.

// UNSAFETY: Rust's references cannot describe memory that outside agents change; the rules above are the contract under
// which the device gets raw addresses.
#![allow(unsafe_code)]

mod borrows;
mod buffer;
mod held;
mod lender;
mod lent;
mod registered;

pub use buffer::{Buffer, PrivateBuffer};

pub(crate) use borrows::{Borrows, with_borrows};
pub(crate) use held::Owned;
pub(crate) use lender::{BorrowedCache, Lender};
pub(crate) use lent::{Exposed, Lent, LocalMemory};
pub(crate) use registered::{Registered, RegistrationRequest};

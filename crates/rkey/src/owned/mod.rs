//! The one module with `unsafe`: who owns registered bytes, and for how long.
//!
//! The device may read and write registered memory at any moment, from its own thread and for
//! peers. That is sound if three things hold, and this module is where they are made to hold:
//!
//! 1. **The bytes stay where they are.** A buffer is moved to the heap *before* its address is
//!    taken and is not moved again until its registration is closed.
//! 2. **Nobody else has a reference to them.** While registered, a buffer is reached only through
//!    raw addresses: copies and atomics made by the device's own copy routine. `&[u8]` exists only
//!    where the registration has no right by which a byte could change.
//! 3. **They are not freed before the device has let go.** Closing a registration first makes its
//!    keys refuse, then waits until no operation touches the memory. Only then is the buffer given
//!    back or dropped. If closing fails for a reason that leaves the registration alive, the
//!    buffer is leaked (owned) or the process ends (borrowed); it is never freed.
//!
//! In-flight operations need no lifetime of their own: the engine holds a lease on the region for
//! each step it copies, and asks for a new lease for the next. After the close it gets a refusal.

// UNSAFETY: memory that outside agents change cannot be described by Rust's references; the rules
// above are the contract under which the device is given raw addresses.
#![allow(unsafe_code)]

mod borrows;
mod buffer;
mod held;
mod registered;

pub use buffer::{Buffer, PrivateBuffer};

pub(crate) use borrows::{Borrows, with_borrows};
pub(crate) use held::Owned;
pub(crate) use registered::{Registered, Wish};

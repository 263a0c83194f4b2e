//! Handles: from the address that a program passes to the object behind it.
//!
//! Each kind of object has a pool ([`rkey_kit::Pool`]), whose slots begin with the C structure that the program
//! reads. The rules for every exported function:
//!
//! * A handle may be any address. One that is not a live object of its kind is refused with `EINVAL`. While a
//!   call uses an object, no other thread may destroy it.
//! * A pointer to attributes or output is null (refused with `EINVAL`), or valid for the whole call and not
//!   used by other threads.
//! * The call that destroys an object must be its last use.

pub use rkey_kit::argument::{input, output};
pub use rkey_kit::object::{
    Object, Users, find, find_or_null, handle_of, insert, remove, remove_sparing, vacant,
};

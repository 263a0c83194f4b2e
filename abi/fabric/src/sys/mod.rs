//! The structures and numbers of libfabric's headers, as C programs were compiled against them.
//!
//! Written by hand from the headers of 1.17, with the fields that later versions appended (up to API
//! 2.6). What a program passes may be shorter than the structures here: fields after the layout of
//! 1.17 are read only when the version that the program asked for has them. Sizes and offsets are checked
//! when this crate is compiled, and by a test against the headers that are installed. Values of C
//! enumerations are plain integers, because a C program can put anything there. Names and meaning of the
//! fields are those of the manual pages.
#![allow(missing_docs)]

pub mod collective;
pub mod consts;
pub mod events;
pub mod info;
pub mod mr;
pub mod objects;
pub mod ops;
pub mod transfer;
pub mod trigger;

pub use collective::*;
pub use consts::*;
pub use events::*;
pub use info::*;
pub use mr::*;
pub use objects::*;
pub use ops::*;
pub use transfer::*;
pub use trigger::*;

/// Checks the size of a structure and where its fields are.
macro_rules! layout {
    ($type:ty, $size:literal $(, $($field:ident).+ @ $offset:literal)*) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(core::mem::offset_of!($type, $($field).+) == $offset);)*
        };
    };
}
pub(crate) use layout;

/// `FI_VERSION`.
#[must_use]
pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

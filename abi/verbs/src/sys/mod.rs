//! The structures and numbers of `infiniband/verbs.h`, as C programs were compiled against them.
//!
//! Written by hand from the header of rdma-core 44, with the fields that rdma-core 65 added at the
//! front of [`VerbsContext`] and at the end of [`QpEx`] and [`PortAttr`]. Sizes and offsets are checked
//! when this crate is compiled, against the figures that a C compiler gave for that header. Names are
//! those of the header in Rust's spelling; values of C enumerations are plain integers, because a C program can
//! put anything there.

pub mod attr;
pub mod consts;
pub mod context;
pub mod kern;
pub mod objects;
pub mod work;

pub use attr::*;
pub use context::*;
pub use objects::*;
pub use work::*;

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

/// 16 bytes that name a port.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);
layout!(Gid, 16);

//! The functions of the C interface: each checks its arguments, and then asks an object. [`crate::provider`] has the table
//! of them.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`ia`], [`ia_attr`] | IAs and handles of any kind; the attributes of an IA |
//! | [`pz`], [`lmr`], [`rmr`] | memory: zones, regions, and binds |
//! | [`evd`], [`cno`] | events |
//! | [`ep`] | endpoints, except posting |
//! | [`post`], [`srq`] | posting DTOs; shared receive queues |
//! | [`psp`], [`rsp`], [`cr`] | service points, and the connection requests of peers |
//! | [`ext`] | the InfiniBand extension |

pub mod cno;
pub mod cr;
pub mod ep;
pub mod evd;
pub mod ext;
pub mod ia;
pub mod ia_attr;
pub mod lmr;
pub mod post;
pub mod psp;
pub mod pz;
pub mod rmr;
pub mod rsp;
pub mod srq;

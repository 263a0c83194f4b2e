//! The decision about each access.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`check`] | a grant, or a denial |
//! | [`range_check`], [`refusal`] | the memory that an address and a length name; why a key, a slot or a right is refused |
//! | [`section`] | checks under a lock that the caller holds anyway, without a pin |

pub(crate) mod check;
mod range_check;
mod refusal;
pub(crate) mod section;

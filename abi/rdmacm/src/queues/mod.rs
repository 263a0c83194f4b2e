//! The queue pairs of identifiers, through the functions of the verbs front end.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`verbs`] | the verbs calls that this library makes |
//! | [`qp`], [`qp_attr`] | queue pairs, and the attributes for moving them between states |
//! | [`srq`] | shared receive queues |

pub mod qp;
pub mod qp_attr;
pub mod srq;
pub mod verbs;

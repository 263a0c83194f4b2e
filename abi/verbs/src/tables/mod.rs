//! The function tables behind the inline functions of the header: those of a context, of an extended completion queue
//! and of an extended queue pair. Tables refer to objects; no object refers to a table.

pub mod context;
pub mod cq_ex;
pub mod qp_ex;

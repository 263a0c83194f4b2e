//! The tables of functions that inline functions of the header call: those of a context, of an extended completion queue
//! and of an extended queue pair. They stand on top: they know the objects, and no object knows them.

pub mod context;
pub mod cq_ex;
pub mod qp_ex;

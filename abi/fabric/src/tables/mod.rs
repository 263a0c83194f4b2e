//! The function tables behind the inline functions of the headers: those of a fabric, of a domain and of its regions.
//! A table names the objects that its calls open or bind; no object knows a table.

pub(crate) mod domain;
pub(crate) mod fabric;
mod mr;

//! The function tables behind the inline functions of the headers: those of a fabric, of a domain and of its regions. A
//! table refers to the objects that its calls open or bind; no object refers to a table.

pub(crate) mod domain;
pub(crate) mod fabric;
mod mr;
pub(crate) mod open;

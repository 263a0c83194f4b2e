//! What every call does first and last: it finds the objects behind handles, reads its arguments, and returns a code.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`object`] | handles: from the address that a program holds to the object |
//! | [`entries`] | the providers of IA names: each has the function table to which handles point |
//! | [`registry`] | the functions of libdat2 that we call: its registry of providers, its numbers for open IAs |
//! | [`argument`], [`va_list`] | arguments: addresses, counts, timeouts; those of a C function with `...` |
//! | [`fail`] | return codes of failed calls |

pub mod argument;
pub mod entries;
pub mod fail;
pub mod object;
pub mod registry;
pub mod va_list;

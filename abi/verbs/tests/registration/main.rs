//! What `ibv_reg_mr` and `ibv_dereg_mr`, windows and re-registration promise a C program, each promise with
//! requests that rely on it.

#![allow(unsafe_code)]
// UNSAFETY: calls the C functions.

mod keys;
mod posting;
mod windows;
mod world;

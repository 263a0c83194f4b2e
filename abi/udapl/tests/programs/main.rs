//! Programs in C that are linked with Debian's `libdat2.so.2`, which loads our provider, each in a process of its own.
//!
//! `cargo xtask test` installs what they need, so a missing compiler or library is a failure.

mod apis;
mod bind;
mod handles;
mod layout;
mod support;

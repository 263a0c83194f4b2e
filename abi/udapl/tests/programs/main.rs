//! C programs linked with Debian's `libdat2.so.2`, which loads our provider. Each runs in its own process.
//!
//! `cargo xtask test` installs what they need, so a missing compiler or library is a failure.

mod across;
mod apis;
mod bind;
mod handles;
mod hosts;
mod layout;
mod support;

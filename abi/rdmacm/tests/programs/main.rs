//! Programs that use the library, each in processes of its own: ours, which make the calls one by one, and those that Debian ships
//! (rdma-core, perftest and others).
//!
//! If a program is missing, its test fails: `cargo xtask test` installs all of them.

mod calls;
mod hosts;
mod large;
mod layout;
mod oracle;
mod others;
mod rsockets;
mod rust_peers;
mod stock;
mod support;

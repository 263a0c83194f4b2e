//! Programs on the library, each in its own processes: our own, which make the calls one by one, and those of rdma-core and
//! perftest as Debian ships them.
//!
//! A missing program fails its test: `cargo xtask test` installs all of them.

mod calls;
mod hosts;
mod layout;
mod oracle;
mod others;
mod rsockets;
mod rust_peers;
mod stock;
mod support;

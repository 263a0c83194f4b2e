//! Other projects' programs, each a stage of `cargo xtask test`. On the device: rdma-core's Python tests, the clauses of
//! `fi_mr` through an installed libfabric with libfabric's own programs, MPI on four ranks, the Mooncake transfer
//! engine, and uDAPL's programs. In a virtual machine: the
//! kernel's Soft-RoCE as the peer. Their results are compared with those recorded in the repository; `--record` records new
//! ones. cargo-deny checks the dependencies.

pub mod deny;
pub mod fabric;
mod folder;
pub mod mpi;
mod python;
pub mod rdma_core;
mod server;
pub mod soft_roce;
pub mod transfer;
pub mod udapl;

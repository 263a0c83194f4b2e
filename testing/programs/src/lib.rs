//! Other projects' programs on the device, each a stage of `cargo xtask test`: rdma-core's Python tests, the clauses of
//! `fi_mr` through an installed libfabric with libfabric's own programs, MPI on four ranks, and the Mooncake transfer
//! engine. What comes is compared with results recorded in the repository; `--record` renews these.

pub mod fabric;
mod folder;
pub mod mpi;
mod python;
pub mod rdma_core;
pub mod transfer;

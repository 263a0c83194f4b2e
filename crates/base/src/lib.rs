//! Building blocks that are independent of RDMA.
//!
//! Everything in `rkey` that must touch raw memory, a signal handler or another process is here, in small modules with
//! safe interfaces, so that the layers above can be written without `unsafe`. RDMA terms (key, region, queue pair) do
//! not occur in this crate, so that each module can be read, tested and reused on its own.
//!
//! | module | contents |
//! | --- | --- |
//! | [`range`] | address ranges that cannot wrap around |
//! | [`lock`] | a spin lock for critical sections of a few nanoseconds |
//! | [`biased`] | a lock that costs its owner almost nothing |
//! | [`slab`] | numbered slots with generations, reference counts and a two-step end of life |
//! | [`fifo`] | a bounded queue whose consumers do not wait for the producer |
//! | [`fault`], [`copy`] | copies and atomics that return an error where a plain access would crash |
//! | [`shared`] | views of memory that a peer process can see or change |
//! | [`memory`] | the trait for access to the memory of a program |
//! | [`foreign`] | memory that only its own runtime or driver may copy |
//! | [`segment`] | sealed shared-memory segments, our own and a peer's |
//! | [`barrier`] | memory barriers that cost nothing on one side |
//! | [`process`] | other processes: whether they are alive, copies to and from their memory, forks of this process |
//! | [`interfaces`] | the network interfaces of this host and their addresses |
//! | [`limit`] | how many log lines a peer may cause |
//! | `long_double` | the numbers of the x87 unit (x86-64 only) |
//! | [`hint`] | prefetch and pause |
//! | `sync` | atomics and cells, or loom's |

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::too_many_lines, clippy::unwrap_used))]

pub mod barrier;
pub mod biased;
pub mod copy;
pub mod fault;
pub mod fifo;
pub mod foreign;
pub mod hint;
pub mod interfaces;
pub mod limit;
pub mod lock;
#[cfg(target_arch = "x86_64")]
pub mod long_double;
pub mod memory;
pub mod process;
pub mod range;
pub mod segment;
pub mod shared;
pub mod slab;
mod sync;

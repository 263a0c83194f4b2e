//! Other processes, and forks of this process.
//!
//! * [`PidFd`]: a process, named by a descriptor that never refers to another one.
//! * [`cma_read`], [`cma_write`]: copies between our memory and another process's, by the kernel ("cross memory
//!   attach", `process_vm_readv(2)`). The other process can prevent further calls under a permit
//!   ([`crate::segment::PeerPermit`]) by revoking it.
//! * [`Canary`]: a page by which a peer notices that a process executes another program.
//! * [`no_thread_copies`]: whether no thread of a process is in such a copy now; [`CallWatch`]: whether it is still in one that
//!   began before some moment.
//! * [`stat_field`]: one field of `/proc/*/stat` of a process or a thread.
//! * [`resident()`]: how much memory this process uses.
//! * [`ForkMark`]: whether this is still the process that made the mark, or a forked child of it.

mod canary;
mod cma;
mod cma_in_order;
mod coarse_time;
mod fork;
mod pidfd;
mod resident;
mod threads;
mod watch;

pub use canary::Canary;
pub use cma::{CmaError, cma_read, cma_read_with, cma_write, cma_write_with};
pub use cma_in_order::{cma_write_in_order, cma_writes_words};
pub use coarse_time::coarse_time;
pub use fork::{ForkMark, incarnation};
pub use pidfd::PidFd;
pub use resident::resident;
pub use threads::{no_thread_copies, stat_field};
pub use watch::{CallWatch, LONGEST_CALL};

/// The size of a page of memory, in bytes.
#[must_use]
pub fn page_size() -> usize {
    rustix::param::page_size()
}

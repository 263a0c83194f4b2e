//! Other processes, and forks of our own.
#![allow(
    clippy::unimplemented,
    missing_docs,
    unsafe_code,
    clippy::missing_safety_doc
)]
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use thiserror::Error;
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
}
impl PidFd {
    pub fn open(_pid: u32) -> io::Result<Self> {
        unimplemented!()
    }
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }
    pub fn is_alive(&self) -> bool {
        unimplemented!()
    }
}
impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CmaError {
    #[error("the kernel refuses access to the memory of the process (error {errno})")]
    Refused { errno: i32 },
    #[error("the process is gone")]
    Gone,
    #[error("our memory at {address:#x} cannot be accessed")]
    LocalFault { address: u64 },
    #[error("the memory of the process at {address:#x} cannot be accessed")]
    RemoteFault { address: u64 },
}
pub unsafe fn cma_read(
    _pid: u32,
    _local: *mut u8,
    _remote: u64,
    _len: usize,
) -> Result<(), CmaError> {
    unimplemented!()
}
pub unsafe fn cma_write(
    _pid: u32,
    _local: *const u8,
    _remote: u64,
    _len: usize,
) -> Result<(), CmaError> {
    unimplemented!()
}
pub fn page_size() -> usize {
    unimplemented!()
}
/// Tells a forked child from the process that made the mark.
#[derive(Debug)]
pub struct ForkMark {
    _p: usize,
}
impl ForkMark {
    pub fn new() -> io::Result<Self> {
        unimplemented!()
    }
    pub fn is_child(&self) -> bool {
        unimplemented!()
    }
}

//! Copies and atomics that return a fault where a plain access would crash.
#![allow(
    clippy::unimplemented,
    missing_docs,
    unsafe_code,
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks
)]
use crate::fault::Fault;
use std::io;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Unguarded,
    Guarded,
    ByKernel,
}
pub fn install() -> io::Result<()> {
    unimplemented!()
}
pub fn still_installed() -> bool {
    unimplemented!()
}
/// At the start of a spell of work: looks whether the handlers are in place, repairs, returns the way copies are done.
pub fn check() -> Mode {
    unimplemented!()
}
pub fn mode() -> Mode {
    unimplemented!()
}
/// Unblocks SIGSEGV and SIGBUS in the calling thread.
pub fn prepare_thread() -> io::Result<()> {
    unimplemented!()
}
pub unsafe fn copy(_dst: *mut u8, _src: *const u8, _len: usize) -> Result<(), Fault> {
    unimplemented!()
}
pub unsafe fn compare_swap(_p: *mut u64, _compare: u64, _swap: u64) -> Result<u64, Fault> {
    unimplemented!()
}
pub unsafe fn fetch_add(_p: *mut u64, _add: u64) -> Result<u64, Fault> {
    unimplemented!()
}

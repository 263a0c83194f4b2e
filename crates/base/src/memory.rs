//! The port through which the memory of a program is touched.
#![allow(
    clippy::unimplemented,
    missing_docs,
    unsafe_code,
    clippy::missing_safety_doc
)]
use crate::fault::Fault;
use crate::range::VaRange;
use crate::shared::{Foreign, Place};
/// Memory of a program, by address. On a fault some of the bytes before it may have been transferred.
pub trait Memory {
    fn load(&self, dst: Place<'_>, src: u64) -> Result<(), Fault>;
    fn store(&self, dst: u64, src: Foreign<'_>) -> Result<(), Fault>;
    fn store_bytes(&self, dst: u64, src: &[u8]) -> Result<(), Fault>;
    fn load_bytes(&self, dst: &mut [u8], src: u64) -> Result<(), Fault>;
    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault>;
    fn compare_swap(&self, va: u64, compare: u64, swap: u64) -> Result<u64, Fault>;
    fn fetch_add(&self, va: u64, add: u64) -> Result<u64, Fault>;
}
/// The memory of this process.
#[derive(Debug)]
pub struct ProcessMemory {
    _p: (),
}
impl ProcessMemory {
    pub unsafe fn new() -> Self {
        unimplemented!()
    }
}
impl Memory for ProcessMemory {
    fn load(&self, _dst: Place<'_>, _src: u64) -> Result<(), Fault> {
        unimplemented!()
    }
    fn store(&self, _dst: u64, _src: Foreign<'_>) -> Result<(), Fault> {
        unimplemented!()
    }
    fn store_bytes(&self, _dst: u64, _src: &[u8]) -> Result<(), Fault> {
        unimplemented!()
    }
    fn load_bytes(&self, _dst: &mut [u8], _src: u64) -> Result<(), Fault> {
        unimplemented!()
    }
    fn copy(&self, _dst: u64, _src: u64, _len: u64) -> Result<(), Fault> {
        unimplemented!()
    }
    fn compare_swap(&self, _va: u64, _compare: u64, _swap: u64) -> Result<u64, Fault> {
        unimplemented!()
    }
    fn fetch_add(&self, _va: u64, _add: u64) -> Result<u64, Fault> {
        unimplemented!()
    }
}
/// For tests: owned memory at a made-up address, which faults outside it. Use it in an `Arc` to keep a handle.
#[derive(Debug)]
pub struct ArenaMemory {
    _v: std::sync::Mutex<Vec<u8>>,
}
impl ArenaMemory {
    /// `len` zeroes at address `base`.
    pub fn new(_base: u64, _len: usize) -> Self {
        unimplemented!()
    }
    pub fn range(&self) -> VaRange {
        unimplemented!()
    }
    /// Panics outside the arena; for tests.
    pub fn read(&self, _va: u64, _len: usize) -> Vec<u8> {
        unimplemented!()
    }
    pub fn write(&self, _va: u64, _bytes: &[u8]) {
        unimplemented!()
    }
    /// Makes a part of the arena inaccessible (as if unmapped).
    pub fn poison(&self, _range: VaRange) {
        unimplemented!()
    }
}
impl Memory for ArenaMemory {
    fn load(&self, _dst: Place<'_>, _src: u64) -> Result<(), Fault> {
        unimplemented!()
    }
    fn store(&self, _dst: u64, _src: Foreign<'_>) -> Result<(), Fault> {
        unimplemented!()
    }
    fn store_bytes(&self, _dst: u64, _src: &[u8]) -> Result<(), Fault> {
        unimplemented!()
    }
    fn load_bytes(&self, _dst: &mut [u8], _src: u64) -> Result<(), Fault> {
        unimplemented!()
    }
    fn copy(&self, _dst: u64, _src: u64, _len: u64) -> Result<(), Fault> {
        unimplemented!()
    }
    fn compare_swap(&self, _va: u64, _compare: u64, _swap: u64) -> Result<u64, Fault> {
        unimplemented!()
    }
    fn fetch_add(&self, _va: u64, _add: u64) -> Result<u64, Fault> {
        unimplemented!()
    }
}
impl<M: Memory + ?Sized> Memory for std::sync::Arc<M> {
    fn load(&self, dst: Place<'_>, src: u64) -> Result<(), Fault> {
        (**self).load(dst, src)
    }
    fn store(&self, dst: u64, src: Foreign<'_>) -> Result<(), Fault> {
        (**self).store(dst, src)
    }
    fn store_bytes(&self, dst: u64, src: &[u8]) -> Result<(), Fault> {
        (**self).store_bytes(dst, src)
    }
    fn load_bytes(&self, dst: &mut [u8], src: u64) -> Result<(), Fault> {
        (**self).load_bytes(dst, src)
    }
    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
        (**self).copy(dst, src, len)
    }
    fn compare_swap(&self, va: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        (**self).compare_swap(va, compare, swap)
    }
    fn fetch_add(&self, va: u64, add: u64) -> Result<u64, Fault> {
        (**self).fetch_add(va, add)
    }
}

//! Views of memory shared with a peer process; never `&[u8]`.
#![allow(
    clippy::unimplemented,
    missing_docs,
    unsafe_code,
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks
)]
use std::marker::PhantomData;
/// Bytes that only we write; a peer reads them. Offsets out of bounds panic (programming error).
#[derive(Debug)]
pub struct Place<'a> {
    ptr: *mut u8,
    len: usize,
    _life: PhantomData<&'a mut [u8]>,
}
/// Bytes that a peer may change at any time.
#[derive(Clone, Copy, Debug)]
pub struct Foreign<'a> {
    ptr: *const u8,
    len: usize,
    _life: PhantomData<&'a [u8]>,
}
unsafe impl Send for Place<'_> {}
unsafe impl Send for Foreign<'_> {}
unsafe impl Sync for Foreign<'_> {}
impl<'a> Place<'a> {
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self {
            ptr,
            len,
            _life: PhantomData,
        }
    }
    pub fn from_slice(bytes: &'a mut [u8]) -> Self {
        Self {
            ptr: bytes.as_mut_ptr(),
            len: bytes.len(),
            _life: PhantomData,
        }
    }
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }
    pub fn put(&mut self, _offset: usize, _bytes: &[u8]) {
        unimplemented!()
    }
    pub fn put_u8(&mut self, _offset: usize, _v: u8) {
        unimplemented!()
    }
    pub fn put_u16(&mut self, _offset: usize, _v: u16) {
        unimplemented!()
    }
    pub fn put_u32(&mut self, _offset: usize, _v: u32) {
        unimplemented!()
    }
    pub fn put_u64(&mut self, _offset: usize, _v: u64) {
        unimplemented!()
    }
    /// Release store, aligned.
    pub fn publish_u32(&mut self, _offset: usize, _v: u32) {
        unimplemented!()
    }
    pub fn publish_u64(&mut self, _offset: usize, _v: u64) {
        unimplemented!()
    }
    /// Copies all of `from` to `offset`.
    pub fn put_foreign(&mut self, _offset: usize, _from: Foreign<'_>) {
        unimplemented!()
    }
    pub fn split(self, _at: usize) -> (Place<'a>, Place<'a>) {
        unimplemented!()
    }
    pub fn reborrow(&mut self) -> Place<'_> {
        unimplemented!()
    }
}
impl<'a> Foreign<'a> {
    pub unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self {
            ptr,
            len,
            _life: PhantomData,
        }
    }
    pub fn from_slice(bytes: &'a [u8]) -> Self {
        Self {
            ptr: bytes.as_ptr(),
            len: bytes.len(),
            _life: PhantomData,
        }
    }
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }
    pub fn get(&self, _offset: usize, _into: &mut [u8]) {
        unimplemented!()
    }
    pub fn get_u8(&self, _offset: usize) -> u8 {
        unimplemented!()
    }
    pub fn get_u16(&self, _offset: usize) -> u16 {
        unimplemented!()
    }
    pub fn get_u32(&self, _offset: usize) -> u32 {
        unimplemented!()
    }
    pub fn get_u64(&self, _offset: usize) -> u64 {
        unimplemented!()
    }
    /// Acquire load, aligned.
    pub fn observe_u32(&self, _offset: usize) -> u32 {
        unimplemented!()
    }
    pub fn observe_u64(&self, _offset: usize) -> u64 {
        unimplemented!()
    }
    /// None when out of bounds.
    pub fn slice(&self, _offset: usize, _len: usize) -> Option<Foreign<'a>> {
        unimplemented!()
    }
}
